"""What an agent can do: eight tools, each a short spec and a plain function. `TOOLS` holds them by name."""

from collections.abc import Iterable

from longstep.errors import UserError
from longstep.tools import docs, files, run_tests, shell
from longstep.tools.base import Tool

__all__ = ["TOOLS", "toolset"]

_ALL: tuple[Tool, ...] = (
    *(files.list_files, files.read_file, files.write_file, files.edit_file, files.find_text),
    *(shell.shell, run_tests.run_tests, docs.search_docs),
)
TOOLS: dict[str, Tool] = {tool.spec.name: tool for tool in _ALL}


def toolset(names: Iterable[str]) -> dict[str, Tool]:
    """The tools of these names, in this order. Raises UserError for a name that there is not."""
    chosen: dict[str, Tool] = {}
    for name in names:
        if name not in TOOLS:
            raise UserError(f"tool {name!r}: there is no such tool; there are {', '.join(TOOLS)}")
        chosen[name] = TOOLS[name]
    return chosen
