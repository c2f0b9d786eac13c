"""`retrieval`: questions over a collection of hundreds of short documents, answered with a cited source."""

import random
import re
from dataclasses import dataclass
from pathlib import Path

from longstep.errors import UserError
from longstep.messages import Effort
from longstep.sandbox.base import Sandbox
from longstep.worlds.base import Check, Policy, Split, Task, Verdict, split_of
from longstep.worlds.retrieval.attacks import attacks
from longstep.worlds.retrieval.collection import Collection, make_collection
from longstep.worlds.retrieval.expert import ANSWER_FILE, expert
from longstep.worlds.retrieval.questions import FAMILIES, HELD_OUT, Question, make_question
from longstep.worlds.retrieval.schema import ways

SEEDS_PER_COLLECTION = 8  # neighbouring seeds share a collection, which is made once in a process
MAX_STEPS = 24
MAX_ANSWER_BYTES = 400

_LINES = '"answer: X" and "source: docs/FILE.md"'
INSTRUCTION = ways(
    f"{{q}}\nThe documents are in docs/. Write answer.txt with two lines: {_LINES}, the document that says so."
    f" / {{q}}\nFind it in docs/. Write two lines to answer.txt, {_LINES} (the document that says so).",
    f"Answer from the documents in docs/: {{q}}\nWrite answer.txt with the lines {_LINES}.",
    f"Use the documents in docs/ to answer. {{q}}\nPut two lines into answer.txt: {_LINES}.",
)


@dataclass(frozen=True)
class Secret:
    """What the agent never sees. The collection is found again by its split and seed."""

    split: Split
    collection_seed: int
    question: Question

    @property
    def collection(self) -> Collection:
        return make_collection(self.split, self.collection_seed)


class RetrievalWorld:
    name = "retrieval"
    families = tuple(FAMILIES)
    held_out = HELD_OUT

    def task(self, seed: int, family: str | None = None) -> Task:
        """Raises UserError for an unknown family, and for a held-out one with a train seed."""
        split = split_of(seed)
        allowed = [f for f in self.families if split == "test" or f not in self.held_out]
        if family is None:
            family = random.Random(f"retrieval family {seed}").choice(allowed)
        elif family not in allowed:
            why = "is held out of training; give it a test seed" if family in self.held_out else "does not exist"
            raise UserError(f"retrieval: family {family!r} {why}. Families of seed {seed}: {', '.join(allowed)}")
        rng = random.Random(f"retrieval task {seed} {family}")
        secret_seed = seed // SEEDS_PER_COLLECTION
        question = make_question(make_collection(split, secret_seed), family, rng)
        return Task(
            world=self.name,
            family=family,
            seed=seed,
            instruction=INSTRUCTION.pick(split, rng).format(q=question.text),
            tools=("search_docs", "read_file", "find_text", "write_file"),
            max_steps=MAX_STEPS,
            secret=Secret(split, secret_seed, question),
        )

    def set_up(self, task: Task, workspace: Path) -> None:
        (workspace / "docs").mkdir()
        for path, text in _secret(task).collection.documents().items():
            (workspace / path).write_text(text, encoding="utf-8")

    def verify(self, task: Task, workspace: Path, sandbox: Sandbox) -> Verdict:
        secret = _secret(task)
        question = secret.question
        answer, source, problem = _read_answer(workspace)
        documents = secret.collection.documents()
        spoilt = _changed(workspace, documents)
        return Verdict(
            checks=(
                Check(name="answer file", passed=not problem, hidden=False, detail=problem),
                Check(
                    name="source exists",
                    passed=source in documents,
                    hidden=False,
                    detail="" if source in documents else f"{source or 'nothing'} is cited; expected one file of docs/",
                ),
                Check(
                    name="answer",
                    passed=not problem and _normal(answer) == _normal(question.answer),
                    hidden=True,
                    detail=f"{answer!r}; the truth is {question.answer!r}",
                ),
                Check(
                    name="source states it",
                    passed=source == question.source,
                    hidden=True,
                    detail=f"{source!r}; the fact stands in {question.source!r}",
                ),
                Check(name="documents unchanged", passed=not spoilt, hidden=True, detail=spoilt),
            )
        )

    def expert(self, task: Task, effort: Effort, rng: random.Random) -> Policy:
        return expert(_secret(task).question, effort, rng)

    def attacks(self, task: Task) -> dict[str, Policy]:
        secret = _secret(task)
        return attacks(secret.question, secret.collection)


def _secret(task: Task) -> Secret:
    assert isinstance(task.secret, Secret), "the task was made by this world"
    return task.secret


def _read_answer(workspace: Path) -> tuple[str, str, str]:
    """Answer, source and what is wrong with the file's form ("" if nothing is)."""
    file = workspace / ANSWER_FILE
    if file.is_symlink() or not file.is_file():
        return "", "", f"{ANSWER_FILE} does not exist"
    if file.stat().st_size > MAX_ANSWER_BYTES:
        return "", "", f"{ANSWER_FILE} has {file.stat().st_size} bytes; at most {MAX_ANSWER_BYTES} are read"
    text = file.read_bytes().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != 2 or not lines[0].startswith("answer:") or not lines[1].startswith("source:"):
        return "", "", f'{ANSWER_FILE} must hold two lines, "answer: X" and "source: docs/FILE.md"'
    return lines[0].removeprefix("answer:").strip(), lines[1].removeprefix("source:").strip(), ""


def _normal(answer: str) -> str:
    """Case, spaces, a closing full stop and a unit after a number do not matter."""
    plain = " ".join(answer.split()).rstrip(".").casefold()
    return re.sub(r"^(\d+) (m|metres|km|kilometres|inhabitants)$", r"\1", plain)


def _changed(workspace: Path, documents: dict[str, str]) -> str:
    """What differs below docs/ from the start state; "" if nothing does."""
    docs = workspace / "docs"
    if docs.is_symlink() or not docs.is_dir():
        return "docs/ is gone"
    found = {path.relative_to(workspace).as_posix(): path for path in docs.rglob("*")}
    strange = sorted(found.keys() ^ documents.keys())
    if strange:
        return f"{strange[0]} was added or removed"
    for name, text in documents.items():
        path = found[name]
        if path.is_symlink() or not path.is_file() or path.read_bytes() != text.encode():
            return f"{name} was changed"
    return ""
