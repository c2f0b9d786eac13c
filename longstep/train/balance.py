"""Balancing the experts after each update, by quantile (the rule: `longstep.ops.moe.quantile_bias`).

The selection bias of each layer becomes the one under which every expert would have been chosen equally often by the
tokens of this batch. It chooses experts and does nothing else, so no auxiliary loss disturbs a gradient. With several
processes each proposes a bias from its own tokens and all take the mean.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from longstep.model.layers import LatentMoE
from longstep.model.network import Model
from longstep.ops import moe

_SAMPLE_TOKENS = 16384  # enough: the error of a quantile is about sqrt(experts / (top_k * tokens))


def moe_layers(model: Model) -> list[LatentMoE]:
    return [m for m in model.modules() if isinstance(m, LatentMoE)]


@torch.no_grad()
def rebalance(model: Model) -> Tensor:
    """Set every layer's bias from its last pass. Returns that pass's max/mean load, [layers], on the device."""
    ratios = []
    for layer in moe_layers(model):
        score_NE, load_E = layer.score_NE, layer.load_E
        assert score_NE is not None, "balancing follows a pass in training mode"
        assert load_E is not None
        stride = -(-len(score_NE) // _SAMPLE_TOKENS)
        bias_E = moe.quantile_bias(score_NE[::stride], layer.balance_bias_E, layer.top_k)
        load_E = load_E.float()
        if dist.is_initialized():
            dist.all_reduce(bias_E)
            dist.all_reduce(load_E)
            bias_E /= dist.get_world_size()
        layer.balance_bias_E.copy_(bias_E)
        layer.score_NE = None  # [tokens, experts] in fp32: not kept until the next pass
        ratios.append(load_E.max() / load_E.mean())
    return torch.stack(ratios) if ratios else torch.ones(1)
