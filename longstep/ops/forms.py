"""One op, several forms: the contract's reference and the fast ones that a device may have.

    attend = Op("kda.attend", reference.attend)          # in ops/kda/__init__.py
    attend.add("fla", fla.attend, suits=fla.why_not)     # a fast form: asked before the reference, the last added first
    y = attend(q, ...)                                   # the first form that suits its inputs

`suits(*args, **kwargs)` returns None if the form can take the inputs, else the reason in words. Nothing falls back
silently: `describe`, which `longstep doctor` shows, says which form runs and why not the faster ones.
"""

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Op(Generic[P, R]):
    """A callable that runs its first suitable form. All forms have the reference's signature and contract."""

    def __init__(self, name: str, reference: Callable[P, R]):
        self.name = name
        self.reference = reference
        self._fast: list[tuple[str, Callable[P, R], Callable[..., str | None]]] = []
        OPS[name] = self

    def add(self, form: str, run: Callable[P, R], suits: Callable[..., str | None]) -> None:
        """Put a faster form before those already there."""
        self._fast = [(form, run, suits), *(f for f in self._fast if f[0] != form)]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        for _, run, suits in self._fast:
            if suits(*args, **kwargs) is None:
                return run(*args, **kwargs)
        return self.reference(*args, **kwargs)

    def describe(self, *args: P.args, **kwargs: P.kwargs) -> list[tuple[str, str]]:
        """(form, "used" or why not) for these inputs, fastest first, up to the form that runs."""
        lines: list[tuple[str, str]] = []
        for form, _, suits in self._fast:
            why_not = suits(*args, **kwargs)
            lines.append((form, why_not or "used"))
            if why_not is None:
                return lines
        return [*lines, ("reference", "used")]


OPS: dict[str, Op[Any, Any]] = {}
