"""Repairs of ordinary Python for pretraining: a function of any source, one bug of a trained kind, and its undoing.

Nothing is executed: a change may, rarely, be no bug. Held-out kinds are never used.
"""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass

from longstep.worlds.repair.explain import clause, code_lines
from longstep.worlds.repair.mutate import KINDS, TRAINED, View, edit_text

MIN_LINES, MAX_LINES = 4, 25
LINE_WIDTH = 110
# Kinds that a reader can see in the function alone; imports and calls of other functions need more than that.
_ALONE = tuple(k for k in TRAINED if k not in ("missing_import", "wrong_arguments"))
# Nearly every function has a place for these: they are tried last, three times in four.
_COMMON = (
    "missing_colon",
    "misspelt_name",
    "missing_self",
    "misspelt_attribute",
    "missing_return",
    "inverted_condition",
)
_RARE = tuple(k for k in _ALONE if k not in _COMMON)
_TRIES = 10  # kinds tried per function


@dataclass(frozen=True, kw_only=True)
class FunctionRepair:
    """`listing` is the buggy function as read_file prints it; `old` and `new` are the arguments of edit_file."""

    kind: str
    listing: str
    old: str
    new: str
    line: int  # the number in the listing of the line that is wrong
    think: str  # why, in the words of the repair world's expert


def function_repairs(source: str, rng: random.Random) -> Iterator[FunctionRepair]:
    """One repair for each function and method of `source` that has one. Source that does not parse gives none."""
    if not source.isascii():  # columns of the syntax tree count bytes
        return
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    lines = source.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if MIN_LINES <= node.end_lineno - first + 1 <= MAX_LINES:
                repair = _repair(lines, node, first, node.end_lineno, rng)
                if repair is not None:
                    yield repair


def _repair(
    lines: list[str], node: ast.FunctionDef, first: int, last: int, rng: random.Random
) -> FunctionRepair | None:
    function = lines[first - 1 : last]
    if any(len(line) > LINE_WIDTH or "\t" in line or "\r" in line for line in function):
        return None
    view = View(lines, node, rng)
    order = [*rng.sample(_RARE, len(_RARE)), *rng.sample(_COMMON, len(_COMMON))]
    for kind in order if rng.random() < 0.75 else rng.sample(_ALONE, _TRIES):
        found = [m for m in KINDS[kind](view) if m.clean != m.buggy]
        rng.shuffle(found)
        for m in found[:2]:
            start = m.first - first
            buggy = [*function[:start], *m.buggy, *function[start + len(m.clean) :]]
            old, new = edit_text(m.buggy), edit_text(m.clean)
            if "\n".join(buggy).count(old) != 1 or old == new:
                continue
            passed = code_lines((n, line) for n, line in enumerate(buggy, first) if n < m.line)
            walk = "".join(f"{n} ok, " for n in passed[-8:])
            return FunctionRepair(
                kind=kind,
                listing="\n".join(f"{n}| {line}" for n, line in enumerate(buggy, first)),
                old=old,
                new=new,
                line=m.line,
                think=f"{walk}{m.line}: {clause(kind, m.wrong, m.right, view.doc)}.",
            )
    return None
