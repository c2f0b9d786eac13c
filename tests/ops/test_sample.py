"""Sampling draws from the right distribution, keeps to top-p, and depends on each row's own number only."""

import pytest
import torch

from longstep.ops.sample import sample


def draw(logits: torch.Tensor, temperature: float, top_p: float, n: int = 20_000) -> torch.Tensor:
    uniform = (torch.arange(n, dtype=torch.float64) + 0.5) / n  # every quantile once: frequencies are exact to 1/n
    rows = logits.expand(n, -1)
    tokens, _ = sample(rows, torch.full((n,), temperature), torch.full((n,), top_p), uniform)
    return torch.bincount(tokens, minlength=logits.shape[-1]) / n


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_frequencies_are_the_softmax(temperature):
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.9])
    assert torch.allclose(draw(logits, temperature, 1.0), (logits / temperature).softmax(-1), atol=1e-4)


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    p = torch.tensor([0.1, 0.5, 0.3, 0.1])
    assert torch.allclose(draw(p.log(), 1.0, 0.75), torch.tensor([0, 0.625, 0.375, 0]), atol=1e-4)
    assert draw(p.log(), 1.0, 1e-6)[1] == 1, "the most probable token is always kept"


def test_greedy_ties_go_to_the_lower_id_and_rows_do_not_mix():
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, 0.0, 50.0]])
    tokens, logprobs = sample(logits, torch.tensor([0.0, 1.0]), torch.ones(2), torch.tensor([0.9, 0.9]))
    assert tokens.tolist() == [1, 2]
    assert torch.allclose(logprobs, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0])


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_extreme_numbers_never_choose_what_top_p_removed(uniform):
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0)) * 5
    tokens, _ = sample(logits, torch.ones(64), torch.full((64,), 0.5), torch.full((64,), uniform, dtype=torch.float64))
    p = logits.softmax(-1)
    above = torch.stack([p[i][p[i] > p[i, t]].sum() for i, t in enumerate(tokens)])
    assert (above < 0.5 + 1e-6).all()
