"""Latent attention over selected positions in plain torch: the truth, in two forms that agree."""

import torch
from torch import Tensor

from longstep.ops.mla.reference import attend_absorbed, expand, prefers_absorbed, softmax_attention

GATHER_UP_TO = 8  # queries; together, more of them select most positions


def attend_gathered(q_BTHQ: Tensor, kv_BSC: Tensor, w_kvb_HML: Tensor, selected_BTP: Tensor) -> Tensor:
    """Reads the selected rows only: each query becomes a sequence of its own with P positions."""
    rows = torch.arange(len(kv_BSC), device=kv_BSC.device)[:, None, None]
    kv_NPC = kv_BSC[rows, selected_BTP.clamp(min=0)].flatten(0, 1)
    visible_N1P = (selected_BTP >= 0).flatten(0, 1)[:, None]
    o_N1HV = attend_absorbed(q_BTHQ.flatten(0, 1)[:, None], kv_NPC, w_kvb_HML, visible_N1P)
    return o_N1HV.view(*q_BTHQ.shape[:3], -1)


def attend_masked(q_BTHQ: Tensor, kv_BSC: Tensor, w_kvb_HML: Tensor, selected_BTP: Tensor) -> Tensor:
    """Dense attention with everything else masked."""
    B, T, _, Q = q_BTHQ.shape
    S = kv_BSC.shape[1]
    mask = torch.zeros(B, T, S + 1, dtype=torch.bool, device=q_BTHQ.device)
    mask_BTS = mask.scatter(-1, torch.where(selected_BTP < 0, S, selected_BTP), True)[..., :S]
    if prefers_absorbed(T, w_kvb_HML):
        return attend_absorbed(q_BTHQ, kv_BSC, w_kvb_HML, mask_BTS)
    k, v = expand(kv_BSC, w_kvb_HML, Q - (kv_BSC.shape[2] - w_kvb_HML.shape[2]))
    return softmax_attention(q_BTHQ.transpose(1, 2), k, v, mask_BTS[:, None]).transpose(1, 2)


def attend(q_BTHQ: Tensor, kv_BSC: Tensor, w_kvb_HML: Tensor, selected_BTP: Tensor) -> Tensor:
    form = attend_gathered if q_BTHQ.shape[1] <= GATHER_UP_TO else attend_masked
    return form(q_BTHQ, kv_BSC, w_kvb_HML, selected_BTP)
