"""Routing, experts in their forms, balancing. Letters as in ops/moe."""

import pytest
import torch
from closeness import rel

from longstep.ops import moe
from longstep.ops.moe import reference
from longstep.ops.situ import situ

E, K, L, F = 5, 2, 6, 7


def weights(seed=0):
    torch.manual_seed(seed)
    return torch.randn(E, 2 * F, L).double(), torch.randn(E, L, F).double()


def routed(N, num_used=E):
    """Random choices among the first `num_used` experts, so that others get no token."""
    idx = torch.stack([torch.randperm(num_used)[:K] for _ in range(N)])
    return torch.randn(N, L).double(), idx, torch.rand(N, K).double()


@pytest.mark.parametrize("N", [1, 2, 5, 33])
@pytest.mark.parametrize("num_used", [2, E])
def test_forms_are_the_naive_sum(N, num_used):
    (w13, w2), (z, idx, w) = weights(), routed(N, num_used)
    want = torch.zeros(N, L).double()
    for n in range(N):
        for k in range(K):
            e = idx[n, k]
            want[n] += w[n, k] * (w2[e] @ situ(w13[e, :F] @ z[n], w13[e, F:] @ z[n]))
    for form in (moe.experts, reference.experts_gathered, reference.experts_sorted):
        assert (error := rel(form(z, idx, w, w13, w2, 4.0, 25.0), want)) < 1e-12, f"{form}: {error:.1e}"


@pytest.mark.parametrize("N", [2, 9])
def test_expert_gradients(N):
    (w13, w2), (z, idx, w) = weights(), routed(N)
    leaves = [t.requires_grad_() for t in (z, w, w13, w2)]
    assert torch.autograd.gradcheck(lambda z, w, w13, w2: moe.experts(z, idx, w, w13, w2), leaves, fast_mode=True)


def test_the_bias_chooses_and_does_nothing_else():
    torch.manual_seed(0)
    x, w_ED = torch.randn(50, 8).double(), torch.randn(E, 8).double()
    bias = torch.tensor([0.0, 0, 10, 0, 0]).double()
    idx, w, score = moe.route(x, w_ED, bias, K)
    assert (idx[:, 0] == 2).all()
    chosen = (x @ w_ED.T).sigmoid().gather(1, idx)
    assert rel(w, chosen / chosen.sum(1, keepdim=True)) < 1e-12
    assert rel(score, (x @ w_ED.T).sigmoid()) < 1e-12


def test_routing_is_in_fp32_at_least():
    """bf16 rounds scores so coarsely that other experts win; the op widens its inputs first."""
    torch.manual_seed(0)
    x, w_ED = torch.randn(500, 64).bfloat16(), torch.randn(E, 64).bfloat16()
    idx, _, score = moe.route(x, w_ED, torch.zeros(E), K)
    assert score.dtype == torch.float32
    want = (x.double() @ w_ED.double().T).sigmoid().topk(K).indices
    assert (idx == want).float().mean() > 0.99


def test_router_gradients():
    torch.manual_seed(0)
    x, w_ED = torch.randn(4, 3).double(), torch.randn(E, 3).double()
    leaves = [x.requires_grad_(), w_ED.requires_grad_()]
    assert torch.autograd.gradcheck(lambda x, w: moe.route(x, w, torch.zeros(E).double(), K)[1:], leaves)


def test_quantile_balancing_evens_out_a_skewed_router():
    """Scores that prefer two experts by far: after a few rounds each expert gets its share to within a few per cent."""
    torch.manual_seed(0)
    N, num_experts, top_k = 4096, 8, 2
    score = (torch.randn(N, num_experts) + torch.tensor([3.0, 2, 0, 0, 0, 0, -1, -2])).sigmoid()
    bias = torch.zeros(num_experts)

    def worst(bias):
        load = (score + bias).topk(top_k, dim=1).indices.flatten().bincount(minlength=num_experts)
        return float(load.max() / load.float().mean())

    assert worst(bias) > 2.5
    for _ in range(10):
        bias = moe.quantile_bias(score, bias, top_k)
    assert worst(bias) < 1.05
    assert abs(bias.mean()) < 1e-6
