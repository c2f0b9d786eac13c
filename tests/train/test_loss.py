"""Cross-entropy in chunks is cross-entropy."""

import pytest
import torch

from longstep.train import loss as module
from longstep.train.loss import head_cross_entropy


def plain(hidden, head, target, weight):
    log_p = (hidden @ head.T).log_softmax(-1)
    return -(log_p.gather(1, target[:, None])[:, 0] * weight).sum()


@pytest.mark.parametrize("num_tokens", [1, 7, 64, 65])
def test_matches_the_plain_form(num_tokens, monkeypatch):
    """Value and both gradients, over chunks that do and do not divide the tokens."""
    monkeypatch.setattr(module, "_CPU_CHUNK_TOKENS", 16)
    torch.manual_seed(0)
    hidden = torch.randn(num_tokens, 12, dtype=torch.float64, requires_grad=True)
    head = torch.randn(30, 12, dtype=torch.float64, requires_grad=True)
    target, weight = torch.randint(0, 30, (num_tokens,)), torch.rand(num_tokens, dtype=torch.float64)
    weight[0] = 0
    got, want = head_cross_entropy(hidden, head, target, weight), plain(hidden, head, target, weight)
    assert torch.allclose(got, want, rtol=1e-12)
    for a, b in zip(
        torch.autograd.grad(3 * got, (hidden, head)), torch.autograd.grad(3 * want, (hidden, head)), strict=True
    ):
        assert (a - b).abs().max() < 1e-10


def test_gradcheck():
    torch.manual_seed(0)
    hidden = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    head = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    target, weight = torch.randint(0, 7, (5,)), torch.rand(5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda h, w: head_cross_entropy(h, w, target, weight), (hidden, head))


def test_bf16_states_with_an_fp32_head():
    """As on a GPU: the head's gradient comes back in the head's dtype."""
    torch.manual_seed(0)
    hidden = torch.randn(40, 16).bfloat16().requires_grad_()
    head = (0.1 * torch.randn(50, 16)).requires_grad_()
    target, weight = torch.randint(0, 50, (40,)), torch.ones(40)
    grads = torch.autograd.grad(head_cross_entropy(hidden, head, target, weight), (hidden, head))
    h, w = hidden.detach().float().requires_grad_(), head.detach().clone().requires_grad_()
    wants = torch.autograd.grad(plain(h, w, target, weight), (h, w))
    assert [g.dtype for g in grads] == [torch.bfloat16, torch.float32]
    for got, want in zip(grads, wants, strict=True):
        assert (got.float() - want).norm() / want.norm() < 0.02


def test_the_gpus_chunk_is_the_cpus():
    """The form that is compiled on a GPU, run plainly here."""
    torch.manual_seed(0)
    inputs = (torch.randn(9, 6), torch.randn(20, 6), torch.randint(0, 20, (9,)), torch.rand(9))
    for a, b in zip(module._chunk(*inputs), module._chunk_in_place(*inputs), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_huge_logits_stay_finite():
    hidden = torch.full((3, 2), 1e4, requires_grad=True)
    head = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], requires_grad=True)
    loss = head_cross_entropy(hidden, head, torch.tensor([0, 1, 0]), torch.ones(3))
    assert torch.isfinite(loss)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, (hidden, head)))
