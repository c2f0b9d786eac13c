"""Which dtype a quantity is computed in. One rule for all ops: fp32 at least, float64 when the inputs are."""

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """`x` in fp32, or in float64 if it is float64: what norms, gates, scores, softmax and states are computed in."""
    return x if x.dtype == torch.float64 else x.float()
