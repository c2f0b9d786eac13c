"""One bubblewrap kept alive per workspace, with a shell inside that runs one command after another: about 3 ms each.

For episodes of our own programs (data generation). The walls to the host are those of `Bubblewrap`; what is weaker is
the wall between one command and the next, which run as the same user beside the same shell: a command could kill that
shell or write its results for it. Results of an honest command are the same byte for byte, process ids aside: each
runs in a subshell of its own, every process that it leaves is killed, and where it leaves a file in /tmp, the next
command gets new namespaces.
"""

import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from longstep.errors import SandboxError
from longstep.sandbox.base import CommandResult, Limits
from longstep.sandbox.bubblewrap import ADVICE, Bubblewrap, hand_over
from longstep.sandbox.supervise import BEGUN, Stream, kill_all, outcome, pump, rlimits_script, running

# The shell itself: each command sets its own limits, which can only be tighter.
UNLIMITED = Limits(time_s=1e6, memory_bytes=1 << 40, num_processes=100_000, file_bytes=1 << 40)
LEFT_BEHIND = "/tmp/* /tmp/.[!.]* /tmp/..?* /dev/shm/* /dev/shm/.[!.]* /dev/shm/..?*"


@dataclass(frozen=True)
class _Shell:
    """A live sandbox of one folder (path, device, inode: a folder made anew at the same path is another one).

    `nonce` ends what a command prints on each stream.
    """

    process: "subprocess.Popen[bytes]"
    folder: tuple[Path, int, int]
    nonce: str


class WarmBubblewrap(Bubblewrap):
    """One command at a time: use one object per worker. It keeps the sandbox of the workspace that it saw last."""

    name = "warm bubblewrap"
    _shell: _Shell | None = None

    def run(self, argv: Sequence[str], *, workspace: Path, limits: Limits = Limits()) -> CommandResult:  # noqa: B008
        workspace = workspace.resolve()
        if not workspace.is_dir():
            raise SandboxError(f"sandbox: the workspace {workspace} is not a folder")
        started_s = time.monotonic()
        for _ in range(2):  # a shell dies with the thread that started it, perhaps since the last command
            shell = self._ready(workspace)
            try:
                with running(shell.process.pid):
                    result = self._exchange(shell, argv, workspace, limits, started_s)
            except BaseException:
                self.close()
                raise
            if result is not None:
                return result
        raise SandboxError(f"sandbox: the shell in it ended twice before the command began; {ADVICE}")

    def _ready(self, workspace: Path) -> _Shell:
        info = workspace.stat()
        folder = (workspace, info.st_dev, info.st_ino)
        if self._shell is not None and self._shell.folder == folder:
            if self.is_root:
                hand_over(workspace)
            return self._shell
        self.close()
        process = self.start(["/bin/sh"], workspace, UNLIMITED, subprocess.PIPE)
        assert process.stderr is not None
        if os.read(process.stderr.fileno(), len(BEGUN)) != BEGUN:
            said = process.communicate()[1].decode(errors="replace").strip()
            raise SandboxError(f"sandbox: the shell in it did not begin: {said}; {ADVICE}")
        # The shell's own words go nowhere; a command gets the stream back.
        _send(process, f'exec 3>&2 2>/dev/null; set -- {LEFT_BEHIND}; clean="$*"\n')
        self._shell = _Shell(process, folder, secrets.token_hex(8))
        return self._shell

    def _exchange(
        self, shell: _Shell, argv: Sequence[str], workspace: Path, limits: Limits, started_s: float
    ) -> CommandResult | None:
        """Run one command in the shell. None if the shell was gone and the command has not begun."""
        end = shell.nonce
        # Exit code (3 characters) and whether /tmp is as it was stand before the end of stdout.
        _send(
            shell.process,
            f"( {rlimits_script(limits)} exec 3>&-; exec {shlex.join(argv)} ) </dev/null 2>&3; code=$?; "
            f"kill -9 -1; while kill -0 -1; do :; done; "
            f'set -- {LEFT_BEHIND}; [ "$*" = "$clean" ]; printf "%3d%d{end}" $code $?; printf {end} >&3\n',
        )
        out = Stream(limits.output_bytes, end.encode(), before_end=4)
        err = Stream(limits.output_bytes + len(BEGUN), end.encode())
        late, excess = pump(shell.process, out, err, workspace, limits, started_s)
        if out.ended and err.ended and not (late or excess):
            code, dirty = int(out.before_end[:3]), out.before_end[3:] != b"0"
            if dirty:
                self.close()
            return outcome(code, None, out, err, started_s)
        self.close()
        if not (late or excess or err.kept.startswith(BEGUN)):
            return None
        return outcome(None if late else 137, excess, out, err, started_s)

    def close(self) -> None:
        """End the sandbox that is kept; the next command makes a new one."""
        if self._shell is not None:
            process, self._shell = self._shell.process, None
            kill_all(process.pid)
            process.communicate()

    def __enter__(self) -> "WarmBubblewrap":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _send(process: "subprocess.Popen[bytes]", script: str) -> None:
    """To the shell. That it is gone shows when its streams are read."""
    assert process.stdin is not None
    try:
        process.stdin.write(script.encode("utf-8", "surrogateescape"))
        process.stdin.flush()
    except BrokenPipeError:
        pass
