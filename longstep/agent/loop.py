"""The agent loop: one for `longstep run`, evaluation, training data and RL rollouts.

States are frozen values and history only grows. A transition is a pure function (`after_turn`, `after_result`) plus at
most one effect (one model call or one tool call), so a journal that holds the effects' outcomes rebuilds any state
without a model and without running a tool.

    Think --turn with calls--> Act --all calls closed--> Think --turn with text--> Done

What the loop decides, so that the model learns one set of rules:

- The history starts with `User(instruction)`: no system prompt, tools are declared from the task's tools.
- Calls of one turn run one after the other in call order. A call that cannot run (unknown tool, unreadable arguments,
  a turn cut at its token limit) becomes an error result that says what to do instead; it is never run.
- A turn without calls and without visible text is told once to go on; a second one in a row ends the episode
  ("no answer"). The same holds for text that was cut at the token limit.
- Limits speak before they bite: one bracketed line at the end of a step's last result when a fifth of the steps,
  the context or the time is left, and again before the last step. Short episodes never see one.
- A tool that breaks (raises) is an error result. A broken sandbox (SandboxError) is not the agent's doing: it ends
  the run.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from longstep.chat.model import ChatModel, ChatRequest, Event, Sampling, TurnDone
from longstep.errors import ChatError, LongstepError
from longstep.messages import Effort, History, ToolCall, ToolResult, ToolSpec, Turn, Usage, User
from longstep.tools.base import Tool, ToolContext, ToolOutput

Why = Literal["answered", "no answer", "out of steps", "out of context", "out of time", "stopped"]

# A turn needs room for at least a short call; with less left the episode is over.
MIN_TURN_TOKENS = 64
UNKNOWN = "outcome unknown: the run was cut off while this ran; it may have happened or not. Look before you repeat it."
NUDGE = "You wrote neither a call nor an answer. Call a tool, or answer in a sentence."
NUDGE_CUT = "Your turn was cut at its token limit. Go on in fewer words: call a tool, or answer in a sentence."


# ------------------------------------------------------------------------------------------------------------- states


@dataclass(frozen=True)
class Think:
    """Next: ask the model."""

    history: History


@dataclass(frozen=True)
class Act:
    """Next: run the first of `pending`. `results` are those of the turn's earlier calls, in call order."""

    history: History
    pending: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True)
class Done:
    history: History
    why: Why


State = Think | Act | Done


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`max_context_tokens` narrows the model's own window; `max_output_tokens` is per turn; time is wall time."""

    max_steps: int = 40
    max_context_tokens: int | None = None
    max_output_tokens: int = 1024
    max_time_s: float | None = None

    def __post_init__(self) -> None:
        assert self.max_steps > 0, "an episode has at least one step"
        assert self.max_output_tokens >= MIN_TURN_TOKENS, f"a turn needs at least {MIN_TURN_TOKENS} tokens"


DEFAULT_LIMITS = Limits()
DEFAULT_SAMPLING = Sampling()


# ------------------------------------------------------------------------------------------------ what observers see


@dataclass(frozen=True)
class StepStarted:
    """`prompt_tokens` of `window_tokens` are used by the history before this turn."""

    step: int  # from 1
    prompt_tokens: int
    window_tokens: int


@dataclass(frozen=True)
class ModelEvent:
    step: int
    event: Event


@dataclass(frozen=True)
class TurnTaken:
    step: int
    turn: Turn
    wall_s: float


@dataclass(frozen=True)
class CallStarted:
    step: int
    call: ToolCall


@dataclass(frozen=True)
class CallFinished:
    step: int
    call: ToolCall
    result: ToolResult
    wall_s: float


@dataclass(frozen=True)
class Finished:
    why: Why


LoopEvent = StepStarted | ModelEvent | TurnTaken | CallStarted | CallFinished | Finished
Observer = Callable[[LoopEvent], None]


class Journal(Protocol):
    """Where effects are recorded: the intent before, the outcome after, then the state that follows."""

    def model_intent(self, step: int, prompt_tokens: int) -> None: ...

    def model_outcome(self, step: int, turn: Turn, wall_s: float) -> None: ...

    def tool_intent(self, step: int, call: ToolCall) -> None: ...

    def tool_outcome(self, step: int, result: ToolResult, wall_s: float) -> None: ...

    def state(self, state: State) -> None: ...


# ---------------------------------------------------------------------------------------------------- pure transitions


def num_turns(history: History) -> int:
    return [type(message) for message in history].count(Turn)  # called thrice a step: 20 us at 1,000 messages


def after_turn(history: History, turn: Turn) -> State:
    """The state after the model took `turn` on `history`."""
    asked_before = history[-1] in (User(text=NUDGE), User(text=NUDGE_CUT))
    history = (*history, turn)
    if turn.stop == "aborted":
        return Done(history, "stopped")
    if turn.calls:
        return Act(history, turn.calls)
    if turn.text.strip() and turn.stop == "end":
        return Done(history, "answered")
    if asked_before:
        return Done(history, "no answer")
    return Think((*history, User(text=NUDGE_CUT if turn.stop == "length" else NUDGE)))


def after_result(state: Act, result: ToolResult) -> Act | Think:
    """The state after the first pending call came to `result`. The last one closes the step."""
    assert result.call_id == state.pending[0].id, "results come in call order"
    results = (*state.results, result)
    if len(state.pending) > 1:
        return Act(state.history, state.pending[1:], results)
    return Think((*state.history, *results))


def refusal(state: Act, tools: Mapping[str, Tool]) -> str | None:
    """Why the first pending call must not run, in words that help the model; None if it may."""
    call, turn = state.pending[0], state.history[-1]
    assert isinstance(turn, Turn), "Act follows a turn"
    if turn.stop == "length":
        # which of a cut turn's calls are whole is the parser's guess, and later calls often lean on earlier ones
        return "not run: your turn was cut at its token limit. Repeat the call with shorter arguments."
    if any(result.text == UNKNOWN for result in state.results):
        return "not run: the outcome of an earlier call of this turn is unknown."
    if call.name not in tools:
        return f"no tool named {call.name!r}. Tools: {', '.join(tools)}."
    if call.bad_arguments is not None:
        properties = ", ".join(tools[call.name].spec.parameters.get("properties", {}))
        return f"not run: the arguments could not be read. {call.name} takes: {properties or 'nothing'}."
    return None


def limit_note(history: History, limits: Limits, window_tokens: int, elapsed_s: float, last_elapsed_s: float) -> str:
    """The line at the end of a step's last result: what is nearly used up, or ''.

    Each limit speaks once when it passes four fifths, steps again before the last one. `history` ends with the step's
    turn; `last_elapsed_s` is the time at which the step before ended.
    """
    notes: list[str] = []
    left = limits.max_steps - num_turns(history)
    if left == 1:
        notes.append("1 step left: answer now")
    elif left > 1 and left == limits.max_steps // 5:
        notes.append(f"{left} of {limits.max_steps} steps left")
    turns = (m.usage for m in reversed(history) if isinstance(m, Turn))
    used, used_before = (
        u.fresh_input + u.cache_read + u.cache_write + u.output for u in (next(turns), next(turns, Usage()))
    )
    if used >= 0.8 * window_tokens > used_before:
        notes.append(f"{used} of {window_tokens} context tokens used")
    if limits.max_time_s is not None and elapsed_s >= 0.8 * limits.max_time_s > last_elapsed_s:
        notes.append(f"{max(0, round(limits.max_time_s - elapsed_s))} s left")
    return f"\n[{'; '.join(notes)}]" if notes else ""


# ------------------------------------------------------------------------------------------------------- the episode


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A finished run of the loop. `usage` sums all turns of the history; times are of this process only."""

    history: History
    why: Why
    num_steps: int
    usage: Usage
    model_s: float = 0.0
    tool_s: float = 0.0
    wall_s: float = 0.0

    @property
    def answer(self) -> str:
        """Text of the last turn; '' if the episode ended without an answer."""
        last = self.history[-1]
        return last.text if self.why == "answered" and isinstance(last, Turn) else ""


@dataclass
class _Run:
    """What `advance` needs beside the state; it changes nothing but the clocks."""

    model: ChatModel
    tools: Mapping[str, Tool]
    context: ToolContext
    effort: Effort
    sampling: Sampling
    limits: Limits
    observer: Observer | None
    journal: Journal | None
    specs: tuple[ToolSpec, ...]
    window_tokens: int
    start_s: float = field(default_factory=time.monotonic)  # moved back by the time used before a resume
    step_end_s: float = 0.0
    model_s: float = 0.0
    tool_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.start_s

    def tell(self, event: LoopEvent) -> None:
        if self.observer is not None:
            self.observer(event)


async def advance(state: Think | Act, run: _Run) -> State:
    """One transition: at most one effect, recorded before and after."""
    return await (_think(state, run) if isinstance(state, Think) else _act(state, run))


async def _think(state: Think, run: _Run) -> State:
    step = num_turns(state.history) + 1
    if step > run.limits.max_steps:
        return Done(state.history, "out of steps")
    if run.limits.max_time_s is not None and run.elapsed_s >= run.limits.max_time_s:
        return Done(state.history, "out of time")
    # each step draws its own random numbers, and a resumed step draws the same ones
    sampling = msgspec.structs.replace(run.sampling, seed=run.sampling.seed * 65_536 + step)
    request = ChatRequest(messages=state.history, tools=run.specs, effort=run.effort, sampling=sampling)
    prompt_tokens = run.model.count_tokens(request)
    room = run.window_tokens - prompt_tokens
    if room < MIN_TURN_TOKENS:
        return Done(state.history, "out of context")
    max_tokens = min(room, run.limits.max_output_tokens)
    request = msgspec.structs.replace(request, sampling=msgspec.structs.replace(sampling, max_tokens=max_tokens))

    run.tell(StepStarted(step, prompt_tokens, run.window_tokens))
    if run.journal is not None:
        run.journal.model_intent(step, prompt_tokens)
    begin_s = time.monotonic()
    turn: Turn | None = None
    async for event in run.model.stream(request):
        if isinstance(event, TurnDone):
            turn = event.turn
        run.tell(ModelEvent(step, event))
    if turn is None:
        raise ChatError(
            f"{run.model.name}: the stream ended without a finished turn; run again, or see the model's log"
        )
    wall_s = time.monotonic() - begin_s
    run.model_s += wall_s
    if run.journal is not None:
        run.journal.model_outcome(step, turn, wall_s)
    run.tell(TurnTaken(step, turn, wall_s))
    return after_turn(state.history, turn)


async def _act(state: Act, run: _Run) -> State:
    call, step = state.pending[0], num_turns(state.history)
    run.tell(CallStarted(step, call))
    begin_s = time.monotonic()
    cancelled: asyncio.CancelledError | None = None
    refused = refusal(state, run.tools)
    if refused is not None:
        output = ToolOutput(text=refused, is_error=True)
    else:
        if run.journal is not None:
            run.journal.tool_intent(step, call)
        output, cancelled = await _run_tool(run.tools[call.name], call.arguments, run.context)
    wall_s = time.monotonic() - begin_s
    run.tool_s += wall_s
    note = ""
    if len(state.pending) == 1:
        note = limit_note(state.history, run.limits, run.window_tokens, run.elapsed_s, run.step_end_s)
        run.step_end_s = run.elapsed_s
    # a file name that is no UTF-8 must not break the journal or the prompt
    text = output.text.encode("utf-8", "replace").decode() + note
    result = ToolResult(call_id=call.id, name=call.name, text=text, is_error=output.is_error)
    if run.journal is not None:
        run.journal.tool_outcome(step, result, wall_s)
    run.tell(CallFinished(step, call, result, wall_s))
    if cancelled is not None:
        raise cancelled
    return after_result(state, result)


async def _run_tool(
    tool: Tool, arguments: dict[str, Any], context: ToolContext
) -> tuple[ToolOutput, asyncio.CancelledError | None]:
    """In a thread, to its end even when we are cancelled: a started tool cannot be stopped, so its outcome is kept."""
    work = asyncio.ensure_future(asyncio.to_thread(tool.run, arguments, context))
    cancelled: asyncio.CancelledError | None = None
    try:
        try:
            return await asyncio.shield(work), None
        except asyncio.CancelledError as error:
            cancelled = error
        return await work, cancelled
    except LongstepError:
        raise
    except Exception as error:
        text = f"{tool.spec.name} broke: {type(error).__name__}: {error}. Try another way."
        return ToolOutput(text=text, is_error=True), cancelled


async def run_episode(
    model: ChatModel,
    start: str | State,
    *,
    tools: Mapping[str, Tool],
    context: ToolContext,
    effort: Effort = "high",
    sampling: Sampling = DEFAULT_SAMPLING,
    limits: Limits = DEFAULT_LIMITS,
    observer: Observer | None = None,
    journal: Journal | None = None,
    used_s: float = 0.0,
) -> Episode:
    """Run from an instruction, or on from a state, to the end.

    `limits.max_output_tokens` and the window rule over `sampling.max_tokens`. `used_s` is the wall time that a resumed
    run used before. Raises what the model and the sandbox raise; cancelling it loses nothing that a journal has.
    """
    window_tokens = min(model.context_tokens, limits.max_context_tokens or model.context_tokens)
    run = _Run(
        model, tools, context, effort, sampling, limits, observer, journal,
        specs=tuple(tool.spec for tool in tools.values()), window_tokens=window_tokens,
    )  # fmt: skip
    begin_s = run.start_s
    run.start_s -= used_s
    run.step_end_s = used_s
    state: State = Think((User(text=start),)) if isinstance(start, str) else start
    if journal is not None:
        journal.state(state)
    while not isinstance(state, Done):
        state = await advance(state, run)
        if journal is not None:
            journal.state(state)
    run.tell(Finished(state.why))
    return Episode(
        history=state.history,
        why=state.why,
        num_steps=num_turns(state.history),
        usage=total_usage(state.history),
        model_s=run.model_s,
        tool_s=run.tool_s,
        wall_s=time.monotonic() - begin_s,
    )


def total_usage(history: History) -> Usage:
    turns = [message.usage for message in history if isinstance(message, Turn)]
    return Usage(**{name: sum(getattr(usage, name) for usage in turns) for name in Usage.__struct_fields__})
