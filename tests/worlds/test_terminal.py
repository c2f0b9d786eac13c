"""The terminal world: the verifier against perturbed ends, the expert's honesty, the split of names and families."""

import asyncio
import gzip
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from world_play import PlainShell, Played, play

from longstep.agent.loop import Limits, run_episode
from longstep.errors import UserError, WorldError
from longstep.messages import EFFORTS, Effort, ToolResult
from longstep.sandbox.base import Sandbox
from longstep.tools import toolset
from longstep.tools.base import ToolContext
from longstep.worlds.base import FIRST_TEST_SEED, PolicyModel, Task
from longstep.worlds.terminal import TerminalWorld, names
from longstep.worlds.terminal.draft import Hand, misspelled
from longstep.worlds.terminal.families import FAMILIES, GROUPS, HELD_OUT, TRAINED_PAIRS
from longstep.worlds.terminal.tree import MAX_READ_BYTES, File, Found, Tree, difference, read_tree
from longstep.worlds.terminal.world import Plan

WORLD = TerminalWorld()
SANDBOX: Sandbox = PlainShell()  # for speed; the contract tests run the same experts in bubblewrap


def plan_of(task: Task) -> Plan:
    assert isinstance(task.secret, Plan)
    return task.secret


def solved(task: Task, effort: Effort, workspace: Path, seed: int = 0) -> Played:
    WORLD.set_up(task, workspace)
    played = play(WORLD.expert(task, effort, random.Random(seed)), task, workspace, SANDBOX)
    verdict = WORLD.verify(task, workspace, SANDBOX)
    assert verdict.success, f"{task}\n{[c for c in verdict.checks if not c.passed]}"
    return played


def failed_checks(task: Task, workspace: Path) -> set[str]:
    return {c.name for c in WORLD.verify(task, workspace, SANDBOX).checks if not c.passed}


# The verifier. The end is written by Python here, and by shell commands in the expert's runs: both must be accepted.


@pytest.mark.parametrize("family", FAMILIES)
def test_accepts_the_end_and_refuses_what_differs_from_it(family: str, tmp_path: Path) -> None:
    for seed in range(FIRST_TEST_SEED, FIRST_TEST_SEED + 3):
        task = WORLD.task(seed, family)
        plan, workspace = plan_of(task), tmp_path / f"{seed}"
        workspace.mkdir()
        plan.end.write_to(workspace)
        assert failed_checks(task, workspace) == set()

        for path, file in plan.end.files.items():
            real = workspace / path
            before, mode = real.read_bytes(), real.stat().st_mode
            for damage in ("gone", "changed", "emptied", "link", "doubled"):
                real.unlink()
                if damage == "changed":
                    real.write_bytes(before[:-9] if file.pack else b"x" + before)
                elif damage == "emptied":
                    real.write_bytes(b"" if before else b"x")
                elif damage == "link":
                    real.symlink_to("/dev/null" if before else "/etc/hostname")
                elif damage == "doubled":
                    real.write_bytes(before + b"again\n")
                if damage not in ("gone", "link"):
                    real.chmod(mode)
                assert failed_checks(task, workspace), f"{path} {damage} was accepted"
                real.unlink(missing_ok=True)
                real.write_bytes(before)
                real.chmod(mode)
            if file.mode is not None:
                real.chmod(file.mode ^ 0o010)
                assert failed_checks(task, workspace), f"{path}: another mode was accepted"
                real.chmod(mode)
        (workspace / "left").mkdir()
        assert failed_checks(task, workspace) == {"nothing left behind"}
        (workspace / "left").rmdir()
        assert failed_checks(task, workspace) == set(), "the damage was not undone, so the checks above prove nothing"


def test_white_space_of_a_report_is_free_but_not_of_a_file_to_leave_alone() -> None:
    padded, want = Found(b"   4  \n\n", 0o644), File("4\n")
    assert difference(padded, want, exact=False) == ""
    assert difference(padded, want, exact=True) == "was changed"
    assert difference(Found(b"5", 0o644), want, exact=False) == "has other content than expected"


def test_hostile_files_are_refused_without_being_read(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * (MAX_READ_BYTES + 1))
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"0" * (64 << 20)))
    files, folders = read_tree(tmp_path)
    assert folders == set()
    assert files["big"].problem
    assert files["loop"].problem == files["pipe"].problem == "not a regular file"
    assert difference(files["bomb.gz"], File("0", pack="gz"), exact=False) == "is not gzip data"
    assert "not a readable archive" in difference(files["bomb.gz"], File(pack="tar"), exact=False)


def test_rules_are_checked_by_the_hidden_half_alone(tmp_path: Path) -> None:
    """Work done and a rule broken: what the agent can check passes, what it was told to keep does not."""
    for seed in range(FIRST_TEST_SEED, FIRST_TEST_SEED + 6):
        for attack in ("break a rule", "litter"):
            task, workspace = WORLD.task(seed), tmp_path / f"{seed} {attack}"
            workspace.mkdir()
            WORLD.set_up(task, workspace)
            play(WORLD.attacks(task)[attack], task, workspace, SANDBOX)
            checks = WORLD.verify(task, workspace, SANDBOX).checks
            assert all(c.passed for c in checks if not c.hidden), f"{task}: {attack}"
            assert any(not c.passed for c in checks if c.hidden), f"{task}: {attack}"


# Every atom, alone


@pytest.mark.parametrize("atom", [a for atoms in GROUPS.values() for a in atoms], ids=lambda a: a.__name__)
def test_an_atom_is_solved_at_every_effort(
    atom: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effect in Python and the commands of the expert agree, under rules drawn anew each time."""
    from longstep.worlds.terminal import families, world

    alone = families.Family(("Do this.",), (((atom,),),))  # type: ignore[arg-type]
    monkeypatch.setitem(world.FAMILIES, "alone", alone)
    for i, effort in enumerate(EFFORTS):
        seed = i if effort == "high" else FIRST_TEST_SEED + i
        workspace = tmp_path / effort
        workspace.mkdir()
        solved(WORLD.task(seed, "alone"), effort, workspace, seed)


# The expert


def test_the_expert_names_only_what_the_episode_has_shown(tmp_path: Path) -> None:
    """No move holds a name of the true state before the instruction or a result has shown it."""
    num_shown_by_results = 0
    for seed in range(FIRST_TEST_SEED, FIRST_TEST_SEED + 30):
        task, workspace = WORLD.task(seed), tmp_path / f"{seed}"
        workspace.mkdir()
        plan = plan_of(task)
        everything = " ".join(
            [*plan.start.files, *plan.end.files, *plan.start.folders, *plan.end.folders]
            + [f.text for tree in (plan.start, plan.end) for f in tree.files.values()]
            + [" ".join(map(" ".join, f.members)) for f in plan.start.files.values()]
        )
        secret = set(re.findall(r"[a-z]{5,}", everything)) - {"draft", "cache"}
        seen = set(re.findall(r"[a-z]{5,}", task.instruction))
        for move, results in solved(task, EFFORTS[seed % 3], workspace).steps:
            said = set(re.findall(r"[a-z]{5,}", f"{move.think} {move.calls} {move.text}")) & secret
            assert said <= seen, f"{task}: {move} knows {said - seen}"
            num_shown_by_results += len(said - set(re.findall(r"[a-z]{5,}", task.instruction)))
            seen.update(w for r in results for w in re.findall(r"[a-z]{5,}", r.text))
    assert num_shown_by_results > 30, "hardly any move depends on what was seen: the test above proves little"


def test_efforts_differ_as_they_should(tmp_path: Path) -> None:
    """low thinks nothing; high thinks; max also checks, so that it takes more steps."""
    num_steps = dict.fromkeys(EFFORTS, 0)
    for seed in range(FIRST_TEST_SEED, FIRST_TEST_SEED + 12):
        task = WORLD.task(seed)
        for effort in EFFORTS:
            workspace = tmp_path / f"{seed} {effort}"
            workspace.mkdir()
            steps = solved(task, effort, workspace).steps
            assert all(bool(move.think) == (effort != "low") for move, _ in steps)
            num_steps[effort] += len(steps)
    assert num_steps["low"] <= num_steps["high"] < num_steps["max"]


def test_mistakes_in_training_episodes_are_put_right(tmp_path: Path) -> None:
    """About one training episode in seven holds a failed call; its verdict is success all the same; tests hold none."""
    num_errors = {"train": 0, "test": 0}
    for seed in (*range(60), *range(FIRST_TEST_SEED, FIRST_TEST_SEED + 10)):
        task, workspace = WORLD.task(seed), tmp_path / f"{seed}"
        workspace.mkdir()
        num_errors[task.split] += solved(task, "low", workspace, seed).num_errors
    assert 3 <= num_errors["train"] <= 18
    assert num_errors["test"] == 0


def test_a_misspelled_path_stays_in_its_folder_and_a_limit_note_is_no_result() -> None:
    rng = random.Random(0)
    for _ in range(50):
        assert misspelled("kept/folder/name.txt", rng).startswith("kept/folder/")
    hand = Hand("low", rng, Tree())
    reading = hand.shell("cat a")
    next(reading)
    with pytest.raises(StopIteration) as stop:
        reading.send((ToolResult(call_id="1", name="shell", text="exit 0\nword: x\n[12 of 60 steps left]"),))
    assert stop.value.value == "word: x"
    reading = hand.shell("cat a")
    next(reading)
    with pytest.raises(WorldError, match="cat a"):
        reading.send((ToolResult(call_id="1", name="shell", text="exit 1\nstderr:\ncat: a: No such file"),))


def test_the_horizon_is_real() -> None:
    """Queues and trails reach past 35 steps at the lowest effort, for nothing in them can be done in one call."""

    def num_steps(family: str) -> list[int]:
        plans = [plan_of(WORLD.task(seed, family)) for seed in range(FIRST_TEST_SEED, FIRST_TEST_SEED + 100)]
        return [len(p.items) + sum("next: " in f.text for f in p.start.files.values()) for p in plans]

    for family in ("queue", "trail"):
        assert sum(n > 35 for n in num_steps(family)) >= 3
    assert max(num_steps("mixed")) <= 12


@pytest.mark.parametrize("family", ["queue", "trail", "mixed"])
def test_no_task_needs_more_steps_than_it_has(family: str, tmp_path: Path) -> None:
    longest = sorted((WORLD.task(seed, family) for seed in range(200)), key=lambda t: -len(plan_of(t).start.files))[:2]
    for task in longest:
        for effort in EFFORTS:
            workspace = tmp_path / f"{task.seed} {effort}"
            workspace.mkdir()
            assert len(solved(task, effort, workspace).steps) <= task.max_steps


def test_the_longest_tasks_pass_through_the_real_loop(tmp_path: Path) -> None:
    """The loop adds a note to a result when steps run low; the expert reads on past it."""
    tasks = (WORLD.task(seed, "trail") for seed in range(FIRST_TEST_SEED, FIRST_TEST_SEED + 100))
    task = max(tasks, key=lambda t: len(plan_of(t).start.files))
    WORLD.set_up(task, tmp_path)
    episode = asyncio.run(
        run_episode(
            PolicyModel(WORLD.expert(task, "max", random.Random(0))),
            task.instruction,
            tools=toolset(task.tools),
            context=ToolContext(workspace=tmp_path, sandbox=SANDBOX),
            effort="max",
            limits=Limits(max_steps=50),
        )
    )
    assert episode.why == "answered"
    assert any("of 50 steps left]" in m.text for m in episode.history if isinstance(m, ToolResult))
    assert failed_checks(task, tmp_path) == set()


# Splits


def test_train_and_test_share_no_name() -> None:
    """Names of files, folders and services of either side, over hundreds of tasks; extensions where they differ."""
    drawn: dict[str, set[str]] = {"train": set(), "test": set()}
    for first in (0, FIRST_TEST_SEED):
        for seed in range(first, first + 200):
            task = WORLD.task(seed)
            tree = plan_of(task).start
            for path in [*tree.files, *tree.folders]:
                drawn[task.split].update(part.partition(".")[0] for part in path.split("/"))
            for path, file in tree.files.items():
                if path != plan_of(task).queue:  # a list of jobs is written in plain English
                    drawn[task.split].update(re.findall(r"[a-z]{4,}", file.text))
    common = drawn["train"] & drawn["test"] - {"word", "next", "mark"}  # the form of a trail's files
    assert not common, sorted(common)
    assert min(len(d) for d in drawn.values()) > 1000
    assert not set(names.SIDE_EXTENSIONS["train"]) & set(names.SIDE_EXTENSIONS["test"])


def test_held_out_families_join_what_training_never_joins() -> None:
    group_of = {atom: name for name, atoms in GROUPS.items() for atom in atoms}
    allowed = {frozenset(pair) for pair in TRAINED_PAIRS} | {frozenset((g,)) for g in GROUPS}

    def teams(family: str) -> list[set[str]]:
        return [{group_of[a] for group in team for a in group} for team in FAMILIES[family].teams]

    for family in set(FAMILIES) - HELD_OUT:
        for team in teams(family):
            assert frozenset(team) in allowed, f"{family} joins {team}"
    for family in HELD_OUT:
        for team in teams(family):
            foreign = [(a, b) for a in team for b in team if a < b and frozenset((a, b)) not in allowed]
            assert len(foreign) >= 2, f"{family} joins nothing new"
        assert WORLD.held_out == HELD_OUT
        with pytest.raises(UserError, match="held out"):
            WORLD.task(0, family)


def test_an_unknown_family_is_refused_with_the_list() -> None:
    with pytest.raises(UserError, match="trail"):
        WORLD.task(0, "nosuch")


def test_tasks_are_cheap() -> None:
    """About 1.5 ms of processor time each; 10 where coverage is measured. Data generation waits for commands only."""
    before = time.process_time()
    for seed in range(100):
        WORLD.task(seed)
    assert (time.process_time() - before) / 100 < 0.01


@pytest.mark.soak
@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("first", [0, FIRST_TEST_SEED])
def test_the_expert_solves_every_seed(first: int, effort: Effort, tmp_path: Path) -> None:
    for seed in range(first, first + 300):
        task, workspace = WORLD.task(seed), tmp_path / f"{seed}"
        workspace.mkdir()
        assert len(solved(task, effort, workspace, seed).steps) <= task.max_steps
