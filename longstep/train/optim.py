"""Muon for the matrices inside the network, AdamW for everything else, one learning rate for both.

Muon (Keller Jordan, 2024): the momentum of a matrix is replaced by the nearest orthogonal matrix, found by five
Newton-Schulz steps, so that an update moves every direction by the same amount. Moonlight (arXiv 2502.16982) scales
it by 0.2 * sqrt(max(rows, columns)): its elements then have the size of an AdamW update, and one learning rate and one
weight decay serve both. Stacked experts [E, out, in] are E matrices.

All matrices of one shape are handled together as one batch. State is plain tensors, named after the parameters, so that
a checkpoint can hold it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Quintic coefficients: singular values in (0, 1] land in about (0.7, 1.2) after five steps; exactness is not needed.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_STEPS = 5

# Two-dimensional, yet not maps between hidden spaces: rows are looked up, chosen among or slid along.
_ADAMW_NAMES = ("embed.", "head.", "router", "_conv")


def newton_schulz(x_Nmn: Tensor) -> Tensor:
    """The nearest orthogonal matrices, roughly: singular values between about 0.7 and 1.2. In the input's dtype."""
    tall = x_Nmn.size(-2) > x_Nmn.size(-1)
    x = x_Nmn.mT if tall else x_Nmn
    x = x / (x.float().pow(2).sum((-2, -1), keepdim=True).sqrt() + 1e-7).to(x.dtype)
    for _ in range(_STEPS):
        gram = x @ x.mT
        inner = torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C)  # B G + C G^2
        x = torch.baddbmm(x, inner, x, beta=_A)  # A x + (B G + C G^2) x
    return x.mT if tall else x


def is_matrix(name: str, parameter: Tensor) -> bool:
    """True for what Muon trains: hidden matrices and stacks of them, but no embedding, head, router or convolution."""
    if parameter.ndim < 2 or min(parameter.shape[-2:]) < 8:
        return False
    return not any(part in name for part in _ADAMW_NAMES)


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    lr: float = 3e-3
    weight_decay: float = 0.1  # of matrices, relative to lr; vectors and embeddings are not decayed
    momentum: float = 0.95
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    clip: float = 1.0  # global gradient norm


class Optimizer:
    """Both optimizers over a module's parameters. Gradients are read from `.grad`; call `step(lr)` after backward."""

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], cfg: OptimConfig):
        self.cfg = cfg
        self.num_steps = 0
        named = [(n, p) for n, p in parameters if p.requires_grad]
        self._all = [p for _, p in named]
        self._matrix_groups: dict[tuple[int, ...], list[tuple[str, nn.Parameter]]] = {}
        for name, p in named:
            if is_matrix(name, p):
                self._matrix_groups.setdefault(tuple(p.shape[-2:]), []).append((name, p))
        self._others = [(n, p) for n, p in named if not is_matrix(n, p)]
        self._momentum = {n: torch.zeros_like(p) for group in self._matrix_groups.values() for n, p in group}
        self._first = {n: torch.zeros_like(p) for n, p in self._others}
        self._second = {n: torch.zeros_like(p) for n, p in self._others}
        on_gpu = bool(self._all) and self._all[0].is_cuda
        self._ns_dtype = torch.bfloat16 if on_gpu else torch.float32

    def zero_grad(self) -> None:
        for p in self._all:
            p.grad = None

    @torch.no_grad()
    def collect(self) -> Tensor:
        """All gradients in one flat tensor; each `.grad` becomes a view of it."""
        having = [p for p in self._all if p.grad is not None]
        flat = torch.cat([p.grad.flatten() for p in having if p.grad is not None])
        for p, gradient in zip(having, torch.split(flat, [p.numel() for p in having]), strict=True):
            p.grad = gradient.view_as(p)
        return flat

    @torch.no_grad()
    def clip(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Scale the collected gradients so that their norm is at most `clip`. Returns the norm before, and 1.0 or 0.0:
        whether it is finite. If not, the gradients are set to 0. Nothing waits for the device."""
        norm = flat.pow(2).sum().sqrt()
        finite = torch.isfinite(norm)
        scale = torch.where(finite, (self.cfg.clip / (norm + 1e-6)).clamp(max=1.0), 0.0)
        flat.nan_to_num_(0.0, 0.0, 0.0).mul_(scale)
        return norm, finite.to(flat.dtype)

    @torch.no_grad()
    def step(self, lr: float, finite: Tensor | None = None) -> None:
        """One update. Where `finite` (as `clip` gives it) is 0 the weights stay as they are."""
        self.num_steps += 1
        rate = torch.tensor(lr, device=self._all[0].device) if finite is None else lr * finite
        for shape, group in self._matrix_groups.items():
            self._muon(shape, group, rate)
        self._adamw(rate)

    def _muon(self, shape: tuple[int, ...], group: list[tuple[str, nn.Parameter]], rate: Tensor) -> None:
        group = [(n, p) for n, p in group if p.grad is not None]
        if not group:
            return
        parameters: list[Tensor] = [p for _, p in group]
        gradients = [p.grad for p in parameters if p.grad is not None]
        momenta = [self._momentum[n] for n, _ in group]
        torch._foreach_lerp_(momenta, gradients, 1 - self.cfg.momentum)
        ahead = torch._foreach_lerp(gradients, momenta, self.cfg.momentum)  # Nesterov
        batch = torch.cat([a.reshape(-1, *shape) for a in ahead]).to(self._ns_dtype)
        update = newton_schulz(batch).float() * (0.2 * math.sqrt(max(shape)))
        sizes = [p.numel() // (shape[0] * shape[1]) for p in parameters]
        updates = [u.view_as(p) for u, p in zip(torch.split(update, sizes), parameters, strict=True)]
        torch._foreach_mul_(parameters, 1 - rate * self.cfg.weight_decay)
        torch._foreach_sub_(parameters, torch._foreach_mul(updates, rate))

    def _adamw(self, rate: Tensor) -> None:
        others = [(n, p) for n, p in self._others if p.grad is not None]
        if not others:
            return
        cfg, t = self.cfg, self.num_steps
        parameters: list[Tensor] = [p for _, p in others]
        gradients = [p.grad for p in parameters if p.grad is not None]
        first, second = [self._first[n] for n, _ in others], [self._second[n] for n, _ in others]
        torch._foreach_lerp_(first, gradients, 1 - cfg.beta1)
        torch._foreach_mul_(second, cfg.beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - cfg.beta2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_div_(scale, math.sqrt(1 - cfg.beta2**t))
        torch._foreach_add_(scale, cfg.eps)
        updates = torch._foreach_div(first, scale)
        torch._foreach_sub_(parameters, torch._foreach_mul(updates, rate / (1 - cfg.beta1**t)))

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor of the state by name; `num_steps` as a scalar."""
        state = {"num_steps": torch.tensor(self.num_steps)}
        for prefix, tensors in self._slots():
            state |= {f"{prefix}.{name}": t for name, t in tensors.items()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Inverse of `state_dict`. Raises KeyError for a missing tensor."""
        self.num_steps = int(state["num_steps"])
        for prefix, tensors in self._slots():
            for name, tensor in tensors.items():
                tensor.copy_(state[f"{prefix}.{name}"])

    def _slots(self) -> tuple[tuple[str, dict[str, Tensor]], ...]:
        return ("momentum", self._momentum), ("first", self._first), ("second", self._second)


def schedule(step: int, progress: float, *, warm_up_steps: int, decay: float) -> float:
    """Warm-up, stable, decay: the factor on the learning rate in 0-based `step` at `progress` in [0, 1] of the run.

    Rises linearly over `warm_up_steps`, falls as 1 - sqrt over the last share `decay` of the run, if there is one
    (arXiv 2405.18392).
    """
    factor = min(1.0, (step + 1) / warm_up_steps) if warm_up_steps else 1.0
    if decay and progress > 1 - decay:
        factor *= 1 - math.sqrt(min(1.0, (progress - (1 - decay)) / decay))
    return factor
