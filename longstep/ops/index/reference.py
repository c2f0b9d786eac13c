"""The lightning indexer in plain torch: the truth."""

import torch
from torch import Tensor

from longstep.ops.mla.reference import causal_mask
from longstep.ops.numerics import wide


def scores(q_BTHI: Tensor, k_BSI: Tensor, w_BTH: Tensor, *, first: int = 0, cu_seqlens: Tensor | None = None) -> Tensor:
    _, T, H, I = q_BTHI.shape
    S = k_BSI.shape[1]
    assert first + T == S, f"{T} queries from position {first} need exactly {first + T} index keys, not {S}"
    k_BIS, w = wide(k_BSI).transpose(1, 2), wide(w_BTH) * (H**-0.5 * I**-0.5)
    total_BTS = torch.zeros((), dtype=w.dtype, device=w.device)
    for h in range(H):  # head by head: T x S values at a time
        total_BTS = total_BTS + w[:, :, h, None] * (wide(q_BTHI[:, :, h]) @ k_BIS).relu()
    return total_BTS.masked_fill(~causal_mask(T, S, first, q_BTHI.device, cu_seqlens), -torch.inf)


def select(scores_BTS: Tensor, top_k: int) -> Tensor:
    S = scores_BTS.shape[-1]
    P = min(top_k, S)
    last_BT1 = scores_BTS.topk(P, dim=-1).values[..., -1:]  # the lowest score that can be chosen
    above, tied = scores_BTS > last_BT1, (scores_BTS == last_BT1) & (scores_BTS > -torch.inf)
    room_BT1 = P - above.sum(-1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(-1) <= room_BT1))  # of equals, the earlier ones
    column = torch.where(chosen, chosen.cumsum(-1) - 1, P)  # the others go to a column that is cut off
    position = torch.arange(S, device=scores_BTS.device).expand_as(column)
    selected = torch.full((*scores_BTS.shape[:-1], P + 1), -1, device=scores_BTS.device)
    return selected.scatter(-1, column, position)[..., :P]
