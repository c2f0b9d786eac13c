"""Token ids of one turn to events, as they arrive. The only parser: what is not streamed is folded from its last event.

A state machine without time or I/O. It starts inside the think channel, which the prompt has opened, and accepts any
tokens: whatever the model does, nothing raises, no control markup reaches a text, and the end is one `TurnDone`.

What a well-formed turn looks like, after the prompt's `<|open|>think<|sep|>`:

    thinking close(think) open(response) text close(response)
    [ open(tools) CALL+ close(tools) ]    CALL: open(call tool index) ARGUMENT* close(call)
                                          ARGUMENT: open(argument key type) value close(argument)
    close(message) <|end_of_msg|>

What else models write, and what becomes of it:

- A channel that opens inside another ends it. Tools are the exception: opened inside thinking they are a part of it,
  and what follows them is thinking again (unless the think channel has been closed by then).
- White space between channels, and a channel of nothing but white space, is nothing. Other text between channels is
  visible text. After `close(message)` nothing counts.
- A call is sound only if each argument was closed by its own closer, read as its type, given once, and free of control
  tokens. Otherwise it keeps what was readable in `arguments` and says the rest in `bad_arguments`: such a call is
  shown, and never run. A turn cut inside a call keeps that call so, with stop "length" or "aborted".
- A turn of thinking alone ends with stop "end", no text and no calls: the agent's loop decides what to do with it.
"""

import codecs
import re
import uuid
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Literal

import msgspec

from longstep.chat.model import ArgumentDelta, CallEnd, CallStart, Event, TextDelta, ThinkDelta, TurnDone
from longstep.chat.tokenizer import CLOSE, END_OF_MSG, EOS, OPEN, SEP, Tokenizer
from longstep.messages import Effort, Part, Sampled, Text, Thinking, ToolCall, Turn, Usage


class _In(Enum):
    """Where the next text belongs."""

    THINK = auto()
    RESPONSE = auto()
    MESSAGE = auto()  # between channels
    TOOLS = auto()
    CALL = auto()
    ARGUMENT = auto()
    CLOSED = auto()  # the message is closed, its end token still to come


_TEXT_PLACES = (_In.THINK, _In.RESPONSE, _In.MESSAGE)
_ATTRIBUTE = re.compile(r'\s+([^\s="]+)="([^"]*)"')
_ELEMENTS = frozenset({"message", "think", "response", "tools", "call", "argument", "json"})


def random_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class Parser:
    """One turn: `feed` each sampled token, `finish` once. `done` turns true at the token that ends the turn."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        effort: Effort | None = None,
        allow_calls: bool = True,  # False where the request said tool_choice "none": calls are then parsed and dropped
        new_id: Callable[[], str] = random_call_id,
    ):
        self.done = False
        self.has_response = False  # a response channel has been opened
        self._effort: Effort | None = effort
        self._allow_calls = allow_calls
        self._new_id = new_id
        self._tokenizer_id = tokenizer.id
        self._bytes_of = tokenizer.bytes_of
        self._num_ids = len(tokenizer.bytes_of)
        self._open, self._close, self._sep = (tokenizer.special(name) for name in (OPEN, CLOSE, SEP))
        self._ends = (tokenizer.special(END_OF_MSG), tokenizer.special(EOS))

        self._tokens: list[int] = []
        self._num_reasoning = 0
        self._finished = False
        self._place = _In.THINK
        self._tag: bytearray | None = None  # a tag's text between its opening token and <|sep|>
        self._tag_closes = False
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

        self._parts: list[Part] = []
        self._text: list[str] = []  # of the current channel, as shown
        self._held = ""  # white space at a channel's start, shown only once something follows it
        self._tools_in = _In.MESSAGE  # the channel that the tools stand in
        self._bare_call = False  # a call without a tools element round it

        self._num_calls = 0
        self._index, self._id, self._tool = 0, "", ""
        self._arguments: dict[str, Any] = {}
        self._faults: list[str] = []
        self._key, self._type = "", ""
        self._value: list[str] = []

    def feed(self, token: int) -> list[Event]:
        if self.done or self._finished:
            return []
        self._tokens.append(token)
        data = self._bytes_of[token] if 0 <= token < self._num_ids else None
        if data is not None:
            if self._tag is not None:
                self._tag += data
                return []
            if self._place is _In.THINK:
                self._num_reasoning += 1
            text = self._utf8.decode(data)
            return self._on_text(text) if text else []

        events = self._flush_character()
        if token == self._sep:
            return events + self._on_tag() if self._tag is not None else events + self._stray()
        if self._tag is not None:
            self._tag = None  # a tag that never got its <|sep|> is no tag
            events += self._stray()
        if token == self._open or token == self._close:
            self._tag, self._tag_closes = bytearray(), token == self._close
        elif token in self._ends:
            self.done = True
        else:
            events += self._stray()
        return events

    def finish(self, stop: Literal["end", "length", "aborted"]) -> list[Event]:
        """Why the tokens ended: by the model's own end token, at a limit, or because the caller went away."""
        assert not self._finished, "a turn is finished once"
        events = self._flush_character()
        if self._tag is not None:
            self._tag = None
            events += self._stray()
        if self._place is _In.ARGUMENT:
            self._end_argument("was cut off")
        if self._place is _In.CALL:
            self._faults.append("the call was cut off")
            self._keep_call()
        self._leave_channel()
        self._finished = self.done = True
        has_calls = any(isinstance(part, ToolCall) for part in self._parts)
        turn = Turn(
            parts=tuple(self._parts),
            stop=stop if stop != "end" else "calls" if has_calls else "end",
            effort=self._effort,
            sampled=Sampled(tokens=tuple(self._tokens), tokenizer=self._tokenizer_id),
            usage=Usage(output=len(self._tokens), reasoning=self._num_reasoning),
        )
        return [*events, TurnDone(turn)]

    @property
    def in_tag(self) -> bool:
        """A tag has been opened and waits for its <|sep|>."""
        return self._tag is not None

    def open_elements(self) -> list[str]:
        """The elements that a turn cut here leaves open, innermost first."""
        inner = {_In.TOOLS: 1, _In.CALL: 2, _In.ARGUMENT: 3}.get(self._place, 0)
        names = ["argument", "call", "tools"][3 - inner :]
        if inner and self._bare_call:
            names.pop()
        channel = self._tools_in if inner else self._place
        if channel is _In.CLOSED:
            return []
        return names + {_In.THINK: ["think"], _In.RESPONSE: ["response"]}.get(channel, []) + ["message"]

    # --- text ---

    def _on_text(self, text: str) -> list[Event]:
        place = self._place
        if place is _In.ARGUMENT:
            self._value.append(text)
            return self._show(ArgumentDelta(self._index, self._key, self._type, text))
        if place in _TEXT_PLACES:
            if not self._text:
                text = self._held + text
                if text.isspace():
                    self._held = text
                    return []
                self._held = ""
            self._text.append(text)
            return [ThinkDelta(text) if place is _In.THINK else TextDelta(text)]
        if place is _In.CALL and not text.isspace():
            self._fault("text stands outside an argument")
        return []

    def _flush_character(self) -> list[Event]:
        """Text ends here: half a character becomes U+FFFD."""
        text = self._utf8.decode(b"", True)
        return self._on_text(text) if text else []

    def _stray(self) -> list[Event]:
        """A control token that is no part of a tag: dropped, but a call that it stands in cannot be trusted."""
        if self._place in (_In.ARGUMENT, _In.CALL):
            self._fault("a control token stands in the call")
        return []

    # --- tags ---

    def _on_tag(self) -> list[Event]:
        assert self._tag is not None
        header = self._tag.decode("utf-8", "replace")
        self._tag = None
        name = header.split(None, 1)[0] if header.strip() else ""
        if name not in _ELEMENTS:
            return self._stray()
        if self._place is _In.CLOSED:
            return []
        if self._tag_closes:
            return self._on_close(name)
        attributes = {
            key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(header)
        }
        return self._on_open(name, attributes)

    def _on_open(self, name: str, attributes: dict[str, str]) -> list[Event]:
        if name in ("think", "response"):
            place = _In.THINK if name == "think" else _In.RESPONSE
            if place is self._place:  # an echo of the opener
                return []
            events = self._leave_tools()
            self._leave_channel()
            self._place = place
            self.has_response |= name == "response"
            return events
        if name == "tools":
            return self._enter_tools(bare=False)
        if name == "call":
            events = self._enter_tools(bare=self._place in _TEXT_PLACES or self._bare_call)
            self._place = _In.CALL
            self._index, self._id, self._tool = self._num_calls, self._new_id(), attributes.get("tool", "")
            self._num_calls += 1
            self._arguments, self._faults = {}, [] if self._tool else ["the call names no tool"]
            return events + self._show(CallStart(self._index, self._id, self._tool))
        if name in ("argument", "json"):
            if self._place is _In.ARGUMENT:
                self._end_argument("was not closed")
            if self._place is not _In.CALL:
                return []
            self._place, self._value = _In.ARGUMENT, []
            # `json` holds all arguments as one text; the encoder writes it for arguments that it could not read
            self._key = attributes.get("key", "") if name == "argument" else ""
            self._type = attributes.get("type", "string") if name == "argument" else "object"
            if name == "argument" and not self._key:
                self._fault("an argument has no key")
            return self._show(ArgumentDelta(self._index, self._key, self._type, ""))
        return []  # a message inside a message

    def _on_close(self, name: str) -> list[Event]:
        if name in ("argument", "json"):
            if self._place is _In.ARGUMENT:
                self._end_argument(None)
            return []
        if name == "call":
            if self._place is _In.ARGUMENT:
                self._end_argument("was not closed")
            return self._end_call() if self._place is _In.CALL else []
        if name == "tools" and self._place not in _TEXT_PLACES:
            return self._leave_tools()
        events = self._leave_tools()
        self._leave_channel()
        self._place = _In.CLOSED if name == "message" else _In.MESSAGE
        return events

    def _leave_channel(self) -> None:
        """The current channel's text becomes a part."""
        if self._text:
            text = "".join(self._text)
            self._parts.append(Thinking(text=text) if self._place is _In.THINK else Text(text=text))
        self._text, self._held = [], ""

    def _enter_tools(self, *, bare: bool) -> list[Event]:
        if self._place in _TEXT_PLACES:
            self._leave_channel()
            self._tools_in, self._bare_call, self._place = self._place, bare, _In.TOOLS
            return []
        if self._place is _In.ARGUMENT:
            self._end_argument("was not closed")
        events = self._end_call() if self._place is _In.CALL else []
        if self._place is not _In.TOOLS:  # a bare call's end has led back to its channel
            return events + self._enter_tools(bare=bare)
        return events

    def _leave_tools(self) -> list[Event]:
        """Back to the channel that the tools stand in, ending what is open inside them."""
        if self._place is _In.ARGUMENT:
            self._end_argument("was not closed")
        events = self._end_call() if self._place is _In.CALL else []
        if self._place is _In.TOOLS:
            self._place = self._tools_in
        return events

    # --- calls ---

    def _fault(self, what: str) -> None:
        if what not in self._faults:
            self._faults.append(what)

    def _end_argument(self, cut: str | None) -> None:
        """`cut` says how the argument ended if not by its closer."""
        self._place = _In.CALL
        text = "".join(self._value)
        what = f"argument {self._key}" if self._key else "the arguments"
        if cut is not None:
            self._fault(f"{what} {cut}: {text}")
            return
        try:
            value = _read(text, self._type)
        except ValueError:
            self._fault(f"{what} cannot be read as {self._type}: {text}")
            return
        for key, one in [(self._key, value)] if self._key else value.items() if isinstance(value, dict) else ():
            if key in self._arguments:
                self._fault(f"argument {key} is given twice")
            self._arguments[key] = one

    def _end_call(self) -> list[Event]:
        self._keep_call()
        self._place = self._tools_in if self._bare_call else _In.TOOLS
        return self._show(CallEnd(self._index))

    def _keep_call(self) -> None:
        if self._allow_calls:
            bad = "; ".join(self._faults) if self._faults else None
            self._parts.append(
                ToolCall(id=self._id, name=self._tool, arguments=self._arguments, bad_arguments=bad),
            )

    def _show(self, event: Event) -> list[Event]:
        return [event] if self._allow_calls else []


def read_json(text: str) -> Any:
    """JSON as the standard has it (no NaN, no infinities, no lone surrogates), so that whatever is read can be written
    again. Raises ValueError."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as e:
        raise ValueError(str(e)) from e


def _read(text: str, kind: str) -> Any:
    """An argument's value by its type; ValueError if the text is not one."""
    if kind == "string":
        return text
    value = read_json(text)
    expected: dict[str, type | tuple[type, ...]] = {
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
        "object": dict,
        "array": list,
    }
    is_bool = isinstance(value, bool)
    if kind not in expected or not isinstance(value, expected[kind]) or (is_bool and kind == "number"):
        raise ValueError(f"not of type {kind}")
    return value
