"""`longstep run`: one task, in a copy of the user's folder or in a world; proved, or said not to be.

    check what was asked -> folder of the run, journal -> loop, shown live -> verdict, diff -> write back (--apply)

The exit code is 0 only if the verifier agrees (`proof.py`; a world's own verifier for a world's task), 1 if it does
not, 2 (UserError) for what cannot be asked, 130 after Ctrl-C. All that a run did is in its journal: `resume` goes on
from there, and shows and applies a finished run again.

`apply` in the same command writes the changes back only if they are proved, since nobody has seen them yet; `resume`
with `apply` writes them as they were shown.
"""

import asyncio
import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text as RichText

from longstep.agent import folders, journal
from longstep.agent.journal import Blobs, Header, RunJournal, VerdictRecord
from longstep.agent.loop import MIN_TURN_TOKENS, Done, Episode, Limits, State, Think, num_turns, run_episode
from longstep.agent.proof import changed_tests, is_test_file, verify_folder
from longstep.agent.view import LiveView, make_console, printable
from longstep.chat.model import ChatModel, ChatRequest, Sampling
from longstep.errors import LongstepError, UserError
from longstep.messages import EFFORTS, Effort, History, Usage, User
from longstep.sandbox.base import Sandbox
from longstep.sandbox.unsafe import open_sandbox
from longstep.tools import toolset
from longstep.tools.base import Tool, ToolContext
from longstep.worlds.base import Task, Verdict, World
from longstep.worlds.registry import world as open_world

# A small model does best with just the tools that it was taught with, so a user's folder gets those of the world that
# it is most like (`folder_tools`): the worlds' own tuples, which a test compares.
PROJECT_TOOLS = ("list_files", "read_file", "edit_file", "find_text", "run_tests")  # repair
DOCUMENT_TOOLS = ("search_docs", "read_file", "find_text", "write_file")  # retrieval
FILE_TOOLS = ("shell", "list_files", "read_file", "write_file", "edit_file", "find_text")  # terminal
MAX_STEPS = 40
GREEDY = Sampling(temperature=0.0)
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What `longstep run` was asked. Either `task` with a `workspace`, or `world` with a `seed`, or `resume`."""

    task: str | None = None
    workspace: Path | None = None
    world: str | None = None
    seed: int | None = None
    family: str | None = None
    effort: str | None = None
    max_steps: int | None = None
    tools: tuple[str, ...] | None = None  # None: by `folder_tools`
    resume: str | None = None
    apply: bool = False
    as_json: bool = False
    unsafe_no_sandbox: bool = False
    sampling: Sampling = GREEDY


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it. `sentence` says in one line what is proved, or what is not."""

    run_id: str
    exit_code: int
    sentence: str
    episode: Episode | None = None  # None: the episode had not ended
    verdict: Verdict | None = None
    diff: str = ""
    applied: bool = False


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A run that is ready to start or to go on."""

    header: Header
    folder: Path
    tools: dict[str, Tool]
    sandbox: Sandbox
    task: Task | None  # of a world
    world: World | None
    state: State
    limits: Limits
    used_s: float
    journal: RunJournal
    notes: tuple[str, ...]  # said before the first step

    @property
    def workspace(self) -> Path:
        return Path(self.header.workspace)


def run_task(ask: Ask, open_model: Callable[[], ChatModel], console: Console | None = None) -> Outcome:
    """Do what was asked and print it: live, or one JSON object at the end. Raises UserError for what cannot be asked.

    `open_model` is called after everything else was checked. A run that breaks (LongstepError) is kept, and the message
    on stderr says how to go on.
    """
    console = console or make_console()
    _check(ask)
    sandbox = open_sandbox(ask.unsafe_no_sandbox)
    if ask.resume is not None:
        job, model = _resume(ask, open_model, sandbox)
    else:
        job, model = _start(ask, open_model, sandbox)
    with job.journal:
        view = None if ask.as_json else LiveView(console, job.header.effort)
        try:
            if not ask.as_json:
                _show_head(console, job, model)
            outcome = _run(ask, job, model, view)
        except KeyboardInterrupt:
            sentence = f"stopped; nothing is lost: longstep run --resume {job.header.run_id}"
            outcome = Outcome(run_id=job.header.run_id, exit_code=130, sentence=sentence)
        except (LongstepError, OSError, SystemExit):  # rich makes an exit of a closed pipe
            make_console(to_stderr=True).print(f"the run is kept: longstep run --resume {job.header.run_id}")
            raise
    if ask.as_json:
        console.file.write(msgspec.json.encode(as_json(outcome, job.header)).decode() + "\n")
    else:
        _show_outcome(console, job, outcome)
    return outcome


# -------------------------------------------------------------------------------------------------- what was asked for


def _effort(word: str | None) -> Effort:
    for effort in EFFORTS:
        if word == effort:
            return effort
    if word is None:
        return "high"
    raise UserError(f"effort {word!r}: there are low, high and max")


def _check(ask: Ask) -> None:
    """Refuse what contradicts itself, in a sentence. Nothing has been made yet."""
    _effort(ask.effort)
    if ask.max_steps is not None and ask.max_steps < 1:
        raise UserError(f"--max-steps {ask.max_steps}: an episode has at least 1 step")
    asked = {
        "a task": ask.task,
        "--workspace": ask.workspace,
        "--world": ask.world,
        "--seed": ask.seed,
        "--family": ask.family,
    }
    given = [name for name, value in asked.items() if value is not None]
    if ask.resume is not None:
        given += [name for name, value in {"--effort": ask.effort, "--tools": ask.tools}.items() if value is not None]
        if given:
            raise UserError(f"--resume goes on with the run's own terms; leave out {', '.join(given)}")
        return
    if ask.world is not None:
        if ask.task is not None or ask.workspace is not None or ask.tools is not None:
            raise UserError(
                "--world brings its own task, folder and tools; leave out the task, --workspace and --tools"
            )
        if ask.apply:
            raise UserError("--apply writes back to a --workspace; a --world has none")
        if ask.seed is not None and ask.seed < 0:
            raise UserError(f"--seed {ask.seed}: seeds count from 0")
        return
    if ask.seed is not None or ask.family is not None:
        raise UserError("--seed and --family belong to a --world; add one, or leave them out")
    if ask.task is None or not ask.task.strip():
        raise UserError('the task is empty; say what to do: longstep run "TASK" --workspace DIR')
    try:
        ask.task.encode()
    except UnicodeEncodeError:
        raise UserError("the task is not UTF-8; write it in UTF-8, or put it into a file of the workspace") from None
    toolset(ask.tools or ())


def _check_workspace(folder: Path) -> Path:
    if not folder.exists():
        raise UserError(f"workspace {folder}: there is no such folder; give one that exists")
    if not folder.is_dir():
        raise UserError(f"workspace {folder}: a file, not a folder; give the folder that holds it")
    # root may write anywhere; what counts is whether its owner may
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK) or not folder.stat().st_mode & 0o200:
        raise UserError(
            f"workspace {folder}: not writable, so nothing could be written back; copy it, and give the copy"
        )
    return folder.resolve()


def _check_fits(model: ChatModel, history: History, tools: Mapping[str, Tool], effort: Effort) -> None:
    specs = tuple(tool.spec for tool in tools.values())
    num_tokens = model.count_tokens(ChatRequest(messages=history, tools=specs, effort=effort))
    if num_tokens > model.context_tokens - MIN_TURN_TOKENS:
        raise UserError(
            f"the task is {num_tokens:,} tokens with its tools, and {model.name} has a context of "
            f"{model.context_tokens:,} tokens for task and work together; put long text into a file of the workspace"
        )


def folder_tools(files: folders.Manifest) -> tuple[str, ...]:
    """With Python tests: the tools for projects; else with texts under docs/: those for documents; else for files."""
    if any(path.endswith(".py") and is_test_file(path) for path in files):
        return PROJECT_TOOLS
    if any(path.startswith("docs/") and path.endswith((".md", ".txt")) for path in files):
        return DOCUMENT_TOOLS
    return FILE_TOOLS


def _start(ask: Ask, open_model: Callable[[], ChatModel], sandbox: Sandbox) -> tuple[_Job, ChatModel]:
    effort = _effort(ask.effort)
    world = open_world(ask.world) if ask.world is not None else None
    task = world.task(ask.seed or 0, ask.family) if world is not None else None
    source = None if task is not None else _check_workspace(ask.workspace or Path("."))
    model = open_model()
    folder = journal.new_run_folder()
    try:
        return _start_in(folder, ask, effort, world, task, source, model, sandbox), model
    except BaseException:  # Ctrl-C too
        shutil.rmtree(folder)  # nothing has happened in it
        raise


def _start_in(
    folder: Path,
    ask: Ask,
    effort: Effort,
    world: World | None,
    task: Task | None,
    source: Path | None,
    model: ChatModel,
    sandbox: Sandbox,
) -> _Job:
    """Fill the run's folder up to its header."""
    workspace, blobs = folder / "workspace", Blobs(folder / "blobs")
    notes = []
    if world is not None and task is not None:
        workspace.mkdir()
        world.set_up(task, workspace)
        manifest = folders.snapshot(workspace, blobs)
        instruction, names, max_steps = task.instruction, task.tools, task.max_steps
    else:
        assert source is not None, "a task without a world has a workspace"
        copied = folders.copy_folder(source, workspace)
        manifest = folders.snapshot(workspace, blobs)
        instruction, names, max_steps = (ask.task or "").strip(), ask.tools or folder_tools(manifest), MAX_STEPS
        notes.append(f"works on a copy of {source} ({copied.num_files} files)")
        if copied.left_out:
            notes.append(f"left out of the copy: {_some(copied.left_out)}")
    tools, start = toolset(names), Think((User(text=instruction),))
    _check_fits(model, start.history, tools, effort)
    limits = Limits(max_steps=ask.max_steps or max_steps)
    header = Header(
        run_id=folder.name,
        task=instruction,
        model=model.name,
        effort=effort,
        limits=limits,
        sampling=ask.sampling,
        tools=tuple(tool.spec for tool in tools.values()),
        workspace=str(workspace),
        source=str(source) if source is not None else None,
        files=blobs.put(msgspec.json.encode(manifest)),
        world=task.world if task is not None else None,
        family=task.family if task is not None else None,
        seed=task.seed if task is not None else None,
    )
    return _Job(
        header=header, folder=folder, tools=tools, sandbox=sandbox, task=task, world=world, state=start, limits=limits,
        used_s=0.0, journal=journal.start(folder, header), notes=tuple(notes),
    )  # fmt: skip


def _some(names: tuple[str, ...], limit: int = 6) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _resume(ask: Ask, open_model: Callable[[], ChatModel], sandbox: Sandbox) -> tuple[_Job, ChatModel]:
    folder = journal.run_folder(ask.resume or "")
    header = journal.read(folder / "journal.jsonl").header
    if ask.apply and header.source is None:
        raise UserError(f"run {header.run_id} is of a world and has no folder to write to; leave out --apply")
    if not Path(header.workspace).is_dir():
        raise UserError(f"run {header.run_id}: its folder {header.workspace} is gone, so it cannot go on")
    world = open_world(header.world) if header.world is not None else None
    task = world.task(header.seed or 0, header.family) if world is not None else None
    tools = toolset(spec.name for spec in header.tools)
    model = open_model()
    going = journal.resume(folder, tools, max_steps=ask.max_steps)
    notes = [f"goes on after {num_turns(going.state.history)} steps"]
    if going.dropped_bytes:
        notes.append(f"the journal's last record was cut off while it was written; {going.dropped_bytes} bytes dropped")
    if going.unknown is not None:
        safe = tools[going.unknown.name].safe_to_repeat if going.unknown.name in tools else False
        how = "runs it again" if safe else "is told that its outcome is unknown"
        notes.append(f"{going.unknown.name} was cut off; the agent {how}")
    if header.model != model.name:
        notes.append(f"begun with {header.model}, goes on with {model.name}")
    job = _Job(
        header=header, folder=folder, tools=tools, sandbox=sandbox, task=task, world=world, state=going.state,
        limits=going.limits, used_s=going.used_s, journal=going.journal, notes=tuple(notes),
    )  # fmt: skip
    return job, model


# ------------------------------------------------------------------------------------------------------------- the run


def _run(ask: Ask, job: _Job, model: ChatModel, view: LiveView | None) -> Outcome:
    """The episode to its end, the verdict, the changes."""
    with view or contextlib.nullcontext():
        episode = asyncio.run(
            run_episode(
                model,
                job.state,
                tools=job.tools,
                context=ToolContext(workspace=job.workspace, sandbox=job.sandbox),
                effort=job.header.effort,
                sampling=job.header.sampling,
                limits=job.limits,
                observer=view,
                journal=None if isinstance(job.state, Done) else job.journal,
                used_s=job.used_s,
            )
        )
        if view is not None:
            view.now("     checking the result")
        verdict, found, remarks = _verify(job)
    passed = tuple(check.name for check in verdict.checks if check.passed)
    failed = tuple(check.name for check in verdict.checks if not check.passed)
    job.journal.write(VerdictRecord(success=verdict.success, passed=passed, failed=failed), sync=True)

    blobs, applied = job.journal.blobs, False
    sentence = ". ".join((_sentence(episode, verdict, job), *remarks))
    if ask.apply and found:
        if verdict.success or ask.resume is not None:
            assert job.header.source is not None, "changes come from a folder"
            folders.apply(found, Path(job.header.source), blobs)
            applied = True
        else:
            sentence += (
                f". Not written, since it is not proved; to write it: longstep run --resume {job.header.run_id} --apply"
            )
    return Outcome(
        run_id=job.header.run_id,
        exit_code=0 if verdict.success else 1,
        sentence=sentence,
        episode=episode,
        verdict=verdict,
        diff=folders.unified(found, blobs),
        applied=applied,
    )


def _verify(job: _Job) -> tuple[Verdict, tuple[folders.Change, ...], tuple[str, ...]]:
    """The verdict, what changed in the workspace, and what a person should know besides."""
    blobs = job.journal.blobs
    before = msgspec.json.decode(blobs.get(job.header.files), type=folders.Manifest)
    after = folders.snapshot(job.workspace, blobs)
    found = folders.changes(before, after)
    if job.world is not None and job.task is not None:
        return job.world.verify(job.task, job.workspace, job.sandbox), found, ()
    verdict = verify_folder(job.header.task, before, after, blobs, job.sandbox, job.folder)
    touched = changed_tests(before, after)
    remarks = (f"the agent changed {_some(touched)}; the verdict is by the tests as they were",) if touched else ()
    return verdict, found, remarks


def _sentence(episode: Episode, verdict: Verdict, job: _Job) -> str:
    """One line: what is proved, by what; or what the agent says, and what does not bear it out."""
    by = f"{job.header.world}'s verifier" if job.header.world is not None else "the tests"
    if verdict.success:
        return f"proved by {by}: {len(verdict.checks)} of {len(verdict.checks)} checks"
    says = "the agent says that it is done" if episode.why == "answered" else f"the agent ended: {episode.why}"
    if episode.why == "out of steps":
        says += f" ({episode.num_steps}; more with longstep run --resume {job.header.run_id} --max-steps N)"
    failed = [
        f"{check.name}: {check.detail}" if check.detail else check.name for check in verdict.checks if not check.passed
    ]
    return f"not proved: {says}, but {'; '.join(failed)}"


# -------------------------------------------------------------------------------------------------------------- showing


def _show_head(console: Console, job: _Job, model: ChatModel) -> None:
    header = job.header
    where = f"{header.world}/{header.family}, seed {header.seed}" if header.world is not None else str(header.source)
    head = (
        f"run {header.run_id} · {model.name} · effort {header.effort} · at most {job.limits.max_steps} steps · {where}"
    )
    _say(console, head, "bold")
    _say(console, f"task: {header.task}", "")
    for note in job.notes:
        _say(console, note, "dim")
    _say(console, "", "")


def _say(console: Console, text: str, style: str) -> None:
    console.print(RichText(printable(text, console), style=style), soft_wrap=not console.is_terminal)


def _show_outcome(console: Console, job: _Job, outcome: Outcome) -> None:
    _say(console, "", "")
    if outcome.diff:
        for line in outcome.diff.split("\n")[:-1]:
            _say(console, line, _DIFF_STYLES.get(line[:1], "dim"))
        _say(console, "", "")
    if outcome.verdict is not None:
        for check in outcome.verdict.checks:
            mark, style = ("ok", "green") if check.passed else ("no", "red")
            _say(
                console,
                f"  {mark}  {check.name}" + (f": {check.detail}" if check.detail and not check.passed else ""),
                style,
            )
    if outcome.episode is not None:
        episode, usage = outcome.episode, outcome.episode.usage
        total_in = usage.fresh_input + usage.cache_read + usage.cache_write
        _say(
            console,
            f"{episode.num_steps} steps · {total_in:,} tokens in ({usage.cache_read:,} from cache), "
            f"{usage.output:,} out ({usage.reasoning:,} thinking) · "
            f"{episode.model_s:.1f} s model, {episode.tool_s:.1f} s tools",
            "dim",
        )
    style = "bold green" if outcome.exit_code == 0 else "bold yellow"
    _say(console, outcome.sentence, style)
    if outcome.applied:
        _say(console, f"written to {job.header.source}", "bold green")
    elif outcome.diff and job.header.source is not None:
        _say(
            console, f"to write the changes to {job.header.source}: longstep run --resume {outcome.run_id} --apply", ""
        )
    elif job.header.world is not None:
        _say(console, f"files: {job.header.workspace}", "dim")


def as_json(outcome: Outcome, header: Header) -> dict[str, Any]:
    """The object that `--json` prints."""
    episode, verdict = outcome.episode, outcome.verdict
    return {
        "run_id": outcome.run_id,
        "exit_code": outcome.exit_code,
        "proved": verdict is not None and verdict.success,
        "sentence": outcome.sentence,
        "task": header.task,
        "world": header.world,
        "family": header.family,
        "seed": header.seed,
        "source": header.source,
        "workspace": header.workspace,
        "model": header.model,
        "effort": header.effort,
        "why": episode.why if episode else None,
        "answer": episode.answer if episode else None,
        "steps": episode.num_steps if episode else None,
        "usage": {name: getattr(episode.usage, name) for name in Usage.__struct_fields__} if episode else None,
        "model_s": episode.model_s if episode else None,
        "tool_s": episode.tool_s if episode else None,
        "checks": [dataclasses.asdict(check) for check in verdict.checks] if verdict else [],
        "diff": outcome.diff,
        "applied": outcome.applied,
    }
