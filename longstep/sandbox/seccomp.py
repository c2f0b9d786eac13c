"""A filter of system calls, as the bytes that `bwrap --seccomp` takes: for the ways out that namespaces leave open.

Refused are: new user namespaces (they open large parts of the kernel to anyone), keyrings (a process inherits its
caller's session keyring), sockets that a network namespace does not hold (AF_VSOCK reaches a virtual machine's host),
and calls that ordinary programs can do without and that kernel exploits begin with (io_uring, bpf, userfaultfd,
perf_event_open). Refused calls fail with an error number; no process is killed.

Sources: include/uapi/linux/{seccomp,bpf_common,audit}.h; arch/x86/entry/syscalls/syscall_64.tbl;
include/uapi/asm-generic/unistd.h (aarch64). Classic BPF: 8 bytes an instruction, fields (code, jt, jf, k).
"""

import errno
import platform
import struct

LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NR, ARCH, ARGUMENT_0 = 0, 4, 16  # offsets in struct seccomp_data; the low half of the argument, little-endian
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
CLONE_NEWUSER = 0x10000000
X32 = 0x40000000  # on x86-64, numbers from here on are the x32 calls: another way to every call
FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK

# machine -> (audit architecture, numbers of: clone, clone3, socket, socketpair; refused)
REFUSED = "unshare setns add_key request_key keyctl bpf perf_event_open userfaultfd io_uring_setup io_uring_enter"
MACHINES = {
    "x86_64": (0xC000003E, (56, 435, 41, 53), (272, 308, 248, 249, 250, 321, 298, 323, 425, 426)),
    "aarch64": (0xC00000B7, (220, 435, 198, 199), (97, 268, 217, 218, 219, 280, 241, 282, 425, 426)),
}
assert all(len(refused) == len(REFUSED.split()) for _, _, refused in MACHINES.values())


def seccomp_filter(machine: str | None = None) -> bytes | None:
    """The filter for this machine, None for one whose numbers we do not know."""
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    arch, (clone, clone3, socket, socketpair), refused = known
    deny, unknown = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS

    def check(code: int, k: int, then: int, argument: list[tuple[int, int, int, int]] | None = None) -> None:
        """If the loaded word fits, return `then`, or run the instructions on the first argument, which end in one."""
        body = argument or [(RETURN, 0, 0, then)]
        program.extend([(code, 0, len(body), k), *body])

    program: list[tuple[int, int, int, int]] = [(LOAD, 0, 0, ARCH), (JUMP_EQUAL, 1, 0, arch), (RETURN, 0, 0, unknown)]
    program.append((LOAD, 0, 0, NR))
    if arch == MACHINES["x86_64"][0]:
        check(JUMP_GREATER_EQUAL, X32, unknown)
    for number in refused:
        check(JUMP_EQUAL, number, deny)
    check(JUMP_EQUAL, clone3, unknown)  # its flags are behind a pointer; libraries fall back to clone
    check(JUMP_EQUAL, clone, 0, [
        (LOAD, 0, 0, ARGUMENT_0),
        (JUMP_ANY_BIT, 0, 1, CLONE_NEWUSER),
        (RETURN, 0, 0, deny),
        (RETURN, 0, 0, ALLOW),
    ])  # fmt: skip
    for number in (socket, socketpair):
        steps = len(FAMILIES)
        check(JUMP_EQUAL, number, 0, [
            (LOAD, 0, 0, ARGUMENT_0),
            *((JUMP_EQUAL, steps - i, 0, family) for i, family in enumerate(FAMILIES)),
            (RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT),
            (RETURN, 0, 0, ALLOW),
        ])  # fmt: skip
    program.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
