"""No walls: commands run as the caller, with resource limits only. Must be asked for by name."""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from longstep.errors import SandboxError
from longstep.sandbox.base import CommandResult, Limits, Sandbox
from longstep.sandbox.bubblewrap import Bubblewrap
from longstep.sandbox.supervise import small_env, supervise, with_rlimits
from longstep.sandbox.warm import WarmBubblewrap


class NoSandbox:
    """Commands run in a process group of their own, with all that the caller may read, write and reach."""

    name = "none"

    def run(self, argv: Sequence[str], *, workspace: Path, limits: Limits = Limits()) -> CommandResult:  # noqa: B008
        workspace = workspace.resolve()
        if not workspace.is_dir():
            raise SandboxError(f"sandbox: the workspace {workspace} is not a folder")
        started_s = time.monotonic()
        process = subprocess.Popen(
            with_rlimits(argv, limits),
            cwd=workspace,
            env=small_env(str(workspace)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return supervise(process, workspace, limits, started_s, "is there a POSIX shell at /bin/sh?")


def open_sandbox(unsafe: bool = False, warm: bool = False) -> Sandbox:
    """The sandbox of this machine, or none if `unsafe`. Runs one command, to fail here rather than in an episode.

    Raises SandboxError that names the way out.
    `warm` is for data generation: a command takes about 3 ms, one at a time (`warm.WarmBubblewrap`).
    """
    if unsafe:
        return NoSandbox()
    with tempfile.TemporaryDirectory() as folder:
        Bubblewrap().run(["true"], workspace=Path(folder))
    return WarmBubblewrap() if warm else Bubblewrap()
