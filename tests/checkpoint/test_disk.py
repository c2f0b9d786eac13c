"""Weights on disk: what is saved comes back, and every mistake in the files ends in one sentence that names it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from longstep.checkpoint import TrainingState, load, load_training, load_weights, read_manifest, save
from longstep.checkpoint.disk import _sha256
from longstep.errors import CheckpointError
from longstep.model.config import preset
from longstep.model.network import Model


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model(replace(preset("nano").as_mla(), vocab_size=64))


@pytest.fixture
def folder(tmp_path, model):
    tokenizer_file = tmp_path / "source.json"
    tokenizer_file.write_text("{}")
    save(
        tmp_path / "w",
        model,
        tokenizer_file=tokenizer_file,
        tokenizer="abc",
        card="# a card\n",
        dtype=torch.float32,
        facts={"steps": 7},
    )
    return tmp_path / "w"


def refresh_manifest(folder: Path, name: str) -> None:
    """As if `name` had been saved as it is now: so that the checks behind the checksums are reached."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"sha256": _sha256(folder / name), "num_bytes": (folder / name).stat().st_size}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_what_is_saved_comes_back(folder, model):
    got = load(folder, preset="nano", tokenizer="abc")
    assert got.cfg == model.cfg
    assert not got.model.training
    assert got.manifest.facts == {"steps": 7}
    assert got.tokenizer_file.read_text() == "{}"
    want = model.state_dict()
    assert set(got.model.state_dict()) == set(want)
    for name, tensor in got.model.state_dict().items():
        assert torch.equal(tensor, want[name]), name
    assert load_training(folder) is None
    tokens = torch.arange(20)[None]
    assert torch.equal(got.model(tokens), model.eval()(tokens))


def test_bf16_keeps_the_gates_in_fp32(tmp_path, folder, model):
    """Decays, biases and convolutions stay in fp32, as released; the rest is rounded once and is half as large."""
    save(tmp_path / "h", model, tokenizer_file=folder / "tokenizer.json", tokenizer="abc", card="")
    stored = load_file(tmp_path / "h" / "model.safetensors")
    fp32 = {n for n, t in stored.items() if t.dtype == torch.float32}
    assert {"a_log", "dt_bias", "q_conv", "k_conv", "v_conv", "o_norm", "balance_bias_E"} == {
        n.rpartition(".")[2] for n in fp32
    }
    for name, tensor in load(tmp_path / "h").model.state_dict().items():
        want = model.state_dict()[name]
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, want if name in fp32 else want.bfloat16().float()), name
    half = load(tmp_path / "h", dtype=torch.bfloat16).model
    assert half.embed.weight.dtype == torch.bfloat16
    assert half.layers[0].attn.a_log.dtype == torch.float32


def test_saving_replaces_the_old_one_whole(folder, model):
    other = Model(model.cfg)
    (folder / "left over").write_text("")
    state = TrainingState(tensors={"x": torch.arange(3)}, facts={"step": 9})
    save(folder, other, tokenizer_file=folder / "tokenizer.json", tokenizer="d", card="new", training=state)
    assert read_manifest(folder).tokenizer == "d"
    assert not (folder / "left over").exists()
    assert sorted(p.name for p in folder.parent.iterdir()) == ["source.json", "w"], "no half-written folder stays"
    again = load_training(folder)
    assert again.facts == {"step": 9}
    assert again.tensors["x"].tolist() == [0, 1, 2]


def test_a_folder_without_a_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no checkpoint .no manifest.json.; train one"):
        load(tmp_path / "nowhere")
    (tmp_path / "w.old").mkdir()
    with pytest.raises(CheckpointError, match=r"its last complete version is .*w\.old"):
        load(tmp_path / "w")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "card.md"])
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing, though the manifest lists it"):
        load(folder)


def test_truncated_weights(folder):
    path = folder / "model.safetensors"
    num_bytes = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(num_bytes - 100)
    with pytest.raises(CheckpointError, match=f"has {num_bytes - 100} bytes, expected {num_bytes}"):
        load(folder)
    refresh_manifest(folder, "model.safetensors")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load(folder)


def test_a_changed_byte(folder):
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"x")
    with pytest.raises(CheckpointError, match="does not have the manifest's sha256"):
        load(folder)


def test_another_preset_or_tokenizer(folder):
    with pytest.raises(CheckpointError, match="holds preset nano, but micro was asked for"):
        load(folder, preset="micro")
    with pytest.raises(CheckpointError, match="trained with tokenizer abc, but xyz is in use"):
        load(folder, tokenizer="xyz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {"norm.weight": torch.ones(5)}, r"norm.weight has shape \(5,\), but preset nano needs \(64,\)"),
        (lambda t: {n: x for n, x in t.items() if n != "norm.weight"}, r"has no tensor norm.weight, .* shape \(64,\)"),
        (lambda t: t | {"more": torch.ones(2)}, r"has a tensor more \(2,\) that preset nano has no place for"),
    ],
)
def test_wrong_tensors_are_named_with_both_shapes(folder, change, message):
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)
    refresh_manifest(folder, "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_weights_of_another_size(model):
    small = Model(replace(model.cfg, vocab_size=32))
    with pytest.raises(CheckpointError, match=r"embed.weight has shape \(64, 64\), but preset nano needs \(32, 64\)"):
        load_weights(small, model.state_dict(), "somewhere")


def test_a_damaged_manifest(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(CheckpointError, match="checkpoint format 2, expected 1"):
        load(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(folder)
    del manifest["files"]["config.json"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"was saved without config.json"):
        load(folder)


def test_something_else_where_a_file_should_be(folder, tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load(tmp_path / "source.json")
    (folder / "model.safetensors").rename(tmp_path / "weights")
    (folder / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        load(folder)
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()
    with pytest.raises(CheckpointError, match="Is a directory"):
        load(folder)


@pytest.mark.parametrize(
    ("d_model", "message"),
    [(-64, "d_model is below 1"), (10**12, r"has shape \(64, 64\), but preset nano needs \(64, 1000000000000\)")],
)
def test_a_config_that_no_machine_can_build(folder, d_model, message):
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"d_model": d_model}))
    refresh_manifest(folder, "config.json")
    with pytest.raises(CheckpointError, match=message):
        load(folder)
