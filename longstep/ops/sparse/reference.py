"""Latent attention over selected positions in plain torch: the truth, in two forms that agree."""

import torch
from torch import Tensor
from torch.nn import functional

from longstep.ops.mla.reference import ABSORB_UP_TO, attend_absorbed, expand


def attend_gathered(q_BTHQ: Tensor, kv_BSC: Tensor, w_kvb_HML: Tensor, selected_BTP: Tensor) -> Tensor:
    """Reads the selected rows only: each query becomes a sequence of its own with P positions."""
    B, T = q_BTHQ.shape[:2]
    rows = torch.arange(B, device=kv_BSC.device)[:, None, None]
    kv_NPC = kv_BSC[rows, selected_BTP.clamp(min=0)].flatten(0, 1)
    visible_N1P = (selected_BTP >= 0).flatten(0, 1)[:, None]
    return attend_absorbed(q_BTHQ.flatten(0, 1)[:, None], kv_NPC, w_kvb_HML, visible_N1P).view(
        B, T, *_out(q_BTHQ, w_kvb_HML, kv_BSC)
    )


def _out(q_BTHQ: Tensor, w_kvb_HML: Tensor, kv_BSC: Tensor) -> tuple[int, int]:
    d_nope = q_BTHQ.shape[-1] - (kv_BSC.shape[-1] - w_kvb_HML.shape[2])
    return q_BTHQ.shape[2], w_kvb_HML.shape[1] - d_nope


def attend_masked(q_BTHQ: Tensor, kv_BSC: Tensor, w_kvb_HML: Tensor, selected_BTP: Tensor) -> Tensor:
    """Dense attention with everything else masked: for many queries, which together select most positions."""
    B, T = q_BTHQ.shape[:2]
    S = kv_BSC.shape[1]
    d_nope = q_BTHQ.shape[-1] - (kv_BSC.shape[-1] - w_kvb_HML.shape[2])
    mask = torch.zeros(B, T, S + 1, dtype=torch.bool, device=q_BTHQ.device)
    mask = mask.scatter(-1, torch.where(selected_BTP < 0, S, selected_BTP), True)[:, None, :, :S]
    k, v = expand(kv_BSC, w_kvb_HML, d_nope)
    return functional.scaled_dot_product_attention(q_BTHQ.transpose(1, 2), k, v, attn_mask=mask).transpose(1, 2)


def attend(q_BTHQ: Tensor, kv_BSC: Tensor, w_kvb_HML: Tensor, selected_BTP: Tensor) -> Tensor:
    form = attend_gathered if q_BTHQ.shape[1] <= ABSORB_UP_TO else attend_masked
    return form(q_BTHQ, kv_BSC, w_kvb_HML, selected_BTP)
