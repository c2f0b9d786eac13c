"""Results as tables for a terminal."""

from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def summary_view(summary: dict[str, Any]) -> RenderableType:
    """Success by world, effort, block and family; what was left out; efforts against each other."""
    title = f"{summary['model']}: {summary['num_done']} of {summary['num_planned']} episodes"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0))
    table.add_column("families", no_wrap=True)
    for column in ("solved", "% (95% interval)", "steps", "output", "$/solved"):
        table.add_column(column, justify="right", no_wrap=True)
    for world, efforts in summary["worlds"].items():
        for effort, blocks in efforts.items():
            for name, block in blocks.items():
                cost = block["cost_usd_per_solved"]
                table.add_row(
                    f"{world} {effort} {'known' if name == 'known' else 'held out'}",
                    *_rate_cells(block),
                    _spread(block.get("steps")),
                    _spread(block.get("output_tokens")),
                    "-" if cost is None else f"{cost:.4f}",
                    style="bold",
                )
                for family, rate in block["families"].items():
                    table.add_row(f"  {family}", *_rate_cells(rate))
            table.add_section()
    parts: list[RenderableType] = [table, Text(f"Steps, output tokens: median (90%). {_priced(summary)}")]
    parts += [Text(_pair_line(f"{row['b']} against {row['a']}", row)) for row in summary["efforts_paired"]]
    errors = summary["infrastructure_errors"]
    parts += [Text(f"not counted: {error['key']}: {error['error']}", style="yellow") for error in errors]
    return Group(*parts)


def _rate_cells(rate: dict[str, Any]) -> tuple[str, str]:
    """Solved of tried; the rate and its interval in percent."""
    if not rate["num"]:
        return "0/0", "-"
    low, high = rate["interval_95"]
    return f"{rate['solved']}/{rate['num']}", f"{100 * rate['success']:.1f} ({100 * low:.1f}-{100 * high:.1f})"


def _priced(summary: dict[str, Any]) -> str:
    return f"Cost as if at {summary['prices']['name']}."


def _spread(values: dict[str, float] | None) -> str:
    return "-" if values is None else f"{values['median']:.0f} ({values['p90']:.0f})"


def _pair_line(title: str, row: dict[str, Any]) -> str:
    low, high = row["interval_95"]
    p = f"p {_small(row['p'])}" + (f", by Holm {_small(row['p_holm'])}" if "p_holm" in row else "")
    return (
        f"{title}: {100 * row['difference']:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f}) "
        f"on {row['num']} pairs; "
        f"only the first solved {row['only_b']}, only the second {row['only_a']}; {p} (McNemar, exact)"
    )


def _small(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"= {p:.4f}"


def comparison_view(result: dict[str, Any], num_listed: int = 20) -> RenderableType:
    """b against a, by world and effort, and the pairs that differ."""
    lines = [_pair_line(f"{result['b']['model']} against {result['a']['model']}", result["all"])]
    lines += [_pair_line(f"  {row['world']}, {row['effort']}", row) for row in result["groups"]]
    for name in ("only_b", "only_a", "excluded"):
        keys = result[name]
        what = (
            "excluded for an infrastructure error"
            if name == "excluded"
            else f"solved by {result[name[-1]]['model']} only"
        )
        lines += [f"{what}: {key}" for key in keys[:num_listed]]
        if len(keys) > num_listed:
            lines.append(f"{what}: {len(keys) - num_listed} more, in the JSON")
    return Group(*(Text(line) for line in lines))
