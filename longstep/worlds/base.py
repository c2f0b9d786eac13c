"""What a world is: it makes tasks from seeds, sets up their start state, and scores the final state.

A world ships an expert (a program that solves the task through the same loop and the same tools), attacks that must
score zero, and a verifier with a public half (what the agent could check itself) and a hidden half. The verifier reads
the final workspace and never the transcript.

Families and seeds are split before training: families in `held_out` are never trained on, and a world draws names,
templates and documents from lists that train and test do not share. `split` says which lists a task draws from.
"""

import random
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from longstep.chat.model import ChatRequest, Event, TurnDone
from longstep.errors import WorldError
from longstep.messages import Effort, Text, Thinking, ToolCall, ToolResult, Turn
from longstep.sandbox.base import Sandbox

Split = Literal["train", "test"]
# Seeds below are for training, at and above for tests; fixed before the first training run.
FIRST_TEST_SEED = 1_000_000


def split_of(seed: int) -> Split:
    return "train" if seed < FIRST_TEST_SEED else "test"


@dataclass(frozen=True, kw_only=True)
class Task:
    """An instruction with a start state. `secret` is for set-up, expert and verifier; the agent never sees it."""

    world: str
    family: str
    seed: int
    instruction: str
    tools: tuple[str, ...]
    max_steps: int
    secret: Any = field(repr=False, default=None)

    @property
    def split(self) -> Split:
        return split_of(self.seed)


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    passed: bool
    hidden: bool
    detail: str = ""  # one sentence, for people; never shown to the agent when hidden


@dataclass(frozen=True, kw_only=True)
class Verdict:
    checks: tuple[Check, ...]

    @property
    def success(self) -> bool:
        return bool(self.checks) and all(c.passed for c in self.checks)


@dataclass(frozen=True, kw_only=True)
class Move:
    """What an expert does next: think, then call tools or answer. Becomes one turn.

    `slip` marks a mistake made on purpose, so that a model sees how to recover: shown in training, never taught.
    """

    think: str = ""
    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    slip: bool = False


# Yields moves, is sent the results of a move's calls in call order, ends with a move without calls.
Policy = Generator[Move, tuple[ToolResult, ...], None]


class World(Protocol):
    name: str
    families: tuple[str, ...]  # every family, held-out ones included
    held_out: frozenset[str]  # families never trained on

    def task(self, seed: int, family: str | None = None) -> Task:
        """The task of this seed, the same for ever. Without `family`, the seed chooses among the families of its
        split: train seeds never draw a held-out family."""
        ...

    def set_up(self, task: Task, workspace: Path) -> None:
        """Write the start state into an empty folder."""
        ...

    def verify(self, task: Task, workspace: Path, sandbox: Sandbox) -> Verdict: ...

    def expert(self, task: Task, effort: Effort, rng: random.Random) -> Policy:
        """Solves the task. The true state may choose among moves; text comes only from what the episode has shown."""
        ...

    def attacks(self, task: Task) -> dict[str, Policy]:
        """Named ways to cheat; each must fail verification."""
        ...


def do_nothing(task: Task) -> Policy:
    yield Move(text="Done.")


class PolicyModel:
    """A policy as a `ChatModel`, so that experts run in the same loop as models. One object per episode."""

    context_tokens = 1 << 20

    def __init__(self, policy: Policy, name: str = "expert"):
        self.name = name
        self._policy = policy
        self._started = False
        self._num_calls = 0
        self._num_turns = 0
        self.slips: list[int] = []  # which turns, from 0, were slips

    def count_tokens(self, request: ChatRequest) -> int:
        return 0

    async def stream(self, request: ChatRequest) -> AsyncIterator[Event]:
        results: list[ToolResult] = []
        for message in reversed(request.messages):
            if not isinstance(message, ToolResult):
                break
            results.append(message)
        try:
            move = self._policy.send(tuple(reversed(results))) if self._started else next(self._policy)
        except StopIteration:
            raise WorldError(f"{self.name}: asked for a move after its last one") from None
        self._started = True
        if move.slip:
            self.slips.append(self._num_turns)
        self._num_turns += 1
        parts: list[Thinking | Text | ToolCall] = [Thinking(text=move.think)]
        if move.text or not move.calls:
            parts.append(Text(text=move.text))
        for name, arguments in move.calls:
            self._num_calls += 1
            parts.append(ToolCall(id=f"call-{self._num_calls}", name=name, arguments=arguments))
        yield TurnDone(Turn(parts=tuple(parts), stop="calls" if move.calls else "end", effort=request.effort))
