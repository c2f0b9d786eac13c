"""`ChatModel`: all that the agent loop knows of a model. Messages and effort in, a stream of events out.

Implemented by the in-process engine, by remote endpoints, by a world's expert and by scripted models in tests. The
stream ends with exactly one `TurnDone`; closing the iterator early aborts the call. `fold` is the non-streamed path.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from longstep.errors import ChatError
from longstep.messages import Effort, History, ToolSpec, Turn


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """`temperature` 0 is greedy. `seed` makes sampling repeatable, independent of what else is in the batch."""

    temperature: float = 1.0
    top_p: float = 0.95
    seed: int = 0
    max_tokens: int = 4096


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    messages: History
    tools: tuple[ToolSpec, ...] = ()
    effort: Effort = "max"
    sampling: Sampling = Sampling()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    response_format: Mapping[str, Any] | None = None


class ThinkDelta(msgspec.Struct, frozen=True):
    text: str


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call opens. `index` counts from 0 in this turn without gaps; id and name come once."""

    index: int
    id: str
    name: str


class ArgumentDelta(msgspec.Struct, frozen=True):
    """Text of one argument as it arrives: raw for strings, JSON for the other types."""

    index: int
    key: str
    type: str
    text: str


class CallEnd(msgspec.Struct, frozen=True):
    index: int


class TurnDone(msgspec.Struct, frozen=True):
    turn: Turn


Event = ThinkDelta | TextDelta | CallStart | ArgumentDelta | CallEnd | TurnDone


@runtime_checkable
class ChatModel(Protocol):
    """`name` and `context_tokens` (prompt and output together) are shown to users and kept in the journal."""

    name: str
    context_tokens: int

    def stream(self, request: ChatRequest) -> AsyncIterator[Event]: ...

    def count_tokens(self, request: ChatRequest) -> int:
        """Prompt tokens of this request, exact for local models."""
        ...


async def fold(events: AsyncIterator[Event]) -> Turn:
    """The non-streamed path: the last event's turn. Raises ChatError if the stream ends without one."""
    turn: Turn | None = None
    async for event in events:
        if isinstance(event, TurnDone):
            turn = event.turn
    if turn is None:
        raise ChatError("the model's stream ended without a finished turn; run again, or see the model's log")
    return turn
