"""Generation: continuous batching over one model (`engine.py`), planned by `scheduler.py`, spoken to as a `ChatModel`
(`local.py`). `load_model` is the way in."""

from longstep.engine.engine import Engine
from longstep.engine.local import BUNDLED, LocalModel, load_model

__all__ = ["BUNDLED", "Engine", "LocalModel", "load_model"]
