"""The forms that a GPU trains with, as far as they run without one: against the references, outputs and gradients.

bench/train_speed.py does the same, for all of them, on the device itself.
"""

import pytest
import torch

from longstep.ops import attn_res, kda, mla, moe
from longstep.ops.attn_res import fused
from longstep.ops.kda import fla
from longstep.ops.mla import varlen
from longstep.ops.moe import grouped


def relative(got, want):
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm())


def compare(fast, slow, inputs, limit, upcast=False):
    a = [x.detach().clone().requires_grad_() for x in inputs]
    b = [(x.detach().float() if upcast else x.detach()).clone().requires_grad_() for x in inputs]
    got, want = fast(*a), slow(*b)
    weight = torch.randn(want.shape, dtype=want.dtype)
    (got.to(want.dtype) * weight).sum().backward()
    (want * weight).sum().backward()
    errors = [relative(got, want), *(relative(x.grad, y.grad) for x, y in zip(a, b, strict=True))]
    assert max(errors) < limit, f"relative errors {errors}"


@pytest.mark.parametrize("bounds", [None, [0, 9], [0, 1, 2, 6, 9]], ids=str)
def test_short_convolution(bounds):
    """Documents of no tokens at the end, as a packed batch has them, change nothing."""
    torch.manual_seed(0)
    x, w = torch.randn(1, 9, 6, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    real = None if bounds is None else torch.tensor(bounds)
    padded = None if bounds is None else torch.tensor([*bounds, 9, 9])
    compare(
        lambda x, w: fla.short_conv(x, w, None, padded)[0],
        lambda x, w: kda.short_conv.reference(x, w, None, real)[0],
        (x, w),
        1e-12,
    )


def test_short_convolution_goes_on_from_a_tail():
    torch.manual_seed(0)
    x, w, tail = torch.randn(2, 5, 6), torch.randn(6, 4), torch.randn(2, 3, 6)
    for got, want in zip(fla.short_conv(x, w, tail), kda.short_conv.reference(x, w, tail), strict=True):
        assert torch.allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("num_sources", [1, 2, 5])
def test_mix(num_sources):
    torch.manual_seed(0)
    inputs = [torch.randn(1, 7, 12, dtype=torch.float64) for _ in range(num_sources)]
    inputs += [torch.randn(12, dtype=torch.float64) for _ in range(2)]
    compare(
        lambda *x: fused.mix(x[:-2], x[-2], x[-1], 1e-5),
        lambda *x: attn_res.mix.reference(x[:-2], x[-2], x[-1], 1e-5),
        inputs,
        1e-12,
    )


def test_route():
    torch.manual_seed(0)
    bias = torch.randn(16, dtype=torch.float64)

    def dense(form):
        def run(x, w):
            idx, weight, score = form(x, w, bias, 4)
            assert all(len(set(row)) == 4 for row in idx.tolist())
            return torch.zeros_like(score).scatter(1, idx, weight)

        return run

    inputs = torch.randn(33, 8, dtype=torch.float64), torch.randn(16, 8, dtype=torch.float64)
    compare(dense(grouped.route), dense(moe.route.reference), inputs, 1e-12)


@pytest.mark.parametrize("num_tokens", [64, 131])
def test_experts(num_tokens):
    """In bf16 against fp32: rounding and no more. One expert is never chosen, one always."""
    torch.manual_seed(0)
    score = torch.rand(num_tokens, 8)
    score[:, 3], score[:, 5] = -1, 2
    idx = score.topk(2).indices
    inputs = (
        torch.randn(num_tokens, 32).bfloat16(),
        torch.rand(num_tokens, 2),
        0.2 * torch.randn(8, 96, 32),
        0.2 * torch.randn(8, 32, 48),
    )
    compare(
        lambda z, w, w13, w2: grouped.experts(z, idx, w, w13, w2),
        lambda z, w, w13, w2: moe.experts.reference(z, idx, w, w13, w2),
        inputs,
        0.02,
        upcast=True,
    )


def test_on_a_cpu_each_says_why_not():
    x = torch.zeros(1, 4, 2, 8)
    vector = torch.zeros(2, 8)
    why = [
        fla.why_not(x, x, x, x, x[..., 0], vector[:, 0], vector, lower_bound=-5.0),
        fla.short_conv_why_not(x[0], vector),
        varlen.why_not(x, x[0], x[0]),
        grouped.why_not(x[0, 0], x[0, 0].long(), x[0, 0], x[0], x[0]),
        grouped.route_why_not(x[0, 0], x[0, 0], x[0, 0, 0], 2),
        fused.why_not([x], vector, vector, 1e-5),
    ]
    assert all(reason is not None and "on cpu" in reason for reason in why)
    assert mla.attend.describe(x, x[0], x[0])[-1] == ("reference", "used")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_whole_network_on_a_gpu():
    """bf16 with every fast form, packed and padded, is as near to fp32 as plain bf16 is."""
    from longstep.model.config import preset
    from longstep.model.network import Model

    tokens = torch.randint(0, 8192, (1, 256))
    ends = torch.tensor([0, 100, 101, 256, 256], dtype=torch.int32)
    torch.manual_seed(0)
    plain = Model(preset("nano").as_mla())
    fast = Model(preset("nano").as_mla(), compute_dtype=torch.bfloat16).cuda()
    fast.load_state_dict(plain.state_dict())
    want = plain(tokens, cu_seqlens=ends)
    got = fast(tokens.cuda(), cu_seqlens=ends.cuda()).float().cpu()
    assert relative(got, want) < 0.05
