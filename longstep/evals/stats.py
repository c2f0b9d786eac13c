"""The statistics of success rates: exact where a closed form exists, with the source of each interval."""

import math
from collections.abc import Sequence
from typing import NamedTuple

Z95 = 1.959963984540054  # the 97.5% point of the normal distribution


class Interval(NamedTuple):
    low: float
    high: float


def wilson(num_solved: int, num: int) -> Interval:
    """95% score interval of a rate (Wilson 1927); holds its level at small counts and at 0 or 1. (0, 1) if num is 0."""
    assert 0 <= num_solved <= num, "solved of none"
    if num == 0:
        return Interval(0.0, 1.0)
    rate, z2 = num_solved / num, Z95**2
    centre = (rate + z2 / (2 * num)) / (1 + z2 / num)
    half = Z95 / (1 + z2 / num) * math.sqrt(rate * (1 - rate) / num + z2 / (4 * num**2))
    # at the ends the bound is the end itself; rounding would put it a hair beside
    return Interval(0.0 if num_solved == 0 else centre - half, 1.0 if num_solved == num else centre + half)


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p of McNemar's test: are the pairs that one side alone solved split as by a fair coin?"""
    num = only_a + only_b
    if num == 0:
        return 1.0
    tail = sum(math.comb(num, k) for k in range(min(only_a, only_b) + 1))
    return min(1.0, tail / (1 << (num - 1)))


def paired_difference(both: int, only_a: int, only_b: int, neither: int) -> tuple[float, Interval]:
    """Rate of b minus rate of a over the same tasks, and its 95% interval.

    Half a pair is added to each cell before Wald's formula (Agresti and Min 2005), which keeps the interval honest when
    few pairs differ.
    """
    num = both + only_a + only_b + neither
    if num == 0:
        return 0.0, Interval(-1.0, 1.0)
    a, b, n = only_a + 0.5, only_b + 0.5, num + 2
    centre = (b - a) / n
    half = Z95 * math.sqrt(max(0.0, a + b - (b - a) ** 2 / n)) / n
    return (only_b - only_a) / num, Interval(max(-1.0, centre - half), min(1.0, centre + half))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of several tests (Holm 1979), in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = worst
    return adjusted


def pass_at(k: int, num_solved: int, num: int) -> float:
    """pass@k: the chance that at least one of k of the num trials is solved, 1 - C(n - c, k) / C(n, k)."""
    return 1.0 - math.comb(num - num_solved, k) / math.comb(num, k)


def pass_all(k: int, num_solved: int, num: int) -> float:
    """pass^k: the chance that all of k of the num trials are solved, C(c, k) / C(n, k)."""
    return math.comb(num_solved, k) / math.comb(num, k)


def quantile(values: Sequence[float], q: float) -> float:
    """Linear between order statistics; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])
