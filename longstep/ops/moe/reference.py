"""Routing and experts in plain torch: the truth.

N tokens, D model, L latent, E experts, K experts chosen per token, F expert width.
"""

import torch
from torch import Tensor
from torch.nn import functional

from longstep.ops.numerics import wide
from longstep.ops.situ import situ

GATHER_UP_TO = 4  # tokens; with more of them an expert's weights are read once for all its tokens


def route(x_ND: Tensor, w_ED: Tensor, bias_E: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    score_NE = functional.linear(wide(x_ND), wide(w_ED)).sigmoid()
    # the bias chooses experts and does nothing else: weights come from the unbiased scores
    idx_NK = (score_NE.detach() + bias_E).topk(top_k, dim=-1).indices
    w_NK = score_NE.gather(1, idx_NK)
    return idx_NK, w_NK / (w_NK.sum(-1, keepdim=True) + 1e-20), score_NE


def expert(z_NL: Tensor, w13_FL: Tensor, w2_LF: Tensor, beta: float, linear_beta: float) -> Tensor:
    """One expert over its tokens."""
    g, u = functional.linear(z_NL, w13_FL).chunk(2, dim=-1)
    return functional.linear(situ(g, u, beta, linear_beta), w2_LF)


def experts_gathered(
    z_NL: Tensor, idx_NK: Tensor, w_NK: Tensor, w13_EFL: Tensor, w2_ELF: Tensor, beta: float, linear_beta: float
) -> Tensor:
    """Token by token: reads the chosen experts' weights as they lie."""
    rows = []
    for z_L, chosen, w_K in zip(z_NL, idx_NK.tolist(), wide(w_NK), strict=True):
        y_KL = torch.stack([expert(z_L, w13_EFL[e], w2_ELF[e], beta, linear_beta) for e in chosen])
        rows.append(w_K @ wide(y_KL))
    return torch.stack(rows).to(z_NL.dtype)


def experts_sorted(
    z_NL: Tensor, idx_NK: Tensor, w_NK: Tensor, w13_EFL: Tensor, w2_ELF: Tensor, beta: float, linear_beta: float
) -> Tensor:
    """Expert by expert over the tokens that chose it."""
    order = idx_NK.flatten().argsort(stable=True)
    load_E = idx_NK.flatten().bincount(minlength=len(w13_EFL)).tolist()
    token = order // idx_NK.shape[1]
    y = torch.cat(
        [
            expert(z_ML, w13_FL, w2_LF, beta, linear_beta)
            for z_ML, w13_FL, w2_LF in zip(torch.split(z_NL[token], load_E), w13_EFL, w2_ELF, strict=True)
        ]
    )
    y = wide(y) * wide(w_NK).flatten()[order, None]
    return torch.zeros_like(wide(z_NL)).index_add(0, token, y).to(z_NL.dtype)


def experts(
    z_NL: Tensor,
    idx_NK: Tensor,
    w_NK: Tensor,
    w13_EFL: Tensor,
    w2_ELF: Tensor,
    beta: float = 4.0,
    linear_beta: float = 25.0,
) -> Tensor:
    form = experts_gathered if len(z_NL) <= GATHER_UP_TO else experts_sorted
    return form(z_NL, idx_NK, w_NK, w13_EFL.to(z_NL.dtype), w2_ELF.to(z_NL.dtype), beta, linear_beta)


def quantile_bias(score_NE: Tensor, bias_E: Tensor, top_k: int) -> Tensor:
    E = score_NE.shape[1]
    cutoff_N1 = (score_NE + bias_E).topk(top_k + 1, dim=-1).values[:, -1:]
    bias = -(score_NE - cutoff_N1).quantile(1 - top_k / E, dim=0)
    return bias - bias.mean()
