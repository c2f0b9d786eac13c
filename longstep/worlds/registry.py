"""Worlds by name: ours, imported when they are asked for, and those of installed packages.

A package adds a world by an entry point of the group `longstep.worlds` that names a class without arguments:

    [project.entry-points."longstep.worlds"]
    mine = "my_package.world:MyWorld"
"""

from importlib.metadata import EntryPoint, entry_points
from typing import cast

from longstep.errors import UserError, WorldError
from longstep.worlds.base import World

GROUP = "longstep.worlds"
_OURS = tuple(
    EntryPoint(name, f"longstep.worlds.{target}", GROUP)
    for name, target in (
        ("terminal", "terminal:TerminalWorld"),
        ("repair", "repair:RepairWorld"),
        ("retrieval", "retrieval:RetrievalWorld"),
        ("tiny", "tiny:TinyWorld"),
    )
)


def _known() -> dict[str, EntryPoint]:
    """Ours first: an installed package cannot take one of our names."""
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    return {**known, **{entry.name: entry for entry in _OURS}}


def world_names() -> tuple[str, ...]:
    ours = [entry.name for entry in _OURS]
    return (*ours, *sorted(_known().keys() - set(ours)))


def world(name: str) -> World:
    """The world of this name. Raises UserError that names the worlds, WorldError if an installed one is broken."""
    entry = _known().get(name)
    if entry is None:
        raise UserError(f"there is no world {name!r}; there are {', '.join(world_names())}")
    try:
        made = entry.load()()
    except Exception as error:
        raise WorldError(
            f"the world {name!r} ({entry.value}) could not be loaded: {error}; is its package whole?"
        ) from error
    return cast(World, made)
