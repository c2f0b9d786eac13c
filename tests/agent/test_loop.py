"""The loop: its pure transitions, the rules that the model learns, and what observers and journals are told."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from longstep.agent.loop import (
    NUDGE,
    NUDGE_CUT,
    Act,
    CallFinished,
    Done,
    Episode,
    Finished,
    Limits,
    LoopEvent,
    StepStarted,
    Think,
    TurnTaken,
    after_result,
    after_turn,
    num_turns,
    run_episode,
)
from longstep.chat.model import ChatRequest, Event, TextDelta, TurnDone
from longstep.errors import ChatError, SandboxError
from longstep.messages import Text, Thinking, ToolCall, ToolResult, ToolSpec, Turn, Usage, User
from longstep.sandbox.base import CommandResult
from longstep.sandbox.base import Limits as SandboxLimits
from longstep.tools.base import ToolContext, ToolOutput
from longstep.worlds.base import Move, Policy, PolicyModel


class NoSandbox:
    """These tests run no commands; one that does fails loudly."""

    name = "none"

    def run(self, argv: Any, *, workspace: Any, limits: SandboxLimits | None = None) -> CommandResult:
        raise SandboxError("no commands in this test")


class Append:
    """Appends a word to notes.txt and returns the file: order and number of runs can be read from it."""

    spec = ToolSpec(
        name="append",
        description="Append a word to notes.txt.",
        parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    )
    safe_to_repeat = False

    def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        path = context.workspace / "notes.txt"
        if arguments["word"] == "sandbox":
            context.sandbox.run(["true"], workspace=context.workspace)
        if arguments["word"] == "slow":
            time.sleep(0.3)
        with path.open("a") as file:
            file.write(arguments["word"] + "\n")
        return ToolOutput(text=" ".join(path.read_text().split()))


class TurnsModel:
    """Says the given turns one after the other, with each text streamed before its end."""

    name = "turns"

    def __init__(self, *turns: Turn, context_tokens: int = 100_000, prompt_tokens: int = 0):
        self.turns = list(turns)
        self.requests: list[ChatRequest] = []
        self.context_tokens = context_tokens
        self.prompt_tokens = prompt_tokens

    def count_tokens(self, request: ChatRequest) -> int:
        return self.prompt_tokens * len(request.messages)

    async def stream(self, request: ChatRequest) -> AsyncIterator[Event]:
        self.requests.append(request)
        if self.turns:
            turn = self.turns.pop(0)
            yield TextDelta(turn.text)
            yield TurnDone(turn)


def call(word: str, id: str = "", name: str = "append", bad: str | None = None) -> ToolCall:
    return ToolCall(id=id or f"id-{word}", name=name, arguments={"word": word}, bad_arguments=bad)


def calls(*parts: ToolCall, stop: str = "calls", usage: Usage | None = None) -> Turn:
    return Turn(parts=(Thinking(text="so"), *parts), stop=stop, usage=usage or Usage())  # type: ignore[arg-type]


ANSWER = Turn(parts=(Thinking(text="done"), Text(text="All done.")))


@pytest.fixture
def context(tmp_path) -> ToolContext:
    return ToolContext(workspace=tmp_path, sandbox=NoSandbox())


def run(model: Any, context: ToolContext, **options: Any) -> Episode:
    return asyncio.run(run_episode(model, "Write.", tools={"append": Append()}, context=context, **options))


def results(episode: Episode) -> list[ToolResult]:
    return [m for m in episode.history if isinstance(m, ToolResult)]


# ------------------------------------------------------------------------------------------------------------ the path


def test_an_expert_runs_to_its_answer(context):
    """The whole path with a policy: what it is sent, what the history holds, what the episode counts."""
    seen: list[list[str]] = []

    def policy() -> Policy:
        seen.append([r.text for r in (yield Move(think="one", calls=(("append", {"word": "a"}),)))])
        seen.append([r.text for r in (yield Move(calls=(("append", {"word": "b"}), ("append", {"word": "c"}))))])
        yield Move(think="enough", text="Done.")

    episode = run(PolicyModel(policy()), context, effort="low")

    assert seen == [["a"], ["a b", "a b c"]]
    assert (episode.why, episode.num_steps, episode.answer) == ("answered", 3, "Done.")
    kinds = [type(m).__name__ for m in episode.history]
    assert kinds == ["User", "Turn", "ToolResult", "Turn", "ToolResult", "ToolResult", "Turn"]
    assert episode.history[0] == User(text="Write.")
    assert all(m.effort == "low" for m in episode.history if isinstance(m, Turn))


def test_history_only_grows_and_each_request_extends_the_one_before(context):
    model = TurnsModel(calls(call("a"), call("b")), calls(call("c")), ANSWER)
    episode = run(model, context)

    prompts = [r.messages for r in model.requests] + [episode.history]
    assert len(prompts) == 4
    for before, after in itertools.pairwise(prompts):
        assert after[: len(before)] == before
        assert len(after) > len(before)
    assert [spec.name for spec in model.requests[0].tools] == ["append"]


def test_observer_sees_each_thing_once_in_order(context):
    seen: list[LoopEvent] = []
    run(TurnsModel(calls(call("a")), ANSWER), context, observer=seen.append)
    assert [type(e).__name__ for e in seen] == [
        *("StepStarted", "ModelEvent", "ModelEvent", "TurnTaken", "CallStarted", "CallFinished"),
        *("StepStarted", "ModelEvent", "ModelEvent", "TurnTaken", "Finished"),
    ]
    assert [e.step for e in seen if isinstance(e, StepStarted)] == [1, 2]
    assert [e.result.text for e in seen if isinstance(e, CallFinished)] == ["a"]
    assert [e.turn for e in seen if isinstance(e, TurnTaken)][-1] == ANSWER
    assert seen[-1] == Finished("answered")


def test_usage_is_the_sum_over_turns_and_seeds_differ_by_step(context):
    usage = Usage(fresh_input=10, cache_read=5, output=7, reasoning=3)
    model = TurnsModel(calls(call("a"), usage=usage), calls(call("b"), usage=usage), ANSWER)
    episode = run(model, context)
    assert episode.usage == Usage(fresh_input=20, cache_read=10, output=14, reasoning=6)
    assert len({r.sampling.seed for r in model.requests}) == 3


# --------------------------------------------------------------------------------------------------- calls that fail


def test_unknown_tool_says_what_exists(context):
    episode = run(TurnsModel(calls(call("a", name="apend")), ANSWER), context)
    (result,) = results(episode)
    assert result.is_error
    assert result.text == "no tool named 'apend'. Tools: append."
    assert episode.why == "answered"


def test_unreadable_arguments_are_not_run(context):
    episode = run(TurnsModel(calls(call("a", bad='{"word": ')), ANSWER), context)
    (result,) = results(episode)
    assert result.is_error
    assert "append takes: word" in result.text
    assert not (context.workspace / "notes.txt").exists()


def test_a_cut_turn_runs_none_of_its_calls(context):
    """R39: the length limit wins over the calls that the parser could save."""
    episode = run(TurnsModel(calls(call("a"), call("b"), stop="length"), ANSWER), context)
    assert [r.is_error for r in results(episode)] == [True, True]
    assert all("token limit" in r.text for r in results(episode))
    assert not (context.workspace / "notes.txt").exists()


def test_a_tool_that_breaks_is_a_result_and_a_broken_sandbox_is_not(context):
    broken = ToolCall(id="x", name="append", arguments={})  # KeyError inside the tool
    episode = run(TurnsModel(calls(broken), ANSWER), context)
    (result,) = results(episode)
    assert result.is_error
    assert "append broke: KeyError" in result.text

    with pytest.raises(SandboxError, match="no commands"):
        run(TurnsModel(calls(call("sandbox")), ANSWER), context)


def test_stream_without_end_is_an_error(context):
    with pytest.raises(ChatError, match="without a finished turn"):
        run(TurnsModel(), context)


# ------------------------------------------------------------------------------------------------- nothing was said


@pytest.mark.parametrize("parts", [(Thinking(text="hm"),), (Thinking(text=""), Text(text=" \n")), ()], ids=str)
def test_thinking_only_is_nudged_once(context, parts):
    """R40: bounded, and a turn that works after the nudge earns another nudge later."""
    silent = Turn(parts=parts)
    episode = run(TurnsModel(silent, calls(call("a")), silent, ANSWER), context)
    assert episode.why == "answered"
    assert episode.num_steps == 4
    assert [m for m in episode.history if m == User(text=NUDGE)] == [User(text=NUDGE)] * 2

    episode = run(TurnsModel(silent, silent), context)
    assert (episode.why, episode.num_steps, episode.answer) == ("no answer", 2, "")


def test_text_cut_at_the_limit_is_no_answer(context):
    cut = Turn(parts=(Text(text="The answer is"),), stop="length")
    episode = run(TurnsModel(cut, ANSWER), context)
    assert episode.history[2] == User(text=NUDGE_CUT)
    assert episode.why == "answered"
    assert run(TurnsModel(cut, cut), context).why == "no answer"


def test_an_aborted_turn_stops(context):
    assert run(TurnsModel(Turn(parts=(), stop="aborted")), context).why == "stopped"


# ------------------------------------------------------------------------------------------------------------- limits


def test_steps_run_out_after_a_warning(context):
    """The note comes at a fifth left and before the last step, on the last result of a step, and nowhere else."""
    turns = [calls(call(f"a{i}"), call(f"b{i}")) for i in range(10)]
    episode = run(TurnsModel(*turns, ANSWER), context, limits=Limits(max_steps=10))
    assert episode.why == "out of steps"
    assert episode.num_steps == 10
    noted = {i: r.text.rsplit("\n", 1)[1] for i, r in enumerate(results(episode)) if "\n[" in r.text}
    assert noted == {15: "[2 of 10 steps left]", 17: "[1 step left: answer now]"}
    assert isinstance(episode.history[-1], ToolResult), "every call is closed"


def test_context_runs_out_after_a_warning(context):
    def turn(i: int) -> Turn:
        return calls(call(f"w{i}"), usage=Usage(fresh_input=100 * (2 * i + 1), output=10))

    model = TurnsModel(*[turn(i) for i in range(9)], context_tokens=5000, prompt_tokens=100)
    episode = run(model, context, limits=Limits(max_context_tokens=1000))
    # prompts are 100, 300, ... 900 tokens: after five turns the next one, of 1100, does not fit
    assert episode.why == "out of context"
    assert episode.num_steps == 5
    noted = [r.text.rsplit("\n", 1)[1] for r in results(episode) if "\n[" in r.text]
    assert noted == ["[910 of 1000 context tokens used]"]
    assert [r.sampling.max_tokens for r in model.requests] == [900, 700, 500, 300, 100]


def test_time_runs_out_after_a_warning(context):
    turns = [calls(call("slow", id=str(i))) for i in range(9)]
    episode = run(TurnsModel(*turns), context, limits=Limits(max_time_s=0.7))
    assert episode.why == "out of time"
    assert episode.num_steps == 3
    assert [" s left]" in r.text for r in results(episode)] == [False, True, False]


def test_output_limit_is_sent(context):
    model = TurnsModel(ANSWER)
    run(model, context, limits=Limits(max_output_tokens=333))
    assert model.requests[0].sampling.max_tokens == 333


# ---------------------------------------------------------------------------------------------------- pure transitions


def test_transitions_are_pure_and_keep_call_order():
    history = (User(text="go"),)
    turn = calls(call("a"), call("b"))
    state = after_turn(history, turn)
    assert state == Act((*history, turn), turn.calls)
    one = ToolResult(call_id="id-a", name="append", text="1")
    two = ToolResult(call_id="id-b", name="append", text="2")
    middle = after_result(state, one)
    assert middle == Act((*history, turn), (call("b"),), (one,))
    assert after_result(middle, two) == Think((*history, turn, one, two))
    with pytest.raises(AssertionError, match="call order"):
        after_result(state, two)
    assert after_turn(history, ANSWER) == Done((*history, ANSWER), "answered")


def test_cancelling_waits_for_the_started_tool(context):
    """A started tool cannot be stopped: its effect and its outcome belong together."""
    seen: list[LoopEvent] = []

    async def main() -> None:
        work = asyncio.create_task(
            run_episode(
                TurnsModel(calls(call("slow")), ANSWER), "Write.",
                tools={"append": Append()}, context=context, observer=seen.append,
            )
        )  # fmt: skip
        await asyncio.sleep(0.1)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(main())
    assert (context.workspace / "notes.txt").read_text() == "slow\n"
    assert isinstance(seen[-1], CallFinished)


def test_overhead_per_step_is_small(context):
    """Under 1 ms beside model and tool; 3 ms leaves room for a loaded machine."""

    class Nothing:
        spec = ToolSpec(name="append", description="", parameters={"type": "object"})
        safe_to_repeat = True

        def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
            return ToolOutput(text="")

    model = TurnsModel(*[calls(call(f"w{i}")) for i in range(400)], ANSWER)
    episode = asyncio.run(
        run_episode(model, "Go.", tools={"append": Nothing()}, context=context, limits=Limits(max_steps=1000))
    )
    assert num_turns(episode.history) == 401
    per_step_s = (episode.wall_s - episode.model_s) / 401
    assert per_step_s < 3e-3, f"{per_step_s * 1e3:.2f} ms per step"
