"""The expert: run the tests, follow the report to the code, compare it with its docstring, edit one place, run again.

The true bug chooses where to look and what to try; every word of the thinking comes from what the episode has shown.
"""

import random
import re
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from longstep.errors import WorldError
from longstep.messages import Effort, ToolResult
from longstep.worlds.base import Move, Policy
from longstep.worlds.repair.explain import clause, code_lines
from longstep.worlds.repair.mutate import KINDS, Mutation, View, edit_text
from longstep.worlds.repair.project import Project, definition_of, is_test

WINDOW = 16  # lines of one read around a function
CLASS_WINDOW = 34
ABOVE = 10  # lines shown before the line of an error
# Share of training episodes with a first attempt that fails, by effort.
WRONG_FIRST = {"low": 0.15, "high": 0.25, "max": 0.25}
SMALL_SLIPS = 0.06  # share of training episodes with each of: a search that misses, a line not copied exactly
# What a wrong first attempt may look like: the kinds that a docstring decides.
_DOUBTFUL = [
    "boundary",
    "off_by_one",
    "wrong_operator",
    "and_or",
    "inverted_condition",
    "wrong_start",
    "wrong_end",
    "min_max",
    "wrong_variable",
    "reverse_flag",
    "wrong_division",
    "wrong_default",
    "wrong_constant",
    "misspelt_name",
]

Step = Generator[Move, tuple[ToolResult, ...], Any]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first failure of a report of run_tests."""

    test: str  # file::name, or the file that could not be collected
    path: str
    line: int
    function: str
    code: str
    test_line: str
    error: str

    @property
    def in_code(self) -> bool:
        return not is_test(self.path)


def first_failure(report: str) -> Failure | None:
    """Reads what run_tests prints; None if nothing failed."""
    if report.startswith("PASSED"):
        return None
    fields: dict[str, str] = {}
    for line in report.splitlines():
        name, mark, rest = line.partition(": ")
        if line.startswith("ERROR collecting "):
            fields.setdefault("test", line.removeprefix("ERROR collecting "))
        elif mark and name not in fields:
            fields[name] = rest
    at = re.match(r"(\S+):(\d+)(?: in (\S+))?", fields.get("at", ""))
    return Failure(
        test=fields.get("test", ""),
        path=at[1] if at else "",
        line=int(at[2]) if at else 0,
        function=(at[3] or "") if at else "",
        code=fields.get("code", ""),
        test_line=fields.get("test line", ""),
        error=fields.get("error", ""),
    )


@dataclass
class _Seen:
    """Lines of files that the episode has shown, by path and number."""

    lines: dict[str, dict[int, str]] = field(default_factory=dict)

    def add(self, path: str, text: str) -> None:
        for line in text.splitlines():
            number, mark, rest = line.partition("| ")
            if mark and number.isdigit():
                self.lines.setdefault(path, {})[int(number)] = rest
            elif line.endswith("|") and line[:-1].isdigit():
                self.lines.setdefault(path, {})[int(line[:-1])] = ""

    def has(self, path: str, numbers: range) -> bool:
        return all(n in self.lines.get(path, {}) for n in numbers)


def repair(project: Project, effort: Effort, rng: random.Random, detours: bool) -> Policy:
    """Moves that repair `project`. With `detours`, a share of episodes goes wrong first and recovers."""
    return _Repair(project, effort, rng, detours).moves()


class _Repair:
    def __init__(self, project: Project, effort: Effort, rng: random.Random, detours: bool):
        self.project = project
        self.effort = effort
        self.rng = rng
        self.detours = detours
        self.seen = _Seen()
        self.mutation = project.mutation
        self.buggy = project.files[project.path]

    def think(self, *options: str) -> str:
        return "" if self.effort == "low" else self.rng.choice(options)

    def call(self, think: str, name: str, slip: bool = False, **arguments: Any) -> Step:
        results = yield Move(think="" if self.effort == "low" else think, calls=((name, arguments),), slip=slip)
        return results[0]

    def read(self, think: str, path: str, start: int, lines: int) -> Step:
        result = yield from self.call(think, "read_file", path=path, start=start, lines=lines)
        self.seen.add(path, result.text)

    def slips(self) -> bool:
        return self.detours and self.rng.random() < SMALL_SLIPS

    def spoil(self, text: str) -> str:
        """The text with one character left out, so that it is found nowhere."""
        spoilt = (text[:at] + text[at + 1 :] for at in self.rng.sample(range(1, len(text) - 1), len(text) - 2))
        return next(t for t in spoilt if t not in self.buggy)

    def find(self, think: str, text: str) -> Step:
        """Search, and give (path, line) of the first match outside of the tests."""
        if self.slips():
            yield from self.call(think, "find_text", slip=True, text=self.spoil(text))
            think = "No match: that was not spelt right."
        result = yield from self.call(think, "find_text", text=text)
        matches = re.findall(r"^(\S+?):(\d+): (.*)$", result.text, re.M)
        return [(path, int(number), line) for path, number, line in matches if not is_test(path)]

    def moves(self) -> Policy:
        if self.effort == "max":
            plan = "Plan: run the tests, read the test and the code, fix the line that is wrong, run all tests again."
            yield from self.call(plan, "list_files")
        elif self.effort == "high":
            yield from self.call("Look at the project, then run the tests.", "list_files")
        report = yield from self.call("Run the tests.", "run_tests")
        failure = first_failure(report.text)
        if failure is None:
            raise WorldError("repair: the tests of the start state pass")
        if self.effort == "max" and failure.test_line:
            path = failure.test.partition("::")[0]
            line = failure.line if not failure.in_code else 0
            if line:
                yield from self.read("Read the test first.", path, max(1, line - ABOVE), WINDOW)
        yield from self.locate(failure)
        yield from self.attempts(failure)

    # To the code.

    def target_seen(self) -> bool:
        """Whether the mutated lines have been read."""
        m = self.mutation
        return self.seen.has(self.project.path, range(m.first, m.first + len(m.buggy)))

    def locate(self, failure: Failure) -> Step:
        project, m = self.project, self.mutation
        if m.kind == "missing_import" and failure.error.startswith("NameError"):
            yield from self.read_top(failure)
            return
        if failure.in_code:
            kind = failure.error.partition(":")[0]
            where = f" in {failure.function}" if failure.function else ""
            think = f"{kind}{where}, line {failure.line} of {failure.path}. Read it."
            yield from self.read(think, failure.path, max(1, failure.line - ABOVE), WINDOW)
        else:
            yield from self.follow(failure)
        if self.target_seen():
            return
        # Not there: what was read uses what is broken.
        owner = self.project.owner
        shown = " ".join(line for lines in self.seen.lines.values() for line in lines.values())
        if re.search(rf"\b{owner}\b", shown):
            why = f"That is as it should be. It uses {owner}: read that."
        else:
            why = "That is as it should be. Look at the class."
        is_class = f"class {owner}:" in self.project.clean
        text = f"class {owner}" if is_class else f"def {owner}("
        path, line, _ = (yield from self.find(why, text))[0]
        yield from self.read(f"It is at line {line}.", path, line, CLASS_WINDOW if is_class else WINDOW)
        if is_class:
            yield from self.read_on(line)
        if not self.target_seen():
            raise WorldError(f"repair: the expert did not find the bug in {project.path}")

    def read_on(self, start: int) -> Step:
        """The rest of a class that is longer than one read."""
        end = start + CLASS_WINDOW
        if not self.target_seen() and self.mutation.line >= end:
            yield from self.read("The class goes on.", self.project.path, end, WINDOW)

    def read_top(self, failure: Failure) -> Step:
        name = re.findall(r"'(\w+)'", failure.error)[0]
        think = f"{name} is not defined in {failure.path}. Is it imported?"
        if name in self.defined:
            matches = yield from self.find(f"{name} is not defined in {failure.path}. Where is it?", f"def {name}(")
            think = f"It is in {matches[0][0]}. Read the imports of {failure.path}."
        yield from self.read(think, failure.path, 1, 8)

    def follow(self, failure: Failure) -> Step:
        """From a failing line of a test to the function or class that it tries."""
        error = failure.error.removeprefix("AssertionError: ")
        line = failure.test_line or failure.code
        name, owner = _called(line, self.defined)
        if not name and not owner:
            path = failure.test.partition("::")[0]
            if not self.seen.has(path, range(failure.line, failure.line + 1)):
                yield from self.read("See what the test calls.", path, max(1, failure.line - ABOVE), WINDOW)
            above = self.seen.lines[path]
            for n in range(failure.line, 0, -1):
                name, owner = _called(above.get(n, ""), self.defined)
                if name or owner or above.get(n, "").startswith("def "):
                    break
        if name:
            path, start, _ = (yield from self.find(f"{name} is wrong: {error}. Find it.", f"def {name}("))[0]
            yield from self.read(f"It is at line {start}.", path, start, WINDOW)
        elif owner:
            matches = yield from self.find(f"{owner} is wrong: {error}. Find its class.", "class ")
            match = next((x for x in matches if f"class {self.project.owner}:" in x[2]), matches[0])
            yield from self.read(f"The class is at line {match[1]}.", match[0], match[1], CLASS_WINDOW)
            if match[0] == self.project.path:
                yield from self.read_on(match[1])
        else:
            raise WorldError(f"repair: the expert does not see what {line!r} tries")

    @property
    def defined(self) -> frozenset[str]:
        """Names of functions of the project: what a test calls is one of them, or a method."""
        sources = (text for path, text in self.project.files.items() if not is_test(path))
        return frozenset(name for text in sources for name in re.findall(r"^def (\w+)\(", text, re.M))

    # To the repair.

    def attempts(self, failure: Failure) -> Step:
        wrong = self.wrong_attempts()
        for m in wrong:
            think = f"{self.walk(failure, m)}try {m.wrong} for {m.right}."
            yield from self.edit(think, m.first, m.clean, m.buggy, slip=True)
            report = yield from self.check(failure)
            if report is None:
                raise WorldError("repair: an attempt that should fail has passed")
            yield from self.edit(f"Still wrong: {report.error}. Undo it.", m.first, m.buggy, m.clean)
        m = self.mutation
        why = clause(m.kind, m.wrong, m.clean[-1].strip() if m.kind == "missing_import" else m.right, self.doc(m))
        think = f"{self.walk(failure, m)}{why}."
        if self.slips():
            old = self.spoil(edit_text(m.buggy))
            arguments = {"path": self.project.path, "old": old, "new": edit_text(m.clean)}
            result = yield from self.call(think, "edit_file", slip=True, **arguments)
            if not result.is_error:
                raise WorldError(f"repair: an edit of {old!r} should have failed")
            yield from self.read("Not copied exactly. Read it again.", self.project.path, m.line, 3)
            think = f"{m.line}: {why}."
        yield from self.edit(think, m.first, m.buggy, m.clean)
        if self.effort == "max":
            yield from self.read("Look at the edited lines.", self.project.path, m.line, max(3, len(m.clean)))
        report = yield from self.check(failure)
        if report is not None:
            raise WorldError(f"repair: the tests fail after the repair: {report}")
        yield Move(think=self.think("All tests pass."), text=f"Fixed line {m.line} of {self.project.path}.")

    def walk(self, failure: Failure, m: Mutation) -> str:
        """Line by line through the code that was read, up to the line in question."""
        lines = self.seen.lines[self.project.path]
        if failure.in_code and failure.path == self.project.path and failure.line == m.line:
            return f"Line {m.line}: "
        pattern = r" *def |class " if failure.in_code else r"def |class "
        start = next((n for n in range(m.line, 0, -1) if re.match(pattern, lines.get(n, ""))), m.line)
        passed = code_lines([(n, lines[n]) for n in range(start + 1, m.line) if n in lines])
        said = ""
        if self.effort == "max" and (doc := self.doc(m)):
            said = f"It says: {doc} "
        return said + "".join(f"{n} ok, " for n in passed) + f"{m.line}: "

    def check(self, failure: Failure) -> Step:
        """Run the failing test again and, if it passes, all tests; gives the first failure, None if there is none."""
        if self.effort != "low" and "::" in failure.test:
            result = yield from self.call("Run that test again.", "run_tests", path=failure.test)
            if report := first_failure(result.text):
                return report
            result = yield from self.call("That test passes. Run all tests.", "run_tests")
        else:
            result = yield from self.call("Run the tests again.", "run_tests")
        return first_failure(result.text)

    def edit(self, think: str, at: int, old: tuple[str, ...], new: tuple[str, ...], slip: bool = False) -> Step:
        """Replace lines from `at` on; take in the line before as long as the text occurs more than once."""
        path = self.project.path
        lines = self.seen.lines[path]
        start = at
        while True:
            before = tuple(lines[n] for n in range(start, at))
            old_text, new_text = edit_text((*before, *old)), edit_text((*before, *new))
            result = yield from self.call(think, "edit_file", slip, path=path, old=old_text, new=new_text)
            if not result.is_error:
                break
            start -= 1
            if start not in lines:
                raise WorldError(f"repair: {result.text}")
            think = "Take in the line before it."
        self.seen.lines[path] = {
            **{n: text for n, text in lines.items() if n < at},
            **{at + i: text for i, text in enumerate(new)},
            **{n + len(new) - len(old): text for n, text in lines.items() if n >= at + len(old)},
        }

    def doc(self, m: Mutation) -> str:
        """The docstring nearest above a line, as far as it has been read."""
        lines = self.seen.lines.get(self.project.path, {})
        marks = [n for n in range(m.line, 0, -1) if '"""' in lines.get(n, "")]
        if not marks:
            return ""
        start = marks[0] if lines[marks[0]].count('"""') > 1 else marks[min(1, len(marks) - 1)]
        text = " ".join(lines.get(n, "").strip() for n in range(start, marks[0] + 1))
        return text.replace('"""', "").strip()

    def wrong_attempts(self) -> list[Mutation]:
        """Changes that do not help, in the function of the bug: mostly none."""
        if not self.detours or self.rng.random() >= WRONG_FIRST[self.effort]:
            return []
        try:
            node = definition_of(self.buggy, self.project.owner)
        except SyntaxError:
            return []
        lines = self.buggy.split("\n")
        found: list[Mutation] = []
        view = View(lines, node, self.rng)
        for kind in _DOUBTFUL:
            found += [m for m in KINDS[kind](view) if self.seen.has(self.project.path, range(m.first, m.first + 1))]
        self.rng.shuffle(found)
        num_wrong = self.rng.choice((1, 1, 1, 1, 2, 2, 3))
        chosen: list[Mutation] = []
        for m in found[:8]:
            text = m.apply(self.buggy)
            if len(chosen) < num_wrong and text != self.project.clean and self.project.fails_with(text):
                chosen.append(m)
        return chosen


def _called(line: str, functions: frozenset[str]) -> tuple[str, str]:
    """(function, "") for a line that calls one of the functions, ("", class or object) for one that uses one."""
    for name in re.findall(r"(?<![\w.])(\w+)\(", line):
        if name in functions:
            return name, ""
        if name[0].isupper():
            return "", name
    method = re.match(r"(?:assert )?([a-z]\w*)\.\w+", line.strip())
    return "", method[1] if method else ""
