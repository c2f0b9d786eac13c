"""The optimizer: Muon's updates are orthogonal and of AdamW's size, both kinds find a minimum, state comes back."""

import pytest
import torch
from torch import nn

from longstep.model.config import preset
from longstep.model.network import Model
from longstep.train.optim import OptimConfig, Optimizer, is_matrix, newton_schulz, schedule


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 64, 16), (2, 16, 96)], ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_newton_schulz_is_nearly_orthogonal(shape, scale):
    torch.manual_seed(0)
    x = scale * torch.randn(shape)
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    got = newton_schulz(x)
    singular = torch.linalg.svdvals(got)
    assert singular.min() > 0.5, f"smallest singular value {singular.min():.2f}"
    assert singular.max() < 1.3, f"largest singular value {singular.max():.2f}"
    # the same singular vectors: u' got v is diagonal
    inner = u.mT @ got @ v.mT
    off = inner - torch.diag_embed(torch.diagonal(inner, dim1=-2, dim2=-1))
    assert off.abs().max() < 0.02


def test_a_stack_of_experts_is_many_matrices():
    """Each expert's update is orthogonal by itself, and the same as if it were a matrix of its own."""
    torch.manual_seed(0)
    stack = nn.Parameter(torch.randn(4, 16, 24))
    single = nn.Parameter(stack[2].detach().clone())
    optimizer = Optimizer([("w13_EFL", stack), ("one.weight", single)], OptimConfig(weight_decay=0.0))
    before = stack.detach().clone(), single.detach().clone()
    stack.grad = torch.randn_like(stack)
    single.grad = stack.grad[2].clone()
    optimizer.step(0.1)
    update = (stack - before[0]).detach() / (-0.1 * 0.2 * 24**0.5)
    singular = torch.linalg.svdvals(update)
    assert singular.min() > 0.5
    assert singular.max() < 1.3
    assert torch.allclose((single - before[1]).detach(), (stack - before[0])[2].detach(), atol=1e-6)


def test_updates_have_the_size_of_adamw():
    """Root mean square about 0.2 x lr whatever the shape, so that one learning rate serves both."""
    torch.manual_seed(0)
    for shape in [(64, 64), (32, 128), (256, 32)]:
        p = nn.Parameter(torch.zeros(shape))
        optimizer = Optimizer([("x.weight", p)], OptimConfig(weight_decay=0.0))
        p.grad = torch.randn(shape)
        optimizer.step(1.0)
        assert p.detach().pow(2).mean().sqrt() == pytest.approx(0.2, rel=0.25)


def test_both_kinds_find_a_minimum():
    torch.manual_seed(0)
    target_w, target_b = torch.randn(16, 32), torch.randn(16)
    w, b = nn.Parameter(torch.zeros(16, 32)), nn.Parameter(torch.zeros(16))
    optimizer = Optimizer([("x.weight", w), ("x.bias", b)], OptimConfig(weight_decay=0.0))
    first = None
    for step in range(200):
        loss = (w - target_w).pow(2).mean() + (b - target_b).pow(2).mean()
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(0.1 * schedule(step, step / 200, warm_up_steps=5, decay=0.5))
    assert loss.item() < 1e-3 * first, f"{first:.3f} -> {loss.item():.5f}"


def test_weight_decay_shrinks_matrices_alone():
    w, b = nn.Parameter(torch.ones(16, 16)), nn.Parameter(torch.ones(16))
    optimizer = Optimizer([("x.weight", w), ("x.bias", b)], OptimConfig(weight_decay=0.5))
    w.grad, b.grad = torch.zeros_like(w), torch.zeros_like(b)
    optimizer.step(0.1)
    assert torch.allclose(w, torch.full_like(w, 0.95))
    assert torch.equal(b, torch.ones_like(b))


def test_clip_bounds_the_norm():
    parameters = [("a", nn.Parameter(torch.zeros(3))), ("b.weight", nn.Parameter(torch.zeros(8, 8)))]
    optimizer = Optimizer(parameters, OptimConfig(clip=1.0))
    for _, p in parameters:
        p.grad = torch.full_like(p, 2.0)
    norm, finite = optimizer.clip(optimizer.collect())
    assert float(norm) == pytest.approx(2 * 67**0.5)
    assert float(finite) == 1.0
    assert sum(float(p.grad.pow(2).sum()) for _, p in parameters) == pytest.approx(1.0, rel=1e-3)
    for _, p in parameters:
        p.grad = torch.full_like(p, 1e-3)
    optimizer.clip(optimizer.collect())
    assert float(parameters[0][1].grad[0]) == pytest.approx(1e-3), "a small gradient is left alone"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_moves_nothing(bad):
    torch.manual_seed(0)
    parameters = [("x.bias", nn.Parameter(torch.ones(3))), ("x.weight", nn.Parameter(torch.randn(8, 8)))]
    optimizer = Optimizer(parameters, OptimConfig())
    for value in (1.0, bad):  # the momentum of a good step is there when the bad one comes
        before = [p.detach().clone() for _, p in parameters]
        for _, p in parameters:
            p.grad = torch.ones_like(p)
        parameters[0][1].grad[1] = value
        norm, finite = optimizer.clip(optimizer.collect())
        optimizer.step(0.1, finite)
    assert not torch.isfinite(norm)
    assert float(finite) == 0.0
    for (_, p), old in zip(parameters, before, strict=True):
        assert torch.equal(p, old)
    assert all(torch.isfinite(t).all() for t in optimizer.state_dict().values())


def test_who_trains_what_in_the_network():
    """Muon has the maps between hidden spaces; embedding, head, router, convolutions and vectors are AdamW's."""
    with torch.device("meta"):
        named = dict(Model(preset("nano").as_mla()).named_parameters())
    muon = {n for n, p in named.items() if is_matrix(n, p)}
    adamw = set(named) - muon
    assert {"embed.weight", "head.weight"} <= adamw
    assert all(n in adamw for n, p in named.items() if p.ndim == 1 or "conv" in n or n.endswith("router"))
    assert any(n.endswith("w13_EFL") for n in muon)
    assert any(n.endswith("kv_b_proj.weight") for n in muon)
    assert sum(named[n].numel() for n in muon) > 0.2 * sum(p.numel() for p in named.values())


def test_state_goes_away_and_comes_back():
    torch.manual_seed(0)

    def fresh():
        return [("x.weight", nn.Parameter(torch.ones(8, 16))), ("x.bias", nn.Parameter(torch.ones(8)))]

    gradients = [[torch.randn(8, 16), torch.randn(8)] for _ in range(6)]

    def run(parameters, optimizer, some):
        for pair in some:
            for (_, p), g in zip(parameters, pair, strict=True):
                p.grad = g.clone()
            optimizer.step(0.01)

    straight = fresh()
    run(straight, Optimizer(straight, OptimConfig()), gradients)
    first = fresh()
    optimizer = Optimizer(first, OptimConfig())
    run(first, optimizer, gradients[:3])
    second = [(n, nn.Parameter(p.detach().clone())) for n, p in first]
    resumed = Optimizer(second, OptimConfig())
    resumed.load_state_dict({n: t.clone() for n, t in optimizer.state_dict().items()})
    run(second, resumed, gradients[3:])
    for (_, a), (_, b) in zip(straight, second, strict=True):
        assert torch.equal(a, b)


def test_schedule():
    def factor(step, progress):
        return schedule(step, progress, warm_up_steps=10, decay=0.25)

    assert factor(0, 0.0) == pytest.approx(0.1)
    assert factor(9, 0.1) == 1.0
    assert factor(500, 0.75) == 1.0
    assert 0.0 < factor(900, 0.9) < factor(800, 0.8) < 1.0
    assert factor(1000, 1.0) == 0.0
    assert factor(2000, 1.7) == 0.0, "past the end it stays at nothing"
    assert schedule(0, 0.0, warm_up_steps=0, decay=0.25) == 1.0
    assert schedule(9, 1.01, warm_up_steps=0, decay=0.0) == 1.0, "no decay at all"
