"""SiTU in plain torch: the truth."""

import torch
from torch import Tensor

from longstep.ops.numerics import wide


def situ(g: Tensor, u: Tensor, beta: float = 4.0, linear_beta: float = 25.0) -> Tensor:
    g_, u_ = wide(g), wide(u)
    y = beta * torch.tanh(g_ / beta) * torch.sigmoid(g_) * (linear_beta * torch.tanh(u_ / linear_beta))
    return y.to(g.dtype)
