"""Configs check themselves, say what is wrong, and go to JSON and back unchanged."""

from dataclasses import replace

import msgspec
import pytest

from longstep.errors import CheckpointError, UserError
from longstep.model.config import PRESET_NAMES, from_json, preset, to_json


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_json_and_back(name):
    assert from_json(to_json(preset(name))) == preset(name)


def test_unknown_preset_names_the_presets():
    with pytest.raises(UserError, match=r"'mikro' is unknown.*k3, k3.1-pro, micro, tiny, nano"):
        preset("mikro")


def test_as_mla_only_drops_the_indexer():
    cfg = preset("k3.1-pro")
    assert replace(cfg.as_mla(), name="k3") == preset("k3")
    assert cfg.as_mla().as_mla() == cfg.as_mla()


def edited(**changes):
    fields = msgspec.json.decode(to_json(preset("micro")))
    for path, value in changes.items():
        at = fields
        *parents, last = path.split("__")
        for key in parents:
            at = at[key]
        at[last] = value
    return msgspec.json.encode(fields)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{", "cannot be read"),
        (b"[]", "cannot be read"),
        (edited(rope_theta=10000), "rope_theta"),
        (edited(kda__head_dimm=64), r"kda\.head_dimm"),
        (edited(num_layers="nine"), "num_layers"),
        (edited(kda__gate_lower_bound=0.0), "gate_lower_bound"),
        (edited(kda__a_log_stored=2), "a_log_stored"),
        (edited(kda__conv_width=1), "conv_width"),
        (edited(moe__top_k=16), "top_k"),
        (edited(attention_layers=[0, 4]), "1-based"),
        (edited(attention_layers=[4, 10]), "1-based"),
        (edited(num_dense_layers=10), "num_dense_layers"),
        (edited(attn_res_block=0), "attn_res_block"),
    ],
)
def test_a_bad_file_ends_in_a_sentence(text, says):
    with pytest.raises(CheckpointError, match=says) as e:
        from_json(text)
    assert "restore the file" in str(e.value)


@pytest.mark.parametrize("name", ["micro", "tiny", "nano"])
def test_small_presets_suit_grouped_products(name):
    """Rows of 16 values: what grouped matrix products on GPUs ask for."""
    cfg = preset(name)
    dims = (cfg.d_model, cfg.moe.d_latent, cfg.moe.d_expert, cfg.moe.d_shared, cfg.mla.q_lora, cfg.mla.kv_lora)
    assert all(d % 16 == 0 for d in dims)
