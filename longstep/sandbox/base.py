"""A place to run commands. `bubblewrap.py` is the real one; `unsafe.py` runs without walls and must be asked for.

Contract of `run`: the command sees the workspace at its own absolute path (writable) and nothing else writable but a
private /tmp; no network; it ends within `time_s` or is killed with all its children; output beyond `output_bytes` is
dropped and counted, never silently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`memory_bytes` holds for each process and for all together; the workspace's limits for commands that grow it."""

    time_s: float = 30.0
    memory_bytes: int = 2 << 30
    num_processes: int = 128
    output_bytes: int = 1 << 20
    file_bytes: int = 64 << 20
    workspace_bytes: int = 1 << 30
    workspace_files: int = 100_000


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """`exit_code` is None when the command was killed for its time. `dropped_bytes` counts output over the limit."""

    exit_code: int | None
    stdout: str
    stderr: str
    dropped_bytes: int = 0
    wall_s: float = 0.0


class Sandbox(Protocol):
    name: str

    def run(self, argv: Sequence[str], *, workspace: Path, limits: Limits = Limits()) -> CommandResult:
        """Run argv with the workspace as working directory. Raises SandboxError if the sandbox itself fails."""
        ...
