"""Statistics against published vectors and against enumeration."""

import math
import statistics
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longstep.evals.records import K3_LIST
from longstep.evals.stats import holm, mcnemar, paired_difference, pass_all, pass_at, quantile, wilson
from longstep.messages import Usage


def test_trials_of_one_task() -> None:
    """Five trials, three solved."""
    assert [pass_all(k, 3, 5) for k in (1, 2, 3)] == pytest.approx([0.6, 0.3, 0.1])
    assert [pass_at(k, 3, 5) for k in (1, 2, 3)] == pytest.approx([0.6, 0.9, 1.0])


def test_mcnemar_vector() -> None:
    assert mcnemar(1, 7) == pytest.approx(0.0703125)
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(0, 2000) < 1e-300 or mcnemar(0, 2000) == 0.0, "large counts do not overflow"


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_is_the_fair_coins_two_tails(a: int, b: int) -> None:
    n = a + b
    as_extreme = sum(math.comb(n, k) for k in range(n + 1) if abs(k - n / 2) >= abs(a - n / 2))
    assert mcnemar(a, b) == pytest.approx(as_extreme / 2**n)
    assert mcnemar(a, b) == mcnemar(b, a)


@pytest.mark.parametrize(
    ("solved", "num", "low", "high"),
    [(0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433), (10, 10, 0.7225, 1.0), (140, 200, 0.6332, 0.7593)],
)
def test_wilson_vectors(solved: int, num: int, low: float, high: float) -> None:
    assert wilson(solved, num) == pytest.approx((low, high), abs=1e-4)


def test_wilson_of_nothing_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("cells", [(0.5, 0.1, 0.2, 0.2), (0.9, 0.02, 0.05, 0.03), (0.2, 0.3, 0.3, 0.2)], ids=str)
def test_the_paired_interval_covers_as_often_as_it_says(cells: tuple[float, float, float, float]) -> None:
    """Exact coverage at n = 40, over all outcomes of the two discordant cells."""
    n, (_, p_a, p_b, _) = 40, cells
    coverage = 0.0
    for a, b in product(range(n + 1), repeat=2):
        if a + b > n:
            continue
        chance = math.comb(n, a) * math.comb(n - a, b) * p_a**a * p_b**b * (1 - p_a - p_b) ** (n - a - b)
        _, (low, high) = paired_difference(0, a, b, n - a - b)
        coverage += chance * (low <= p_b - p_a <= high)
    assert 0.935 < coverage < 0.995, f"coverage {coverage:.4f}"


def test_the_difference_is_b_minus_a() -> None:
    difference, (low, high) = paired_difference(10, 2, 8, 20)
    assert difference == pytest.approx(6 / 40)
    assert low < difference < high
    mirrored, (mirrored_low, mirrored_high) = paired_difference(10, 8, 2, 20)
    assert (mirrored, mirrored_low, mirrored_high) == pytest.approx((-difference, -high, -low))
    assert paired_difference(0, 0, 0, 0) == (0.0, (-1.0, 1.0))


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40))
def test_quantiles_are_those_of_the_standard_library(values: list[int]) -> None:
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    assert [quantile(values, q / 10) for q in range(1, 10)] == pytest.approx(tenths)
    assert quantile(values, 0.5) == pytest.approx(statistics.median(values))


def test_quantile_of_one_and_of_none() -> None:
    assert quantile([3], 0.9) == 3
    assert math.isnan(quantile([], 0.5))


def test_cost_at_the_list_price() -> None:
    """100,000 prompt tokens, of which 90,000 cached; 2,000 written, of which 1,500 reasoning, paid once."""
    usage = Usage(fresh_input=10_000, cache_read=90_000, output=2_000, reasoning=1_500)
    assert K3_LIST.cost(usage) == pytest.approx(0.0870)
    assert K3_LIST.cost(Usage(cache_write=1_000_000)) == pytest.approx(3.0)
