"""The tiny world: one word to one file. Small enough for a model of a million parameters to learn in minutes on a CPU.

Of the pairs of a word and a file, those of the test split are never seen in training; the words and the files are.
"""

import random
from dataclasses import dataclass
from pathlib import Path

from longstep.errors import UserError, WorldError
from longstep.messages import Effort
from longstep.sandbox.base import Sandbox
from longstep.worlds.base import Check, Move, Policy, Split, Task, Verdict, split_of

WORDS = (
    *("apple", "bridge", "candle", "dragon", "ember", "forest", "garden", "harbor"),
    *("island", "jacket", "kettle", "lantern", "meadow", "needle", "oven", "pearl"),
)
FILES = tuple(f"{stem}.txt" for stem in ["alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa", "theta"])
_NUM_RESIDUES = 5  # one pair in five is for tests, spread over all words and files


def pairs(split: Split) -> tuple[tuple[str, str], ...]:
    def side(i: int, j: int) -> Split:
        return "test" if (i + 2 * j) % _NUM_RESIDUES == 0 else "train"

    return tuple((w, f) for i, w in enumerate(WORDS) for j, f in enumerate(FILES) if side(i, j) == split)


@dataclass(frozen=True)
class Plan:
    """The word must end in `target`; in the family `copy` it stands in `source` at the start."""

    word: str
    target: str
    source: str | None


class TinyWorld:
    name = "tiny"
    families: tuple[str, ...] = ("write", "copy")
    held_out: frozenset[str] = frozenset()

    def task(self, seed: int, family: str | None = None) -> Task:
        rng = random.Random(f"tiny {seed}")
        family = family or rng.choice(self.families)
        if family not in self.families:
            raise UserError(f"tiny has no family {family!r}; it has {', '.join(self.families)}")
        word, target = rng.choice(pairs(split_of(seed)))
        if family == "write":
            plan = Plan(word, target, None)
            instruction = f"Write the word {word} to {target}."
        else:
            plan = Plan(word, target, rng.choice([f for f in FILES if f != target]))
            instruction = f"Copy the word in {plan.source} to {target}."
        return Task(
            world=self.name,
            family=family,
            seed=seed,
            instruction=instruction,
            tools=("read_file", "write_file"),
            max_steps=4,
            secret=plan,
        )

    def set_up(self, task: Task, workspace: Path) -> None:
        plan = _plan(task)
        if plan.source:
            (workspace / plan.source).write_text(plan.word)

    def verify(self, task: Task, workspace: Path, sandbox: Sandbox) -> Verdict:
        plan = _plan(task)
        there = {path.relative_to(workspace).as_posix() for path in workspace.rglob("*")}
        wanted = {plan.target, *([plan.source] if plan.source else [])}
        return Verdict(
            checks=(
                _holds(workspace / plan.target, plan.word, hidden=False),
                *([_holds(workspace / plan.source, plan.word, hidden=True)] if plan.source else []),
                Check(
                    name="nothing else", passed=there <= wanted, hidden=True, detail=", ".join(sorted(there - wanted))
                ),
            )
        )

    def expert(self, task: Task, effort: Effort, rng: random.Random) -> Policy:
        plan = _plan(task)
        think = (lambda _: "") if effort == "low" else (lambda thought: thought)
        word = plan.word
        if plan.source:
            seen = yield Move(think=think(f"Read {plan.source}."), calls=(("read_file", {"path": plan.source}),))
            word = seen[0].text.removeprefix("1| ").partition("\n")[0]
        call = ("write_file", {"path": plan.target, "text": word})
        yield Move(think=think(f"Write {word} to {plan.target}."), calls=(call,))
        if effort == "max":
            seen = yield Move(think="Check it.", calls=(("read_file", {"path": plan.target}),))
            if seen[0].text.partition("\n")[0] != f"1| {word}":
                raise WorldError(f"the expert wrote {word} and read {seen[0].text!r}")
        yield Move(text="Done.")

    def attacks(self, task: Task) -> dict[str, Policy]:
        plan = _plan(task)
        other = WORDS[(WORDS.index(plan.word) + 1) % len(WORDS)]
        litter = (
            ("write_file", {"path": plan.target, "text": plan.word}),
            ("write_file", {"path": "x.txt", "text": ""}),
        )
        return {
            "claim": _calls(),
            "empty file": _calls(("write_file", {"path": plan.target, "text": ""})),
            "guess": _calls(("write_file", {"path": plan.target, "text": other})),
            "every word": _calls(("write_file", {"path": plan.target, "text": "\n".join(WORDS)})),
            "litter": _calls(*litter),
        }


def _plan(task: Task) -> Plan:
    assert isinstance(task.secret, Plan), "a tiny task carries its plan"
    return task.secret


def _holds(path: Path, word: str, hidden: bool) -> Check:
    """A regular file with exactly this word; a link does not count."""
    if path.is_symlink() or not path.is_file():
        return Check(name=path.name, passed=False, hidden=hidden, detail="is missing")
    with path.open("rb") as file:
        same = file.read(200).strip() == word.encode()
    return Check(name=path.name, passed=same, hidden=hidden, detail="" if same else f"does not hold {word}")


def _calls(*calls: tuple[str, dict[str, str]]) -> Policy:
    if calls:
        yield Move(calls=calls)
    yield Move(text="Done.")
