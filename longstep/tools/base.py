"""What a tool is: a spec that the model reads, and a plain function from arguments to a result.

A tool never raises for what the model did wrong: it returns a result with `is_error` that says what to do instead.
`run` is synchronous and bounded in time; the agent loop calls it in a thread.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from longstep.messages import ToolSpec
from longstep.sandbox.base import Sandbox


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """Where a tool acts. `workspace` is the only folder it may read or write."""

    workspace: Path
    sandbox: Sandbox


@dataclass(frozen=True, kw_only=True)
class ToolOutput:
    text: str
    is_error: bool = False


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    @property
    def safe_to_repeat(self) -> bool:
        """True if running it twice leaves the same state as once."""
        ...

    def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput: ...
