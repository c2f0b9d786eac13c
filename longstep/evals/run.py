"""Run a model, or a baseline, on tasks of worlds at several efforts, and sum up what came of it.

The loop is `longstep.agent.run_episode`, the one that `longstep run` uses. Episodes run side by side, so that an
in-process engine batches them; each keeps a workspace of its own and leaves one record. Each world gives two blocks of
tasks for each effort, one over the families that training knew and one over those held out, families taking turns
along the seeds.
"""

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from longstep.agent.loop import DEFAULT_SAMPLING, Limits, run_episode
from longstep.chat.model import ChatModel, Sampling
from longstep.errors import ChatError, ContextFull, SandboxError, UserError, WorldError
from longstep.evals.records import Header, Key, Record, RecordFile, outcome_of
from longstep.evals.summary import summarize
from longstep.messages import EFFORTS, Effort
from longstep.sandbox.base import Sandbox
from longstep.tools import toolset
from longstep.tools.base import ToolContext
from longstep.worlds.base import PolicyModel, Task, World, do_nothing

# A model for one episode. A real model is the same object each time; a baseline is a new policy each time.
ModelFactory = Callable[[World, Task, Effort], ChatModel]
BASELINES = ("expert", "nothing", "attack")


def baseline(name: str) -> ModelFactory:
    """`expert`, `nothing` or `attack` (a task's attacks take turns along the seeds)."""

    def make(world: World, task: Task, effort: Effort) -> ChatModel:
        if name == "expert":
            return PolicyModel(world.expert(task, effort, random.Random(f"{task.seed} {effort}")), name)
        if name == "nothing":
            return PolicyModel(do_nothing(task), name)
        attacks = world.attacks(task)
        chosen = sorted(attacks)[task.seed % len(attacks)]
        return PolicyModel(attacks[chosen], f"{name}: {chosen}")

    if name not in BASELINES:
        raise UserError(f"baseline {name!r}: there is no such baseline; there are {', '.join(BASELINES)}")
    return make


def parse_seeds(text: str) -> range:
    """ "A:B" is A, A + 1, ... B - 1."""
    first, colon, last = text.partition(":")
    if not (colon and first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise UserError(f"seeds {text!r}: expected A:B, two numbers, such as 1000000:1000200")
    if int(first) >= int(last):
        raise UserError(f"seeds {text!r}: holds no seed; B is left out, so it must be larger than A")
    return range(int(first), int(last))


def parse_efforts(text: str) -> tuple[Effort, ...]:
    """A comma-separated list without repeats."""
    named = [name.strip() for name in text.split(",")]
    for name in named:
        if name not in EFFORTS:
            raise UserError(f"effort {name!r}: there is no such effort; there are {', '.join(EFFORTS)}")
    return tuple(effort for effort in EFFORTS if effort in named)


@dataclass(frozen=True)
class Job:
    world: World
    task: Task
    effort: Effort

    @property
    def key(self) -> Key:
        return Key(self.task.world, self.task.family, self.task.seed, self.effort)


def plan_jobs(
    worlds: Iterable[World], efforts: Sequence[Effort], seeds: range, families: Sequence[str] | None = None
) -> list[Job]:
    """Every episode of an evaluation. Raises UserError for a family that no world has."""
    worlds = list(worlds)
    known = {family for world in worlds for family in world.families}
    for family in families or ():
        if family not in known:
            raise UserError(f"family {family!r}: none of these worlds has it; they have {', '.join(sorted(known))}")
    jobs: list[Job] = []
    for world in worlds:
        chosen = [family for family in world.families if families is None or family in families]
        for held_out in (False, True):
            block = [family for family in chosen if (family in world.held_out) == held_out]
            for n, seed in enumerate(seeds if block else ()):
                task = world.task(seed, block[n % len(block)])
                jobs += [Job(world, task, effort) for effort in efforts]
    return jobs


def run_eval(
    model: ChatModel | ModelFactory,
    worlds: Sequence[World],
    *,
    efforts: Sequence[Effort],
    seeds: range,
    out_json: Path,
    sandbox: Sandbox,
    name: str | None = None,
    families: Sequence[str] | None = None,
    sampling: Sampling = DEFAULT_SAMPLING,
    concurrency: int = 8,
    resume: bool = True,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Run what is missing, write the summary to `out_json` and return it. Records go to `out_json` with suffix .jsonl.

    `name` is the model's name in the results (needed for a factory). Sampling's seed is added to each task's. However
    it ends, the summary of what is done is written; Ctrl-C is raised again. Without `resume` old records are dropped.
    """
    factory, shown = _factory(model, name)
    records_path = out_json.with_suffix(".jsonl")
    if records_path == out_json:
        raise UserError(f"{out_json}: this name is for the records; give the summary another suffix, such as .json")
    if out_json.is_dir():
        raise UserError(f"{out_json}: a folder; give the file in it that takes the summary, such as summary.json")
    if concurrency < 1:
        raise UserError(f"{concurrency} episodes at a time: expected 1 or more")
    if sampling.temperature < 0:
        raise UserError(f"temperature {sampling.temperature}: expected 0 (greedy) or more")
    jobs = plan_jobs(worlds, efforts, seeds, families)
    if not resume:
        records_path.unlink(missing_ok=True)
    file = RecordFile(records_path, Header(model=shown, context_tokens=_context_tokens(model), sampling=sampling))
    keys = [job.key for job in jobs]
    try:
        missing = [job for job in jobs if not (record := file.done.get(job.key)) or not record.counted]
        asyncio.run(_run_jobs(missing, factory, file, sandbox, sampling, concurrency, show_progress))
    finally:
        file.close()
        records = [file.done[key] for key in keys if key in file.done]
        summary = summarize(records, model=shown, sampling=sampling, num_planned=len(keys))
        out_json.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")
    return summary


def _factory(model: ChatModel | ModelFactory, name: str | None) -> tuple[ModelFactory, str]:
    if isinstance(model, ChatModel):
        return (lambda world, task, effort: model), name or model.name
    assert name is not None, "a factory says nothing of its name"
    return model, name


def _context_tokens(model: ChatModel | ModelFactory) -> int | None:
    return model.context_tokens if isinstance(model, ChatModel) else None


async def _run_jobs(
    jobs: list[Job],
    factory: ModelFactory,
    file: RecordFile,
    sandbox: Sandbox,
    sampling: Sampling,
    concurrency: int,
    show_progress: bool,
) -> None:
    """`concurrency` workers take jobs in order. The first unexpected exception stops them all."""
    # each episode waits for at most one tool or one set-up at a time
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(concurrency))
    waiting = iter(jobs)
    with _Board(len(jobs), show_progress) as board:

        async def work() -> None:
            for job in waiting:
                record = await play(job, factory, sandbox, sampling)
                file.add(record)
                board.count(record)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, len(jobs))):
                    group.create_task(work())
        except BaseExceptionGroup as errors:  # the others are its echo, or the same mistake again
            raise errors.exceptions[0] from None


async def play(job: Job, factory: ModelFactory, sandbox: Sandbox, sampling: Sampling) -> Record:
    """One episode in a fresh workspace, judged. What the world, the sandbox or the model's stream broke is recorded."""
    task = job.task
    model = factory(job.world, task, job.effort)
    common: dict[str, Any] = {
        "world": task.world,
        "family": task.family,
        "seed": task.seed,
        "effort": job.effort,
        "split": task.split,
        "held_out": task.family in job.world.held_out,
        "model": model.name,
    }
    begin_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="longstep-eval-")).resolve()
    workspace = folder / "workspace"
    workspace.mkdir()
    try:
        await asyncio.to_thread(job.world.set_up, task, workspace)
        episode = await run_episode(
            model,
            task.instruction,
            tools=toolset(task.tools),
            context=ToolContext(workspace=workspace, sandbox=sandbox),
            effort=job.effort,
            sampling=msgspec.structs.replace(sampling, seed=sampling.seed + task.seed),
            limits=Limits(max_steps=task.max_steps, max_output_tokens=sampling.max_tokens),
        )
        verdict = await asyncio.to_thread(job.world.verify, task, workspace, sandbox)
    except ContextFull as error:  # raised by models that cannot count before they try
        wall_s = time.monotonic() - begin_s
        return Record(**common, outcome="context limit", why="out of context", error=str(error), wall_s=wall_s)
    except (ChatError, SandboxError, WorldError) as error:
        wall_s = time.monotonic() - begin_s
        text = f"{type(error).__name__}: {error}"
        return Record(**common, outcome="infrastructure error", error=text, wall_s=wall_s)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return Record(
        **common,
        outcome=outcome_of(episode.why, verdict),
        checks={check.name: check.passed for check in verdict.checks},
        steps=episode.num_steps,
        usage=episode.usage,
        wall_s=time.monotonic() - begin_s,
        model_s=episode.model_s,
        tool_s=episode.tool_s,
        why=episode.why,
        error="the model stopped its turn" if episode.why == "stopped" and not verdict.success else "",
    )


class _Board:
    """Live progress: episodes done, solved share by effort."""

    def __init__(self, num_jobs: int, shown: bool):
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[solved]}"),
            disable=not shown,
        )
        self._task = self._progress.add_task("episodes", total=num_jobs, solved="")
        self._counts: dict[Effort, tuple[int, int]] = {}

    def __enter__(self) -> "_Board":
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def count(self, record: Record) -> None:
        solved, num = self._counts.get(record.effort, (0, 0))
        self._counts[record.effort] = (solved + record.solved, num + record.counted)
        shares = "  ".join(f"{effort} {s}/{n} solved" for effort, (s, n) in self._counts.items())
        self._progress.update(self._task, advance=1, solved=shares)
