"""The mix as sums over channels, source by source: what torch.compile turns into one pass over the sources.

The reference stacks the sources in fp32 and multiplies by a vector; at training sizes that writes them all again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from longstep.ops.numerics import wide


def why_not(sources_BTD: Sequence[Tensor], w_norm_D: Tensor, w_query_D: Tensor, eps: float) -> str | None:
    if not sources_BTD[0].is_cuda:
        return f"the inputs are on {sources_BTD[0].device.type}, this form is for cuda"
    return None


def mix(sources_BTD: Sequence[Tensor], w_norm_D: Tensor, w_query_D: Tensor, eps: float) -> Tensor:
    query_D = wide(w_norm_D) * wide(w_query_D)
    v_J = [wide(s) for s in sources_BTD]
    s_JBT = torch.stack([(v * query_D).sum(-1) * torch.rsqrt(v.pow(2).mean(-1) + eps) for v in v_J])
    a_JBT = s_JBT.softmax(0)
    y_BTD = v_J[0] * a_JBT[0, ..., None]
    for j in range(1, len(v_J)):
        y_BTD = y_BTD + v_J[j] * a_JBT[j, ..., None]
    return y_BTD.to(sources_BTD[0].dtype)
