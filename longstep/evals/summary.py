"""From records to the numbers of a report, as plain JSON: success with intervals, steps, tokens, cost."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import msgspec

from longstep.chat.model import Sampling
from longstep.evals.records import FORMAT, K3_LIST, Prices, Record
from longstep.evals.stats import holm, mcnemar, paired_difference, quantile, wilson
from longstep.messages import EFFORTS, Usage


def summarize(
    records: Sequence[Record], *, model: str, sampling: Sampling, num_planned: int, prices: Prices = K3_LIST
) -> dict[str, Any]:
    """`worlds[world][effort]` holds a block for families known in training and one for those held out.

    `episodes` repeats the records, so that the file alone can be compared with another.
    """
    worlds: dict[str, dict[str, Any]] = {}
    for world in dict.fromkeys(record.world for record in records):
        here = [record for record in records if record.world == world]
        worlds[world] = {
            effort: {
                name: _block([r for r in here if r.effort == effort and r.held_out == held_out], prices)
                for name, held_out in (("known", False), ("held_out", True))
                if any(r.effort == effort and r.held_out == held_out for r in here)
            }
            for effort in EFFORTS
            if any(r.effort == effort for r in here)
        }
    return {
        "longstep_eval": FORMAT,
        "model": model,
        "sampling": msgspec.to_builtins(sampling),
        "prices": msgspec.to_builtins(prices),
        "num_planned": num_planned,
        "num_done": sum(record.counted for record in records),
        "worlds": worlds,
        "efforts_paired": _efforts_paired(records),
        "infrastructure_errors": [{"key": str(r.key), "error": r.error} for r in records if not r.counted],
        "episodes": msgspec.to_builtins(list(records)),
    }


def _rate(records: Sequence[Record]) -> dict[str, Any]:
    num_solved = sum(record.solved for record in records)
    low, high = wilson(num_solved, len(records))
    rate = num_solved / len(records) if records else None
    return {"num": len(records), "solved": num_solved, "success": rate, "interval_95": [low, high]}


def _block(records: Sequence[Record], prices: Prices) -> dict[str, Any]:
    counted = [record for record in records if record.counted]
    cost = sum(prices.cost(record.usage) for record in counted)
    out = _rate(counted)
    outcomes = Counter(record.outcome for record in records)
    out["outcomes"] = dict(sorted(outcomes.items()))
    out["tokens"] = {name: sum(getattr(record.usage, name) for record in counted) for name in Usage.__struct_fields__}
    if counted:
        out["steps"] = _spread([record.steps for record in counted])
        out["output_tokens"] = _spread([record.usage.output for record in counted])
        out["wall_s"] = _spread([record.wall_s for record in counted])
    out["cost_usd"] = cost
    out["cost_usd_per_solved"] = cost / out["solved"] if out["solved"] else None
    families = dict.fromkeys(record.family for record in counted)
    out["families"] = {family: _rate([r for r in counted if r.family == family]) for family in families}
    return out


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": quantile(values, 0.5), "p90": quantile(values, 0.9)}


def _efforts_paired(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The efforts against each other on the same tasks of all worlds; p-values adjusted for their number."""
    by_effort = {
        effort: {(r.world, r.family, r.seed): r.solved for r in records if r.effort == effort and r.counted}
        for effort in EFFORTS
    }
    out = []
    for a, b in combinations([effort for effort in EFFORTS if by_effort[effort]], 2):
        common = by_effort[a].keys() & by_effort[b].keys()
        out.append({"a": a, "b": b, **paired([(by_effort[a][task], by_effort[b][task]) for task in common])})
    for row, p in zip(out, holm([row["p"] for row in out]), strict=True):
        row["p_holm"] = p
    return out


def paired(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    """Counts, difference of rates (b minus a) with its interval, and McNemar's exact p."""
    cells = Counter(pairs)
    both, only_a, only_b, neither = cells[True, True], cells[True, False], cells[False, True], cells[False, False]
    difference, interval = paired_difference(both, only_a, only_b, neither)
    return {
        "num": len(pairs),
        "solved_a": both + only_a,
        "solved_b": both + only_b,
        "only_a": only_a,
        "only_b": only_b,
        "difference": difference,
        "interval_95": list(interval),
        "p": mcnemar(only_a, only_b),
    }
