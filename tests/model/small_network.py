"""A network of odd sizes that has everything, with weights far from their start values, in float64."""

from dataclasses import replace

import torch

from longstep.model.config import DSAConfig, KDAConfig, MLAConfig, ModelConfig, MoEConfig
from longstep.model.network import Model

CONFIG = ModelConfig(
    name="small",
    vocab_size=37,
    d_model=20,
    num_layers=5,
    attention_layers=(2, 4, 5),
    d_dense=18,
    kda=KDAConfig(num_heads=3, head_dim=10, gate_rank=6, a_log_stored=10),
    mla=MLAConfig(num_heads=2, q_lora=10, kv_lora=12, d_nope=6, d_shared=4, d_v=5),
    dsa=DSAConfig(num_heads=3, head_dim=6, top_k=9),
    moe=MoEConfig(num_experts=6, top_k=2, d_latent=14, d_expert=10, d_shared=12),
    attn_res_block=2,
    max_context=1024,
)
DENSE = CONFIG.as_mla()
WIDE_DSA = replace(CONFIG, dsa=replace(CONFIG.dsa, top_k=1000))


def build(cfg: ModelConfig, seed: int = 0) -> Model:
    """Float64, in evaluation mode; every parameter random, so that no term is hidden by a 0 or a 1."""
    torch.manual_seed(seed)
    model = Model(cfg).double().eval().requires_grad_(False)
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        p.copy_(torch.randn(p.shape, dtype=torch.float64) * (0.3 if p.ndim > 1 else 0.5))
        if name.endswith(("norm", "norm.weight")):
            p.add_(1)
    return model


def tokens(num: int, batch: int = 1, seed: int = 1) -> torch.Tensor:
    return torch.randint(CONFIG.vocab_size, (batch, num), generator=torch.Generator().manual_seed(seed))


def rel(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference relative to the largest wanted value."""
    assert got.shape == want.shape, f"{tuple(got.shape)} is not {tuple(want.shape)}"
    return float((got - want).abs().max() / want.abs().max())
