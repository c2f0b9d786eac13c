"""What every world owes: fixed tasks, an expert that succeeds, cheats that fail, held-out families kept out."""

import random
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from world_play import play

from longstep.errors import UserError, WorldError
from longstep.messages import EFFORTS, Effort
from longstep.sandbox.base import Sandbox
from longstep.sandbox.unsafe import open_sandbox
from longstep.tools import TOOLS
from longstep.worlds import registry
from longstep.worlds.base import FIRST_TEST_SEED, Policy, Task, Verdict, do_nothing
from longstep.worlds.registry import world, world_names

WORLDS = ("terminal", "repair", "retrieval", "tiny")
# Seeds tried per world: repair starts pytest for every verdict.
NUM_SEEDS = {"terminal": 8, "repair": 1, "retrieval": 4, "tiny": 8}


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return open_sandbox()


def seeds(name: str, num: int | None = None) -> list[int]:
    """Of both splits, or one test seed where a verdict takes seconds."""
    num = num or NUM_SEEDS[name]
    return [*range(num // 2), *range(FIRST_TEST_SEED, FIRST_TEST_SEED + num - num // 2)]


def attempt(name: str, task: Task, policy: Policy, workspace: Path, sandbox: Sandbox) -> tuple[Verdict, int]:
    """Verdict and number of steps."""
    workspace.mkdir(parents=True)
    world(name).set_up(task, workspace)
    played = play(policy, task, workspace, sandbox)
    return world(name).verify(task, workspace, sandbox), len(played.steps)


def tree(workspace: Path) -> dict[str, tuple[int, bytes]]:
    return {
        p.relative_to(workspace).as_posix(): (p.stat().st_mode, p.read_bytes() if p.is_file() else b"")
        for p in workspace.rglob("*")
    }


@pytest.mark.parametrize("name", WORLDS)
def test_a_task_is_the_same_for_ever(name: str, tmp_path: Path) -> None:
    """Two objects of a world, same seed: same instruction, same start state to the byte; another seed: another task."""
    for seed in seeds(name, 8):
        tasks = [type(world(name))().task(seed) for _ in range(2)]
        for i, task in enumerate(tasks):
            (tmp_path / f"{seed} {i}").mkdir()
            world(name).set_up(task, tmp_path / f"{seed} {i}")
        assert tasks[0].instruction == tasks[1].instruction
        assert (tasks[0].family, tasks[0].tools) == (tasks[1].family, tasks[1].tools)
        assert tree(tmp_path / f"{seed} 0") == tree(tmp_path / f"{seed} 1")
        assert tasks[0].world == name
        assert tasks[0].seed == seed
        assert tasks[0].family in world(name).families
        assert set(tasks[0].tools) <= set(TOOLS)
    assert len({world(name).task(seed).instruction for seed in range(8)}) > 4


@pytest.mark.parametrize("name", WORLDS)
def test_training_never_draws_a_held_out_family_and_tests_do(name: str) -> None:
    held_out = world(name).held_out
    assert held_out < set(world(name).families)
    assert not {world(name).task(seed).family for seed in range(60)} & held_out
    for family in held_out:
        assert world(name).task(FIRST_TEST_SEED, family).family == family
    if name != "tiny":
        assert len(held_out) >= 2


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("name", WORLDS)
def test_the_expert_succeeds_within_the_steps(name: str, effort: Effort, tmp_path: Path, sandbox: Sandbox) -> None:
    for seed in seeds(name, 1 if name == "repair" else 4):
        task = world(name).task(seed)
        policy = world(name).expert(task, effort, random.Random(seed))
        verdict, num_steps = attempt(name, task, policy, tmp_path / f"{seed}", sandbox)
        assert verdict.success, f"{task}: {[c for c in verdict.checks if not c.passed]}"
        assert num_steps <= task.max_steps
        assert {c.hidden for c in verdict.checks} == {True, False}, "a public and a hidden half"


@pytest.mark.parametrize("name", WORLDS)
def test_doing_nothing_and_cheating_score_zero(name: str, tmp_path: Path, sandbox: Sandbox) -> None:
    for seed in seeds(name):
        task = world(name).task(seed)
        cheats = {"nothing": do_nothing(task), **world(name).attacks(task)}
        assert len(cheats) > 2
        for cheat, policy in cheats.items():
            verdict, _ = attempt(name, task, policy, tmp_path / f"{seed} {cheat}", sandbox)
            assert not verdict.success, f"{task}: {cheat} succeeded"


@pytest.mark.soak
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_and_cheats_score_zero_on_many_seeds(name: str, tmp_path: Path, sandbox: Sandbox) -> None:
    for seed in seeds(name, 20 if name == "repair" else 200):
        task = world(name).task(seed)
        for cheat, policy in {"nothing": do_nothing(task), **world(name).attacks(task)}.items():
            verdict, _ = attempt(name, task, policy, tmp_path / f"{seed} {cheat}", sandbox)
            assert not verdict.success, f"{task}: {cheat} succeeded"


def test_an_unknown_world_is_refused_with_the_list() -> None:
    assert world_names()[:4] == WORLDS
    with pytest.raises(UserError, match="terminal, repair, retrieval, tiny"):
        world("nosuch")


def test_others_add_worlds_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def entries(group: str) -> list[EntryPoint]:
        assert group == "longstep.worlds"
        return [
            EntryPoint("mine", "longstep.worlds.tiny:TinyWorld", group),
            EntryPoint("broken", "longstep.worlds.tiny:NoSuchWorld", group),
            EntryPoint("terminal", "longstep.worlds.tiny:TinyWorld", group),  # our names stay ours
        ]

    monkeypatch.setattr(registry, "entry_points", entries)
    assert world_names() == (*WORLDS, "broken", "mine")
    assert world("mine").name == "tiny"
    assert world("terminal").name == "terminal"
    with pytest.raises(WorldError, match="NoSuchWorld"):
        world("broken")
