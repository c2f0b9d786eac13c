"""The one shape of a conversation. Every other form (OpenAI, Anthropic, the prompt, the journal) is a view of it.

It cannot lose reasoning: a `Turn` is whole (thinking, text and calls in the order in which the model wrote them, the
provider's raw blocks attached), and a history only grows: it is a tuple, and nothing here edits one. A turn that we
sampled carries its token ids, so that nothing sampled is ever tokenized again.

Everything is a frozen msgspec struct: `to_json` and `from_json` are exact inverses.
"""

from typing import Any, Literal, get_args

import msgspec

Effort = Literal["low", "high", "max"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Frozen, keyword-only, refuses unknown fields on the way in."""


class Text(_Struct, tag="text", frozen=True, kw_only=True):
    """Visible text."""

    text: str


class Thinking(_Struct, tag="thinking", frozen=True, kw_only=True):
    """Reasoning. `raw` is the provider's own block (signature included), sent back unchanged."""

    text: str
    raw: dict[str, Any] | None = None


class ToolCall(_Struct, tag="call", frozen=True, kw_only=True):
    """A request to run a tool. `arguments` keeps the order in which the model wrote them."""

    id: str  # opaque and unique in the history; never rendered into a prompt
    name: str
    arguments: dict[str, Any]
    bad_arguments: str | None = None  # the argument text where it was not readable; the call is then not run


Part = Text | Thinking | ToolCall


class Sampled(_Struct, frozen=True, kw_only=True):
    """The tokens of a turn as they were sampled, stop token included."""

    tokens: tuple[int, ...]
    tokenizer: str  # `Tokenizer.id`: the ids mean something only under the same tokenizer
    logprobs_ref: str | None = None  # blob hash of fp32 log-probs, one per token


class Usage(_Struct, frozen=True, kw_only=True):
    """Tokens of one model call in disjoint buckets; `reasoning` is a part of `output`."""

    fresh_input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0


class System(_Struct, tag="system", frozen=True, kw_only=True):
    """Standing instructions. With `tools`, a declaration of further tools from here on."""

    text: str = ""
    tools: "tuple[ToolSpec, ...]" = ()
    name: str | None = None


class User(_Struct, tag="user", frozen=True, kw_only=True):
    text: str
    name: str | None = None


class Turn(_Struct, tag="turn", frozen=True, kw_only=True):
    """One assistant message, whole."""

    parts: tuple[Part, ...]
    stop: Literal["end", "calls", "length", "aborted"] = "end"
    effort: Effort | None = None
    sampled: Sampled | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    response_id: str | None = None  # cost is keyed by it

    @property
    def thinking(self) -> str:
        return "".join(p.text for p in self.parts if isinstance(p, Thinking))

    @property
    def text(self) -> str:
        return "".join(p.text for p in self.parts if isinstance(p, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(p for p in self.parts if isinstance(p, ToolCall))


class ToolResult(_Struct, tag="result", frozen=True, kw_only=True):
    """What came of one call. A failed tool is a result too."""

    call_id: str
    name: str
    text: str
    is_error: bool = False


Message = System | User | Turn | ToolResult
History = tuple[Message, ...]


class ToolSpec(_Struct, frozen=True, kw_only=True):
    """What the model is told of a tool. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool | None = None  # declared to the model as given


def to_json(value: Message | History | ToolSpec | Usage) -> bytes:
    return msgspec.json.encode(value)


def history_from_json(data: bytes) -> History:
    """Raises msgspec.ValidationError on anything that `to_json` did not write."""
    return msgspec.json.decode(data, type=tuple[Message, ...])
