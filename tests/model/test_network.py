"""The network as something to train: start values, gradients, dtypes, what the experts report."""

import math

import torch
from small_network import CONFIG, DENSE, build, rel, tokens
from torch.nn import functional

from longstep.model.cache import Cache
from longstep.model.config import preset
from longstep.model.network import Model


def loss(model: Model, ids: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model.logits(model(ids[:, :-1])).flatten(0, 1), ids[:, 1:].flatten())


def test_a_fresh_network_knows_nothing_and_decays_slowly():
    torch.manual_seed(0)
    cfg = preset("nano")
    model = Model(cfg)
    ids = torch.randint(cfg.vocab_size, (2, 65))
    assert abs(loss(model, ids).item() - math.log(cfg.vocab_size)) < 0.1
    for layer in model.layers:
        if hasattr(layer.attn, "dt_bias"):
            forgotten = 5 * torch.sigmoid(layer.attn.dt_bias)  # per token, at z = 0
            assert forgotten.min() * (1 + 1e-4) >= 0.001
            assert forgotten.max() <= 0.1 * (1 + 1e-4)
            assert not layer.attn.a_log.any()


def test_every_weight_learns():
    """All but those that cannot: layer 0's own mix (nothing to mix yet) and the indexers (they have their own loss)."""
    model, ids = build(CONFIG), tokens(60)
    model.requires_grad_(True)
    loss(model, ids).backward()
    without = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    want = {"layers.0.attn_mix.norm", "layers.0.attn_mix.query"}
    want |= {name for name, _ in model.named_parameters() if ".indexer." in name}
    assert without == want


def test_gradient_of_the_whole_network():
    """Along one random direction in weight space, against a central difference in float64."""
    model, ids = build(DENSE), tokens(70)
    model.requires_grad_(True)
    loss(model, ids).backward()
    params = [p for p in model.parameters() if p.grad is not None]
    torch.manual_seed(3)
    direction = [torch.randn_like(p) for p in params]
    want = sum((p.grad * d).sum() for p, d in zip(params, direction, strict=True))
    step, at = 1e-6, []
    with torch.no_grad():
        for sign in (1, -2):
            for p, d in zip(params, direction, strict=True):
                p.add_(d, alpha=sign * step)
            at.append(loss(model, ids))
    assert abs((at[0] - at[1]) / (2 * step) / want - 1) < 1e-5


def test_experts_report_what_balancing_needs():
    model, ids = build(CONFIG).train(), tokens(30, batch=2)
    model(ids)
    moe = model.layers[2].ffn
    assert moe.load_E.sum() == 60 * CONFIG.moe.top_k
    assert moe.score_NE.shape == (60, CONFIG.moe.num_experts)
    assert not moe.score_NE.requires_grad
    moe.load_E = moe.score_NE = None
    model.eval()(ids)
    assert moe.load_E is None


def test_bf16_is_near_fp32():
    """Compute in bf16 over fp32 weights: hidden states within a few per cent, logits still fp32."""
    torch.manual_seed(0)
    model = Model(preset("nano")).eval().requires_grad_(False)
    ids = torch.randint(8192, (1, 100))
    want = model(ids)
    model.compute_dtype = torch.bfloat16
    got = model(ids)
    assert got.dtype == torch.bfloat16
    assert model.logits(got).dtype == torch.float32
    assert rel(got.float(), want) < 0.05


def test_a_bf16_cache_is_near_an_fp32_one():
    torch.manual_seed(0)
    model = Model(preset("nano")).eval().requires_grad_(False)
    ids, got = torch.randint(8192, (1, 40)), []
    cache = Cache(model.cfg, 1, 64, dtype=torch.bfloat16)
    slot = cache.alloc()
    for t in range(40):
        got.append(model(ids[:, t : t + 1], cache=cache, slots=[slot]))
    assert cache.states.dtype == torch.float32
    assert rel(torch.cat(got, 1), model(ids)) < 0.05
