"""Sampling by inverse cumulative distribution, in plain torch. Contract: __init__.py."""

import torch
from torch import Tensor


def sample_ref(logits_BV: Tensor, temperature_B: Tensor, top_p_B: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    greedy_B = temperature_B == 0
    scale_B = torch.where(greedy_B, torch.ones_like(temperature_B), temperature_B)
    logp_BV = torch.log_softmax(logits_BV.float() / scale_B[:, None], dim=-1)
    best_B = logits_BV.argmax(dim=-1)
    if bool(greedy_B.all()):  # no sort of the vocabulary where nothing is drawn
        return best_B, logp_BV.gather(1, best_B[:, None])[:, 0]

    sorted_logp_BV, order_BV = logp_BV.sort(dim=-1, descending=True, stable=True)
    p_BV = sorted_logp_BV.exp()
    before_BV = p_BV.cumsum(dim=-1) - p_BV  # mass of all more probable tokens
    kept_BV = torch.where(before_BV < top_p_B[:, None], p_BV, torch.zeros_like(p_BV))
    cdf_BV = kept_BV.cumsum(dim=-1)
    target_B1 = uniform_B[:, None].to(cdf_BV.dtype) * cdf_BV[:, -1:]
    # first position whose cumulated mass exceeds the target; never one that top-p removed
    rank_B = (cdf_BV <= target_B1).sum(dim=-1).clamp(max=cdf_BV.shape[1] - 1)
    rank_B = torch.minimum(rank_B, (kept_BV > 0).sum(dim=-1) - 1)
    drawn_B = order_BV.gather(1, rank_B[:, None])[:, 0]
    token_B = torch.where(greedy_B, best_B, drawn_B)
    return token_B, logp_BV.gather(1, token_B[:, None])[:, 0]
