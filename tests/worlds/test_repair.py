"""The repair world: every task is broken as it says, the expert repairs it, and nothing else counts as a repair."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from longstep.agent.loop import run_episode
from longstep.messages import Effort
from longstep.sandbox.unsafe import NoSandbox
from longstep.tools import toolset
from longstep.tools.base import ToolContext
from longstep.tools.warm_tests import WarmTests
from longstep.worlds.base import FIRST_TEST_SEED, Policy, PolicyModel, Task, Verdict, do_nothing
from longstep.worlds.repair import WORLD
from longstep.worlds.repair.mutate import KINDS, TRAINED


@pytest.fixture(scope="module")
def sandbox() -> Iterator[WarmTests]:
    with WarmTests(NoSandbox()) as warm:
        yield warm


def play(task: Task, policy: Policy, effort: Effort, sandbox: WarmTests, workspace: Path) -> Verdict:
    WORLD.set_up(task, workspace)
    asyncio.run(
        run_episode(
            PolicyModel(policy),
            task.instruction,
            tools=toolset((*task.tools, "write_file")),
            context=ToolContext(workspace=workspace, sandbox=sandbox),
            effort=effort,
        )
    )
    return WORLD.verify(task, workspace, sandbox)


@pytest.mark.parametrize("kind", KINDS)
def test_expert_repairs_every_kind(kind: str, sandbox: WarmTests, tmp_path: Path) -> None:
    task = WORLD.task(FIRST_TEST_SEED + 7, kind)
    effort = ("low", "high", "max")[list(KINDS).index(kind) % 3]

    verdict = play(task, WORLD.expert(task, effort, random.Random(0)), effort, sandbox, tmp_path)

    assert verdict.success, verdict


def test_doing_nothing_scores_zero(sandbox: WarmTests, tmp_path: Path) -> None:
    task = WORLD.task(5)
    assert not play(task, do_nothing(task), "low", sandbox, tmp_path).success


@pytest.mark.parametrize("name", WORLD.attacks(WORLD.task(0)))
def test_attacks_score_zero(name: str, sandbox: WarmTests, tmp_path: Path) -> None:
    task = WORLD.task(FIRST_TEST_SEED + 11, "boundary")
    assert not play(task, WORLD.attacks(task)[name], "low", sandbox, tmp_path).success


def test_train_seeds_draw_trained_kinds_only() -> None:
    assert {WORLD.task(seed).family for seed in range(40)} <= set(TRAINED)
