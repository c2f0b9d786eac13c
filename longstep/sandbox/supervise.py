"""Start a process, keep its output bounded, end it with all its children in time. Used by every sandbox.

The reader never stops reading: output over the limit is thrown away and counted, so that a flood neither fills memory
nor blocks the process that writes it.

Resource limits hold for one process or one file each. What all of them together take, memory and disk, is looked at
ten times a second while the command runs.
"""

import contextlib
import functools
import glob
import os
import platform
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from longstep.errors import SandboxError
from longstep.sandbox.base import CommandResult, Limits

BEGUN = b"\x1e"  # the first byte on stderr: what follows is the command's, not that of setting it up
CHUNK_BYTES = 1 << 16
WATCH_S = 0.1
AFTER_KILL_S = 2.0  # how long to wait for the pipes of a killed process to close
# Below this growth of the disk (bytes, files) during one command, nobody measures the workspace.
UNWATCHED_BYTES, UNWATCHED_FILES = 64 << 20, 10_000

_running: set[int] = set()
_running_lock = threading.Lock()


def stop_running() -> None:
    """Kill every command that runs now, in any thread: for Ctrl-C, where waiting for their time would look dead."""
    with _running_lock:
        for pid in _running:
            kill_all(pid)


@contextlib.contextmanager
def running(pid: int) -> Iterator[None]:
    """Within, `stop_running` kills this process."""
    with _running_lock:
        _running.add(pid)
    try:
        yield
    finally:
        with _running_lock:
            _running.discard(pid)


def kill_all(pid: int, tree: Sequence[int] = ()) -> None:
    """Kill a process, its group and `tree`; gone already is no error. The namespaces of a sandbox die with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for child in tree:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)


class Stream:
    """Keeps the first `limit` bytes of a stream and counts the rest.

    With `end`, the stream ends where these bytes come last; they and the `before_end` bytes before them are no output.
    """

    def __init__(self, limit: int, end: bytes = b"", before_end: int = 0):
        self.limit, self.end = limit, end
        self._num_after = before_end + len(end) if end else 0
        self._kept = bytearray()
        self._last = b""
        self._num_bytes = 0

    def feed(self, data: bytes) -> None:
        self._kept += data[: self.limit + self._num_after - len(self._kept)]
        self._num_bytes += len(data)
        if self.end:
            self._last = (self._last + data)[-self._num_after :]

    @property
    def ended(self) -> bool:
        return bool(self.end) and self._last.endswith(self.end)

    @property
    def before_end(self) -> bytes:
        return self._last[: -len(self.end)]

    @property
    def _num_output(self) -> int:
        return self._num_bytes - self._num_after if self.ended else self._num_bytes

    @property
    def kept(self) -> bytes:
        return bytes(self._kept[: min(self.limit, self._num_output)])

    @property
    def dropped(self) -> int:
        return max(0, self._num_output - self.limit)


class Watch:
    """Memory of a process tree and size of a workspace."""

    def __init__(self, pid: int, workspace: Path, limits: Limits):
        self.pid, self.workspace, self.limits = pid, workspace, limits
        disk = os.statvfs(workspace)
        self.free_bytes, self.free_files = disk.f_bfree * disk.f_frsize, disk.f_ffree

    def excess(self) -> str | None:
        """What is over its limit, as words for the model; None if nothing is."""
        if self._tree_bytes() > self.limits.memory_bytes:
            return f"killed: more than {self.limits.memory_bytes >> 20} MiB of memory in all"
        disk = os.statvfs(self.workspace)
        used_bytes, used_files = self.free_bytes - disk.f_bfree * disk.f_frsize, self.free_files - disk.f_ffree
        if used_bytes > UNWATCHED_BYTES or used_files > UNWATCHED_FILES:
            num_bytes, num_files = _folder_size(self.workspace)
            if num_bytes > self.limits.workspace_bytes:
                return f"killed: more than {self.limits.workspace_bytes >> 20} MiB in the workspace"
            if num_files > self.limits.workspace_files:
                return f"killed: more than {self.limits.workspace_files} files in the workspace"
        return None

    def _tree_bytes(self) -> int:
        """Memory of all processes. That shared pages count once costs time to find out: only where it decides."""
        pids = process_tree(self.pid)
        resident = {pid: _resident_bytes(pid) for pid in pids}
        if sum(resident.values()) <= self.limits.memory_bytes:
            return sum(resident.values())
        return sum(_proportional_bytes(pid) or resident[pid] for pid in pids)


def _read(path: str) -> str:
    """A file of /proc; empty if the process is gone or hides it."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _resident_bytes(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _proportional_bytes(pid: int) -> int:
    """Resident memory in which a page shared by N processes counts as 1/N; 0 if unknown."""
    lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def process_tree(pid: int) -> list[int]:
    """The process and all that came of it, in no order."""
    pids = [pid]
    for parent in pids:  # grows while we walk it
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                pids += [int(child) for child in _read(f"/proc/{parent}/task/{task}/children").split()]
    return pids


def _folder_size(folder: Path) -> tuple[int, int]:
    """(bytes on disk, entries) below a folder; files that vanish meanwhile are skipped."""
    num_bytes = num_files = 0
    for where, folders, files in os.walk(folder):
        num_files += len(folders) + len(files)
        for name in files:
            with contextlib.suppress(OSError):
                num_bytes += os.lstat(os.path.join(where, name)).st_blocks * 512
    return num_bytes, num_files


def pump(
    process: "subprocess.Popen[bytes]", out: Stream, err: Stream, workspace: Path, limits: Limits, started_s: float
) -> tuple[bool, str | None]:
    """Feed both streams until they end, or the process does, or it is killed: (for its time, for this other reason)."""
    assert process.stdout is not None, "stdout must be a pipe"
    assert process.stderr is not None, "stderr must be a pipe"
    watch = Watch(process.pid, workspace, limits)
    watch_s = started_s + WATCH_S
    late, excess = False, None
    over_s: float | None = None  # when the process ended or was killed; then its pipes are emptied
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        while not (out.ended and err.ended):
            now_s = time.monotonic()
            if over_s is None:
                if now_s >= started_s + limits.time_s:
                    late = True
                elif now_s >= watch_s:
                    excess = watch.excess()
                    watch_s = time.monotonic() + WATCH_S
                if late or excess or process.poll() is not None:
                    # Also what the command left running in the background.
                    kill_all(process.pid, process_tree(process.pid) if late or excess else ())
                    over_s = now_s
            if over_s is not None and (not selector.get_map() or now_s > over_s + AFTER_KILL_S):
                break
            wait_s = max(0.0, min(WATCH_S, started_s + limits.time_s - now_s)) if over_s is None else WATCH_S
            if not selector.get_map():  # both pipes are closed, and the process lives on
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(wait_s)
                continue
            for key, _ in selector.select(wait_s):
                data = os.read(key.fd, CHUNK_BYTES)
                if data:
                    key.data.feed(data)
                else:
                    selector.unregister(key.fileobj)
    return late, excess


def outcome(code: int | None, excess: str | None, out: Stream, err: Stream, started_s: float) -> CommandResult:
    """`code` as a shell gives it, None for a command killed for its time. `excess` is told at the end of stderr."""
    stderr = err.kept.removeprefix(BEGUN).decode("utf-8", errors="replace")
    return CommandResult(
        exit_code=code,
        stdout=out.kept.decode("utf-8", errors="replace"),
        stderr=f"{stderr.rstrip()}\n{excess}\n".lstrip() if excess else stderr,
        dropped_bytes=out.dropped + err.dropped,
        wall_s=time.monotonic() - started_s,
    )


def supervise(
    process: "subprocess.Popen[bytes]", workspace: Path, limits: Limits, started_s: float, advice: str
) -> CommandResult:
    """Read the process to its end, within `limits.time_s` from `started_s` (time.monotonic).

    `exit_code` is 128 + N for a process ended by signal N, as a shell says it, and None when the time ran out.
    Raises SandboxError, with `advice`, if the process ended without having begun the command (see `with_rlimits`).
    """
    assert process.stdout is not None, "stdout must be a pipe"
    assert process.stderr is not None, "stderr must be a pipe"
    out, err = Stream(limits.output_bytes), Stream(limits.output_bytes + len(BEGUN))
    with running(process.pid), process.stdout, process.stderr:
        try:
            late, excess = pump(process, out, err, workspace, limits, started_s)
        finally:
            kill_all(process.pid)
            process.wait()
    if not late and not err.kept.startswith(BEGUN):
        said = err.kept.decode(errors="replace").strip()
        raise SandboxError(f"sandbox: the command did not begin: {said}; {advice}")
    code = process.returncode
    return outcome(None if late else code if code >= 0 else 128 - code, excess, out, err, started_s)


def rlimits_script(limits: Limits) -> str:
    """Shell text that sets the limits and says `BEGUN`.

    A shell sets them because that is 1 ms, needs no code between fork and exec in this process, and happens where the
    process count starts at zero. `-u` is bash's letter for processes, `-p` that of dash and busybox.
    """
    wanted = {
        "-c": 0,  # core dumps
        "-n": 1024,  # open files of one process: pipes and sockets take memory that no other limit counts
        "-t": round(limits.time_s) + 1,  # seconds of CPU
        "-f": limits.file_bytes // 512,
        "-v": limits.memory_bytes // 1024,
    }
    script = "".join(f"ulimit {key} {value}; " for key, value in wanted.items())
    num_processes = limits.num_processes + _num_counted_elsewhere()
    script += f"ulimit -u {num_processes} || ulimit -p {num_processes}"
    script += "; echo 1000 > /proc/self/oom_score_adj"  # a machine short of memory ends this first
    # An error there says only that the limit was tighter already, or that the system has no such thing.
    return f"{{ {script}; }} 2>/dev/null; printf '\\036' >&2; "


@functools.cache
def _num_counted_elsewhere() -> int:
    """Threads outside a sandbox that count against its limit: none since Linux 5.14 counts per user namespace."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if release is None or (int(release[1]), int(release[2])) >= (5, 14):
        return 0
    return len(glob.glob("/proc/[0-9]*/task/[0-9]*"))


def with_rlimits(argv: Sequence[str], limits: Limits) -> list[str]:
    """argv that sets the limits on itself, then becomes the command."""
    return ["/bin/sh", "-c", rlimits_script(limits) + 'exec "$@"', "sh", *argv]


def command_path() -> str:
    """PATH of a command: the running Python first, then the system."""
    return f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


def small_env(workspace: str) -> dict[str, str]:
    """The whole environment of a command: nothing of the caller's gets in."""
    return {
        "PATH": command_path(),
        "HOME": workspace,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",  # sets print in the same order every time, so a command's output can be compared
        "OMP_NUM_THREADS": "1",  # one thread per core would count against the process limit on large machines
    }
