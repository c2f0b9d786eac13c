"""KDA: token by token, in chunks, in any split, packed: one function. Letters as in ops/kda."""

from itertools import pairwise

import pytest
import torch
from closeness import rel

from longstep.ops import kda
from longstep.ops.kda import reference

BOUND = 1e-10


def inputs(T, *, B=2, H=3, K=8, V=6, gate=1.0, dtype=torch.float64, seed=0):
    """q, k, v, z, b, a_log, dt_bias; `gate` scales the decay's inputs."""
    torch.manual_seed(seed)
    shapes = [(B, T, H, K), (B, T, H, K), (B, T, H, V), (B, T, H, K), (B, T, H), (H,), (H, K)]
    x = [torch.randn(s, dtype=torch.float64) for s in shapes]
    x[3] *= gate
    x[4] *= gate
    return [t.to(dtype) for t in x]


def prepared(q, k, v, z, b, a_log, dt_bias):
    """What `recurrent` and `chunked` take."""
    q, k = reference.normalize(q) * q.shape[-1] ** -0.5, reference.normalize(k)
    state = torch.randn(q.shape[0], *q.shape[2:], v.shape[-1], dtype=q.dtype)
    return q, k, v, reference.log_decay(z, a_log, dt_bias, -5.0), b.sigmoid(), state


def test_recurrence_by_hand():
    """One head, one key channel, two tokens: S = a S; S += b k (v - k S); o = q S, with k = q = 1."""
    one = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    v = torch.tensor([3.0, 5.0], dtype=torch.float64).view(1, 2, 1, 1)
    decay, beta = torch.tensor([0.5, 0.25]).double(), torch.tensor([0.5, 1.0]).double()
    o, S = reference.recurrent(
        one, one, v, decay.log().view(1, 2, 1, 1), beta.view(1, 2, 1), torch.full((1, 1, 1, 1), 4.0).double()
    )
    first = 4 * 0.5 + 0.5 * (3 - 4 * 0.5)
    assert o.flatten().tolist() == pytest.approx([first, 5.0])
    assert S.item() == pytest.approx(5.0)


@pytest.mark.parametrize("T", [1, 5, 16, 63, 64, 65, 130, 257])
@pytest.mark.parametrize("gate", [0.0, 1.0, 100.0], ids=lambda g: f"gate{g:g}")
def test_chunks_are_the_recurrence(T, gate):
    x = prepared(*inputs(T, gate=gate))
    (got, got_state), (want, want_state) = reference.chunked(*x), reference.recurrent(*x)
    assert (error := rel(got, want)) < BOUND, f"{error:.1e}"
    assert (error := rel(got_state, want_state)) < BOUND, f"{error:.1e}"


@pytest.mark.parametrize("z", [-1e4, -20.0, 20.0, 1e4], ids=lambda z: f"z{z:g}")
def test_chunks_at_extreme_decay_in_fp32(z):
    """All channels keep everything, or all lose e^-5 per token: the widest range within a chunk, in fp32."""
    q, k, v, _, b, a_log, dt_bias = inputs(200, dtype=torch.float32)
    full = torch.full_like(q, z)
    x = prepared(q, k, v, full, b, a_log, dt_bias)
    (got, got_state), (want, want_state) = reference.chunked(*x), reference.recurrent(*(t.double() for t in x))
    assert (error := rel(got.double(), want)) < 1e-5, f"{error:.1e}"
    assert (error := rel(got_state.double(), want_state)) < 1e-5, f"{error:.1e}"


def test_decays_that_differ_by_channel_and_token_in_fp32():
    q, k, v, z, b, a_log, dt_bias = inputs(300, dtype=torch.float32)
    x = prepared(q, k, v, 30 * z.sign(), b, a_log, dt_bias)
    got, want = reference.chunked(*x)[0], reference.recurrent(*(t.double() for t in x))[0]
    assert (error := rel(got.double(), want)) < 1e-5, f"{error:.1e}"


def test_keys_on_one_line_with_full_writes():
    """The triangular system at its worst: all keys equal, beta 1, no decay."""
    q, k, v, z, b, a_log, dt_bias = inputs(128, dtype=torch.float32)
    x = prepared(q, k[:, :1].expand_as(k), v, torch.full_like(z, -1e4), torch.full_like(b, 50.0), a_log, dt_bias)
    got, want = reference.chunked(*x)[0], reference.recurrent(*(t.double() for t in x))[0]
    assert (error := rel(got.double(), want)) < 1e-4, f"{error:.1e}"


@pytest.mark.parametrize("split", [[100], [1] * 5 + [95], [64, 36], [3, 61, 2, 34], [99, 1]], ids=str)
def test_state_carries_over_any_split(split):
    x = inputs(100)
    want, want_state = kda.attend(*x, lower_bound=-5.0)
    got, state = [], None
    for start, end in pairwise([sum(split[:n]) for n in range(len(split) + 1)]):
        o, state = kda.attend(*(t[:, start:end] for t in x[:5]), *x[5:], lower_bound=-5.0, state_BHKV=state)
        got.append(o)
    assert (error := rel(torch.cat(got, 1), want)) < BOUND, f"{error:.1e}"
    assert (error := rel(state, want_state)) < BOUND, f"{error:.1e}"


def test_the_given_state_is_not_written_to():
    x = inputs(3)
    state = torch.randn(2, 3, 8, 6, dtype=torch.float64)
    before = state.clone()
    kda.attend(*x, lower_bound=-5.0, state_BHKV=state)
    assert torch.equal(state, before)


def test_packed_documents():
    x = inputs(150, B=1)
    bounds = [0, 1, 1, 66, 130, 150]
    got, _ = kda.attend(*x, lower_bound=-5.0, cu_seqlens=torch.tensor(bounds))
    want = [kda.attend(*(t[:, a:b] for t in x[:5]), *x[5:], lower_bound=-5.0)[0] for a, b in pairwise(bounds) if b > a]
    assert (error := rel(got, torch.cat(want, 1))) < BOUND, f"{error:.1e}"


def test_cu_seqlens_that_do_not_fit_are_refused():
    with pytest.raises(AssertionError, match="from 0 to 10"):
        kda.attend(*inputs(10, B=1), lower_bound=-5.0, cu_seqlens=torch.tensor([0, 9]))


def test_decay_lies_within_its_bound_and_is_one_number_per_head():
    z, a_log = torch.randn(1, 7, 3, 8) * 100, torch.tensor([-1.0, 0.0, 2.0])
    g = reference.log_decay(z, a_log, torch.zeros(3, 8), -5.0)
    assert (g <= 0).all()
    assert (g >= -5).all()
    want = -5 / (1 + torch.exp(-torch.exp(a_log[2]) * z[0, 0, 2]))
    assert rel(g[0, 0, 2], want) < 1e-6


@pytest.mark.parametrize("T", [3, 70])
def test_gradients(T):
    """Both forms, with respect to everything, state included."""
    x = [t.requires_grad_() for t in inputs(T, B=1, H=2, K=3, V=2)]
    state = torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)

    def run(state, *x):
        return kda.attend(*x, lower_bound=-5.0, state_BHKV=state)

    assert torch.autograd.gradcheck(run, (state, *x), fast_mode=T > 10)


def test_gradients_stay_finite_at_extreme_gates_in_fp32():
    x = [t.requires_grad_() for t in inputs(130, gate=1e3, dtype=torch.float32)]
    o, state = kda.attend(*x, lower_bound=-5.0)
    (o.square().sum() + state.square().sum()).backward()
    assert all(t.grad.isfinite().all() for t in x)


def test_short_conv_by_hand():
    x = torch.tensor([1.0, 10.0, 100.0]).double().view(1, 3, 1)
    w = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).double()
    y, tail = kda.short_conv(x, w)
    want = torch.tensor([4.0, 3 + 40, 2 + 30 + 400]).double()
    assert rel(y.flatten(), want * want.sigmoid()) < 1e-12
    assert tail.flatten().tolist() == [1, 10, 100]


@pytest.mark.parametrize("split", [[9], [1] * 9, [2, 7], [5, 1, 3]], ids=str)
def test_short_conv_in_any_split(split):
    torch.manual_seed(0)
    x, w = torch.randn(2, 9, 5).double(), torch.randn(5, 4).double()
    want, want_tail = kda.short_conv(x, w)
    got, tail = [], None
    for part in x.split(split, dim=1):
        y, tail = kda.short_conv(part, w, tail)
        got.append(y)
    assert rel(torch.cat(got, 1), want) < 1e-12
    assert torch.equal(tail, want_tail)


def test_short_conv_packed():
    torch.manual_seed(0)
    x, w, bounds = torch.randn(1, 12, 5).double(), torch.randn(5, 4).double(), [0, 1, 3, 3, 8, 12]
    got, _ = kda.short_conv(x, w, cu_seqlens=torch.tensor(bounds))
    want = torch.cat([kda.short_conv(x[:, a:b], w)[0] for a, b in pairwise(bounds) if b > a], 1)
    assert rel(got, want) < 1e-12


def test_short_conv_gradients():
    torch.manual_seed(0)
    x, w, tail = torch.randn(1, 5, 3).double(), torch.randn(3, 4).double(), torch.randn(1, 3, 3).double()
    leaves = [t.requires_grad_() for t in (x, w, tail)]
    assert torch.autograd.gradcheck(kda.short_conv, leaves)
