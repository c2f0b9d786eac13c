"""The repair world: every task is broken as it says, the expert repairs it, and nothing else counts as a repair."""

import ast
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from world_play import Played, play

from longstep.errors import UserError
from longstep.messages import EFFORTS, Effort
from longstep.sandbox.unsafe import NoSandbox, open_sandbox
from longstep.tools.run_tests import run_pytest
from longstep.tools.warm_tests import WarmTests
from longstep.worlds.base import FIRST_TEST_SEED, Policy, Task, Verdict, do_nothing
from longstep.worlds.repair import WORLD, demo_task
from longstep.worlds.repair.expert import first_failure
from longstep.worlds.repair.fast_tests import FastTests
from longstep.worlds.repair.function_repairs import function_repairs
from longstep.worlds.repair.mutate import HELD_OUT, KINDS, TRAINED, edit_text, mutations
from longstep.worlds.repair.project import Project, is_test
from longstep.worlds.repair.templates import library, parse

SPLITS = {"train": (0, TRAINED), "test": (FIRST_TEST_SEED, tuple(KINDS))}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[FastTests]:
    with WarmTests(NoSandbox()) as warm:
        yield FastTests(warm)


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmTests]:
    with WarmTests(NoSandbox()) as warm:
        yield warm


def attempt(task: Task, policy: Policy, workspace: Path, sandbox: Any) -> tuple[Verdict, Played]:
    WORLD.set_up(task, workspace)
    played = play(policy, task, workspace, sandbox)
    return WORLD.verify(task, workspace, sandbox), played


def expert(task: Task, effort: Effort, seed: int = 0) -> Policy:
    return WORLD.expert(task, effort, random.Random(seed))


def project(task: Task) -> Project:
    assert isinstance(task.secret, Project)
    return task.secret


# Tasks.


@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_fail_and_pass_on_the_clean_program(kind: str, tmp_path: Path, warm: WarmTests) -> None:
    """By pytest itself, not by the runner that made the project."""
    task = WORLD.task(FIRST_TEST_SEED + 3, kind)
    p = project(task)
    assert p.mutation.kind == kind
    assert p.mutation.apply(p.clean) == p.files[p.path]
    for name, source in (("buggy", p.files[p.path]), ("clean", p.clean)):
        visible, hidden = tmp_path / name, tmp_path / f"{name} hidden"
        for folder in (visible, hidden):
            folder.mkdir()
            WORLD.set_up(task, folder)
            (folder / p.path).write_text(source)
        (hidden / "hidden").mkdir()
        (hidden / "hidden/test_hidden.py").write_text(p.hidden_tests)
        reports = run_pytest(warm, visible).text, run_pytest(warm, hidden, "hidden").text
        if name == "clean":
            assert reports == (f"PASSED {p.num_tests} tests", f"PASSED {p.num_hidden} tests")
        else:
            assert first_failure(reports[0]) is not None
            assert first_failure(reports[1]) is not None


def test_hidden_tests_use_other_inputs() -> None:
    for seed in range(10):
        p = project(WORLD.task(seed))
        visible = {line.strip() for name, text in p.files.items() if is_test(name) for line in text.split("\n")}
        hidden = {x.strip() for x in p.hidden_tests.split("\n") if x.strip().startswith("assert")}
        assert len(hidden - visible) >= 3, seed


def test_splits_share_no_function_no_noun_and_no_word() -> None:
    train, test = library("train"), library("test")
    assert not {b.main for b in train.blocks} & {b.main for b in test.blocks}
    assert not set(train.words) & set(test.words)
    for slot in ("item", "items", "key", "num", "group", "thing", "package"):
        nouns = [{x for domain in lib.domains for x in domain[slot]} for lib in (train, test)]
        assert nouns[0].isdisjoint(nouns[1] - {"name"}), (slot, nouns[0] & nouns[1])
    methods = {"__init__", "current", "remaining", "best", "enter"}
    functions = [{n for b in lib.blocks for n in re.findall(r"def ([a-z_]+)\(", b.main)} for lib in (train, test)]
    assert functions[0] & functions[1] <= methods
    modules = [{n for m in lib.modules for n in m.names} for lib in (train, test)]
    assert modules[0].isdisjoint(modules[1])
    assert len(train.modules) >= 30
    assert len(test.modules) >= 12


def test_templates_that_cannot_be_read_say_where() -> None:
    with pytest.raises(ValueError, match="line 2: @modul is not one of"):
        parse("@words a b\n@modul x | X.\n")
    with pytest.raises(ValueError, match="without inputs: 'def f"):
        parse("@module x | X.\ndef f(a):\n    return a\n")


def test_training_seeds_draw_trained_kinds_only() -> None:
    assert {WORLD.task(seed).family for seed in range(60)} <= set(TRAINED)
    with pytest.raises(UserError, match="held out of training"):
        WORLD.task(1, next(iter(HELD_OUT)))
    with pytest.raises(UserError, match="has no family 'typo'"):
        WORLD.task(1, "typo")


def test_tasks_are_made_fast_and_differ() -> None:
    WORLD.task(0)
    start = time.process_time()
    tasks = [WORLD.task(seed) for seed in range(100, 160)]
    each_s = (time.process_time() - start) / len(tasks)
    assert each_s < 0.03, f"{1000 * each_s:.1f} ms for a task"
    assert len({project(t).files[project(t).path] for t in tasks}) == len(tasks)
    assert len({t.instruction for t in tasks}) > 8


# The expert.


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("effort", EFFORTS)
def test_the_expert_repairs_every_kind(split: str, effort: Effort, tmp_path: Path, sandbox: FastTests) -> None:
    first, kinds = SPLITS[split]
    for i, kind in enumerate(kinds):
        task = WORLD.task(first + 10 + i, kind)
        (tmp_path / kind).mkdir()
        verdict, played = attempt(task, expert(task, effort, i), tmp_path / kind, sandbox)
        assert verdict.success, (kind, verdict)
        assert len(played.steps) <= task.max_steps
        for move, _ in played.steps:
            assert effort != "low" or not move.think


def test_the_expert_succeeds_in_the_real_sandbox(tmp_path: Path) -> None:
    task = demo_task(1)
    verdict, _ = attempt(task, expert(task, "high"), tmp_path, open_sandbox())
    assert verdict.success, verdict


def test_the_demo_takes_eight_steps(tmp_path: Path, sandbox: FastTests) -> None:
    for seed in range(1, 21):
        task = demo_task(seed)
        assert task.split == "test"
        assert task.family in TRAINED
        (tmp_path / f"{seed}").mkdir()
        _, played = attempt(task, expert(task, "high"), tmp_path / f"{seed}", sandbox)
        assert len(played.steps) >= 8, seed


def test_wrong_attempts_happen_in_training_only_and_are_undone(tmp_path: Path, sandbox: FastTests) -> None:
    undone = Counter[str]()
    for name, first in (("train", 0), ("test", FIRST_TEST_SEED)):
        for seed in range(first, first + (30 if name == "train" else 8)):
            task = WORLD.task(seed)
            (tmp_path / f"{seed}").mkdir()
            verdict, played = attempt(task, expert(task, "high", seed), tmp_path / f"{seed}", sandbox)
            assert verdict.success
            undone[name] += any("Undo" in move.think for move, _ in played.steps)
    assert 1 <= undone["train"] <= 15
    assert undone["test"] == 0


def test_thinking_names_only_lines_and_paths_that_were_seen(tmp_path: Path, sandbox: FastTests) -> None:
    """Numbers, file names and quoted words of the thinking stand in the instruction or an earlier result."""
    for seed in range(16):
        task = WORLD.task(seed)
        (tmp_path / f"{seed}").mkdir()
        _, played = attempt(task, expert(task, "max", seed), tmp_path / f"{seed}", sandbox)
        seen = task.instruction
        for move, results in played.steps:
            for word in re.findall(r"\b\d+(?= ok|: )|\w+/\w+\.py|(?<=line )\d+", move.think):
                assert word in seen, (seed, word, move.think)
            seen += "\n".join(r.text for r in results)


def test_a_report_without_failures_is_none() -> None:
    assert first_failure("PASSED 3 tests") is None
    failure = first_failure(
        "ERROR collecting tests/test_a.py\nat: a/b.py:7\ncode: def f(x)\nerror: SyntaxError: expected ':'"
    )
    assert failure is not None
    assert (failure.test, failure.path, failure.line, failure.in_code) == ("tests/test_a.py", "a/b.py", 7, True)


# Cheats.


@pytest.mark.parametrize("name", [*WORLD.attacks(WORLD.task(0)), "do nothing"])
def test_cheats_score_zero(name: str, tmp_path: Path, warm: WarmTests) -> None:
    task = WORLD.task(FIRST_TEST_SEED + 11, "boundary")
    policy = do_nothing(task) if name == "do nothing" else WORLD.attacks(task)[name]
    WORLD.set_up(task, tmp_path)
    for name_, arguments in (call for move in _moves(policy) for call in move):
        assert name_ == "write_file"
        path = tmp_path / arguments["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(arguments["text"])
    assert not WORLD.verify(task, tmp_path, warm).success


def test_answers_by_heart_pass_what_is_seen_and_fail_what_is_hidden(tmp_path: Path, warm: WarmTests) -> None:
    seeds = iter(range(FIRST_TEST_SEED, FIRST_TEST_SEED + 50))
    task = next(t for t in (WORLD.task(seed, "boundary") for seed in seeds) if not project(t).visible[0].statements)
    WORLD.set_up(task, tmp_path)
    for _, arguments in (call for move in _moves(WORLD.attacks(task)["answers of the tests"]) for call in move):
        (tmp_path / arguments["path"]).write_text(arguments["text"])
    checks = {c.name: c.passed for c in WORLD.verify(task, tmp_path, warm).checks}
    assert checks.pop("hidden tests") is False
    assert all(checks.values()), checks


def _moves(policy: Policy) -> Iterator[tuple[tuple[str, dict[str, Any]], ...]]:
    move = next(policy)
    while move.calls:
        yield move.calls
        move = policy.send(())


def test_a_repair_with_a_cheat_beside_it_scores_zero(tmp_path: Path, warm: WarmTests) -> None:
    """The program is right, so only the check on what was touched can fail."""
    task = WORLD.task(FIRST_TEST_SEED + 12, "boundary")
    p = project(task)
    test = next(name for name in p.files if is_test(name))
    for i, (path, text) in enumerate(
        (
            (test, p.files[test] + "\n"),
            ("conftest.py", ""),
            ("sitecustomize.py", ""),
            (p.path, f"import os\n\n{p.clean}"),
            (p.path, p.clean.replace(f"def {p.owner}(", "def other(").replace(f"class {p.owner}:", "class Other:")),
        )
    ):
        folder = tmp_path / str(i)
        folder.mkdir()
        WORLD.set_up(task, folder)
        (folder / p.path).write_text(p.clean)
        if i == 0:
            assert WORLD.verify(task, folder, warm).success
        (folder / path).write_text(text)
        failed = [c.name for c in WORLD.verify(task, folder, warm).checks if not c.passed]
        assert failed, path


# The parts.


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutation_is_one_small_change_that_its_edit_undoes(kind: str) -> None:
    num = 0
    for seed in range(FIRST_TEST_SEED, FIRST_TEST_SEED + 5):
        p = project(WORLD.task(seed, kind))
        for m in mutations(kind, p.clean, ast.parse(p.clean), random.Random(seed)):
            buggy = m.apply(p.clean)
            old, new = edit_text(m.buggy), edit_text(m.clean)
            assert len(m.clean) <= 4
            assert buggy != p.clean
            assert old != new
            if buggy.count(old) == 1:
                assert buggy.replace(old, new) == p.clean
            num += 1
    assert num >= 3


def test_fast_tests_report_what_pytest_reports(tmp_path: Path, warm: WarmTests) -> None:
    """To the byte, on buggy and on clean programs, whole suites and single tests."""

    class Refuses(WarmTests):
        def run_pytest(self, *_: Any) -> Any:
            nonlocal num_refused
            num_refused += 1
            return warm.run_pytest(*_)

    num_refused = 0
    fast = FastTests(Refuses(NoSandbox()))
    for i, kind in enumerate(KINDS):
        task = WORLD.task(FIRST_TEST_SEED + 40 + i, kind)
        folder = tmp_path / kind
        folder.mkdir()
        WORLD.set_up(task, folder)
        text = run_pytest(warm, folder).text
        assert run_pytest(fast, folder).text == text
        failure = first_failure(text)
        assert failure is not None
        if i % 4 == 0:
            assert run_pytest(fast, folder, failure.test).text == run_pytest(warm, folder, failure.test).text
    assert num_refused <= 4


def test_fast_tests_leave_to_pytest_what_is_not_plain(tmp_path: Path, warm: WarmTests) -> None:
    fast = FastTests(warm)
    (tmp_path / "test_a.py").write_text("import pytest\n\n\n@pytest.mark.skip\ndef test_a():\n    assert 0\n")
    assert run_pytest(fast, tmp_path).text == "PASSED 0 tests, 1 skipped"
    with pytest.raises(TypeError, match="needs a sandbox with run_pytest"):
        FastTests(NoSandbox())


def test_function_repairs_undo_one_trained_bug() -> None:
    source = Path(ast.__file__).read_text()
    repairs = list(function_repairs(source, random.Random(0)))
    assert len(repairs) > 20
    assert not {r.kind for r in repairs} & HELD_OUT
    for r in repairs:
        shown = [line.partition("| ") for line in r.listing.split("\n")]
        buggy = "\n".join(text for _, _, text in shown)
        assert buggy.count(r.old) == 1
        assert buggy.replace(r.old, r.new) in source
        assert f"{r.line}" in [number for number, _, _ in shown]
    assert [r.new for r in repairs] == [r.new for r in function_repairs(source, random.Random(0))]
    assert not list(function_repairs("def f(:\n", random.Random(0)))


@pytest.mark.soak
@pytest.mark.parametrize("split", SPLITS)
def test_soak_expert(split: str, tmp_path: Path, sandbox: FastTests, capsys: pytest.CaptureFixture[str]) -> None:
    """Three hundred seeds: the expert succeeds on all; where the report leads, and how long it takes."""
    first, _ = SPLITS[split]
    kinds, steps, direct = Counter[str](), {e: list[int]() for e in EFFORTS}, 0
    for i in range(300):
        task = WORLD.task(first + 2000 + i)
        kinds[task.family] += 1
        effort = EFFORTS[i % 3]
        folder = tmp_path / str(i)
        folder.mkdir()
        verdict, played = attempt(task, expert(task, effort, i), folder, sandbox)
        assert verdict.success, (i, task.family, effort, verdict)
        steps[effort].append(len(played.steps))
        reads = [c for move, _ in played.steps for c in move.calls if c[0] == "read_file" and not is_test(c[1]["path"])]
        direct += len(reads) - (effort == "max") <= 1
    with capsys.disabled():
        mean = {e: round(sum(n) / len(n), 1) for e, n in steps.items()}
        print(f"\n{split}: steps {mean}; the first read shows the bug in {direct} of 300; {dict(kinds.most_common())}")


def test_a_demo_has_no_negative_seed() -> None:
    with pytest.raises(UserError, match="--seed -3: seeds count from 0"):
        demo_task(-3)
