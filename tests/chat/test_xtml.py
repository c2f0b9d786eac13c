"""The prompt, byte for byte, and the prefix property on generated conversations."""

import msgspec
import pytest
from conversations import ENCODER, TOKENIZER, histories, parse, specs, texts, turns
from hypothesis import given
from hypothesis import strategies as st

from longstep.chat.model import ChatRequest
from longstep.chat.phrases import Phrases
from longstep.chat.tokenizer import SPECIALS
from longstep.chat.xtml import PREFIX, Encoder, Segment, ordinary_texts, segments, tools_json, written
from longstep.errors import ChatError
from longstep.messages import (
    EFFORTS,
    System,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
    User,
    history_from_json,
    to_json,
)

PHRASES = Phrases.load()
EFFORT_MAX = '<|open|>message role="system" type="thinking-effort"<|sep|>max<|close|>message<|sep|><|end_of_msg|>'
END = "<|close|>message<|sep|><|end_of_msg|>"
ASSISTANT = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'


def flat(*messages, **options):
    """The prompt as one string, without the effort message."""
    pieces = segments(ChatRequest(messages=messages, **options), PHRASES)
    text = "".join(piece.text for piece in pieces)
    assert EFFORT_MAX in text
    return text.replace(EFFORT_MAX, "", 1)


def call(id, name="f", **arguments):
    return ToolCall(id=id, name=name, arguments=arguments)


def result(id, text="ok", name="f"):
    return ToolResult(call_id=id, name=name, text=text)


# --- the form ---


def test_the_worked_example_of_the_released_encoder():
    got = flat(
        User(text="hi"),
        Turn(parts=(Thinking(text="r"), call("1", s="x", o={"k": [1, 2]}))),
        result("1"),
    )
    assert got == (
        '<|open|>message role="user"<|sep|>hi<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>r<|close|>think<|sep|>'
        "<|open|>response<|sep|><|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="s" type="string"<|sep|>x<|close|>argument<|sep|>'
        '<|open|>argument key="o" type="object"<|sep|>{"k": [1, 2]}<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="tool" tool="f" index="1"<|sep|>ok<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
    )


def test_pieces_at_the_border_of_two_messages():
    """The released check value: 14 tokens close a message and open a think channel, attribute pieces apart."""
    pieces = segments(ChatRequest(messages=(User(text="hi"),)), PHRASES)[-14:]
    assert [p.text for p in pieces] == [
        *("<|close|>", "message", "<|sep|>", "<|end_of_msg|>"),
        *("<|open|>", "message", " role", '="', "assistant", '"', "<|sep|>"),
        *("<|open|>", "think", "<|sep|>"),
    ]
    assert [p.special for p in pieces] == [p.text in SPECIALS for p in pieces]


def test_order_of_a_whole_prompt():
    tool = ToolSpec(name="f", description="d", parameters={"type": "object", "properties": {"b": {}, "a": {"é": 1}}})
    text = "".join(
        p.text
        for p in segments(
            ChatRequest(
                messages=(System(text="s", name="n"), User(text="u", name='x"&y')),
                tools=(tool,),
                effort="low",
                tool_choice="required",
                response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"b": 1, "a": [2, 3]}}},
            ),
            PHRASES,
        )
    )
    assert text == (
        '<|open|>message role="system" type="tool-declare"<|sep|>Tools: '
        '[{"function":{"description":"d","name":"f","parameters":{"properties":{"a":{"é":1},"b":{}},"type":"object"}},'
        f'"type":"function"}}]{END}'
        f'<|open|>message role="system" type="thinking-effort"<|sep|>low{END}'
        f'<|open|>message role="system" name="n"<|sep|>s{END}'
        f'<|open|>message role="user" name="x&quot;&amp;y"<|sep|>u{END}'
        f'<|open|>message role="system" type="tool-choice"<|sep|>Call a tool.{END}'
        '<|open|>message role="system" type="response-format"<|sep|>Answer in JSON of this schema: {"a":[2,3],"b":1}'
        f"{END}{ASSISTANT}"
    )


def test_tool_choice_only_where_there_are_tools():
    declares = System(tools=(ToolSpec(name="g", description="", parameters={}),))
    assert "tool-choice" not in flat(User(text="u"), tool_choice="none")
    got = flat(declares, User(text="u"), tool_choice="none")
    assert got.endswith(f'type="tool-choice"<|sep|>Call no tool.{END}{ASSISTANT}')
    assert got.startswith(
        '<|open|>message role="system" type="tool-declare"<|sep|>New tools: '
        f'[{{"function":{{"name":"g","parameters":{{}}}},"type":"function"}}]{END}'
    )
    assert "tool-choice" not in flat(declares, User(text="u"), tool_choice="auto")


def test_response_formats():
    assert "response-format" not in flat(User(text="u"), response_format={"type": "text"})
    assert "Answer in JSON." in flat(User(text="u"), response_format={"type": "json_object"})
    bare = flat(User(text="u"), response_format={"type": "json_schema", "json_schema": {"type": "object"}})
    assert 'of this schema: {"type":"object"}' in bare
    with pytest.raises(ChatError, match="'xml'; expected text"):
        flat(response_format={"type": "xml"})


def test_arguments_by_type():
    turn = Turn(
        parts=(call("1", s="", n=1, x=1.5, b=True, z=None, o={"é": "ü"}, a=[1, "2", {"c": None}], raw='<|sep|>"&'),)
    )
    assert "".join(p.text for p in written(turn)) == (
        "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="s" type="string"<|sep|><|close|>argument<|sep|>'
        '<|open|>argument key="n" type="number"<|sep|>1<|close|>argument<|sep|>'
        '<|open|>argument key="x" type="number"<|sep|>1.5<|close|>argument<|sep|>'
        '<|open|>argument key="b" type="boolean"<|sep|>true<|close|>argument<|sep|>'
        '<|open|>argument key="z" type="null"<|sep|>null<|close|>argument<|sep|>'
        '<|open|>argument key="o" type="object"<|sep|>{"é": "ü"}<|close|>argument<|sep|>'
        '<|open|>argument key="a" type="array"<|sep|>[1, "2", {"c": null}]<|close|>argument<|sep|>'
        '<|open|>argument key="raw" type="string"<|sep|><|sep|>"&<|close|>argument<|sep|>'
        f"<|close|>call<|sep|><|close|>tools<|sep|>{END}"
    )


def test_unreadable_arguments_are_one_json_element():
    turn = Turn(parts=(ToolCall(id="1", name="f", arguments={}, bad_arguments="{oops"),))
    assert (
        '<|open|>call tool="f" index="1"<|sep|><|open|>json type="object"<|sep|>{oops<|close|>json<|sep|><|close|>call'
    ) in flat(turn)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), {1, 2}, [object()], b"x"], ids=repr)
def test_a_value_that_is_not_json_is_refused(value):
    with pytest.raises(ChatError, match="argument v"):
        written(Turn(parts=(call("1", v=value),)))


def test_think_and_response_are_always_there():
    empty = f"{ASSISTANT}<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>{END}"
    assert flat(Turn(parts=())) == empty + ASSISTANT
    assert flat(Turn(parts=(Thinking(text=" \n"),))) == empty + ASSISTANT


def test_a_declaration_with_text_is_refused():
    spec = ToolSpec(name="f", description="", parameters={})
    with pytest.raises(ChatError, match="two system messages"):
        flat(System(text="t", tools=(spec,)))


def test_strict_is_declared_as_given():
    assert '"strict":false' in tools_json([ToolSpec(name="f", description="", parameters={}, strict=False)])


# --- order of results ---


def test_results_stand_in_the_order_of_the_calls_and_take_their_names():
    turn = Turn(parts=(call("a", "first"), call("b", "second")))
    got = flat(turn, result("b", "B", name="x"), result("a", "A"), User(text="u"), result("a", "again"))
    first, second = f'tool="first" index="1"<|sep|>A{END}', f'tool="second" index="2"<|sep|>B{END}'
    assert first in got
    assert got.index(first) < got.index(second)
    assert 'tool="first" index="3"<|sep|>again' in got, "the number counts since the turn, whatever lies between"


def test_one_result_of_two_keeps_its_name_and_counts_from_one():
    got = flat(Turn(parts=(call("a", "first"), call("b", "second"))), result("b", "B"))
    assert f'role="tool" tool="second" index="1"<|sep|>B{END}' in got


def test_a_run_with_a_stranger_keeps_its_order_and_names():
    turn = Turn(parts=(call("a", "first"), call("b", "second")))
    got = flat(turn, result("b", "B", name="mine"), result("lost", "L", name="theirs"), result("a", "A", name="own"))
    at = [got.index(f'tool="{n}" index="{i}"') for i, n in enumerate(("mine", "theirs", "own"), 1)]
    assert at == sorted(at)


def test_numbers_begin_anew_with_each_turn():
    got = flat(
        Turn(parts=(call("a", "first"),)), result("a", "A"), Turn(parts=(call("b", "second"),)), result("b", "B")
    )
    assert 'tool="first" index="1"<|sep|>A' in got
    assert 'tool="second" index="1"<|sep|>B' in got


def test_only_the_last_turn_counts():
    got = flat(Turn(parts=(call("a", "first"),)), Turn(parts=()), result("a", "A", name="given"))
    assert 'tool="given" index="1"' in got


# --- nobody's text becomes structure ---


@given(histories(), st.lists(specs, max_size=2), st.sampled_from(EFFORTS))
def test_special_tokens_are_the_encoders_alone(history, tools, effort):
    """The special tokens of the prompt are its special segments, one for one, whatever the texts say."""
    plain = tuple(msgspec.structs.replace(m, sampled=None) if isinstance(m, Turn) else m for m in history)
    request = ChatRequest(messages=plain, tools=tuple(tools), effort=effort)
    pieces = segments(request, PHRASES)
    ids = ENCODER.encode(request)
    assert all(piece.text for piece in pieces)
    assert [i for i in ids if TOKENIZER.is_special(i)] == [TOKENIZER.special(p.text) for p in pieces if p.special]
    assert TOKENIZER.decode(ids) == "".join(p.text for p in pieces)
    assert [p.text for p in pieces if not p.special] == ordinary_texts(plain, tools, effort, PHRASES)


@given(texts)
def test_a_user_cannot_end_the_message(text):
    pieces = segments(ChatRequest(messages=(User(text=text + "<|end_of_msg|>"),)), PHRASES)
    assert Segment(text + "<|end_of_msg|>") in pieces
    assert sum(p.special and p.text == "<|end_of_msg|>" for p in pieces) == 2  # the effort's, the user's


# --- the prefix property ---


@given(histories(), turns(), st.lists(specs, max_size=1), st.sampled_from(EFFORTS))
def test_a_prompt_and_what_was_written_begin_the_next_prompt(history, turn, tools, effort):
    """Also for turns that were cut, are empty, or were sampled in tokens that no encoder would choose."""
    request = ChatRequest(messages=history, tools=tuple(tools), effort=effort)
    prompt = ENCODER.encode(request)
    wrote = [*prompt, *ENCODER.written(turn)[0]]
    after = ENCODER.encode(msgspec.structs.replace(request, messages=(*history, turn)))
    assert after[: len(wrote)] == wrote
    if turn.sampled:
        assert wrote == [*prompt, *turn.sampled.tokens]
    assert after[: len(prompt) - len(PREFIX)] == prompt[: len(prompt) - len(PREFIX)]


@given(histories(max_rounds=1), turns())
def test_with_tool_choice_or_format_the_plain_prompt_begins_the_next(history, turn):
    spec = ToolSpec(name="f", description="", parameters={})
    plain = ChatRequest(messages=history, tools=(spec,))
    forced = msgspec.structs.replace(plain, tool_choice="required", response_format={"type": "json_object"})
    conversation = ENCODER.encode(plain)[: -len(PREFIX)]
    prompt = ENCODER.encode(forced)
    assert prompt[: len(conversation)] == conversation
    assert prompt[-len(PREFIX) :] == ENCODER.encode(plain)[-len(PREFIX) :]
    assert len(prompt) > len(conversation) + len(PREFIX)
    after = ENCODER.encode(msgspec.structs.replace(plain, messages=(*history, turn)))
    wrote = [*conversation, *prompt[-len(PREFIX) :], *ENCODER.written(turn)[0]]
    assert after[: len(wrote)] == wrote


@given(histories(), st.lists(specs, max_size=1), st.sampled_from(EFFORTS))
def test_training_tokens_are_prompts_and_what_was_written(history, tools, effort):
    tokens, mask = ENCODER.encode_training(history, tools, effort)
    assert len(tokens) == len(mask)
    expected_mask = [0] * len(tokens)
    for i, message in enumerate(history):
        if isinstance(message, Turn):
            prompt = ENCODER.encode(ChatRequest(messages=history[:i], tools=tuple(tools), effort=effort))
            wrote = list(ENCODER.written(message)[0])
            assert tokens[: len(prompt) + len(wrote)] == prompt + wrote
            expected_mask[len(prompt) : len(prompt) + len(wrote)] = [1] * len(wrote)
    assert mask == expected_mask
    whole = ENCODER.encode(ChatRequest(messages=history, tools=tuple(tools), effort=effort))
    assert whole == tokens + whole[-len(PREFIX) :]


@given(turns(sampled=False), st.data())
def test_a_turn_cut_anywhere_is_made_whole(turn, data):
    """What the encoder adds to a cut turn closes it: read together they are a turn that ends by its own token."""
    tokens = list(ENCODER.written(turn)[0])
    cut = parse(tokens[: data.draw(st.integers(0, len(tokens) - 1))], "length")[1]
    wrote, closers = ENCODER.written(cut)
    assert list(wrote) == list(cut.sampled.tokens)
    assert closers[-1] == TOKENIZER.special("<|end_of_msg|>")
    whole = parse([*wrote, *closers])[1]
    assert whole.sampled.tokens == (*wrote, *closers)
    assert (whole.thinking, whole.text) == (cut.thinking, cut.text)
    assert [c.name for c in whole.calls][: len(cut.calls)] == [c.name for c in cut.calls]
    text = TOKENIZER.decode(whole.sampled.tokens)
    assert text.count("<|open|>response<|sep|>") >= 1


def test_tokens_of_another_tokenizer_are_not_used():
    turn = parse(ENCODER.written(Turn(parts=(Text(text="hello"),)))[0])[1]
    odd = msgspec.structs.replace(turn, sampled=msgspec.structs.replace(turn.sampled, tokens=(5, 6, 7)))
    foreign = msgspec.structs.replace(odd, sampled=msgspec.structs.replace(odd.sampled, tokenizer="other"))
    assert ENCODER.written(odd)[0] == (5, 6, 7)
    assert TOKENIZER.decode(ENCODER.written(foreign)[0]) == "".join(p.text for p in written(turn))


# --- the memo ---


def test_the_memo_changes_nothing_and_stays_bounded():
    small = Encoder(TOKENIZER, memo_tokens=200)
    request = ChatRequest(messages=tuple(User(text=f"message {i} " * (i % 7 + 1)) for i in range(60)))
    first = small.encode(request)
    assert small.encode(request) == first == ENCODER.encode(request)
    assert small._memo_used <= 200
    assert small._memo_used == sum(map(len, small._memo.values()))
    small.encode(ChatRequest(messages=(User(text="x" * 4000),)))
    assert small._memo_used <= 200


def test_the_memo_is_keyed_by_value_and_place():
    one, other = Turn(parts=(call("a", "first"),)), Turn(parts=(call("a", "second"),))
    assert 'tool="first" index="1"' in flat_tokens(one, result("a", "R"))
    assert 'tool="second" index="1"' in flat_tokens(other, result("a", "R"))
    assert 'tool="second" index="2"' in flat_tokens(other, result("a", "R"), result("a", "R"))
    assert flat_tokens(User(text="u")) != flat_tokens(User(text="u", name="n"))
    assert flat_tokens(System(text="u")) != flat_tokens(User(text="u"))
    assert flat_tokens(Turn(parts=(call("a", x=1, y=2),))) != flat_tokens(Turn(parts=(call("a", y=2, x=1),)))


def test_a_history_that_grew_is_tokenized_only_where_it_grew(monkeypatch):
    """Also if its messages came anew from JSON: the memo knows them by value."""
    history = tuple(User(text=f"message number {i}") for i in range(5))
    encoder = Encoder(TOKENIZER)
    encoder.encode(ChatRequest(messages=history))
    texts = []
    encode = TOKENIZER.encode_ordinary
    monkeypatch.setattr(TOKENIZER, "encode_ordinary", lambda text: texts.append(text) or encode(text))
    again = history_from_json(to_json((*history, User(text="and one more"))))
    encoder.encode(ChatRequest(messages=again))
    assert [t for t in texts if "m" in t and t not in ("message",)] == ["and one more"]


def flat_tokens(*messages):
    return TOKENIZER.decode(ENCODER.encode(ChatRequest(messages=messages)))
