"""Save and load. Every mistake that can be seen in the files ends in one sentence that names the file or tensor."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from longstep.errors import CheckpointError
from longstep.model import config
from longstep.model.config import ModelConfig
from longstep.model.network import Model

FORMAT = 1

# kept in fp32 whatever the rest is stored in: the released checkpoint's fp32 set (see docs of `longstep count`)
_FP32_NAMES = ("A_log", "a_log", "dt_bias", "conv", "bias", "o_norm")


class _File(msgspec.Struct, frozen=True):
    sha256: str
    num_bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`facts` says how the weights came about: stage, steps, tokens."""

    format: int
    preset: str
    tokenizer: str
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    files: dict[str, _File] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model that was read from `folder`, in evaluation mode."""

    folder: Path
    cfg: ModelConfig
    model: Model
    manifest: Manifest

    @property
    def tokenizer_file(self) -> Path:
        return self.folder / "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What a run needs to go on bit for bit: tensors (fp32 weights, optimizer, random state) and facts."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stored(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    keep = not tensor.is_floating_point() or any(part in name for part in _FP32_NAMES)
    return tensor.detach().to("cpu", tensor.dtype if keep else dtype).contiguous()


def save(
    folder: Path,
    model: Model,
    *,
    tokenizer_file: Path,
    tokenizer: str,
    card: str,
    dtype: torch.dtype = torch.bfloat16,
    facts: Mapping[str, Any] | None = None,
    training: TrainingState | None = None,
) -> None:
    """Write a whole checkpoint, replacing one that stands there. The old one stays until the new one is complete."""
    new, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    save_file({n: _stored(n, t, dtype) for n, t in model.state_dict().items()}, str(new / "model.safetensors"))
    (new / "config.json").write_bytes(config.to_json(model.cfg))
    shutil.copyfile(tokenizer_file, new / "tokenizer.json")
    (new / "card.md").write_text(card)
    if training is not None:
        save_file({n: t.detach().cpu().contiguous() for n, t in training.tensors.items()}, new / "training.safetensors")
        (new / "training.json").write_bytes(msgspec.json.format(msgspec.json.encode(training.facts), indent=2))
    for path in new.iterdir():
        path.chmod(0o644)  # safetensors makes files for the owner alone
    files = {p.name: _File(_sha256(p), p.stat().st_size) for p in sorted(new.iterdir())}
    manifest = Manifest(format=FORMAT, preset=model.cfg.name, tokenizer=tokenizer, facts=dict(facts or {}), files=files)
    (new / "manifest.json").write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(new, folder)
    shutil.rmtree(old, ignore_errors=True)


def read_manifest(folder: Path) -> Manifest:
    """Raises CheckpointError where there is no checkpoint, or one of another format."""
    try:
        manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        kept = folder.with_name(folder.name + ".old")
        advice = f"its last complete version is {kept}" if kept.exists() else "train one, or name the right folder"
        raise CheckpointError(f"{folder} holds no checkpoint (no manifest.json); {advice}") from None
    except OSError as error:
        raise CheckpointError(f"{error.filename}: {error.strerror}; make the folder of the weights readable") from None
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{folder / 'manifest.json'} cannot be read ({error}); copy the folder again") from None
    if manifest.format != FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {manifest.format}, expected {FORMAT}; use the version that wrote it"
        )
    return manifest


def _check_file(folder: Path, name: str, manifest: Manifest) -> Path:
    path = folder / name
    if name not in manifest.files:
        raise CheckpointError(f"{folder} was saved without {name}; it cannot be used for this")
    expected = manifest.files[name]
    if not path.is_file():
        raise CheckpointError(f"{path} is missing, though the manifest lists it; copy the folder again, whole")
    num_bytes = path.stat().st_size
    if num_bytes != expected.num_bytes:
        raise CheckpointError(
            f"{path} has {num_bytes} bytes, expected {expected.num_bytes}: it was cut or changed; copy it again"
        )
    try:
        is_same = _sha256(path) == expected.sha256
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; make the folder of the weights readable") from None
    if not is_same:
        raise CheckpointError(f"{path} does not have the manifest's sha256: it was changed; copy it again")
    return path


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(str(path), "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a readable safetensors file ({error}); copy it again") from None


def load_weights(model: Model, tensors: Mapping[str, Tensor], source: str) -> None:
    """Put tensors into a model. Raises CheckpointError naming a tensor that is missing, unknown or of other shape."""
    _check_shapes(model, tensors, source)
    model.load_state_dict(dict(tensors))


def _check_shapes(model: Model, tensors: Mapping[str, Tensor], source: str) -> None:
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        if name not in tensors:
            raise CheckpointError(
                f"{source} has no tensor {name}, which preset {model.cfg.name} needs with shape {tuple(tensor.shape)}; "
                f"load it with the config that lies beside it"
            )
        if tensors[name].shape != tensor.shape:
            raise CheckpointError(
                f"{source}: {name} has shape {tuple(tensors[name].shape)}, but preset {model.cfg.name} needs "
                f"{tuple(tensor.shape)}; load it with the config that lies beside it"
            )
    if unknown := sorted(set(tensors) - set(wanted)):
        raise CheckpointError(
            f"{source} has a tensor {unknown[0]} {tuple(tensors[unknown[0]].shape)} that preset {model.cfg.name} "
            f"has no place for ({len(unknown)} such in all); load it with the config that lies beside it"
        )


def load(
    folder: Path,
    *,
    preset: str | None = None,
    tokenizer: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Checkpoint:
    """Read a checkpoint, checking every file against the manifest.

    `preset` and `tokenizer` (an id), when given, must be the ones that it was saved with. Floating-point weights become
    `dtype`, except those that are stored in fp32 on purpose. Raises CheckpointError.
    """
    manifest = read_manifest(folder)
    if preset is not None and manifest.preset != preset:
        raise CheckpointError(
            f"{folder} holds preset {manifest.preset}, but {preset} was asked for; "
            f"ask for {manifest.preset} or name other weights"
        )
    if tokenizer is not None and manifest.tokenizer != tokenizer:
        raise CheckpointError(
            f"{folder} was trained with tokenizer {manifest.tokenizer}, but {tokenizer} is in use; "
            f"use the tokenizer.json that lies beside the weights"
        )
    for name in ("tokenizer.json", "card.md"):
        _check_file(folder, name, manifest)
    cfg = config.from_json(_check_file(folder, "config.json", manifest).read_bytes())
    path = _check_file(folder, "model.safetensors", manifest)
    tensors = _tensors(path)
    with torch.device("meta"):  # shapes first: a config that asks for a terabyte does not get it
        _check_shapes(Model(cfg), tensors, str(path))
    model = Model(cfg)
    load_weights(model, tensors, str(path))
    for name, parameter in model.named_parameters():
        if not any(part in name for part in _FP32_NAMES):
            parameter.data = parameter.data.to(dtype)
    return Checkpoint(folder=folder, cfg=cfg, model=model.to(device).eval(), manifest=manifest)


def load_training(folder: Path) -> TrainingState | None:
    """The training state beside the weights, or None where it was left out. Raises CheckpointError if it is damaged."""
    manifest = read_manifest(folder)
    if "training.safetensors" not in manifest.files:
        return None
    facts = msgspec.json.decode(_check_file(folder, "training.json", manifest).read_bytes())
    return TrainingState(tensors=_tensors(_check_file(folder, "training.safetensors", manifest)), facts=facts)
