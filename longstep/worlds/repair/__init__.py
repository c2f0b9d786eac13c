"""Repair of small Python projects: `world.py` for the tasks, `templates.py` for what they are made of."""

from longstep.worlds.repair.world import WORLD, RepairWorld, demo_task

__all__ = ["WORLD", "RepairWorld", "demo_task"]
