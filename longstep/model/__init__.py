"""The network: configs, layers, caches, and its own accounting. Start reading in network.py."""

from longstep.model.config import PRESET_NAMES, ModelConfig, preset
from longstep.model.network import Model

__all__ = ["PRESET_NAMES", "Model", "ModelConfig", "preset"]
