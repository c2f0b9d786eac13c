"""The expert: one need after the other, search then read, and the answer with its source.

    low   no thinking; takes a fact from the search results where they show it, else reads the document
    high  a line of thinking at each move: the fact found and the next need
    max   a plan first, each document read, the answer checked in its source, the answer file read back

Some episodes slip once (a misspelt or too broad search, a similar document read first) and recover, as the model must.
What is written comes from the question and from results that the episode has shown.
"""

import random
import re

from longstep.messages import Effort, ToolResult
from longstep.worlds.base import Move, Policy
from longstep.worlds.retrieval.questions import Need, Question

ANSWER_FILE = "answer.txt"
SLIP = 0.15  # share of episodes with one slip
SLIPS = ("broad", "broad", "similar", "similar", "misspelt")  # few misspelt: what is copied should be copied right


def answer_text(answer: str, source: str) -> str:
    return f"answer: {answer}\nsource: {source}\n"


def expert(question: Question, effort: Effort, rng: random.Random) -> Policy:
    slip_at = rng.randrange(len(question.needs)) if rng.random() < SLIP else None
    known = ""
    if effort == "max":
        steps = " ".join(f"{n}. {step}." for n, step in enumerate(question.plan, start=1))
        known = f"Plan: {steps} Then check the answer in its source."
    for i, need in enumerate(question.needs):
        slip = rng.choice(SLIPS) if i == slip_at else None
        yield from _find(need, known, effort, slip, rng)
        known = need.found if need.hides is None else f"{need.hides} is {need.title}. {need.found}"
    known = _join(known, question.conclusion)
    if effort == "max":
        last = next(need for need in question.needs if need.path == question.source)
        arguments = {"text": last.value, "path": question.source}
        results = yield Move(think=f"{known} Check it in {question.source}.", calls=(("find_text", arguments),))
        line = re.match(r"\S+?:(\d+):", results[0].text)
        known = f"{question.source} says so in line {line.group(1)}." if line else f"{question.source} was read."
    think = f"{known} The answer is {question.answer}." if effort != "low" else ""
    written = {"path": ANSWER_FILE, "text": answer_text(question.answer, question.source)}
    yield Move(think=think, calls=(("write_file", written),))
    if effort == "max":
        yield Move(think="Read the answer file back.", calls=(("read_file", {"path": ANSWER_FILE}),))
    think = {"low": "", "high": "Done.", "max": "Both lines are there."}[effort]
    yield Move(think=think, text=f"{question.answer}, from {question.source}.")


def _find(need: Need, known: str, effort: Effort, slip: str | None, rng: random.Random) -> Policy:
    """Search for the need's document and read it, or see the fact among the results at low effort."""
    quiet = effort == "low"
    think = _join(known, f"Need: {need.what}.")
    query = _slipped(need, slip, rng)
    slipped = query != need.query
    results = yield Move(think="" if quiet else think, calls=(("search_docs", {"query": query}),), slip=slipped)
    if query != need.query and need.path not in results[0].text:
        think = "None of these is it. Search again."
        results = yield Move(think="" if quiet else think, calls=(("search_docs", {"query": need.query}),))
    title = _title(results[0].text, need.path)
    if title is None:
        think = "The results do not hold it. Look for the name."
        name = need.value if need.value in need.query else need.query
        results = yield Move(think="" if quiet else think, calls=(("find_text", {"text": name, "path": "docs"}),))
        think = f"{need.path} has it."
    else:
        if quiet and need.hides is None and _shows(results, need):
            return
        think = f"{need.path} is {title}." if need.hides is None else f"{need.path} may be {need.hides}."
        other = _similar(results[0].text, need.path) if slip == "similar" else None
        if other is not None:
            first = "" if quiet else f"{other[0]} may be it."
            yield Move(think=first, calls=(("read_file", {"path": other[0]}),), slip=True)
            think = f"That is {other[1]}, not it. {think}"
    yield Move(think="" if quiet else think, calls=(("read_file", {"path": need.path}),))


def _slipped(need: Need, slip: str | None, rng: random.Random) -> str:
    words = need.query.split()
    if slip == "broad" and len(words) > 1:
        return words[0] if words[0].islower() or words[0] in ("River", "Lake", "Mount") else words[-1]
    if slip == "misspelt":
        at = max(range(len(words)), key=lambda n: len(words[n]))
        cut = rng.randrange(1, len(words[at]))
        words[at] = words[at][:cut] + words[at][cut + 1 :]
    return " ".join(words)


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _title(results: str, path: str) -> str | None:
    """The title that the search results give for a document."""
    found = re.search(rf"^{re.escape(path)}: ([^:\n]+):", results, flags=re.MULTILINE)
    return found.group(1) if found else None


def _shows(results: tuple[ToolResult, ...], need: Need) -> bool:
    """Whether the document's line among the results holds the value, beyond its title."""
    line = next(line for line in results[0].text.splitlines() if line.startswith(f"{need.path}: "))
    return re.search(rf"\b{re.escape(need.value)}\b", line.removeprefix(f"{need.path}: {need.title}:")) is not None


def _similar(results: str, path: str) -> tuple[str, str] | None:
    """Another document among the results, and its title."""
    others = re.findall(r"^(docs/\S+): ([^:\n]+):", results, flags=re.MULTILINE)
    return next(((other, title) for other, title in others if other != path), None)
