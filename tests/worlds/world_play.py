"""The shortest possible agent loop for policies: moves in, tool results out, no model and no journal."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longstep.messages import ToolResult
from longstep.sandbox.base import CommandResult, Limits, Sandbox
from longstep.tools import toolset
from longstep.tools.base import ToolContext, ToolOutput
from longstep.worlds.base import Move, Policy, Task

NO_LIMITS = Limits()
ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


class PlainShell:
    """No walls and no limits: for the commands of our own experts in tests, three milliseconds each."""

    name = "plain"

    def run(self, argv: Sequence[str], *, workspace: Path, limits: Limits = NO_LIMITS) -> CommandResult:
        done = subprocess.run(argv, cwd=workspace, env=ENV, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return CommandResult(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)


@dataclass
class Played:
    """Each step: the move and the results of its calls. The last move has no calls."""

    steps: list[tuple[Move, tuple[ToolResult, ...]]]

    @property
    def num_errors(self) -> int:
        return sum(
            r.is_error or (r.name == "shell" and not r.text.startswith("exit 0")) for _, rs in self.steps for r in rs
        )


def play(policy: Policy, task: Task, workspace: Path, sandbox: Sandbox) -> Played:
    tools = toolset(task.tools)
    context = ToolContext(workspace=workspace, sandbox=sandbox)
    steps: list[tuple[Move, tuple[ToolResult, ...]]] = []
    move = next(policy)
    while True:
        results = []
        for i, (name, arguments) in enumerate(move.calls):
            if name in tools:
                output = tools[name].run(arguments, context)
            else:  # as in the real loop: a tool that the task does not give is refused
                output = ToolOutput(text=f"not run: there is no tool {name} here", is_error=True)
            results.append(ToolResult(call_id=f"{i}", name=name, text=output.text, is_error=output.is_error))
        steps.append((move, tuple(results)))
        if not move.calls:
            policy.close()
            return Played(steps)
        move = policy.send(tuple(results))
