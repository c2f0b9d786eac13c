"""Evaluations end to end on the tiny world: what is run, what is kept, what is summed up, what is compared."""

import asyncio
import io
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console, RenderableType

from longstep.chat.model import ChatModel, ChatRequest, Event, Sampling
from longstep.chat.tokenizer import Tokenizer
from longstep.engine import Engine, LocalModel
from longstep.errors import ChatError, ContextFull, JournalError, SandboxError, UserError, WorldError
from longstep.evals import (
    BASELINES,
    baseline,
    compare,
    comparison_view,
    parse_efforts,
    parse_seeds,
    run_eval,
    summary_view,
)
from longstep.evals.records import Header, Record, RecordFile
from longstep.evals.run import ModelFactory, plan_jobs
from longstep.messages import Effort
from longstep.model import Model, preset
from longstep.sandbox.unsafe import NoSandbox
from longstep.worlds.base import FIRST_TEST_SEED, Move, Policy, PolicyModel, Task, World
from longstep.worlds.retrieval import RetrievalWorld
from longstep.worlds.tiny import TinyWorld

T = FIRST_TEST_SEED


def run(tmp_path: Path, model: ChatModel | ModelFactory, num_seeds: int = 6, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "worlds": [TinyWorld()],
        "efforts": ("low", "high"),
        "seeds": range(T, T + num_seeds),
        "out_json": tmp_path / "out.json",
        "sandbox": NoSandbox(),  # the tiny world's tools run no command
        "name": "model",
    }
    return run_eval(model, **(settings | changes))


def shown(view: RenderableType, width: int = 80) -> str:
    file = io.StringIO()
    Console(width=width, file=file).print(view)
    return file.getvalue()


def episodes(summary: dict[str, Any]) -> dict[tuple[int, Effort], Record]:
    records = msgspec.convert(summary["episodes"], list[Record])
    return {(record.seed, record.effort): record for record in records}


class Counting:
    """The expert, counting episodes; `break_at` makes the stream of those seeds fail."""

    def __init__(self, break_at: dict[int, Exception] | None = None):
        self.seeds: list[int] = []
        self.break_at = break_at or {}

    def __call__(self, world: World, task: Task, effort: Effort) -> ChatModel:
        self.seeds.append(task.seed)
        model = baseline("expert")(world, task, effort)
        return Broken(self.break_at[task.seed]) if task.seed in self.break_at else model


class Broken:
    name, context_tokens = "broken", 1 << 20

    def __init__(self, error: BaseException):
        self.error = error

    def count_tokens(self, request: ChatRequest) -> int:
        return 0

    async def stream(self, request: ChatRequest) -> AsyncIterator[Event]:
        raise self.error
        yield  # an async generator


# The plan.


def test_each_block_takes_its_families_in_turn() -> None:
    world = RetrievalWorld()
    jobs = plan_jobs([world], ("high",), range(T, T + 14))
    by_family: dict[str, list[int]] = {}
    for job in jobs:
        by_family.setdefault(job.task.family, []).append(job.task.seed)
    known = [family for family in world.families if family not in world.held_out]
    assert all(len(by_family[family]) == 2 for family in known)
    assert all(len(by_family[family]) == 7 for family in world.held_out)
    for block in (known, sorted(world.held_out)):
        assert sorted(seed for family in block for seed in by_family[family]) == list(range(T, T + 14))


def test_families_can_be_chosen() -> None:
    jobs = plan_jobs([TinyWorld(), RetrievalWorld()], ("low",), range(T, T + 3), ["hop4", "copy"])
    assert {(job.task.world, job.task.family) for job in jobs} == {("tiny", "copy"), ("retrieval", "hop4")}
    with pytest.raises(UserError, match="hop9"):
        plan_jobs([TinyWorld()], ("low",), range(3), ["hop9"])


def test_arguments_of_the_command_line() -> None:
    assert parse_seeds("5:8") == range(5, 8)
    for wrong in ("5", "8:5", "5:5", "a:b", "-1:3", "1:2:3"):
        with pytest.raises(UserError, match=r"A:B|larger"):
            parse_seeds(wrong)
    assert parse_efforts("max, low,low") == ("low", "max")
    for wrong in ("", "medium", "low,,max"):
        with pytest.raises(UserError, match="low, high, max"):
            parse_efforts(wrong)
    with pytest.raises(UserError, match=", ".join(BASELINES)):
        baseline("best")


# Baselines and the summary.


def test_the_expert_solves_all_and_the_others_nothing(tmp_path: Path) -> None:
    worlds, efforts = [TinyWorld(), RetrievalWorld()], ("low", "max")
    for name in BASELINES:
        summary = run(
            tmp_path, baseline(name), 1, worlds=worlds, efforts=efforts, name=name, out_json=tmp_path / f"{name}.json"
        )
        assert summary == msgspec.json.decode((tmp_path / f"{name}.json").read_bytes())
        assert (summary["model"], summary["num_planned"], summary["num_done"]) == (name, 6, 6)
        for world in worlds:
            for effort in efforts:
                blocks = summary["worlds"][world.name][effort]
                assert set(blocks) == ({"known", "held_out"} if world.held_out else {"known"})
                for block in blocks.values():
                    assert (block["num"], block["solved"]) == (1, 1 if name == "expert" else 0)
                    assert block["outcomes"] == {"solved" if name == "expert" else "failed": 1}
        assert "episodes" in shown(summary_view(summary))
    result = compare(tmp_path / "nothing.json", tmp_path / "expert.json")
    assert (result["all"]["only_a"], result["all"]["only_b"], result["all"]["difference"]) == (0, 6, 1.0)
    assert {(row["world"], row["effort"]) for row in result["groups"]} == {
        (world.name, effort) for world in worlds for effort in efforts
    }


def half(world: World, task: Task, effort: Effort) -> ChatModel:
    """Solves even seeds at low effort and all at high."""
    solves = effort == "high" or task.seed % 2 == 0
    return baseline("expert" if solves else "nothing")(world, task, effort)


def test_summary_numbers(tmp_path: Path) -> None:
    summary = run(tmp_path, half, 8)
    low, high = (summary["worlds"]["tiny"][effort]["known"] for effort in ("low", "high"))
    assert (low["num"], low["solved"], low["success"]) == (8, 4, 0.5)
    assert low["interval_95"] == pytest.approx([0.2152, 0.7848], abs=1e-4)
    assert low["families"]["write"]["solved"] + low["families"]["copy"]["solved"] == 4
    assert high["success"] == 1.0
    steps = sorted(r.steps for (_, effort), r in episodes(summary).items() if effort == "high")
    assert high["steps"]["median"] == (steps[3] + steps[4]) / 2
    (row,) = summary["efforts_paired"]
    assert (row["a"], row["b"], row["only_a"], row["only_b"], row["difference"]) == ("low", "high", 0, 4, 0.5)
    assert row["p"] == row["p_holm"] == 0.125
    text = shown(summary_view(summary))
    assert "4/8" in text
    assert "50.0 (21.5-78.5)" in text
    assert "high against low: +50.0 points" in text


def test_tokens_and_cost_are_summed_by_bucket(tmp_path: Path) -> None:
    class Spending(PolicyModel):
        async def stream(self, request: ChatRequest) -> AsyncIterator[Event]:
            async for event in super().stream(request):
                turn = msgspec.structs.replace(event.turn, usage=event.turn.usage.__class__(
                    fresh_input=100, cache_read=1000, cache_write=10, output=20, reasoning=15))  # fmt: skip
                yield msgspec.structs.replace(event, turn=turn)

    def make(world: World, task: Task, effort: Effort) -> ChatModel:
        return Spending(world.expert(task, effort, random.Random(0)))

    summary = run(tmp_path, make, 3, efforts=("low",))
    block = summary["worlds"]["tiny"]["low"]["known"]
    num_turns = sum(record.steps for record in episodes(summary).values())
    assert block["tokens"] == {
        "fresh_input": 100 * num_turns,
        "cache_read": 1000 * num_turns,
        "cache_write": 10 * num_turns,
        "output": 20 * num_turns,
        "reasoning": 15 * num_turns,
    }
    one_turn = (100 * 3.0 + 1000 * 0.30 + 10 * 3.0 + 20 * 15.0) / 1e6
    assert block["cost_usd"] == pytest.approx(num_turns * one_turn)
    assert block["cost_usd_per_solved"] == pytest.approx(num_turns * one_turn / 3)


# Outcomes.


def looping(task: Task) -> Policy:
    while True:
        yield Move(calls=(("read_file", {"path": "x"}),))


def test_limits_and_silence_are_outcomes_of_their_own(tmp_path: Path) -> None:
    class Small(PolicyModel):
        context_tokens = 100

        def count_tokens(self, request: ChatRequest) -> int:
            return 40 * len(request.messages)

    def make(world: World, task: Task, effort: Effort) -> ChatModel:
        return (Small if effort == "low" else PolicyModel)(looping(task), "looping")

    summary = run(tmp_path, make, 2)
    blocks = summary["worlds"]["tiny"]
    assert blocks["low"]["known"]["outcomes"] == {"context limit": 2}
    assert blocks["high"]["known"]["outcomes"] == {"step limit": 2}
    assert {record.why for record in episodes(summary).values()} == {"out of context", "out of steps"}
    assert blocks["low"]["known"]["num"] == 2, "limits are failures, not exclusions"


def test_infrastructure_errors_are_left_out_listed_and_run_again(tmp_path: Path) -> None:
    errors: dict[int, Exception] = {
        T: ChatError("the stream broke"),
        T + 1: SandboxError("no walls"),
        T + 2: WorldError("x"),
    }
    summary = run(tmp_path, Counting(errors), 5, efforts=("low",))
    block = summary["worlds"]["tiny"]["low"]["known"]
    assert (block["num"], block["solved"]) == (2, 2)
    assert block["outcomes"] == {"infrastructure error": 3, "solved": 2}
    assert [error["error"] for error in summary["infrastructure_errors"]] == [
        "ChatError: the stream broke",
        "SandboxError: no walls",
        "WorldError: x",
    ]
    assert "not counted: tiny/" in shown(summary_view(summary))

    again = Counting()
    summary = run(tmp_path, again, 5, efforts=("low",))
    assert sorted(again.seeds) == [T, T + 1, T + 2]
    assert summary["worlds"]["tiny"]["low"]["known"]["solved"] == 5
    assert not summary["infrastructure_errors"]


def test_a_mistake_of_ours_stops_the_run_and_keeps_what_is_done(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, Counting({T + 3: ZeroDivisionError()}), 8, efforts=("low",), concurrency=1)
    summary = msgspec.json.decode((tmp_path / "out.json").read_bytes())
    assert (summary["num_done"], summary["num_planned"]) == (3, 8)


# Resumption.


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    first, second, third = Counting(), Counting(), Counting()
    run(tmp_path, first, 3)
    summary = run(tmp_path, second, 5)
    assert (len(first.seeds), len(second.seeds)) == (6, 4)
    assert summary["num_done"] == 10
    assert run(tmp_path, third, 2)["num_done"] == 4, "the summary is of what was asked for"
    assert not third.seeds
    run(tmp_path, third, 3, resume=False)
    assert len(third.seeds) == 6


def test_a_torn_last_line_costs_one_episode(tmp_path: Path) -> None:
    run(tmp_path, Counting(), 4)
    records = tmp_path / "out.jsonl"
    data = records.read_bytes()
    records.write_bytes(data[:-20])
    again = Counting()
    assert run(tmp_path, again, 4)["num_done"] == 8
    assert len(again.seeds) == 1
    assert records.read_bytes().count(b"\n") == data.count(b"\n")


def test_damage_before_the_tail_and_other_runs_are_refused(tmp_path: Path) -> None:
    run(tmp_path, Counting(), 2)
    records = tmp_path / "out.jsonl"
    with pytest.raises(UserError, match="another run"):
        run(tmp_path, Counting(), 2, name="another")
    with pytest.raises(UserError, match="another run"):
        run(tmp_path, Counting(), 2, sampling=Sampling(temperature=0.0))
    lines = records.read_bytes().splitlines(keepends=True)
    records.write_bytes(lines[0] + b"{}\n" + b"".join(lines[1:]))
    with pytest.raises(JournalError, match="line 2"):
        run(tmp_path, Counting(), 2)
    records.write_bytes(b"hello\n")
    with pytest.raises(JournalError, match="first line"):
        run(tmp_path, Counting(), 2)
    with pytest.raises(UserError, match="suffix"):
        run(tmp_path, Counting(), 2, out_json=records)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurrency": 0}, "0 episodes at a time"),
        ({"sampling": Sampling(temperature=-1.0)}, r"temperature -1\.0"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run(tmp_path, baseline("expert"), **changes)
    assert not list(tmp_path.iterdir())


def test_a_summary_that_could_not_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "out.json").mkdir()
    with pytest.raises(UserError, match="a folder"):
        run(tmp_path, baseline("expert"))
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_two_evaluations_do_not_write_one_file(tmp_path: Path) -> None:
    header = Header(model="a", sampling=Sampling())
    first = RecordFile(tmp_path / "r.jsonl", header)
    with pytest.raises(UserError, match="another evaluation is writing it"):
        RecordFile(tmp_path / "r.jsonl", header)
    first.close()
    RecordFile(tmp_path / "r.jsonl", header).close()


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    class Interrupted(Counting):
        def __call__(self, world: World, task: Task, effort: Effort) -> ChatModel:
            if len(self.seeds) == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return super().__call__(world, task, effort)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Interrupted(), 6, concurrency=2)
    summary = msgspec.json.decode((tmp_path / "out.json").read_bytes())
    assert 2 <= summary["num_done"] < 12
    rest = Counting()
    assert run(tmp_path, rest, 6)["num_done"] == 12
    assert len(rest.seeds) == 12 - summary["num_done"]


# Side by side.


def test_episodes_run_side_by_side_up_to_the_limit(tmp_path: Path) -> None:
    active, most = 0, 0

    class Slow(PolicyModel):
        async def stream(self, request: ChatRequest) -> AsyncIterator[Event]:
            nonlocal active, most
            active += 1
            most = max(most, active)
            await asyncio.sleep(0.005)
            async for event in super().stream(request):
                yield event
            active -= 1

    run(tmp_path, lambda world, task, effort: Slow(world.expert(task, effort, random.Random(0))), 6, concurrency=3)
    assert most == 3


def test_each_episode_draws_its_own_random_numbers(tmp_path: Path) -> None:
    seeds: set[tuple[int, float]] = set()

    class Noting(PolicyModel):
        async def stream(self, request: ChatRequest) -> AsyncIterator[Event]:
            seeds.add((request.sampling.seed, request.sampling.temperature))
            async for event in super().stream(request):
                yield event

    def make(world: World, task: Task, effort: Effort) -> ChatModel:
        return Noting(world.expert(task, effort, random.Random(0)))

    summary = run(tmp_path, make, 4, efforts=("low",), sampling=Sampling(temperature=0.3, seed=5))
    assert len(seeds) == sum(record.steps for record in episodes(summary).values())
    assert {temperature for _, temperature in seeds} == {0.3}
    assert summary["sampling"]["temperature"] == 0.3


def test_a_model_that_runs_here_is_measured_like_any_other(tmp_path: Path) -> None:
    """Random weights solve nothing, but every token that they read and wrote is on the record."""
    torch.manual_seed(0)
    engine = Engine(Model(preset("nano")).eval(), num_slots=2, max_tokens=1024)
    model = LocalModel(engine, Tokenizer.load(), "random")
    try:
        summary = run(tmp_path, model, 2, efforts=("low",), name=None, sampling=Sampling(max_tokens=64), concurrency=2)
    finally:
        engine.close()
    assert not summary["infrastructure_errors"]
    records = episodes(summary).values()
    assert [record.solved for record in records] == [False, False]
    assert all(0 < record.usage.output <= 64 * record.steps for record in records)
    assert all(record.usage.fresh_input > 0 for record in records)
    with pytest.raises(UserError, match="another run"):
        run(
            tmp_path,
            LocalModel(Engine(engine.model, num_slots=1, max_tokens=512), Tokenizer.load(), "random"),
            name=None,
        )


def test_a_prompt_that_does_not_fit_is_the_context_limit(tmp_path: Path) -> None:
    full = Broken(ContextFull(num_tokens=10, context_tokens=5))
    summary = run(tmp_path, full, 1, efforts=("low",))
    assert summary["worlds"]["tiny"]["low"]["known"]["outcomes"] == {"context limit": 1}


def test_one_model_for_all_episodes_brings_its_name(tmp_path: Path) -> None:
    summary = run(tmp_path, Broken(ChatError("off")), 1, name=None)
    assert summary["model"] == "broken"
    assert len(summary["infrastructure_errors"]) == 2


# Comparison.


def test_comparison_pairs_identical_episodes(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    run(tmp_path, half, 6, out_json=a, name="half")
    run(tmp_path, Counting({T + 2: ChatError("broke")}), 5, out_json=b, name="whole")
    result = compare(a, b)
    assert (result["a"]["unpaired"], result["b"]["unpaired"]) == (2, 0)
    assert len(result["excluded"]) == 2
    assert (result["all"]["num"], result["all"]["only_a"], result["all"]["only_b"]) == (8, 0, 2)
    assert sorted(result["only_b"]) == [f"tiny/copy/{T + 1}/low", f"tiny/copy/{T + 3}/low"]
    assert result["only_a"] == []
    text = shown(comparison_view(result), width=200)
    assert "whole against half: +25.0 points" in text
    assert f"solved by whole only: tiny/copy/{T + 1}/low" in text
    assert "excluded for an infrastructure error" in text
    assert "1 more, in the JSON" in shown(comparison_view(result, num_listed=1), width=200)
    assert compare(b, a)["all"]["difference"] == -0.25


def test_comparison_refuses_what_it_cannot_pair(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    run(tmp_path, half, 2, out_json=a)
    run(tmp_path, half, 2, out_json=b, seeds=range(T + 50, T + 52))
    with pytest.raises(UserError, match="no episode in common"):
        compare(a, b)
    with pytest.raises(UserError, match="cannot be read"):
        compare(a, tmp_path / "none.json")
    b.write_text("{}")
    with pytest.raises(UserError, match="not the result"):
        compare(a, b)
    summary = msgspec.json.decode(a.read_bytes())
    b.write_bytes(msgspec.json.encode(summary | {"longstep_eval": 99}))
    with pytest.raises(UserError, match="format is 99"):
        compare(a, b)
