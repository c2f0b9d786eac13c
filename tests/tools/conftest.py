from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longstep.sandbox.bubblewrap import Bubblewrap
from longstep.tools import TOOLS
from longstep.tools.base import ToolContext, ToolOutput


@pytest.fixture(scope="session")
def sandbox() -> Bubblewrap:
    return Bubblewrap()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def call(workspace: Path, sandbox: Bubblewrap) -> Callable[..., ToolOutput]:
    """call("read_file", path="a") -> ToolOutput"""
    context = ToolContext(workspace=workspace, sandbox=sandbox)

    def run(name: str, **arguments: Any) -> ToolOutput:
        return TOOLS[name].run(arguments, context)

    return run


@pytest.fixture
def ok(call: Callable[..., ToolOutput]) -> Callable[..., str]:
    """The text of a call that must not be an error."""

    def run(name: str, **arguments: Any) -> str:
        output = call(name, **arguments)
        assert not output.is_error, output.text
        return output.text

    return run


@pytest.fixture
def bad(call: Callable[..., ToolOutput]) -> Callable[..., str]:
    """The text of a call that must be an error."""

    def run(name: str, **arguments: Any) -> str:
        output = call(name, **arguments)
        assert output.is_error, output.text
        return output.text

    return run
