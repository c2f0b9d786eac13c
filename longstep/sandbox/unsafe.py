"""No walls: commands run as the caller, with resource limits only. Must be asked for by name."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from longstep.errors import SandboxError
from longstep.sandbox.base import CommandResult, Limits, Sandbox
from longstep.sandbox.bubblewrap import Bubblewrap
from longstep.sandbox.supervise import small_env, supervise, with_rlimits


class NoSandbox:
    """Runs commands in a process group of their own. They can read and write whatever the caller can, and the network."""

    name = "none"

    def run(self, argv: Sequence[str], *, workspace: Path, limits: Limits = Limits()) -> CommandResult:
        workspace = workspace.resolve()
        if not workspace.is_dir():
            raise SandboxError(f"sandbox: the workspace {workspace} is not a folder")
        started_s = time.monotonic()
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        process = subprocess.Popen(
            with_rlimits(list(argv), limits),
            cwd=workspace,
            env=small_env(str(workspace), path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return supervise(process, limits, started_s)


def open_sandbox(unsafe: bool = False) -> Sandbox:
    """The sandbox of this machine, or none if `unsafe`. Raises SandboxError that names the way out."""
    return NoSandbox() if unsafe else Bubblewrap()
