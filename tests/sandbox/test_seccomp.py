"""The filter, run here by an interpreter of classic BPF: also for machines that this one is not."""

import errno
import struct

import pytest

from longstep.sandbox.seccomp import ALLOW, ERRNO, MACHINES, REFUSED, seccomp_filter

DENIED, UNKNOWN, NO_FAMILY = (ERRNO | code for code in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))


def run(program: bytes, arch: int, number: int, argument: int = 0) -> int:
    """What the kernel would answer. Instructions: Documentation/networking/filter.rst."""
    data = struct.pack("<IIQ6Q", number, arch, 0, argument, 0, 0, 0, 0, 0)
    steps = [struct.unpack_from("<HBBI", program, i) for i in range(0, len(program), 8)]
    at = word = 0
    while True:
        code, then, other, k = steps[at]
        at += 1
        match code:
            case 0x20:
                (word,) = struct.unpack_from("<I", data, k)
            case 0x15:
                at += then if word == k else other
            case 0x35:
                at += then if word >= k else other
            case 0x45:
                at += then if word & k else other
            case 0x06:
                return k
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


@pytest.fixture(params=sorted(MACHINES))
def machine(request):
    arch, special, refused = MACHINES[request.param]
    program = seccomp_filter(request.param)
    assert program is not None
    return lambda number, argument=0, arch=arch: run(program, arch, number, argument), special, refused


def test_what_is_refused(machine):
    ask, _, refused = machine
    assert [ask(number) for number in refused] == [DENIED] * len(REFUSED.split())


def test_everything_else_is_allowed(machine):
    ask, (clone, clone3, socket, socketpair), refused = machine
    others = set(range(500)) - {*refused, clone, clone3, socket, socketpair}
    assert {ask(number) for number in others} == {ALLOW}


def test_clone_without_a_user_namespace(machine):
    ask, (clone, clone3, _, _), _ = machine
    assert ask(clone3) == UNKNOWN
    assert ask(clone, 0x01200011) == ALLOW  # fork
    assert ask(clone, 0x003D0F00) == ALLOW  # a thread
    assert ask(clone, 0x10000011) == DENIED
    assert ask(clone, 0xFFFFFFFF) == DENIED


def test_socket_families(machine):
    ask, (_, _, socket, socketpair), _ = machine
    for call in (socket, socketpair):
        assert [family for family in range(64) if ask(call, family) == ALLOW] == [1, 2, 10, 16]
        assert ask(call, 40) == NO_FAMILY
        assert ask(call, 1 << 32 | 40) == NO_FAMILY


def test_other_ways_to_call(machine):
    ask, _, _ = machine
    assert ask(1, arch=0x40000003) == UNKNOWN  # i386
    if ask(272) == DENIED:  # x86-64
        assert ask(0x40000000 | 1) == UNKNOWN


def test_an_unknown_machine_has_no_filter():
    assert seccomp_filter("pdp11") is None
