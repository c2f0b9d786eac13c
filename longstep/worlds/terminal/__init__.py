"""File and text work in a shell: see `world.py` for the tasks, `atoms/` for what they are made of."""

from longstep.worlds.terminal.world import TerminalWorld

__all__ = ["TerminalWorld"]
