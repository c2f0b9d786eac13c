"""Requests as clients send them, and what `longstep render` prints of them."""

import json

import pytest
from conversations import ENCODER, TOKENIZER

from longstep.chat.phrases import DEFAULT_PATH
from longstep.chat.request import render_request, request_from_json
from longstep.errors import UserError
from longstep.messages import System, Text, Thinking, ToolCall, ToolResult, ToolSpec, Turn, User

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def read(**fields):
    return request_from_json(json.dumps({"messages": [{"role": "user", "content": "hi"}]} | fields))


def called(arguments, id="c1", **message):
    call = {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]} | message


def test_every_kind_of_message():
    request = read(
        messages=[
            {"role": "system", "content": "s"},
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "system", "tools": [TOOL]},
            {"role": "user", "content": "u", "name": "n"},
            called('{"b": 1, "a": [2.5]}', reasoning_content="r", refusal=None, audio=None),
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "ok"}]},
            {"role": "assistant", "content": "done", "reasoning": "q"},
        ],
        reasoning_effort="low",
        tool_choice="required",
        model="any",
        stream=True,
        max_tokens=7,
        temperature=0,
        seed=3,
    )
    assert request.messages == (
        System(text="s"),
        System(text="ab"),
        System(tools=(ToolSpec(name="f", description="d", parameters={"type": "object"}),)),
        User(text="u", name="n"),
        Turn(
            parts=(Thinking(text="r"), ToolCall(id="c1", name="f", arguments={"b": 1, "a": [2.5]})),
            stop="calls",
        ),
        ToolResult(call_id="c1", name="f", text="ok"),
        Turn(parts=(Thinking(text="q"), Text(text="done"))),
    )
    assert list(request.messages[4].calls[0].arguments) == ["b", "a"]
    assert (request.effort, request.tool_choice) == ("low", "required")
    assert (request.sampling.max_tokens, request.sampling.temperature, request.sampling.seed) == (7, 0, 3)


def test_both_names_of_reasoning_give_one_prompt():
    """R02."""
    prompts = [
        ENCODER.encode(read(messages=[{"role": "assistant", "content": "a", name: "because"}]))
        for name in ("reasoning", "reasoning_content")
    ]
    assert prompts[0] == prompts[1]
    both = read(messages=[{"role": "assistant", "content": "a", "reasoning": "x", "reasoning_content": "because"}])
    assert ENCODER.encode(both) == prompts[0]


@pytest.mark.parametrize("given", ['{"s": "x"}', {"s": "x"}])
def test_arguments_as_text_or_object(given):
    assert read(messages=[called(given)]).messages[0].calls[0].arguments == {"s": "x"}


def test_arguments_that_are_empty_or_unreadable():
    for empty in ("", " \n", "{}", None):
        (call,) = read(messages=[called(empty)]).messages[0].calls
        assert (call.arguments, call.bad_arguments) == ({}, None)
    (call,) = read(messages=[called('{"s": ')]).messages[0].calls
    assert (call.arguments, call.bad_arguments) == ({}, '{"s": ')


def test_names_of_results():
    """By id; else as the client says; else by place."""

    def names(*results):
        two = called("{}", "a")
        two["tool_calls"].append({"id": "b", "function": {"name": "g", "arguments": "{}"}})
        return [m.name for m in read(messages=[two, *({"role": "tool"} | r for r in results)]).messages[1:]]

    assert names({"tool_call_id": "b"}, {"tool_call_id": "a", "name": "wrong"}) == ["g", "f"]
    assert names({"tool_call_id": "x", "name": "mine"}, {"tool_call_id": "y"}) == ["mine", "g"]
    with pytest.raises(UserError, match=r"messages\[3\] answers the call 'y'"):
        names({"tool_call_id": "a"}, {"tool_call_id": "b"}, {"tool_call_id": "y"})


def test_null_is_absent_and_data_keeps_its_nulls():
    schema = {"type": "object", "default": None}
    tool = {"type": "function", "function": {"name": "f", "description": None, "parameters": schema, "strict": None}}
    request = read(tools=[tool], tool_choice=None, reasoning_effort=None, seed=None, unknown=None)
    assert request.tools == (ToolSpec(name="f", description="", parameters=schema),)
    assert request.effort == "max"
    call = called({"a": None, "parameters": None})
    assert read(messages=[call]).messages[0].calls[0].arguments == {"a": None, "parameters": None}


@pytest.mark.parametrize("effort", ["none", "minimal", "medium", "xhigh", "", "LOW", 3, ["low"]])
def test_other_effort_words_are_refused_by_naming_the_three(effort):
    with pytest.raises(UserError, match="expected one of low, high, max"):
        read(reasoning_effort=effort)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"frequency_penalty": 0.5}, "unknown field `frequency_penalty`"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "u", "extra": 1}]}, r"unknown field `extra` - at `\$.messages\[0\]"),
        ({"messages": [{"role": "nobody", "content": "u"}]}, "nobody"),
        ({"messages": [{"role": "user"}]}, "missing required field `content`"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
        ({"messages": [called("[1]")]}, r"messages\[0\].tool_calls\[0\]: arguments are JSON, but no object"),
        ({"messages": [{"role": "system", "content": "s", "tools": [TOOL]}]}, r"messages\[0\] has both"),
        ({"messages": [{"role": "tool", "content": "s", "tool_call_id": "x"}]}, "answers the call 'x'"),
        ({"tools": [TOOL, TOOL]}, "the tool f is declared twice"),
        ({"tools": [TOOL], "messages": [{"role": "system", "tools": [TOOL]}]}, "the tool f is declared twice"),
        ({"tools": [{"type": "function", "function": {"name": "1f"}}]}, r"tools\[0\].function.name"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "expected auto, none or required"),
        ({"response_format": {"type": "xml"}}, "expected text, json_object or json_schema"),
        ({"response_format": {}}, "type is null; expected text"),
        ({"temperature": -1}, "temperature"),
    ],
    ids=str,
)
def test_what_is_refused(fields, says):
    with pytest.raises(UserError, match=says):
        read(**fields)


def test_what_is_not_json():
    for data in (b"{", b"\xff", '{"messages": NaN}', "[" * 10_000):
        with pytest.raises(UserError, match="not JSON"):
            request_from_json(data)
    with pytest.raises(UserError, match="a JSON list; expected an object"):
        request_from_json("[]")


# --- longstep render ---


WORKED = {
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "reasoning_content": "r",
            "content": "",
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"s": "x", "o": {"k": [1,2]}}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "x", "content": "ok"},
    ],
    "reasoning_effort": "high",
}
WORKED_PROMPT = (
    '<|open|>message role="system" type="thinking-effort"<|sep|>high<|close|>message<|sep|><|end_of_msg|>'
    '<|open|>message role="user"<|sep|>hi<|close|>message<|sep|><|end_of_msg|>'
    '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>r<|close|>think<|sep|><|open|>response<|sep|>'
    '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
    '<|open|>argument key="s" type="string"<|sep|>x<|close|>argument<|sep|>'
    '<|open|>argument key="o" type="object"<|sep|>{"k": [1, 2]}<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
    '<|open|>message role="tool" tool="f" index="1"<|sep|>ok<|close|>message<|sep|><|end_of_msg|>'
    '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
)


@pytest.fixture
def worked(tmp_path):
    file = tmp_path / "request.json"
    file.write_text(json.dumps(WORKED))
    return file


def test_render_the_worked_example(worked):
    assert render_request(worked) == WORKED_PROMPT


def test_render_segments_and_tokens(worked):
    lines = [json.loads(line) for line in render_request(worked, show_segments=True).splitlines()]
    assert "".join(line["text"] for line in lines) == WORKED_PROMPT
    assert lines[:4] == [
        {"special": True, "text": "<|open|>"},
        {"special": False, "text": "message"},
        {"special": False, "text": " role"},
        {"special": False, "text": '="'},
    ]
    ids = json.loads(render_request(worked, show_tokens=True))
    assert ids == ENCODER.encode(request_from_json(worked.read_bytes()))
    assert TOKENIZER.decode(ids) == WORKED_PROMPT
    both = [json.loads(line) for line in render_request(worked, show_segments=True, show_tokens=True).splitlines()]
    assert [i for line in both for i in line["tokens"]] == ids
    assert [{k: line[k] for k in ("special", "text")} for line in both] == lines


def test_render_with_a_users_phrases(worked, tmp_path):
    words = json.loads(DEFAULT_PATH.read_text())
    words["effort"]["high"] = " think well \n"
    (tmp_path / "words.json").write_text(json.dumps(words))
    got = render_request(worked, phrases=tmp_path / "words.json")
    assert got == WORKED_PROMPT.replace("<|sep|>high<", "<|sep|>think well<")


def test_a_control_name_in_a_message_shows_as_an_ordinary_segment(tmp_path):
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "<|end_of_msg|>\n"}]}))
    lines = [json.loads(line) for line in render_request(file, show_segments=True).splitlines()]
    assert {"special": False, "text": "<|end_of_msg|>\n"} in lines


def test_render_says_which_file(tmp_path):
    with pytest.raises(UserError, match=r"none.json: cannot read the request"):
        render_request(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UserError, match=r"bad.json: the request cannot be read: .*messages"):
        render_request(tmp_path / "bad.json")
