"""Weights on disk.

    config.json        {"format": 1, "preset": NAME, "model": {...}}: the whole config, so that presets may change later
    model.safetensors  every parameter and buffer by name
    tokenizer.json     a copy of the tokenizer with which the model was trained
    card.md            what it is, what it was trained on, what it can and cannot do
    manifest.json      format, preset, tokenizer id, facts of the training, bytes and sha256 of each file above

A training run keeps `training.safetensors` and `training.json` beside them (fp32 weights, optimizer, random state,
position in the data). No pickles anywhere.
"""

from longstep.checkpoint.disk import (
    Checkpoint,
    TrainingState,
    load,
    load_training,
    load_weights,
    read_manifest,
    save,
)

__all__ = ["Checkpoint", "TrainingState", "load", "load_training", "load_weights", "read_manifest", "save"]
