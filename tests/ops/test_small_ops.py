"""Norms, SiTU, the mix over depth, and how an op picks its form."""

import math

import pytest
import torch
from closeness import rel

from longstep.ops.attn_res import mix
from longstep.ops.forms import OPS, Op
from longstep.ops.rms_norm import gated_rms_norm, rms_norm
from longstep.ops.situ import situ


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (7, 63), (2, 3, 20)], ids=str)
def test_rms_norm(shape, scale):
    torch.manual_seed(0)
    x, w = scale * torch.randn(shape), torch.randn(shape[-1])
    want = w.double() * x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert rel(rms_norm(x, w, 1e-5).double(), want) < 1e-6
    assert rms_norm(x.bfloat16(), w, 1e-5).dtype == torch.bfloat16


def test_gated_rms_norm_is_gated_by_a_sigmoid():
    torch.manual_seed(0)
    x, g, w = torch.randn(5, 8).double(), 8 * torch.randn(5, 8).double(), torch.randn(8).double()
    want = rms_norm(x, w, 1e-5) / (1 + torch.exp(-g))
    assert rel(gated_rms_norm(x, g, w, 1e-5), want) < 1e-12
    assert gated_rms_norm(x, torch.full_like(g, -40.0), w, 1e-5).abs().max() < 1e-12
    assert gated_rms_norm(x, g.bfloat16(), w, 1e-5).dtype == torch.bfloat16


def test_situ_by_hand_and_its_bound():
    got = situ(torch.tensor(2.0).double(), torch.tensor(-30.0).double()).item()
    want = 4 * math.tanh(0.5) / (1 + math.exp(-2)) * 25 * math.tanh(-30 / 25)
    assert got == pytest.approx(want, rel=1e-12)
    huge = situ(torch.tensor([1e4, -1e4]), torch.tensor([1e4, 1e4]))
    assert huge.tolist() == pytest.approx([100, 0])


def test_mix_is_a_softmax_over_depth_of_raw_values():
    torch.manual_seed(0)
    sources = [scale * torch.randn(2, 3, 6).double() for scale in (0.1, 1.0, 30.0)]
    w_norm, w_query = torch.randn(6).double(), torch.randn(6).double()
    got = mix(sources, w_norm, w_query, 1e-5)
    scores = torch.stack(
        [(w_norm * w_query * v / (v.square().mean(-1, keepdim=True) + 1e-5).sqrt()).sum(-1) for v in sources]
    )
    want = sum(a[..., None] * v for a, v in zip(scores.softmax(0), sources, strict=True))
    assert rel(got, want) < 1e-12
    assert rel(mix(sources, w_norm, torch.zeros(6).double(), 1e-5), sum(sources) / 3) < 1e-12
    assert rel(mix(sources[:1], w_norm, w_query, 1e-5), sources[0]) < 1e-12


def test_gradients():
    torch.manual_seed(0)

    def leaves(*shapes):
        return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]

    check = torch.autograd.gradcheck
    assert check(lambda x, w: rms_norm(x, w, 1e-5), leaves((3, 5), 5))
    assert check(lambda x, g, w: gated_rms_norm(x, g, w, 1e-5), leaves((3, 5), (3, 5), 5))
    assert check(situ, leaves((3, 5), (3, 5)))
    assert check(lambda a, b, n, q: mix([a, b], n, q, 1e-5), leaves((1, 2, 5), (1, 2, 5), 5, 5))


def test_an_op_runs_the_last_added_form_that_suits_and_says_why_not():
    op = Op("test.double", lambda x: ("reference", 2 * x))
    try:
        op.add("even", lambda x: ("even", 2 * x), lambda x: None if x % 2 == 0 else "x is odd")
        op.add("large", lambda x: ("large", 2 * x), lambda x: None if x > 100 else "x is small")
        assert op(101) == ("large", 202)
        assert op(4) == ("even", 8)
        assert op(3) == ("reference", 6)
        assert op.describe(3) == [("large", "x is small"), ("even", "x is odd"), ("reference", "used")]
        assert op.describe(4) == [("large", "x is small"), ("even", "used")]
        assert OPS["test.double"] is op
    finally:
        del OPS["test.double"]
