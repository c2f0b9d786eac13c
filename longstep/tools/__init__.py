"""What an agent can do: eight tools, each a short spec and a plain function. `TOOLS` holds them by name."""

from collections.abc import Iterable

from longstep.errors import UserError
from longstep.tools.base import Tool
from longstep.tools.docs import search_docs
from longstep.tools.files import edit_file, find_text, list_files, read_file, write_file
from longstep.tools.run_tests import run_tests
from longstep.tools.shell import shell

__all__ = ["TOOLS", "toolset"]

_ALL: tuple[Tool, ...] = (list_files, read_file, write_file, edit_file, find_text, shell, run_tests, search_docs)
TOOLS: dict[str, Tool] = {tool.spec.name: tool for tool in _ALL}


def toolset(names: Iterable[str]) -> dict[str, Tool]:
    """The tools of these names, in this order. Raises UserError for a name that there is not."""
    chosen: dict[str, Tool] = {}
    for name in names:
        if name not in TOOLS:
            raise UserError(f"tool {name!r}: there is no such tool; there are {', '.join(TOOLS)}")
        chosen[name] = TOOLS[name]
    return chosen
