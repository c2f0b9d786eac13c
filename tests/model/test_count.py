"""Counts: the formulas against the built network, and against what was published of the released one."""

import json
from dataclasses import replace

import pytest
import torch
from small_network import CONFIG

from longstep.errors import UserError
from longstep.model.config import PRESET_NAMES, ModelConfig, preset
from longstep.model.count import count, count_config, print_count
from longstep.model.network import Model


def built(cfg: ModelConfig) -> dict[str, int]:
    """Values stored by the network built on the meta device, by part."""
    with torch.device("meta"):
        tensors = Model(cfg).state_dict()
    parts: dict[str, int] = {}
    for name, t in tensors.items():
        extra = cfg.kda.a_log_stored - cfg.kda.num_heads if name.endswith("a_log") else 0
        parts[part_of(name)] = parts.get(part_of(name), 0) + t.numel() + extra
    return parts


def part_of(name: str) -> str:
    if name.startswith(("embed.", "head.")):
        return "embedding" if name.startswith("embed") else "head"
    _, _, *rest = name.split(".")
    match rest:
        case ["attn", "indexer", *_]:
            return "indexer"
        case ["attn", first, *_]:
            return "mla" if first in MLA_NAMES else "kda" if first in KDA_NAMES else "attention, shared names"
        case ["ffn", "router" | "balance_bias_E"]:
            return "router"
        case ["ffn", "latent_down_proj" | "latent_up_proj" | "latent_norm", _]:
            return "latent projections"
        case ["ffn", "shared_experts", *_]:
            return "shared experts"
        case ["ffn", "w13_EFL" | "w2_ELF"]:
            return "routed experts"
        case ["ffn", *_]:
            return "dense mlp"
        case _:
            return "norms and mixes"


MLA_NAMES = {"q_a_proj", "q_a_norm", "q_b_proj", "kv_a_proj", "kv_a_norm", "kv_b_proj"}
KDA_NAMES = {*(f"{n}_proj" for n in ("q", "k", "v", "f_a", "f_b", "b")), "q_conv", "k_conv", "v_conv"} | {
    "a_log",
    "dt_bias",
    "o_norm",
}


@pytest.mark.parametrize("cfg", [CONFIG, *map(preset, PRESET_NAMES)], ids=lambda c: c.name)
def test_the_formulas_are_the_built_network(cfg):
    want = built(cfg)
    got = {name: p.total for name, p in count_config(replace(cfg, vision=None)).parts.items()}
    want["kda and mla"] = want.pop("attention, shared names") + want.pop("kda") + want.pop("mla")
    got["kda and mla"] = got.pop("kda") + got.pop("mla")
    assert got == want


def test_k3_is_the_released_checkpoint():
    """Published: 2.78T in all, 104.2B active, the index file's total_size."""
    c = count("k3")
    assert c.text_total == 2_779_484_478_208
    assert c.active == 104_189_614_848
    assert c.total == 2_779_931_837_184
    assert c.checkpoint_bytes == 1_560_860_324_864


def test_k3_part_by_part():
    want = {
        "embedding": 1_174_405_120,
        "head": 1_174_405_120,
        "kda": 30_618_088_704,
        "mla": 5_572_706_304,
        "norms and mixes": 3_999_744 + 21_504,
        "dense mlp": 726_663_168,
        "routed experts": 2_722_740_830_208,
        "vision tower": 401_214_464,
        "projector": 46_144_512,
    }
    got = {name: p.total for name, p in count("k3").parts.items()}
    fixed = ("router", "latent projections", "shared experts")
    assert sum(got.pop(name) for name in fixed) == 17_473_358_336
    assert got == want


def test_k3_1_adds_its_indexers():
    more, less = count("k3.1-pro"), count("k3")
    assert more.text_total - less.text_total == 24 * 7_438_592
    assert more.cache_bytes_per_token - less.cache_bytes_per_token == 24 * 128 * 2


def test_k3_cache():
    c = count("k3")
    assert c.cache_bytes_per_token == 27_648
    assert c.cache_bytes_per_sequence == 69 * (6_291_456 + 221_184)


def test_flops_grow_with_the_context_until_the_index_cuts():
    near, far = count("k3", 2048), count("k3", 4096)
    assert far.flops_per_token - near.flops_per_token == 24 * 2 * 96 * (576 + 512) * 2048
    near, far = count("k3.1-pro", 2048), count("k3.1-pro", 4096)
    assert far.flops_per_token - near.flops_per_token == 24 * 2 * 32 * 128 * 2048


def test_micro_fits_its_limit():
    assert count("micro").total <= 25_000_000
    assert count("micro").checkpoint_bytes <= 50 * 2**20


def test_printed_json(capsys):
    print_count("micro", as_json=True, context=100)
    got = json.loads(capsys.readouterr().out)
    assert got["text_total"] == got["total"] == sum(got["parts"].values()) == count("micro").total
    assert got["context"] == 100


def test_printed_table(capsys):
    print_count("k3")
    out = capsys.readouterr().out
    assert "2,779,484,478,208" in out
    assert "1,560,860,324,864" in out


def test_unknown_preset():
    with pytest.raises(UserError, match="expected one of"):
        print_count("k4")


def test_a_context_below_zero():
    with pytest.raises(UserError, match="-5 tokens"):
        count("nano", context=-5)
