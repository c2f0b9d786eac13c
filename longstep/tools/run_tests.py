"""run_tests: pytest in the sandbox, and a report that is short, regular and says where the failure is."""

import sys
from pathlib import Path
from typing import Protocol, runtime_checkable

from longstep.sandbox.base import CommandResult, Limits, Sandbox
from longstep.tools import pytest_child
from longstep.tools.base import ToolContext, ToolOutput
from longstep.tools.function import ToolMistake, tool
from longstep.tools.paths import inside
from longstep.tools.slim import slim

LIMITS = Limits(time_s=60.0)
SOURCE = Path(pytest_child.__file__).read_text()


@runtime_checkable
class RunsTests(Protocol):
    """A sandbox with a shorter way to run pytest (`warm_tests.WarmTests`)."""

    def run_pytest(self, workspace: Path, target: str, limits: Limits) -> CommandResult: ...


def _target(workspace: Path, path: str) -> str:
    """The path of a test file, folder or `file::test`, relative to the workspace."""
    file, _, test = path.partition("::")
    shown, real = inside(workspace, file)
    if not (workspace / real).exists():
        raise ToolMistake(f"no tests found under {path}: no such file or folder")
    return f"./{shown}::{test}" if test else f"./{shown}"  # "./": a name such as -x is no option


def _render(result: CommandResult, path: str, limits: Limits) -> ToolOutput:
    """What the child printed and how it ended, for the model."""
    if result.exit_code is None:
        return ToolOutput(text=f"killed after {limits.time_s:g} s: the tests did not end", is_error=True)
    parts = result.stdout.split(pytest_child.MARK)
    if len(parts) != 3:
        said = slim(result.stderr.strip(), 5, 10)
        text = f"pytest ended with exit {result.exit_code} and no report"
        return ToolOutput(text=f"{text}\n{said}" if said else text, is_error=True)
    report = parts[1]
    if not report:
        return ToolOutput(text=f"no tests found under {path}", is_error=True)
    return ToolOutput(text=slim(report), is_error=not report.startswith(("PASSED", "FAILED", "ERROR")))


def run_pytest(sandbox: Sandbox, workspace: Path, path: str = ".") -> ToolOutput:
    """The tests at `path` of the workspace, for tools and verifiers. The text begins with PASSED exactly if all passed.

    The code under test runs in the process that reports, as with any use of pytest: code written to deceive can forge
    the report. A verifier that must not be deceived lets the code print values and compares them itself, outside.
    Raises ToolMistake for a path that is not there or leads outside.
    """
    target = _target(workspace, path)
    if isinstance(sandbox, RunsTests):
        result = sandbox.run_pytest(workspace, target, LIMITS)
    else:
        argv = [sys.executable, "-P", "-c", f"{SOURCE}\nmain(sys.argv[1])", target]
        result = sandbox.run(argv, workspace=workspace, limits=LIMITS)
    return _render(result, path, LIMITS)


@tool("run_tests", "Run the tests.", {}, {"path": "string"}, safe_to_repeat=True)
def run_tests(context: ToolContext, path: str = ".") -> ToolOutput:
    return run_pytest(context.sandbox, context.workspace, path)
