"""Latent attention, its index, and attention over selected positions. Letters as in ops/mla."""

from itertools import pairwise

import pytest
import torch
from closeness import rel

from longstep.ops import index, mla, sparse
from longstep.ops.mla import reference
from longstep.ops.sparse import reference as sparse_reference

BOUND = 1e-10


def inputs(T, S=None, *, B=2, H=3, L=7, R=3, N=5, V=4, seed=0):
    torch.manual_seed(seed)
    S = T if S is None else S
    shapes = [(B, T, H, N + R), (B, S, L + R), (H, N + V, L)]
    return [torch.randn(s, dtype=torch.float64) for s in shapes]


def naive(q_BTHQ, kv_BSC, w_kvb_HML, first, visible):
    """One query and one head at a time; `visible(b, t)` lists positions."""
    B, T, H, Q = q_BTHQ.shape
    L = w_kvb_HML.shape[2]
    N = Q - (kv_BSC.shape[2] - L)
    out = torch.zeros(B, T, H, w_kvb_HML.shape[1] - N, dtype=q_BTHQ.dtype)
    for b in range(B):
        for t in range(T):
            for h in range(H):
                rows = kv_BSC[b, visible(b, t)]
                keys = torch.cat((rows[:, :L] @ w_kvb_HML[h, :N].T, rows[:, L:]), dim=1)
                out[b, t, h] = (keys @ q_BTHQ[b, t, h] / Q**0.5).softmax(0) @ (rows[:, :L] @ w_kvb_HML[h, N:].T)
    return out


@pytest.mark.parametrize(("T", "first"), [(1, 0), (1, 30), (5, 0), (16, 3), (17, 0), (17, 9), (40, 0)])
def test_dense_is_the_naive_sum(T, first):
    x = inputs(T, first + T)
    got = mla.attend(*x, first=first)
    want = naive(*x, first, lambda b, t: slice(0, first + t + 1))
    assert (error := rel(got, want)) < BOUND, f"{error:.1e}"


@pytest.mark.parametrize("first", [0, 6])
def test_absorbed_is_expanded(first):
    q, kv, w = inputs(12, first + 12)
    visible = reference.causal_mask(12, first + 12, first, q.device)[None]
    got, want = reference.attend_absorbed(q, kv, w, visible), reference.attend_expanded(q, kv, w, first, None)
    assert (error := rel(got, want)) < BOUND, f"{error:.1e}"


def test_packed_documents():
    x = inputs(60, B=1)
    bounds = [0, 1, 1, 30, 47, 60]
    got = mla.attend(*x, cu_seqlens=torch.tensor(bounds))
    want = torch.cat([mla.attend(x[0][:, a:b], x[1][:, a:b], x[2]) for a, b in pairwise(bounds) if b > a], 1)
    assert (error := rel(got, want)) < BOUND, f"{error:.1e}"


def test_a_wrong_number_of_positions_is_refused():
    with pytest.raises(AssertionError, match="exactly 8 cached positions, not 7"):
        mla.attend(*inputs(3, 7), first=5)


@pytest.mark.parametrize("T", [3, 18])
def test_dense_gradients(T):
    x = [t.requires_grad_() for t in inputs(T, B=1, H=2, L=3, R=2, N=2, V=2)]
    assert torch.autograd.gradcheck(mla.attend, x, fast_mode=T > 10)


def test_scores_by_hand():
    """Two heads, one of them with a negative weight; relu cuts before the weight."""
    q = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double().view(1, 1, 2, 2).expand(1, 2, 2, 2)
    k = torch.tensor([[3.0, 1.0], [-5.0, 4.0]]).double().view(1, 2, 2)
    w = torch.tensor([2.0, -1.0]).double().view(1, 1, 2).expand(1, 2, 2)
    got = index.scores(q, k, w)[0]
    scale = 2**-0.5 * 2**-0.5
    want = torch.tensor([[2 * 3 - 2.0, -torch.inf], [2 * 3 - 2.0, 0 - 8.0]]).double()
    assert torch.allclose(got, want.where(want == -torch.inf, want * scale))


@pytest.mark.parametrize("top_k", [1, 3, 8, 50])
@pytest.mark.parametrize("kind", ["different", "ties", "equal"])
def test_selection_is_the_sorted_choice(kind, top_k):
    """Highest first, of equals the earlier, rising, -1 where nothing is left. Few distinct values make many ties."""
    torch.manual_seed(0)
    scores = {
        "different": torch.randn(2, 20, 20),
        "ties": torch.randint(-2, 2, (2, 20, 20)).float(),
        "equal": torch.zeros(2, 20, 20),
    }[kind]
    scores = scores.masked_fill(~reference.causal_mask(20, 20, 0, scores.device), -torch.inf)
    got = index.select(scores, top_k)
    assert got.shape == (2, 20, min(top_k, 20))
    for b in range(2):
        for t in range(20):
            row = scores[b, t].tolist()
            want = sorted(sorted(range(t + 1), key=lambda s: (-row[s], s))[:top_k])
            assert got[b, t].tolist() == want + [-1] * (got.shape[2] - len(want))


def test_scores_hide_other_documents():
    torch.manual_seed(0)
    q, k, w = torch.randn(1, 9, 2, 4).double(), torch.randn(1, 9, 4).double(), torch.randn(1, 9, 2).double()
    got = index.scores(q, k, w, cu_seqlens=torch.tensor([0, 4, 9]))
    assert rel(got[:, 4:, 4:].exp(), index.scores(q[:, 4:], k[:, 4:], w[:, 4:]).exp()) < BOUND
    assert (got[:, 4:, :4] == -torch.inf).all()
    assert index.select(got, 9)[0, 4].tolist() == [4] + [-1] * 8


def choice(B, T, S, P, first):
    """Random positions for each query, a few of them missing."""
    torch.manual_seed(5)
    scores = torch.randn(B, T, S).masked_fill(~reference.causal_mask(T, S, first, torch.device("cpu")), -torch.inf)
    return index.select(scores, P)


@pytest.mark.parametrize(("T", "first"), [(1, 20), (4, 0), (4, 20), (30, 0), (30, 7)])
def test_sparse_is_the_naive_sum_over_the_selected(T, first):
    x, selected = inputs(T, first + T), choice(2, T, first + T, 6, first)
    want = naive(*x, first, lambda b, t: selected[b, t][selected[b, t] >= 0])
    for form in (sparse.attend, sparse_reference.attend_gathered, sparse_reference.attend_masked):
        assert (error := rel(form(*x, selected), want)) < BOUND, f"{error:.1e}"


@pytest.mark.parametrize("T", [5, 30])
def test_sparse_over_everything_is_dense(T):
    x = inputs(T)
    got = sparse.attend(*x, choice(2, T, T, T, 0))
    assert (error := rel(got, mla.attend(*x))) < BOUND, f"{error:.1e}"


@pytest.mark.parametrize("T", [3, 18])
def test_sparse_gradients(T):
    x = [t.requires_grad_() for t in inputs(T, B=1, H=2, L=3, R=2, N=2, V=2)]
    selected = choice(1, T, T, 2, 0)
    assert torch.autograd.gradcheck(lambda *x: sparse.attend(*x, selected), x, fast_mode=T > 10)
