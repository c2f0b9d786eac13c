"""RMSNorm and its gated form in plain torch: the truth."""

import torch
from torch import Tensor

from longstep.ops.numerics import wide


def rms_norm(x_ND: Tensor, w_D: Tensor, eps: float) -> Tensor:
    x_ = wide(x_ND)
    return (x_ * torch.rsqrt(x_.pow(2).mean(-1, keepdim=True) + eps)).to(x_ND.dtype) * w_D.to(x_ND.dtype)


def gated_rms_norm(x_ND: Tensor, gate_ND: Tensor, w_D: Tensor, eps: float) -> Tensor:
    x_ = wide(x_ND)
    y_ND = x_ * torch.rsqrt(x_.pow(2).mean(-1, keepdim=True) + eps) * wide(w_D)
    return (y_ND * torch.sigmoid(wide(gate_ND))).to(gate_ND.dtype)
