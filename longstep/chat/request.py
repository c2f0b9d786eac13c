"""OpenAI-style requests (Chat Completions JSON) to `ChatRequest`, and the prompt of one for people.

Refuses what it would not honour: a field that is not listed here is an error that names it. null is the same as absent.
Reasoning is accepted under both names that servers give it, `reasoning_content` first.

Differences from the released encoder, all where it is looser: text parts of one message are joined before tokenizing
(the same bytes); a tool without `parameters` is declared with an empty object; an empty description is left out;
images and an assistant's `name` are refused.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from longstep.chat.model import ChatRequest, Sampling
from longstep.chat.parser import read_json
from longstep.chat.phrases import Phrases
from longstep.chat.tokenizer import Tokenizer
from longstep.chat.xtml import segments
from longstep.errors import UserError
from longstep.messages import EFFORTS, Effort, Message, System, Text, Thinking, ToolCall, ToolResult, ToolSpec, Turn
from longstep.messages import User as UserMessage


class _Form(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON object as clients send it."""


class _Part(_Form, tag_field="type", tag="text"):
    text: str


_Content = str | list[_Part]
_Name = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_]")]


class _FunctionSpec(_Form):
    name: _Name
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool | None = None


class _Tool(_Form):
    function: _FunctionSpec
    type: Literal["function"] = "function"


class _Function(_Form):
    name: str
    arguments: str | dict[str, Any] = ""


class _Call(_Form):
    id: str
    function: _Function
    type: Literal["function"] = "function"
    index: int | None = None  # some clients echo the stream's


class _System(_Form, tag_field="role", tag="system"):
    content: _Content = ""
    name: str | None = None
    tools: list[_Tool] = []


class _Developer(_System, tag_field="role", tag="developer"):
    """The newer name of system."""


class _User(_Form, tag_field="role", tag="user"):
    content: _Content
    name: str | None = None


class _Assistant(_Form, tag_field="role", tag="assistant"):
    content: _Content = ""
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: list[_Call] = []


class _ToolResult(_Form, tag_field="role", tag="tool"):
    tool_call_id: str
    content: _Content = ""
    name: str | None = None


class _Request(_Form):
    messages: Annotated[list[_System | _Developer | _User | _Assistant | _ToolResult], msgspec.Meta(min_length=1)]
    tools: list[_Tool] = []
    tool_choice: Literal["auto", "none", "required"] = "auto"
    reasoning_effort: Effort = "max"
    response_format: dict[str, Any] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.95
    seed: int = 0
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] = Sampling().max_tokens
    model: str = ""
    stream: bool = False  # how the answer travels, not what is asked


def request_from_json(data: bytes | str) -> ChatRequest:
    """Raises UserError: what is wrong, where (`$.messages[1].content`), and what is accepted."""
    try:
        value = read_json(data if isinstance(data, str) else data.decode())
    except ValueError as e:
        raise UserError(f"the request is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise UserError(f"the request is a JSON {type(value).__name__}; expected an object with messages")
    value = _without_null(value)
    effort = value.get("reasoning_effort", "max")
    if effort not in EFFORTS:
        raise UserError(f"reasoning_effort is {json.dumps(effort)}; expected one of {', '.join(EFFORTS)}")
    if isinstance(value.get("tool_choice"), dict):
        raise UserError("tool_choice names a function, which K3 has no words for; expected auto, none or required")
    if "max_tokens" in value:  # the older name
        value.setdefault("max_completion_tokens", value.pop("max_tokens"))
    try:
        form = msgspec.convert(value, _Request)
    except msgspec.ValidationError as e:
        raise UserError(f"the request cannot be read: {e}") from e
    format_type = (form.response_format or {}).get("type", "text" if form.response_format is None else None)
    if format_type not in ("text", "json_object", "json_schema"):
        raise UserError(f"response_format type is {json.dumps(format_type)}; expected text, json_object or json_schema")
    tools = tuple(_spec(tool) for tool in form.tools)
    messages = _messages(form)
    _refuse_duplicates([*tools, *(tool for m in messages if isinstance(m, System) for tool in m.tools)])
    return ChatRequest(
        messages=messages,
        tools=tools,
        effort=form.reasoning_effort,
        sampling=Sampling(
            temperature=form.temperature, top_p=form.top_p, seed=form.seed, max_tokens=form.max_completion_tokens
        ),
        tool_choice=form.tool_choice,
        response_format=form.response_format,
    )


def render_request(
    path: Path,
    *,
    phrases: Path | None = None,
    tokenizer: Path | None = None,
    show_segments: bool = False,
    show_tokens: bool = False,
) -> str:
    """What `longstep render` prints for a request file.

    Plain: the prompt, exactly, without a line end after it. `show_segments`: one JSON object a line with "special" and
    "text", and with `show_tokens` also "tokens". `show_tokens` alone: one JSON list of ids.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise UserError(f"{path}: cannot read the request ({e.strerror}); expected a JSON file with messages") from e
    try:
        pieces = segments(request_from_json(data), Phrases.load(phrases))
    except UserError as e:
        raise UserError(f"{path}: {e}") from e
    if not (show_segments or show_tokens):
        return "".join(piece.text for piece in pieces)
    ids: list[list[int]] = [[] for _ in pieces]
    if show_tokens:
        tok = Tokenizer.load(tokenizer)
        ids = [[tok.special(text)] if special else list(tok.encode_ordinary(text)) for text, special in pieces]
    if not show_segments:
        return json.dumps([i for piece in ids for i in piece])
    lines = []
    for piece, tokens in zip(pieces, ids, strict=True):
        line = {"special": piece.special, "text": piece.text} | ({"tokens": tokens} if show_tokens else {})
        lines.append(json.dumps(line, ensure_ascii=False))
    return "\n".join(lines)


def _without_null(value: Any) -> Any:
    """Fields of the request's own objects that are null, gone; what lies in schemas and arguments is data and stays."""
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    if not isinstance(value, dict):
        return value
    data = ("parameters", "arguments", "response_format")
    return {k: v if k in data else _without_null(v) for k, v in value.items() if v is not None}


def _text(content: _Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _spec(tool: _Tool) -> ToolSpec:
    f = tool.function
    return ToolSpec(name=f.name, description=f.description, parameters=f.parameters, strict=f.strict)


def _refuse_duplicates(tools: list[ToolSpec]) -> None:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise UserError(f"the tool {tool.name} is declared twice; give each tool its own name")
        seen.add(tool.name)


def _messages(form: _Request) -> tuple[Message, ...]:
    out: list[Message] = []
    calls: tuple[ToolCall, ...] = ()  # of the last assistant message
    num_results = 0
    for i, message in enumerate(form.messages):
        where = f"messages[{i}]"
        match message:
            case _System(content=content, tools=[]):
                out.append(System(text=_text(content), name=message.name))
            case _System(content=content):
                if _text(content):
                    raise UserError(f"{where} has both content and tools; send the tools in a message of their own")
                out.append(System(tools=tuple(_spec(tool) for tool in message.tools)))
            case _User():
                out.append(UserMessage(text=_text(message.content), name=message.name))
            case _Assistant():
                turn = _turn(message, where)
                out.append(turn)
                calls, num_results = turn.calls, 0
            case _ToolResult():
                by_id = {call.id: call.name for call in reversed(calls)}
                by_place = calls[num_results].name if num_results < len(calls) else None
                name = by_id.get(message.tool_call_id) or message.name or by_place
                if not name:
                    raise UserError(
                        f"{where} answers the call {message.tool_call_id!r}, which the assistant message before it did "
                        f"not make; give its name, or send that message too"
                    )
                num_results += 1
                out.append(ToolResult(call_id=message.tool_call_id, name=name, text=_text(message.content)))
    return tuple(out)


def _turn(message: _Assistant, where: str) -> Turn:
    parts: list[Thinking | Text | ToolCall] = []
    if thinking := message.reasoning_content or message.reasoning:
        parts.append(Thinking(text=thinking))
    if text := _text(message.content):
        parts.append(Text(text=text))
    for k, call in enumerate(message.tool_calls):
        given = call.function.arguments
        arguments, bad = (given, None) if isinstance(given, dict) else _arguments(given)
        if not isinstance(arguments, dict):
            raise UserError(f"{where}.tool_calls[{k}]: arguments are JSON, but no object; expected one like {{}}")
        parts.append(ToolCall(id=call.id, name=call.function.name, arguments=arguments, bad_arguments=bad))
    return Turn(parts=tuple(parts), stop="calls" if message.tool_calls else "end")


def _arguments(text: str) -> tuple[Any, str | None]:
    if not text.strip():
        return {}, None
    try:
        return read_json(text), None
    except ValueError:
        return {}, text
