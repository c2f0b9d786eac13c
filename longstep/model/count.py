"""The network counts itself: parameters, bytes on disk, cache, FLOPs per token. Arithmetic on a config, nothing built.

Counts are as a checkpoint stores the tensors (A_log with its padding). The tests hold them to the built network, and
those of `k3` to the byte size of the released checkpoint.
"""

import dataclasses
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.table import Table

from longstep.errors import UserError
from longstep.model.config import ModelConfig, preset


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Parameters of one kind, over all layers; `fp32` of them take 4 bytes on disk, the others `bytes_per_64` / 64."""

    total: int
    active: int  # used for one token
    fp32: int = 0
    bytes_per_64: int = 128  # bf16; MXFP4 has 64 nibbles and two scale bytes

    @property
    def num_bytes(self) -> int:
        return (self.total - self.fp32) * self.bytes_per_64 // 64 + 4 * self.fp32


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """`active` is the text part's parameters that one token uses, without the input embedding (a lookup).

    Cache bytes are with latents, index keys and tails in bf16, states in fp32. FLOPs are those of one decoded token:
    two per weight used, and the reading of state and cache at `context` positions; norms and activations are left out.
    """

    preset: str
    text_total: int
    total: int  # with vision
    active: int
    checkpoint_bytes: int
    parts: dict[str, Part]
    cache_bytes_per_token: int
    cache_bytes_per_sequence: int
    context: int
    flops_per_token: int
    flops: dict[str, int]


def count(name: str, context: int = 8192) -> Count:
    """Count the preset of that name. Raises UserError if there is none, or no such context."""
    if context < 0:
        raise UserError(f"a context of {context} tokens: expected 0 or more")
    return count_config(preset(name), context)


def count_config(cfg: ModelConfig, context: int = 8192) -> Count:
    text, vision = _text_parts(cfg), _vision_parts(cfg)
    flops = _flops(cfg, text, context)
    parts = text | vision
    mla, kda, dsa = cfg.mla, cfg.kda, cfg.dsa
    tail = (kda.conv_width - 1) * 3 * kda.width
    return Count(
        preset=cfg.name,
        text_total=sum(p.total for p in text.values()),
        total=sum(p.total for p in parts.values()),
        active=sum(p.active for p in text.values()),
        checkpoint_bytes=sum(p.num_bytes for p in parts.values()),
        parts=parts,
        cache_bytes_per_token=2 * cfg.num_attention * (mla.d_cache + (dsa.head_dim if dsa else 0)),
        cache_bytes_per_sequence=cfg.num_kda * (4 * kda.num_heads * kda.head_dim**2 + 2 * tail),
        context=context,
        flops_per_token=sum(flops.values()),
        flops=flops,
    )


def _text_parts(cfg: ModelConfig) -> dict[str, Part]:
    D, kda, mla, moe, dsa = cfg.d_model, cfg.kda, cfg.mla, cfg.moe, cfg.dsa
    num_moe = cfg.num_layers - cfg.num_dense_layers
    expert = 3 * moe.d_latent * moe.d_expert
    P = kda.width
    kda_fp32 = 3 * kda.conv_width * P + kda.a_log_stored + P + kda.head_dim  # convolutions, A_log, dt_bias, o_norm
    parts = {
        "embedding": Part(total=cfg.vocab_size * D, active=0),
        "head": _all(cfg.vocab_size * D),
        "kda": _all(
            cfg.num_kda * (5 * D * P + kda.gate_rank * (D + P) + kda.num_heads * D + kda_fp32), cfg.num_kda * kda_fp32
        ),
        "mla": _all(
            cfg.num_attention
            * (
                mla.q_lora * (D + 1 + mla.num_heads * mla.d_qk)  # q_a, its norm, q_b
                + mla.d_cache * D
                + mla.kv_lora * (1 + mla.num_heads * (mla.d_nope + mla.d_v))  # norm, kv_b
                + 2 * mla.num_heads * mla.d_v * D  # gate, output
            )
        ),
        "norms and mixes": _all((6 * cfg.num_layers + 3) * D),
        "dense mlp": _all(cfg.num_dense_layers * 3 * D * cfg.d_dense),
        "router": _all(num_moe * moe.num_experts * (D + 1), num_moe * moe.num_experts),  # with the balance bias
        "latent projections": _all(num_moe * moe.d_latent * (2 * D + 1)),  # with their norm
        "shared experts": _all(num_moe * 3 * D * moe.d_shared),
        "routed experts": Part(
            total=num_moe * moe.num_experts * expert,
            active=num_moe * moe.top_k * expert,
            bytes_per_64=34 if moe.stored == "mxfp4" else 128,
        ),
    }
    if dsa:
        heads = dsa.num_heads * dsa.head_dim
        one = heads * mla.q_lora + (dsa.head_dim + dsa.num_heads) * D + 2 * dsa.head_dim
        parts["indexer"] = _all(cfg.num_attention * one)
    return parts


def _vision_parts(cfg: ModelConfig) -> dict[str, Part]:
    v = cfg.vision
    if v is None:
        return {}
    block = 2 * v.d_model + 4 * v.d_model * v.d_qkv + 2 * v.d_model * v.d_mlp
    rows = v.merge * v.d_model
    return {
        "vision tower": _all(
            3 * v.patch**2 * v.d_model + v.position_grid**2 * v.d_model + v.num_layers * block + v.d_model
        ),
        "projector": _all(rows * rows + rows * cfg.d_model + cfg.d_model),
    }


def _all(total: int, fp32: int = 0) -> Part:
    return Part(total=total, active=total, fp32=fp32)


def _flops(cfg: ModelConfig, text: dict[str, Part], context: int) -> dict[str, int]:
    kda, mla, dsa = cfg.kda, cfg.mla, cfg.dsa
    seen = min(context, dsa.top_k) if dsa else context
    flops = {
        "weights": 2 * sum(p.active for p in text.values()),
        # decay aside: what the state holds at k, the write, the read
        "kda state": cfg.num_kda * 6 * kda.num_heads * kda.head_dim**2,
        # absorbed: scores over the cached values, sums over the kv latents
        "attention": cfg.num_attention * 2 * mla.num_heads * (mla.d_cache + mla.kv_lora) * seen,
    }
    if dsa:
        flops["index scores"] = cfg.num_attention * 2 * dsa.num_heads * dsa.head_dim * context
    return flops


def print_count(preset_name: str, as_json: bool = False, context: int = 8192) -> None:
    """`longstep count`: a table for people, or one JSON object with the fields of `Count`. UserError if unknown."""
    c = count(preset_name, context)
    if as_json:
        fields = dataclasses.asdict(c)
        fields["parts"] = {name: p.total for name, p in c.parts.items()}
        fields["active_parts"] = {name: p.active for name, p in c.parts.items()}
        print(msgspec.json.format(msgspec.json.encode(fields), indent=2).decode())
        return
    console = Console()
    table = Table("part", title=f"Parameters of {preset_name}", title_justify="left")
    for heading in ("total", "active", "bytes on disk"):
        table.add_column(heading, justify="right")
    for name, p in c.parts.items():
        table.add_row(name, f"{p.total:,}", f"{p.active:,}", f"{p.num_bytes:,}")
    table.add_section()
    table.add_row("text", f"{c.text_total:,}", f"{c.active:,}", "")
    table.add_row("all", f"{c.total:,}", "", f"{c.checkpoint_bytes:,}")
    console.print(table)
    table = Table("run", title=f"At a context of {context:,} positions", title_justify="left")
    table.add_column("value", justify="right")
    table.add_row("cache, bytes per token", f"{c.cache_bytes_per_token:,}")
    table.add_row("state, bytes per sequence", f"{c.cache_bytes_per_sequence:,}")
    for name, n in c.flops.items():
        table.add_row(f"FLOPs per token: {name}", f"{n:,}")
    table.add_row("FLOPs per token", f"{c.flops_per_token:,}")
    console.print(table)
