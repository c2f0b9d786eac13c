"""shell: result forms, golden."""

import pytest

from longstep.sandbox.base import CommandResult, Limits
from longstep.tools.shell import render


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("true", "exit 0"),
        ("echo a", "exit 0\na"),
        ("printf a; printf b >&2; exit 3", "exit 3\na\nstderr:\nb"),
        ("echo b >&2; false", "exit 1\nstderr:\nb"),
        ("printf '\\n\\n a\\n\\n'", "exit 0\n\n\n a\n"),
        ("cd /; x=1; true", "exit 0"),
        ("echo $x; pwd | xargs basename", "exit 0\n\nwork"),  # nothing of the call before is left
        ("seq 100", "exit 0\n" + "\n".join(map(str, range(1, 41))) + "\n... 40 lines left out ...\n"
         + "\n".join(map(str, range(81, 101)))),
        ("nosuch", "exit 127\nstderr:\nsh: 1: nosuch: not found"),
    ],
)  # fmt: skip
def test_forms(ok, command, text):
    assert ok("shell", command=command) == text


def test_mistakes(bad):
    assert bad("shell", command=" ") == "shell: command must be text for sh, not empty, without NUL"
    assert bad("shell", command="a\0b") == "shell: command must be text for sh, not empty, without NUL"
    assert bad("shell", command="#" * 200_000).startswith("shell: the command is too long.")


def test_killed_and_dropped():
    limits = Limits(time_s=1.5)
    output = render(CommandResult(exit_code=None, stdout="a\n", stderr="", dropped_bytes=0), limits)
    assert (output.text, output.is_error) == ("killed after 1.5 s\na", True)
    output = render(CommandResult(exit_code=0, stdout="a\n", stderr="b\n", dropped_bytes=7), limits)
    assert (output.text, output.is_error) == ("exit 0\na\n... 7 bytes left out ...\nstderr:\nb", False)
