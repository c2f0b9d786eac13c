"""How far apart two results are."""

import torch


def rel(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference relative to the largest wanted value; infinite where one is not a number."""
    assert got.shape == want.shape, f"{tuple(got.shape)} is not {tuple(want.shape)}"
    error = float((got - want).abs().max() / want.abs().max())
    return error if error == error else float("inf")
