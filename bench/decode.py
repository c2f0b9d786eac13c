"""Decoding on a CPU: how long one token takes, beside the limit of the memory and an independent implementation.

    python bench/decode.py [--preset micro] [--context 2048] [--tokens 64] [--threads 1,2] [--batches 1,16]

Weights are random: the time does not depend on them. A step is the network and the head for one token of each sequence
that holds `context` positions; sampling is an argmax. Variants take turns, token by token, so that a busy neighbour
disturbs all alike; p50 and the fastest are shown, and CPU time per token, which neighbours disturb least.

The peer is transformers' `kimi_linear` (K3's predecessor: the same KDA and NoPE MLA; no latent experts, mixes over
depth, output gate on MLA or full-rank gate on KDA), its experts sized to the same number of weights. It runs, for one
sequence, if transformers is installed: `pip install transformers`.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.table import Table

from longstep.model.cache import Cache
from longstep.model.config import ModelConfig, preset
from longstep.model.count import count_config
from longstep.model.decode import prepare
from longstep.model.network import Model


@dataclass
class Variant:
    name: str
    batch: int
    step: Callable[[], None]
    num_bytes: int  # that a step must read, at least
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def read_bytes(cfg: ModelConfig, batch: int, context: int) -> int:
    """Weights used (all experts that a batch can choose), states read and written, positions seen, in fp32."""
    c = count_config(cfg)
    experts = c.parts["routed experts"]
    chosen = min(experts.total, experts.active * batch)
    seen = min(context, cfg.dsa.top_k) if cfg.dsa else context
    per_position = 4 * cfg.num_attention * (cfg.mla.d_cache * seen + (cfg.dsa.head_dim * context if cfg.dsa else 0))
    return 4 * (c.active - experts.active + chosen) + batch * (2 * c.cache_bytes_per_sequence + per_position)


def ours(cfg: ModelConfig, batch: int, context: int, is_prepared: bool, num_tokens: int) -> Variant:
    model = Model(cfg).eval().requires_grad_(False)
    if is_prepared:
        prepare(model)
    cache = Cache(cfg, batch, 2 * batch * (context + num_tokens + 64))
    slots = [cache.alloc() for _ in range(batch)]
    for slot in slots:
        cache.extend([slot], context)
    for pool in (cache.kv, cache.index_keys, cache.states, cache.tails):
        pool.normal_()
    tokens_B1 = torch.zeros(batch, 1, dtype=torch.long)

    def step() -> None:
        tokens_B1.copy_(model.logits(model(tokens_B1, cache=cache, slots=slots)[:, -1]).argmax(-1, keepdim=True))

    return Variant(
        "longstep, " + ("prepared" if is_prepared else "plain"), batch, step, read_bytes(cfg, batch, context)
    )


def peer(cfg: ModelConfig, context: int) -> Variant | None:
    try:
        from transformers import KimiLinearConfig, KimiLinearForCausalLM
        from transformers import __version__ as version
    except ImportError:
        return None
    assert cfg.moe.d_expert * cfg.moe.d_latent % cfg.d_model == 0, "no expert width gives the same number of weights"
    width = cfg.moe.d_expert * cfg.moe.d_latent // cfg.d_model  # their experts work on the full width
    theirs = KimiLinearConfig(
        vocab_size=cfg.vocab_size,
        hidden_size=cfg.d_model,
        intermediate_size=cfg.d_dense,
        moe_intermediate_size=width,
        num_hidden_layers=cfg.num_layers,
        num_attention_heads=cfg.mla.num_heads,
        num_key_value_heads=cfg.mla.num_heads,
        n_shared_experts=cfg.moe.d_shared // width,
        kv_lora_rank=cfg.mla.kv_lora,
        q_lora_rank=cfg.mla.q_lora,
        qk_rope_head_dim=cfg.mla.d_shared,
        v_head_dim=cfg.mla.d_v,
        qk_nope_head_dim=cfg.mla.d_nope,
        num_experts_per_tok=cfg.moe.top_k,
        num_local_experts=cfg.moe.num_experts,
        layer_types=["full_attention" if cfg.is_attention(n) else "linear_attention" for n in range(cfg.num_layers)],
        mlp_layer_types=["dense" if cfg.is_dense(n) else "sparse" for n in range(cfg.num_layers)],
        linear_head_dim=cfg.kda.head_dim,
        linear_num_heads=cfg.kda.num_heads,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = KimiLinearForCausalLM(theirs).eval().requires_grad_(False)
    cache = model(torch.randint(cfg.vocab_size, (1, context)), use_cache=True, logits_to_keep=1).past_key_values
    tokens_11 = torch.zeros(1, 1, dtype=torch.long)

    def step() -> None:
        logits = model(tokens_11, past_key_values=cache, use_cache=True).logits
        tokens_11.copy_(logits[:, -1].argmax(-1, keepdim=True))

    active = sum(p.numel() for n, p in model.named_parameters() if "embed_tokens" not in n)
    active -= (cfg.num_layers - cfg.num_dense_layers) * (cfg.moe.num_experts - cfg.moe.top_k) * 3 * width * cfg.d_model
    return Variant(f"transformers {version}, kimi_linear", 1, step, 4 * active)


def bandwidth() -> float:
    """Bytes per second of reading 256 MiB, best of five."""
    x, best = torch.zeros(2**26), 0.0
    for _ in range(5):
        start = time.perf_counter()
        x.sum()
        best = max(best, 4 * x.numel() / (time.perf_counter() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--preset", default="micro")
    parser.add_argument("--context", type=int, default=2048, help="positions in the cache")
    parser.add_argument("--tokens", type=int, default=64, help="steps measured per variant")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batches", default="1,16")
    args = parser.parse_args()
    cfg = preset(args.preset)
    table = Table(title=f"{args.preset}, fp32, {args.context} positions, {args.tokens} steps; p50 / fastest")
    for heading in (
        "variant",
        "sequences",
        "threads",
        "ms a step",
        "tokens/s",
        "CPU ms a token",
        "MB read",
        "limit, ms",
    ):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    with torch.inference_mode():
        theirs = peer(cfg, args.context)
        for batch in map(int, args.batches.split(",")):
            variants = [
                ours(cfg.as_mla(), batch, args.context, True, 9 * args.tokens),
                ours(cfg, batch, args.context, True, 9 * args.tokens),
                ours(cfg.as_mla(), batch, args.context, False, 9 * args.tokens),
            ]
            for v, kind in zip(variants, ("MLA", "DSA", "MLA"), strict=True):
                v.name += f", {kind}"
            if batch == 1 and theirs is not None:
                variants.append(theirs)
            for threads in map(int, args.threads.split(",")):
                torch.set_num_threads(threads)
                measure(variants, args.tokens)
                bytes_per_s = bandwidth()
                for v in variants:
                    p50, fastest = sorted(v.wall_s)[len(v.wall_s) // 2], min(v.wall_s)
                    cpu = sorted(v.cpu_s)[len(v.cpu_s) // 2]
                    table.add_row(
                        v.name,
                        str(batch),
                        str(threads),
                        f"{1e3 * p50:.2f} / {1e3 * fastest:.2f}",
                        f"{batch / p50:.0f} / {batch / fastest:.0f}",
                        f"{1e3 * cpu / batch:.2f}",
                        f"{v.num_bytes / 1e6:.1f}",
                        f"{1e3 * v.num_bytes / bytes_per_s:.2f}",
                    )
            table.add_section()
    console = Console(width=130)
    console.print(table)
    if theirs is None:
        console.print("transformers is not installed here, so the peer is left out: pip install transformers")


def measure(variants: list[Variant], num_steps: int) -> None:
    for v in variants:
        v.wall_s.clear()
        v.cpu_s.clear()
        for _ in range(3):
            v.step()
    for _ in range(num_steps):
        for v in variants:
            wall, cpu = time.perf_counter(), time.process_time()
            v.step()
            v.wall_s.append(time.perf_counter() - wall)
            v.cpu_s.append(time.process_time() - cpu)


if __name__ == "__main__":
    main()
