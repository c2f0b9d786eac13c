"""Kimi Delta Attention in plain torch: the truth, token by token and in chunks.

B sequences, T tokens, H heads, K / V key and value dims per head, C channels, W taps, N chunks, I tokens of a chunk.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from longstep.ops.numerics import wide

CHUNK = 64  # tokens between two states
TILE = 16  # tokens whose decays, -5 each at worst, stay inside fp32 around their middle: exp(+-40)


def doc_bounds(cu_seqlens: Tensor | None, num_tokens: int) -> list[int]:
    """[0, end of document 0, ..., num_tokens]; one document if `cu_seqlens` is None."""
    bounds = [0, num_tokens] if cu_seqlens is None else [int(n) for n in cu_seqlens.tolist()]
    assert (bounds[0], bounds[-1]) == (0, num_tokens), f"cu_seqlens must run from 0 to {num_tokens}, not {bounds}"
    return bounds


def short_conv(
    x_BTC: Tensor, w_CW: Tensor, tail_BWC: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    B, T, C = x_BTC.shape
    W = w_CW.shape[1]
    if tail_BWC is None:
        tail_BWC = x_BTC.new_zeros(B, W - 1, C)
    padded = torch.cat((tail_BWC.to(x_BTC.dtype), x_BTC), dim=1)
    since_start_T = None
    if cu_seqlens is not None:
        starts = torch.tensor(doc_bounds(cu_seqlens, T)[:-1], device=x_BTC.device)
        pos_T = torch.arange(T, device=x_BTC.device)
        since_start_T = pos_T - starts[torch.searchsorted(starts, pos_T, right=True) - 1]
    y_BTC = torch.zeros_like(wide(x_BTC))
    for tap in range(W):
        back = W - 1 - tap  # this tap reads the input of so many tokens ago
        shifted = wide(padded[:, tap : tap + T])
        if since_start_T is not None and back:
            shifted = shifted * (since_start_T >= back)[:, None]
        y_BTC = y_BTC + shifted * wide(w_CW[:, tap])
    return functional.silu(y_BTC).to(x_BTC.dtype), padded[:, T:]


def normalize(x_BTHK: Tensor) -> Tensor:
    x_ = wide(x_BTHK)
    return x_ * torch.rsqrt(x_.pow(2).sum(-1, keepdim=True) + 1e-6)


def log_decay(z_BTHK: Tensor, a_log_H: Tensor, dt_bias_HK: Tensor, lower_bound: float) -> Tensor:
    z_ = wide(z_BTHK) + wide(dt_bias_HK)
    return lower_bound * torch.sigmoid(wide(a_log_H).exp()[:, None] * z_)


def recurrent(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, beta_BTH: Tensor, state_BHKV: Tensor
) -> tuple[Tensor, Tensor]:
    S = state_BHKV
    outputs = []
    for t in range(q_BTHK.shape[1]):
        q, k, v, beta = q_BTHK[:, t], k_BTHK[:, t], v_BTHV[:, t], beta_BTH[:, t]
        S = S * g_BTHK[:, t].exp()[..., None]
        delta = beta[..., None] * (v - torch.einsum("bhkv,bhk->bhv", S, k))
        S = S + k[..., :, None] * delta[..., None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q))  # read after the write
    return torch.stack(outputs, dim=1), S


def chunked(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    beta_BTH: Tensor,
    state_BHKV: Tensor,
    bounds: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """With G the log-decay summed within the chunk and u_t = beta_t (v_t - what the decayed state holds at k_t):

        (I + beta A) U = beta (V - (k e^G) S_0),  A[t, s] = sum_c k_t k_s e^(G_t - G_s) for s < t
        O = (q e^G) S_0 + A' U,                  A'[t, s] the same with q_t, s <= t
        S_C = e^(G_C) S_0 + (k e^(G_C - G))^T U

    Everything but the last line is done for all chunks at once. Documents start on chunk borders (padded with tokens
    that do nothing: k = 0, g = 0), so a document's start is a chunk whose S_0 is given.
    """
    B, T = q_BTHK.shape[:2]
    bounds = [0, T] if bounds is None else bounds
    chunks_of = [-(-(end - start) // CHUNK) for start, end in pairwise(bounds)]
    N = sum(chunks_of)
    is_whole = len(chunks_of) == 1 and T == N * CHUNK
    firsts = [sum(chunks_of[:i]) for i in range(len(chunks_of))]
    place_T = None
    if not is_whole:
        place_T = torch.cat(
            [
                torch.arange(first * CHUNK, first * CHUNK + end - start, device=q_BTHK.device)
                for first, (start, end) in zip(firsts, pairwise(bounds), strict=True)
            ]
        )

    def in_chunks(x_BT: Tensor) -> Tensor:
        """[B, T, H, ...] -> [B, H, N, I, ...], documents padded with zeros to whole chunks."""
        if place_T is not None:
            x_BT = x_BT.new_zeros(B, N * CHUNK, *x_BT.shape[2:]).index_copy(1, place_T, x_BT)
        return x_BT.transpose(1, 2).reshape(B, x_BT.shape[2], N, CHUNK, *x_BT.shape[3:])

    q, k, v, g = (in_chunks(x) for x in (q_BTHK, k_BTHK, v_BTHV, g_BTHK))
    beta = in_chunks(beta_BTH)[..., None]
    G = g.cumsum(-2)

    a_kk, a_qk = _decayed_products(q, k, g, G)
    eye = torch.eye(CHUNK, dtype=q.dtype, device=q.device)
    k_in = k * G.exp()
    solved = torch.linalg.solve_triangular(
        eye + beta * a_kk, torch.cat((beta * v, beta * k_in), dim=-1), upper=False, unitriangular=True
    )
    u_0, w = torch.split(solved, [v.shape[-1], k.shape[-1]], dim=-1)  # U = u_0 - w S_0
    G_end = G[..., -1:, :]
    k_out = (k * (G_end - G).exp()).transpose(-1, -2)
    decay = G_end.exp().transpose(-1, -2)

    S = state_BHKV
    starts, us = [], []
    for n in range(N):
        if n in firsts[1:]:
            S = torch.zeros_like(state_BHKV)
        starts.append(S)
        u = u_0[:, :, n] - w[:, :, n] @ S
        us.append(u)
        S = decay[:, :, n] * S + k_out[:, :, n] @ u
    o = (q * G.exp()) @ torch.stack(starts, dim=2) + a_qk @ torch.stack(us, dim=2)
    o_BTHV = o.flatten(2, 3).transpose(1, 2)
    return (o_BTHV if place_T is None else o_BTHV[:, place_T]), S


def _decayed_products(q: Tensor, k: Tensor, g: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """x_t . (e^(G_t - G_s) k_s) within each chunk: for x = k and s < t, for x = q and s <= t; zero elsewhere.

    A tile of rows against earlier tiles takes its own start as the zero of G, against itself its middle, so that
    no exponent passes 40 and no factor underflows that matters.
    """
    kk_rows, qk_rows = [], []
    strict = torch.ones(TILE, TILE, dtype=torch.bool, device=q.device).tril(-1)
    for start in range(0, CHUNK, TILE):
        rows = slice(start, start + TILE)
        G_rows, k_rows, q_rows = G[..., rows, :], k[..., rows, :], q[..., rows, :]
        middle = G_rows[..., TILE // 2 : TILE // 2 + 1, :]
        up, right = (G_rows - middle).exp(), (k_rows * (middle - G_rows).exp()).transpose(-1, -2)
        kk = ((k_rows * up) @ right).masked_fill(~strict, 0)
        qk = ((q_rows * up) @ right).masked_fill(strict.T, 0)
        if start:
            before = G_rows[..., :1, :] - g[..., start : start + 1, :]  # G at the tile's start
            k_before, G_before = k[..., :start, :], G[..., :start, :]
            up, right = (G_rows - before).exp(), (k_before * (before - G_before).exp()).transpose(-1, -2)
            kk = torch.cat(((k_rows * up) @ right, kk), dim=-1)
            qk = torch.cat(((q_rows * up) @ right, qk), dim=-1)
        pad = (0, CHUNK - start - TILE)
        kk_rows.append(functional.pad(kk, pad))
        qk_rows.append(functional.pad(qk, pad))
    return torch.cat(kk_rows, dim=-2), torch.cat(qk_rows, dim=-2)


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    z_BTHK: Tensor,
    b_BTH: Tensor,
    a_log_H: Tensor,
    dt_bias_HK: Tensor,
    *,
    lower_bound: float,
    state_BHKV: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    B, T, H, K = q_BTHK.shape
    V = v_BTHV.shape[-1]
    assert cu_seqlens is None or (B == 1 and state_BHKV is None), "documents packed in one row start from nothing"
    q, k, v = normalize(q_BTHK) * K**-0.5, normalize(k_BTHK), wide(v_BTHV)
    g, beta = log_decay(z_BTHK, a_log_H, dt_bias_HK, lower_bound), wide(b_BTH).sigmoid()
    if state_BHKV is None:
        state_BHKV = q.new_zeros(B, H, K, V)
    if T <= 4 and cu_seqlens is None:  # a chunk costs more than a few single steps
        return recurrent(q, k, v, g, beta, state_BHKV)
    return chunked(q, k, v, g, beta, state_BHKV, doc_bounds(cu_seqlens, T))
