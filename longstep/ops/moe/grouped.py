"""Routed experts on a GPU: rows sorted by expert, two grouped matrix products, rows put back. 16-bit floats.

Sorting is a permutation of the N * K (token, choice) rows, so both directions are gathers, forward and backward: no
atomic additions, and the same bits every time. Nothing waits for the host.

N tokens, L latent, E experts, K experts chosen per token, F expert width, M = N * K rows.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from longstep.ops.numerics import wide
from longstep.ops.situ import situ


def why_not(
    z_NL: Tensor,
    idx_NK: Tensor,
    w_NK: Tensor,
    w13_EFL: Tensor,
    w2_ELF: Tensor,
    beta: float = 4.0,
    linear_beta: float = 25.0,
) -> str | None:
    if not z_NL.is_cuda:
        return f"the inputs are on {z_NL.device.type}, this form runs on cuda"
    if z_NL.dtype != torch.bfloat16:
        return f"the inputs are {z_NL.dtype}, this form takes bfloat16"
    if z_NL.shape[0] < 64:
        return "too few tokens to group"
    if z_NL.shape[1] % 8 or w2_ELF.shape[2] % 8:
        return "rows are not multiples of 16 bytes"
    return None


def route_why_not(x_ND: Tensor, w_ED: Tensor, bias_E: Tensor, top_k: int) -> str | None:
    if not x_ND.is_cuda:
        return f"the inputs are on {x_ND.device.type}, this form runs on cuda"
    if top_k > 8 or w_ED.shape[0] > 128:
        return "so many choices are faster by torch.topk"
    return None


def route(x_ND: Tensor, w_ED: Tensor, bias_E: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The reference with the top k taken one by one: few choices among few are then one kernel after torch.compile."""
    score_NE = functional.linear(wide(x_ND), wide(w_ED)).sigmoid()
    expert_E = torch.arange(w_ED.shape[0], device=x_ND.device)
    left_NE = score_NE.detach() + bias_E
    chosen: list[Tensor] = []
    for _ in range(top_k):
        chosen.append(left_NE.argmax(-1, keepdim=True))
        left_NE = torch.where(expert_E == chosen[-1], -torch.inf, left_NE)
    idx_NK = torch.cat(chosen, dim=-1)
    w_NK = score_NE.gather(1, idx_NK)
    return idx_NK, w_NK / (w_NK.sum(-1, keepdim=True) + 1e-20), score_NE


class _Dispatch(torch.autograd.Function):
    """[N, L] -> [M, L], each token's row once per choice, sorted by expert."""

    @staticmethod
    def forward(ctx: Any, z_NL: Tensor, order_M: Tensor, place_NK: Tensor) -> Tensor:
        ctx.save_for_backward(place_NK)
        return z_NL[order_M // place_NK.shape[1]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (place_NK,) = ctx.saved_tensors
        return grads[0][place_NK].sum(1, dtype=torch.float32).to(grads[0].dtype), None, None


class _Combine(torch.autograd.Function):
    """[M, L] -> [N, L], the weighted sum of each token's rows, in fp32."""

    @staticmethod
    def forward(ctx: Any, y_ML: Tensor, w_NK: Tensor, order_M: Tensor, place_NK: Tensor) -> Tensor:
        ctx.save_for_backward(y_ML, w_NK, order_M, place_NK)
        return (wide(y_ML[place_NK]) * wide(w_NK)[..., None]).sum(1).to(y_ML.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        y_ML, w_NK, order_M, place_NK = ctx.saved_tensors
        g_NL = grads[0]
        grad_y = wide(g_NL[order_M // place_NK.shape[1]]) * wide(w_NK).flatten()[order_M][:, None]
        grad_w = (wide(y_ML[place_NK]) * wide(g_NL)[:, None]).sum(-1)
        return grad_y.to(y_ML.dtype), grad_w.to(w_NK.dtype), None, None


def experts(
    z_NL: Tensor,
    idx_NK: Tensor,
    w_NK: Tensor,
    w13_EFL: Tensor,
    w2_ELF: Tensor,
    beta: float = 4.0,
    linear_beta: float = 25.0,
) -> Tensor:
    E = w13_EFL.shape[0]
    order_M = idx_NK.flatten().to(torch.int16).argsort(stable=True)  # 16 bits: half the passes of a radix sort
    place_NK = torch.empty_like(order_M).scatter_(0, order_M, torch.arange(order_M.numel(), device=order_M.device))
    place_NK = place_NK.view(idx_NK.shape)
    load_E = (idx_NK[..., None] == torch.arange(E, device=z_NL.device)).sum((0, 1))
    end_E = load_E.cumsum(0).to(torch.int32)

    x_ML = _Dispatch.apply(z_NL, order_M, place_NK)  # type: ignore[no-untyped-call]
    gate_up_MF = functional.grouped_mm(x_ML, w13_EFL.to(z_NL.dtype).mT, offs=end_E)
    gate_MF, up_MF = gate_up_MF.chunk(2, dim=-1)
    y_ML = functional.grouped_mm(situ(gate_MF, up_MF, beta, linear_beta), w2_ELF.to(z_NL.dtype).mT, offs=end_E)
    u_NL: Tensor = _Combine.apply(y_ML, w_NK, order_M, place_NK)  # type: ignore[no-untyped-call]
    return u_NL
