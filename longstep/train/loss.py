"""Cross-entropy of the next token without ever holding [T, V] logits.

The head and the loss are one function: for each chunk of tokens it makes the logits, the loss and both gradients at
once, and keeps only the gradients (of the hidden states, [T, D], and of the head, [V, D] in fp32). Products run in the
hidden states' dtype, the softmax in fp32 at least.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

_CHUNK_TOKENS = 8192  # on a GPU
_CPU_CHUNK_TOKENS = 128  # so that the logits stay in the cache


def _chunk(h_TD: Tensor, w_VD: Tensor, target_T: Tensor, weight_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of one chunk, and its gradients by hidden state and head."""
    logit_TV = h_TD @ w_VD.mT
    logit_TV = logit_TV.to(torch.promote_types(logit_TV.dtype, torch.float32))
    lse_T = logit_TV.logsumexp(-1)
    loss = ((lse_T - logit_TV.gather(1, target_T[:, None])[:, 0]) * weight_T).sum()
    hit_TV = torch.arange(w_VD.size(0), device=h_TD.device) == target_T[:, None]
    grad_TV = ((logit_TV - lse_T[:, None]).exp() - hit_TV.to(logit_TV.dtype)) * weight_T[:, None]
    grad_TV = grad_TV.to(h_TD.dtype)
    return loss, grad_TV @ w_VD, grad_TV.mT @ h_TD


def _chunk_in_place(h_TD: Tensor, w_VD: Tensor, target_T: Tensor, weight_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same in fewer passes over memory, for a processor that no compiler fuses them on."""
    logit_TV = h_TD @ w_VD.mT
    log_p_TV = logit_TV.to(torch.promote_types(logit_TV.dtype, torch.float32)).log_softmax(-1)
    loss = -(log_p_TV.gather(1, target_T[:, None])[:, 0] * weight_T).sum()
    weight_T1 = weight_T[:, None].to(log_p_TV.dtype)
    grad_TV = log_p_TV.exp_().mul_(weight_T1).scatter_add_(1, target_T[:, None], -weight_T1)
    grad_TV = grad_TV.to(h_TD.dtype)
    return loss, grad_TV @ w_VD, grad_TV.mT @ h_TD


@cache
def _compiled_chunk() -> Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    return torch.compile(_chunk, dynamic=False)  # not at import: this loads the compiler


class _HeadCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, head_VD: Tensor, target_T: Tensor, weight_T: Tensor) -> Tensor:
        run = _compiled_chunk() if hidden_TD.is_cuda else _chunk_in_place
        num_tokens = _CHUNK_TOKENS if hidden_TD.is_cuda else _CPU_CHUNK_TOKENS
        head = head_VD.to(hidden_TD.dtype)
        grad_TD = torch.empty_like(hidden_TD)
        grad_VD = torch.zeros_like(head_VD, dtype=torch.promote_types(head_VD.dtype, torch.float32))
        loss = torch.zeros((), dtype=weight_T.dtype, device=hidden_TD.device)
        for start in range(0, hidden_TD.size(0), num_tokens):
            at = slice(start, start + num_tokens)
            part, grad_TD[at], grad_head = run(hidden_TD[at], head, target_T[at], weight_T[at])
            loss += part
            grad_VD += grad_head
        ctx.save_for_backward(grad_TD, grad_VD)
        ctx.head_dtype = head_VD.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_TD, grad_VD = ctx.saved_tensors
        return grad_TD * grads[0].to(grad_TD.dtype), (grad_VD * grads[0]).to(ctx.head_dtype), None, None


def head_cross_entropy(hidden_TD: Tensor, head_VD: Tensor, target_T: Tensor, weight_T: Tensor) -> Tensor:
    """Weighted sum over tokens of -log p(target), differentiable by `hidden_TD` and `head_VD`. Not normalised.

    hidden_TD [T, D], head_VD [V, D], target_T int64 [T], weight_T [T] (fp32).
    """
    if not hidden_TD.is_cuda:  # there it would wait for the device, and change shapes
        counts_T = weight_T != 0
        hidden_TD, target_T, weight_T = hidden_TD[counts_T], target_T[counts_T], weight_T[counts_T]
    loss: Tensor = _HeadCrossEntropy.apply(hidden_TD, head_VD, target_T, weight_T)  # type: ignore[no-untyped-call]
    return loss
