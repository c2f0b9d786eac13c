"""Messages to tokens, in the form that Kimi K3 reads ("XTML").

Contract. The prompt is a sequence of segments, each tokenized by itself. Only control tokens are special segments: tag
names, attribute values, user text and tool results are ordinary text, so nobody's text can become structure. In order:

    tools          if any: system message of type tool-declare, JSON with sorted keys and no spaces
    effort         system message of type thinking-effort
    conversation   user, system (one with tools declares further tools), turns, tool results
    tool choice    if "none" or "required", and there are tools
    format         if JSON is asked for
    prefix         <|open|>message role="assistant"<|sep|><|open|>think<|sep|>: from here on the model writes

A turn always has a think channel, even an empty one, and a response channel. Tool results stand in the order of the
calls that they answer. A turn that this tokenizer's model sampled is written with the tokens that it sampled.

The prefix property: the prompt of `history`, then what the model wrote, begins the prompt of `history + turn`, so that
nothing read once is read again. Tool choice and format are of one request, not of the history: they stand after the
conversation and the next prompt does not have them. With either, what begins the next prompt is the prompt without
them (`Encoder.encode` of the same request with neither).

Sources: docs/phrases.md names the wordings; the form is that of the released K3 encoder.
"""

import hashlib
import json
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from longstep.chat.model import ChatRequest
from longstep.chat.parser import Parser
from longstep.chat.phrases import Phrases
from longstep.chat.tokenizer import CLOSE, END_OF_MSG, OPEN, SEP, Tokenizer
from longstep.errors import ChatError
from longstep.messages import Effort, History, Message, System, ToolCall, ToolResult, ToolSpec, Turn, User


class Segment(NamedTuple):
    """A piece of the prompt, tokenized by itself. `special`: the text is one control token's name."""

    text: str
    special: bool = False


_OPEN, _CLOSE, _SEP, _END = (Segment(name, special=True) for name in (OPEN, CLOSE, SEP, END_OF_MSG))


def _opened(name: str, *attributes: tuple[str, str]) -> list[Segment]:
    out = [_OPEN, Segment(name)]
    for key, value in attributes:
        escaped = value.replace("&", "&amp;").replace('"', "&quot;")
        out += [Segment(f" {key}"), Segment('="'), *_ordinary(escaped), Segment('"')]
    return [*out, _SEP]


def _closed(name: str) -> list[Segment]:
    return [_CLOSE, Segment(name), _SEP]


def _ordinary(text: str) -> list[Segment]:
    return [Segment(text)] if text else []


def _message(body: str, *attributes: tuple[str, str]) -> list[Segment]:
    return [*_opened("message", *attributes), *_ordinary(body), *_closed("message"), _END]


PREFIX = (*_opened("message", ("role", "assistant")), *_opened("think"))


def sorted_json(value: Any) -> str:
    """Keys sorted at every depth, no spaces, non-ASCII kept: one text for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def tools_json(tools: Iterable[ToolSpec]) -> str:
    """The declaration of tools. A description that is empty is left out."""
    out = []
    for tool in tools:
        function: dict[str, Any] = {"name": tool.name, "parameters": tool.parameters}
        if tool.description:
            function["description"] = tool.description
        if tool.strict is not None:
            function["strict"] = tool.strict
        out.append({"type": "function", "function": function})
    return sorted_json(out)


def segments(request: ChatRequest, phrases: Phrases) -> list[Segment]:
    """The prompt of a request, sampled turns written from their parts."""
    out = _head(request.tools, request.effort, phrases)
    for placed in _placed(request.messages):
        out += _of_message(placed, phrases)
    return [*out, *_tail(request, phrases), *PREFIX]


def ordinary_texts(messages: History, tools: Sequence[ToolSpec], effort: Effort, phrases: Phrases) -> list[str]:
    """The ordinary segments of a conversation: what a tokenizer should learn from it."""
    request = ChatRequest(messages=messages, tools=tuple(tools), effort=effort)
    return [s.text for s in segments(request, phrases) if not s.special]


def _head(tools: Sequence[ToolSpec], effort: Effort, phrases: Phrases) -> list[Segment]:
    declare = _message(phrases.tools_body(tools_json(tools)), *_system("tool-declare")) if tools else []
    return [*declare, *_message(phrases.effort_body(effort), *_system("thinking-effort"))]


def _system(kind: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("role", "system"), ("type", kind)


def _tail(request: ChatRequest, phrases: Phrases) -> list[Segment]:
    out: list[Segment] = []
    has_tools = bool(request.tools) or any(isinstance(m, System) and m.tools for m in request.messages)
    if request.tool_choice != "auto" and has_tools:
        out += _message(phrases.tool_choice_body(request.tool_choice), *_system("tool-choice"))
    if (body := _format_body(request.response_format, phrases)) is not None:
        out += _message(body, *_system("response-format"))
    return out


def _format_body(response_format: Mapping[str, Any] | None, phrases: Phrases) -> str | None:
    kind = "text" if response_format is None else response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return phrases.json_object_body()
    if kind == "json_schema":
        assert response_format is not None
        schema = response_format.get("json_schema") or {}
        return phrases.json_schema_body(sorted_json(schema.get("schema", schema)))
    raise ChatError(f"response_format type is {kind!r}; expected text, json_object or json_schema")


class _Placed(NamedTuple):
    """A message where it stands in the prompt. `tool` and `number` are a tool result's attributes tool and index."""

    message: Message
    tool: str = ""
    number: int = 0


def _placed(messages: History) -> Iterator[_Placed]:
    """Messages in prompt order: each run of tool results in the order of the calls of the last turn.

    A run in which some result answers no call of that turn keeps its order and its own names. The number counts results
    since the last turn, from 1.
    """
    calls: dict[str, tuple[int, str]] = {}
    run: list[ToolResult] = []
    num_results = 0

    def flush() -> Iterator[_Placed]:
        nonlocal num_results
        if all(result.call_id in calls for result in run):
            run.sort(key=lambda result: calls[result.call_id][0])
            names = [calls[result.call_id][1] for result in run]
        else:
            names = [result.name for result in run]
        for result, name in zip(run, names, strict=True):
            num_results += 1
            yield _Placed(result, name, num_results)
        run.clear()

    for message in messages:
        if isinstance(message, ToolResult):
            run.append(message)
            continue
        yield from flush()
        if isinstance(message, Turn):
            num_results, calls = 0, {}
            for position, call in enumerate(message.calls):
                calls.setdefault(call.id, (position, call.name))
        yield _Placed(message)
    yield from flush()


def _of_message(placed: _Placed, phrases: Phrases) -> list[Segment]:
    message = placed.message
    match message:
        case User() | System(tools=()):
            role = "user" if isinstance(message, User) else "system"
            name = (("name", message.name),) if message.name else ()
            return _message(message.text, ("role", role), *name)
        case System():
            if message.text:
                raise ChatError(
                    "a system message has both text and tools, but a declaration of tools has no place for text: "
                    "send two system messages"
                )
            return _message(phrases.tools_body(tools_json(message.tools), new=True), *_system("tool-declare"))
        case ToolResult():
            return _message(message.text, ("role", "tool"), ("tool", placed.tool), ("index", str(placed.number)))
        case Turn():
            return [*PREFIX, *written(message)]


def written(turn: Turn) -> list[Segment]:
    """What a model writes for this turn, after the prefix and up to <|end_of_msg|>."""
    out = [
        *_ordinary(turn.thinking if turn.thinking.strip() else ""),
        *_closed("think"),
        *_opened("response"),
        *_ordinary(turn.text),
        *_closed("response"),
    ]
    if turn.calls:
        out += _opened("tools")
        for index, call in enumerate(turn.calls, 1):
            out += _call(call, index)
        out += _closed("tools")
    return [*out, *_closed("message"), _END]


def _call(call: ToolCall, index: int) -> list[Segment]:
    out = _opened("call", ("tool", call.name), ("index", str(index)))
    for key, value in call.arguments.items():
        kind, text = argument_text(key, value)
        out += [*_opened("argument", ("key", key), ("type", kind)), *_ordinary(text), *_closed("argument")]
    if call.bad_arguments is not None:
        out += [*_opened("json", ("type", "object")), *_ordinary(call.bad_arguments), *_closed("json")]
    return [*out, *_closed("call")]


def argument_text(key: str, value: object) -> tuple[str, str]:
    """An argument's type and text: strings raw, anything else JSON with a space after comma and colon."""
    match value:
        case str():
            return "string", value
        case bool():
            kind = "boolean"
        case None:
            kind = "null"
        case int() | float():
            kind = "number"
        case dict():
            kind = "object"
        case list() | tuple():
            kind = "array"
        case _:
            raise ChatError(
                f"argument {key}: {type(value).__name__} is no JSON value; expected str, number, list, dict"
            )
    try:
        return kind, json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise ChatError(f"argument {key} cannot be written as JSON: {e}") from e


class Encoder:
    """Requests to tokens. Histories only grow, so each message is tokenized once and remembered by its value.

    May be shared between threads. `memo_tokens` bounds the memory (4 bytes each); the least recently used goes first.
    """

    def __init__(self, tokenizer: Tokenizer, phrases: Phrases | None = None, *, memo_tokens: int = 1 << 22):
        self.tokenizer = tokenizer
        self.phrases = phrases or Phrases.load()
        self._prefix = self._tokens_of(PREFIX)
        self._end = tokenizer.special(END_OF_MSG)
        self._sep = tokenizer.special(SEP)
        self._memo: dict[bytes, array[int]] = {}
        self._memo_tokens = memo_tokens
        self._memo_used = 0
        self._lock = threading.Lock()

    def encode(self, request: ChatRequest) -> list[int]:
        """The prompt, ending with the prefix of the turn to come."""
        out = list(self._head(request.tools, request.effort))
        for placed in _placed(request.messages):
            self._append(out, placed)
        out += self._tokens_of(_tail(request, self.phrases))
        out += self._prefix
        return out

    def encode_training(
        self, messages: History, tools: Sequence[ToolSpec], effort: Effort
    ) -> tuple[list[int], list[int]]:
        """(tokens, loss mask) of a conversation. The mask is 1 exactly on what the model writes.

        For turn i, tokens up to where its mask begins are the prompt of `messages` before it, and the tokens under
        the mask are what follows that prompt, <|end_of_msg|> included. Closing tags that the encoder adds to a turn
        that was cut are not the model's.
        """
        out = list(self._head(tools, effort))
        mask = [0] * len(out)
        for placed in _placed(messages):
            num_written, num_added = self._append(out, placed)
            mask += [0] * (len(out) - len(mask) - num_written - num_added) + [1] * num_written + [0] * num_added
        return out, mask

    def written(self, turn: Turn) -> tuple[Sequence[int], list[int]]:
        """(what the model wrote, what closes it). The sampled tokens if they are of this tokenizer; the second part
        is empty unless the turn was cut before its end token."""
        sampled = turn.sampled
        if sampled is None or sampled.tokenizer != self.tokenizer.id:
            return self._remembered(_key(turn), lambda: written(turn)), []
        if sampled.tokens and sampled.tokens[-1] == self._end:
            return sampled.tokens, []
        return sampled.tokens, self._closers(sampled.tokens)

    def _append(self, out: list[int], placed: _Placed) -> tuple[int, int]:
        """Adds a message; returns how many of its last tokens a model wrote, and how many after those close them."""
        if isinstance(placed.message, Turn):
            tokens, closers = self.written(placed.message)
            out += self._prefix
            out += tokens
            out += closers
            return len(tokens), len(closers)
        key = _key(placed.message, placed.tool, placed.number)
        out += self._remembered(key, lambda: _of_message(placed, self.phrases))
        return 0, 0

    def _closers(self, tokens: Iterable[int]) -> list[int]:
        """What makes a cut turn whole: its open tag, its open elements, a response channel if it has none, the end."""
        parser = Parser(self.tokenizer)
        for token in tokens:
            parser.feed(token)
        out: list[int] = []
        if parser.in_tag:
            out.append(self._sep)
            parser.feed(self._sep)
        for name in parser.open_elements():
            if name == "message" and not parser.has_response:
                out += self._tokens_of([*_opened("response"), *_closed("response")])
            out += self._tokens_of(_closed(name))
        return [*out, self._end]

    def _head(self, tools: Sequence[ToolSpec], effort: Effort) -> Sequence[int]:
        return self._remembered(_key(list(tools), effort), lambda: _head(tools, effort, self.phrases))

    def _tokens_of(self, pieces: Iterable[Segment]) -> list[int]:
        out: list[int] = []
        for text, special in pieces:
            if special:
                out.append(self.tokenizer.special(text))
            else:
                out += self.tokenizer.encode_ordinary(text)
        return out

    def _remembered(self, key: bytes, make: Callable[[], Iterable[Segment]]) -> Sequence[int]:
        with self._lock:
            tokens = self._memo.pop(key, None)
            if tokens is not None:
                self._memo[key] = tokens  # dicts keep order: now the most recently used
                return tokens
        tokens = array("I", self._tokens_of(make()))
        with self._lock:
            if key not in self._memo:
                self._memo[key] = tokens
                self._memo_used += len(tokens)
            while self._memo_used > self._memo_tokens:
                self._memo_used -= len(self._memo.pop(next(iter(self._memo))))
        return tokens


def _key(*values: Any) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(values), digest_size=16).digest()
