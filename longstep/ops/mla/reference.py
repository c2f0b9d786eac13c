"""Multi-head latent attention in plain torch: the truth, in two forms that agree.

B sequences, T queries, S positions, H heads, C = L + R cached values, Q = N + R query dims, M = N + V.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from longstep.ops.numerics import wide


def prefers_absorbed(T: int, w_kvb_HML: Tensor) -> bool:
    """Whether T queries over a long past cost less absorbed: expanding S latents costs S L M per head, and saves each
    query about 2 L - M per position."""
    M, L = w_kvb_HML.shape[1:]
    return T * (2 * L - M) <= L * M


def causal_mask(T: int, S: int, first: int, device: torch.device, cu_seqlens: Tensor | None = None) -> Tensor:
    """[T, S], true where query t, at position first + t, may look at position s."""
    t, s = torch.arange(first, first + T, device=device)[:, None], torch.arange(S, device=device)
    mask_TS = s <= t
    if cu_seqlens is not None:
        doc_S = torch.searchsorted(cu_seqlens.to(device), s, right=True)
        mask_TS = mask_TS & (doc_S == doc_S[first : first + T, None])
    return mask_TS


def expand(kv_BSC: Tensor, w_kvb_HML: Tensor, d_nope: int) -> tuple[Tensor, Tensor]:
    """Keys [B, H, S, Q] and values [B, H, S, V] out of the cached latents."""
    L = w_kvb_HML.shape[2]
    c_BSL, r_BSR = kv_BSC[..., :L], kv_BSC[..., L:]
    kv_BHSM = torch.einsum("bsl,hml->bhsm", c_BSL, w_kvb_HML.to(c_BSL.dtype))
    r_BHSR = r_BSR[:, None].expand(-1, kv_BHSM.shape[1], -1, -1)
    return torch.cat((kv_BHSM[..., :d_nope], r_BHSR), dim=-1), kv_BHSM[..., d_nope:]


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """[B, H, T, V]: torch's attention, causal unless masked. Its fast forms want values as wide as the keys."""
    Q, V = q.shape[-1], v.shape[-1]
    if V < Q:
        v = functional.pad(v, (0, Q - V))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)[..., :V]


def attend_expanded(q_BTHQ: Tensor, kv_BSC: Tensor, w_kvb_HML: Tensor, first: int, cu_seqlens: Tensor | None) -> Tensor:
    T, S = q_BTHQ.shape[1], kv_BSC.shape[1]
    R = kv_BSC.shape[2] - w_kvb_HML.shape[2]
    q = q_BTHQ.transpose(1, 2)
    k, v = expand(kv_BSC, w_kvb_HML, q.shape[-1] - R)
    if first:
        o = softmax_attention(q, k, v, causal_mask(T, S, first, q.device))
    else:
        bounds = [0, T] if cu_seqlens is None else cu_seqlens.tolist()
        docs = [slice(start, end) for start, end in pairwise(bounds) if end > start]
        o = torch.cat([softmax_attention(q[:, :, d], k[:, :, d], v[:, :, d]) for d in docs], dim=2)
    return o.transpose(1, 2)


def attend_absorbed(q_BTHQ: Tensor, kv_BSC: Tensor, w_kvb_HML: Tensor, visible_BTS: Tensor | None) -> Tensor:
    """The queries are taken into the space of the latents, which are then read as they lie, once for all heads."""
    L, R = w_kvb_HML.shape[2], kv_BSC.shape[2] - w_kvb_HML.shape[2]
    N = q_BTHQ.shape[-1] - R
    w_kvb = w_kvb_HML.to(q_BTHQ.dtype)
    w_k, w_v = w_kvb[:, :N], w_kvb[:, N:]
    q_BTHC = torch.cat((torch.einsum("bthn,hnl->bthl", q_BTHQ[..., :N], w_k), q_BTHQ[..., N:]), dim=-1)
    s_BTHS = wide(torch.einsum("bthc,bsc->bths", q_BTHC, kv_BSC)) * q_BTHQ.shape[-1] ** -0.5
    if visible_BTS is not None:
        s_BTHS = s_BTHS.masked_fill(~visible_BTS[:, :, None], -torch.inf)
    a_BTHS = s_BTHS.softmax(-1).to(kv_BSC.dtype)
    return torch.einsum("bthl,hvl->bthv", torch.einsum("bths,bsl->bthl", a_BTHS, kv_BSC[..., :L]), w_v)


def attend(
    q_BTHQ: Tensor, kv_BSC: Tensor, w_kvb_HML: Tensor, *, first: int = 0, cu_seqlens: Tensor | None = None
) -> Tensor:
    T, S = q_BTHQ.shape[1], kv_BSC.shape[1]
    assert first + T == S, f"{T} queries from position {first} need exactly {first + T} cached positions, not {S}"
    assert cu_seqlens is None or (first == 0 and q_BTHQ.shape[0] == 1), "packed documents start a row of their own"
    if T == 1 or (first and prefers_absorbed(T, w_kvb_HML)):
        visible = None if T == 1 else causal_mask(T, S, first, q_BTHQ.device)[None]
        return attend_absorbed(q_BTHQ, kv_BSC, w_kvb_HML, visible)
    return attend_expanded(q_BTHQ, kv_BSC, w_kvb_HML, first, cu_seqlens)
