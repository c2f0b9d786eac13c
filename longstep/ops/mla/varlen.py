"""Dense attention over packed documents on a GPU: torch's variable-length flash attention (16-bit floats).

Keys and values are expanded from the latents. Flash attention wants one head size, so values are padded with zeros to
the size of the keys. The kernel is launched for the longest document; `set_longest_document` gives a bound once, so
that no call has to ask the device.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from longstep.ops.mla.reference import expand

if TYPE_CHECKING or torch.cuda.is_available():  # it loads torch's compiler, which takes a second
    from torch.nn.attention.varlen import varlen_attn

_longest_document: int | None = None


def set_longest_document(num_tokens: int | None) -> None:
    """No document will be longer. None: look at each call (waits for the device)."""
    global _longest_document
    _longest_document = num_tokens


def why_not(
    q_BTHQ: Tensor, kv_BSC: Tensor, w_kvb_HML: Tensor, *, first: int = 0, cu_seqlens: Tensor | None = None
) -> str | None:
    if not q_BTHQ.is_cuda:
        return f"the inputs are on {q_BTHQ.device.type}, this form runs on cuda"
    if q_BTHQ.dtype not in (torch.bfloat16, torch.float16):
        return f"the inputs are {q_BTHQ.dtype}, this form takes 16-bit floats"
    if cu_seqlens is None:
        return "there are no packed documents"
    return None


def attend(
    q_BTHQ: Tensor, kv_BSC: Tensor, w_kvb_HML: Tensor, *, first: int = 0, cu_seqlens: Tensor | None = None
) -> Tensor:
    assert cu_seqlens is not None, "this form is for packed documents"
    assert first == 0, "packed documents start a row of their own"
    Q = q_BTHQ.shape[-1]
    R = kv_BSC.shape[2] - w_kvb_HML.shape[2]
    k_BHSQ, v_BHSV = expand(kv_BSC, w_kvb_HML, Q - R)
    V = v_BHSV.shape[-1]
    k, v = (x[0].transpose(0, 1).contiguous() for x in (k_BHSQ, functional.pad(v_BHSV, (0, Q - V))))
    longest = _longest_document or int(cu_seqlens.diff().max())
    ends = cu_seqlens.to(torch.int32)
    o_THQ = varlen_attn(q_BTHQ[0].contiguous(), k, v, ends, ends, longest, longest, scale=Q**-0.5, window_size=(-1, 0))
    assert isinstance(o_THQ, Tensor)
    return o_THQ[None, ..., :V]
