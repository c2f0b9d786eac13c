"""Start a process, keep its output bounded, end it with all its children in time. Used by every sandbox.

The reader never stops reading: output over the limit is thrown away and counted, so that a flood neither fills memory
nor blocks the process that writes it.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

from longstep.sandbox.base import CommandResult, Limits

BEGUN = b"\x1e"  # the first byte on stderr: the command, not its setting up, says what follows
CHUNK_BYTES = 1 << 16
AFTER_KILL_S = 2.0  # how long to wait for the pipes of a killed process to close


class _Stream:
    """Keeps the first `limit` bytes of a stream and counts the rest."""

    def __init__(self, limit: int):
        self.limit = limit
        self.kept = bytearray()
        self.dropped = 0

    def feed(self, data: bytes) -> None:
        room = max(0, self.limit - len(self.kept))
        self.kept += data[:room]
        self.dropped += max(0, len(data) - room)

    def text(self) -> str:
        return self.kept.decode("utf-8", errors="replace")


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and its process group; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def supervise(
    process: "subprocess.Popen[bytes]",
    limits: Limits,
    started_s: float,
) -> CommandResult | None:
    """Read stdout and stderr (pipes) to their end, within `limits.time_s` from `started_s` (time.monotonic).

    `exit_code` is 128 + N for a process ended by signal N, as a shell says it, and None when the time ran out.
    The whole answer is None if the process ended without having begun the command (`with_rlimits` writes `BEGUN`).
    """
    assert process.stdout is not None, "stdout must be a pipe"
    assert process.stderr is not None, "stderr must be a pipe"
    streams = {process.stdout: _Stream(limits.output_bytes), process.stderr: _Stream(limits.output_bytes + len(BEGUN))}
    deadline_s = started_s + limits.time_s
    killed = False
    with selectors.DefaultSelector() as selector:
        for pipe in streams:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                if killed:
                    break  # something outside our reach holds a pipe open: what we have is what there is
                kill_group(process)
                killed = True
                deadline_s = time.monotonic() + AFTER_KILL_S
                continue
            for key, _ in selector.select(left_s):
                data = os.read(key.fd, CHUNK_BYTES)
                if data:
                    streams[key.fileobj].feed(data)  # type: ignore[index]
                else:
                    selector.unregister(key.fileobj)
    if not killed:  # both pipes closed, yet the process may live on
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            kill_group(process)
            killed = True
    process.wait()
    out, err = streams[process.stdout], streams[process.stderr]
    process.stdout.close()
    process.stderr.close()
    code = process.returncode
    if not err.kept.startswith(BEGUN) and not killed:
        return None
    del err.kept[: len(BEGUN)]
    return CommandResult(
        exit_code=None if killed else (code if code >= 0 else 128 - code),
        stdout=out.text(),
        stderr=err.text(),
        dropped_bytes=out.dropped + err.dropped,
        wall_s=time.monotonic() - started_s,
    )


def with_rlimits(argv: list[str], limits: Limits) -> list[str]:
    """argv that sets the limits on itself, then becomes the command.

    A shell sets them because that is 1 ms, needs no code between fork and exec in this process, and happens where the
    process count starts at zero. `-u` is bash's letter for processes, `-p` that of dash and busybox.
    """
    wanted = (
        f"-c 0 -t {round(limits.time_s) + 1} -f {limits.file_bytes // 512} -v {limits.memory_bytes // 1024}".split()
    )
    script = "".join(f"ulimit {key} {value}; " for key, value in zip(wanted[::2], wanted[1::2], strict=True))
    script += f"ulimit -u {limits.num_processes} || ulimit -p {limits.num_processes}"
    # An error says only that the limit was tighter already.
    script = f"{{ {script}; }} 2>/dev/null; printf '\\036' >&2; exec \"$@\""
    return ["/bin/sh", "-c", script, "sh", *argv]


def command_path() -> str:
    """PATH of a command: the running Python first, then the system."""
    return f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


def small_env(workspace: str, path: str) -> dict[str, str]:
    """The whole environment of a command: nothing of the caller's gets in."""
    return {
        "PATH": path,
        "HOME": workspace,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",  # sets print in the same order every time, so a command's output can be compared
        "OMP_NUM_THREADS": "1",  # one thread per core would count against the process limit on large machines
    }
