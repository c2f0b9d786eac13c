"""The mix of Block AttnRes in plain torch: the truth."""

from collections.abc import Sequence

import torch
from torch import Tensor

from longstep.ops.numerics import wide


def mix(sources_BTD: Sequence[Tensor], w_norm_D: Tensor, w_query_D: Tensor, eps: float) -> Tensor:
    v_JBTD = wide(torch.stack(tuple(sources_BTD)))
    query_D = wide(w_norm_D) * wide(w_query_D)
    s_JBT = (v_JBTD @ query_D) * torch.rsqrt(v_JBTD.pow(2).mean(-1) + eps)
    a_JBT = s_JBT.softmax(0)
    return (a_JBT[..., None] * v_JBTD).sum(0).to(sources_BTD[0].dtype)
