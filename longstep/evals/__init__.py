"""Measure a model: the agent's own loop over tasks of worlds, records that outlive a stop, honest intervals."""

from longstep.evals.compare import compare
from longstep.evals.run import BASELINES, baseline, parse_efforts, parse_seeds, run_eval
from longstep.evals.show import comparison_view, summary_view

__all__ = [
    "BASELINES",
    "baseline",
    "compare",
    "comparison_view",
    "parse_efforts",
    "parse_seeds",
    "run_eval",
    "summary_view",
]
