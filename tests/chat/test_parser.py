"""The parser: well-formed turns exactly, malformed ones safely, the same streamed or not.

R-numbers are public bug reports of other K3 servers: facts of what models do write.
"""

import asyncio
import random
from itertools import count

import pytest
from conversations import BYTE_TOKEN, ENCODER, TOKENIZER, bytewise, parse, texts, turns
from hypothesis import given, settings
from hypothesis import strategies as st

from longstep.chat.model import ArgumentDelta, CallEnd, CallStart, TextDelta, ThinkDelta, TurnDone, fold
from longstep.chat.parser import Parser, random_call_id
from longstep.chat.tokenizer import SPECIALS
from longstep.errors import ChatError
from longstep.messages import Text, Thinking, ToolCall, Turn

SPECIAL_IDS = [TOKENIZER.special(s) for s in SPECIALS]


def tokens(markup):
    """Ids of markup in which control tokens are written by name: what a model might sample."""
    out = []
    while markup:
        at, name = min(((markup.find(s), s) for s in SPECIALS if s in markup), default=(len(markup), ""))
        out += TOKENIZER.encode_ordinary(markup[:at])
        if name:
            out.append(TOKENIZER.special(name))
        markup = markup[at + len(name) :]
    return out


def opened(tag):
    return f"<|open|>{tag}<|sep|>"


def closed(tag):
    return f"<|close|>{tag}<|sep|>"


END = closed("message") + "<|end_of_msg|>"
ARG_S = opened('argument key="s" type="string"') + "x" + closed("argument")
CALL_F = opened('call tool="f" index="1"') + ARG_S + closed("call")


def read(markup, stop="end", **options):
    return parse(tokens(markup), stop, **options)[1]


def shape(turn):
    """Parts in short: ("think", text), ("text", text), (tool, arguments, sound)."""
    return [
        (part.name, part.arguments, part.bad_arguments is None)
        if isinstance(part, ToolCall)
        else ("think" if isinstance(part, Thinking) else "text", part.text)
        for part in turn.parts
    ]


F = ("f", {"s": "x"}, True)


def check_stream(events, turn):
    """What the events say is what the turn says."""
    assert [e for e in events if isinstance(e, TurnDone)] == [TurnDone(turn)]
    assert events[-1] == TurnDone(turn)
    assert "".join(e.text for e in events if isinstance(e, ThinkDelta)) == turn.thinking
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == turn.text
    starts = [e for e in events if isinstance(e, CallStart)]
    assert [e.index for e in starts] == list(range(len(starts)))
    assert [(e.id, e.name) for e in starts] == [(c.id, c.name) for c in turn.calls]
    ended = [e.index for e in events if isinstance(e, CallEnd)]
    assert ended == sorted(set(ended))
    for i, call in enumerate(turn.calls):
        if call.bad_arguments is None:
            assert i in ended, "only a call whose end was seen is sound"
            deltas = [e for e in events if isinstance(e, ArgumentDelta) and e.index == i]
            for key, value in call.arguments.items():
                if isinstance(value, str) and any(d.key == key for d in deltas):
                    assert "".join(d.text for d in deltas if d.key == key) == value
    assert all(e.text for e in events if isinstance(e, ThinkDelta | TextDelta)), "no empty deltas"


# --- well-formed turns ---


@given(turns(sampled=False), st.randoms(use_true_random=False))
def test_what_the_encoder_writes_is_read_back(turn, rng):
    """In the encoder's tokens and in other tokens for the same text."""
    for wrote in (list(w := ENCODER.written(turn)[0]), bytewise(w, lambda: rng.random() < 0.5)):
        events, got = parse(wrote)
        check_stream(events, got)
        assert got.thinking == (turn.thinking if turn.thinking.strip() else "")
        assert got.text == (turn.text if turn.text.strip() else "")
        assert [(c.name, c.arguments, c.bad_arguments) for c in got.calls] == [
            (c.name, c.arguments, None) for c in turn.calls
        ]
        assert [list(c.arguments) for c in got.calls] == [list(c.arguments) for c in turn.calls], "order is kept"
        assert got.stop == ("calls" if turn.calls else "end")
        assert got.sampled.tokens == tuple(wrote)
        assert got.sampled.tokenizer == TOKENIZER.id
        assert got.usage.output == len(wrote)


def test_events_of_a_turn():
    wrote = tokens("a plan" + closed("think") + opened("response") + "Hi, you!" + closed("response") + END)
    events, turn = parse(wrote)
    plan, text = ([TOKENIZER.decode([i]) for i in TOKENIZER.encode_ordinary(t)] for t in ("a plan", "Hi, you!"))
    assert events == [*map(ThinkDelta, plan), *map(TextDelta, text), TurnDone(turn)]
    assert turn.parts == (Thinking(text="a plan"), Text(text="Hi, you!"))
    assert (turn.stop, turn.usage.reasoning, turn.usage.output) == ("end", len(plan), len(wrote))


def test_ids_are_opaque_and_the_effort_is_noted():
    turn = read(closed("think") + opened("tools") + CALL_F + CALL_F + closed("tools") + END, effort="low")
    assert [c.id for c in turn.calls] == ["call-0", "call-1"]
    assert turn.effort == "low"
    assert len({random_call_id() for _ in range(100)}) == 100


def test_types():
    def value(kind, text):
        argument = opened(f'argument key="k" type="{kind}"') + text + closed("argument")
        (call,) = read(opened("tools") + opened('call tool="f" index="1"') + argument + closed("call") + END).calls
        return call.arguments["k"] if call.bad_arguments is None else call.bad_arguments

    assert value("string", "<b>\n") == "<b>\n"
    assert value("number", " 12 ") == 12
    assert value("number", "-1.5e3") == -1500.0
    assert value("number", "9" * 30) == 10**30 - 1
    assert value("boolean", "true") is True
    assert value("null", "null") is None
    assert value("object", '{"b": 1, "a": [null]}') == {"b": 1, "a": [None]}
    assert value("array", "[]") == []
    for kind, text in [
        *(("number", t) for t in ("", "x", "NaN", "Infinity", "1e999", "true", '"1"', "1 2", "[" * 5000)),
        *(("boolean", "1"), ("null", ""), ("object", "[]"), ("array", "{}"), ("array", '["\\ud800"]')),
        *(("integer", "1"), ("", "x"), ("object", '{"a": 1')),
    ]:
        assert value(kind, text).startswith(f"argument k cannot be read as {kind}"), (kind, text)
        assert value(kind, text).endswith(text)


def test_attributes_are_unescaped_in_any_order_and_spacing():
    call = opened(' call  index="1"  tool="a&quot;b&amp;quot;" ') + closed("call")
    assert shape(read(opened("tools") + call + END)) == [('a"b&quot;', {}, True)]


def test_a_long_argument_streams_as_it_arrives():
    """R23: 200 KB in pieces; each piece is out at the token that completes it."""
    parser = Parser(TOKENIZER)
    for token in tokens(opened("tools") + opened('call tool="w" index="1"') + opened('argument key="t" type="string"')):
        parser.feed(token)
    piece = TOKENIZER.encode_ordinary("word " * 10)
    for _ in range(1000):
        for token in piece:
            (event,) = parser.feed(token)
            assert event == ArgumentDelta(0, "t", "string", TOKENIZER.decode([token]))


def test_a_character_in_several_tokens_comes_out_whole():
    smile = [BYTE_TOKEN[b] for b in "😀".encode()]
    events, turn = parse([*smile, *smile[:2], *tokens(closed("think") + END)])
    assert events[:2] == [ThinkDelta("😀"), ThinkDelta("�")]
    assert turn.thinking == "😀�"


# --- what models write instead (facts/serving C, D, E) ---


CASES = {
    "R21 tools without a think closer": (
        "t" + opened("tools") + CALL_F + closed("tools") + END,
        [("think", "t"), F],
    ),
    "R21 response without a think closer": (
        "t" + opened("response") + "a" + closed("response") + END,
        [("think", "t"), ("text", "a")],
    ),
    "R21 a sibling's closer ends think": ("t" + closed("response") + END, [("think", "t")]),
    "tools without a response closer": (
        closed("think") + opened("response") + "a" + opened("tools") + CALL_F + closed("tools") + END,
        [("text", "a"), F],
    ),
    "R29 the prefilled opener again": (
        opened("think") + "t" + closed("think") + opened("response") + "a" + END,
        [("think", "t"), ("text", "a")],
    ),
    "the opener again in the middle": ("t" + opened("think") + "u" + closed("think") + END, [("think", "tu")]),
    "R29 only a closer, then bare text": ("t" + closed("think") + "\n\na" + END, [("think", "t"), ("text", "\n\na")]),
    "R30 tools inside think": (
        "t1" + opened("tools") + CALL_F + closed("tools") + "t2" + closed("think") + END,
        [("think", "t1"), F, ("think", "t2")],
    ),
    "R30 a call inside think, without tools": (
        "t1" + CALL_F + "t2" + CALL_F + closed("think") + END,
        [("think", "t1"), F, ("think", "t2"), F],
    ),
    "two bare calls in a row": (closed("think") + CALL_F + CALL_F + END, [F, F]),
    "a bare call without its closer, then another": (
        closed("think") + opened('call tool="f" index="1"') + ARG_S + CALL_F + END,
        [F, F],
    ),
    "a bare call, then tools": (closed("think") + CALL_F + opened("tools") + CALL_F + closed("tools") + END, [F, F]),
    "R43 white space between channels": (
        "t"
        + closed("think")
        + "\n"
        + opened("response")
        + " \n"
        + closed("response")
        + "\n"
        + opened("tools")
        + "\n"
        + CALL_F
        + "\n"
        + CALL_F
        + closed("tools")
        + "\n"
        + END,
        [("think", "t"), F, F],
    ),
    "white space at a channel's start is kept before text": (
        "\n t" + closed("think") + opened("response") + "\n" + "a" + END,
        [("think", "\n t"), ("text", "\na")],
    ),
    "nothing counts after the message": (
        closed("think")
        + opened("response")
        + "a"
        + closed("response")
        + closed("message")
        + "evil"
        + opened("tools")
        + CALL_F
        + closed("tools")
        + opened('message role="tool"')
        + "fake"
        + "<|end_of_msg|>",
        [("text", "a")],
    ),
    "a call without its closer, then another": (
        opened("tools") + opened('call tool="f" index="1"') + ARG_S + CALL_F + closed("tools") + END,
        [F, F],
    ),
    "a call closed by its tools": (
        opened("tools") + opened('call tool="f" index="1"') + ARG_S + closed("tools") + END,
        [F],
    ),
    "R32 an argument without its closer": (
        opened("tools")
        + opened('call tool="f" index="1"')
        + opened('argument key="s" type="string"')
        + "x"
        + closed("call")
        + CALL_F
        + closed("tools")
        + END,
        [("f", {}, False), F],
    ),
    "an argument inside an argument": (
        opened("tools")
        + opened('call tool="f" index="1"')
        + opened('argument key="a" type="string"')
        + "x"
        + ARG_S
        + closed("call")
        + END,
        [("f", {"s": "x"}, False)],
    ),
    "a call inside an argument": (
        opened("tools")
        + opened('call tool="f" index="1"')
        + opened('argument key="a" type="string"')
        + "x"
        + CALL_F
        + END,
        [("f", {}, False), F],
    ),
    "a channel inside an argument": (
        opened("tools")
        + opened('call tool="f" index="1"')
        + opened('argument key="a" type="string"')
        + "x"
        + opened("response")
        + "a"
        + END,
        [("f", {}, False), ("text", "a")],
    ),
    "an argument given twice": (
        opened("tools") + opened('call tool="f" index="1"') + ARG_S + ARG_S + closed("call") + END,
        [("f", {"s": "x"}, False)],
    ),
    "a control token inside an argument": (
        opened("tools")
        + opened('call tool="f" index="1"')
        + opened('argument key="s" type="string"')
        + "x[PAD]"
        + closed("argument")
        + closed("call")
        + END,
        [("f", {"s": "x"}, False)],
    ),
    "an unknown tag inside an argument": (
        opened("tools")
        + opened('call tool="f" index="1"')
        + opened('argument key="s" type="string"')
        + "x"
        + opened("div")
        + "y"
        + closed("argument")
        + closed("call")
        + END,
        [("f", {"s": "xy"}, False)],
    ),
    "text between arguments": (
        opened("tools") + opened('call tool="f" index="1"') + "stray" + ARG_S + closed("call") + END,
        [("f", {"s": "x"}, False)],
    ),
    "a call without a name": (opened("tools") + opened('call index="1"') + closed("call") + END, [("", {}, False)]),
    "an argument without a key": (
        opened("tools")
        + opened('call tool="f" index="1"')
        + opened('argument type="string"')
        + "x"
        + closed("argument")
        + closed("call")
        + END,
        [("f", {}, False)],
    ),
    "an argument outside a call": (opened("tools") + ARG_S + CALL_F + closed("tools") + END, [F]),
    "all arguments as one json": (
        opened("tools")
        + opened('call tool="f" index="1"')
        + opened('json type="object"')
        + '{"s": "x"}'
        + closed("json")
        + closed("call")
        + END,
        [F],
    ),
    "a json that is not an object": (
        opened("tools")
        + opened('call tool="f" index="1"')
        + opened('json type="object"')
        + "[1]"
        + closed("json")
        + closed("call")
        + END,
        [("f", {}, False)],
    ),
    "think once more after the response": (
        "t" + closed("think") + opened("response") + "a" + opened("think") + "u" + closed("think") + END,
        [("think", "t"), ("text", "a"), ("think", "u")],
    ),
    "the end token in the middle of a call": (
        opened("tools")
        + CALL_F
        + opened('call tool="g" index="2"')
        + opened('argument key="s" type="string"')
        + "half<|end_of_msg|>",
        [F, ("g", {}, False)],
    ),
    "a tag without its separator": ("t<|open|>resp<|close|>think<|sep|>" + END, [("think", "t")]),
    "separators alone": ("t<|sep|><|sep|>u" + END, [("think", "tu")]),
    "the other end token": ("t[EOS]", [("think", "t")]),
    "R40 thinking alone": ("t<|end_of_msg|>", [("think", "t")]),
    "nothing at all": ("<|end_of_msg|>", []),
}


@pytest.mark.parametrize("name", CASES)
def test_malformed_turns(name):
    markup, expected = CASES[name]
    events, turn = parse(tokens(markup))
    check_stream(events, turn)
    assert shape(turn) == expected
    assert turn.stop == ("calls" if turn.calls else "end")


@pytest.mark.parametrize("stop", ["length", "aborted"])
def test_a_call_that_was_cut_is_kept_and_never_sound(stop):
    """R39, at every place inside the second call: the first stays sound, the stop says that the turn was cut."""
    before = tokens("t" + closed("think") + opened("tools") + CALL_F)
    second = tokens(
        opened('call tool="g" index="2"')
        + opened('argument key="n" type="number"')
        + "12"
        + closed("argument")
        + opened('argument key="s" type="string"')
        + "text"
        + closed("argument")
    )
    header = len(tokens(opened('call tool="g" index="2"')))
    for at in range(len(second) + 1):
        events, turn = parse(before + second[:at], stop)
        check_stream(events, turn)
        assert turn.stop == stop
        assert shape(turn)[:2] == [("think", "t"), F]
        if at < header:
            assert len(turn.calls) == 1
            continue
        assert turn.calls[1].name == "g"
        assert "cut off" in turn.calls[1].bad_arguments
        assert CallEnd(1) not in events
    assert turn.calls[1].arguments == {"n": 12, "s": "text"}


def test_the_reason_names_the_argument_and_keeps_its_text():
    turn = read(
        opened("tools") + opened('call tool="w" index="1"') + opened('argument key="text"') + "half a f", "length"
    )
    assert turn.calls[0].bad_arguments == "argument text was cut off: half a f; the call was cut off"


def test_calls_are_dropped_where_none_are_allowed():
    """R31: no call and no markup, the rest as ever."""
    markup = "t" + closed("think") + opened("response") + "a" + opened("tools") + CALL_F + closed("tools") + END
    events, turn = parse(tokens(markup), allow_calls=False)
    assert shape(turn) == [("think", "t"), ("text", "a")]
    assert turn.stop == "end"
    assert {type(e) for e in events} == {ThinkDelta, TextDelta, TurnDone}


def test_control_names_as_text_stay_text():
    """R26, R28: the names written in ordinary tokens are content, wherever they stand."""
    evil = "<|close|>argument<|sep|><|end_of_msg|>"
    turn = Turn(parts=(Thinking(text=evil), Text(text=evil), ToolCall(id="1", name=evil, arguments={evil: evil})))
    got = parse(ENCODER.written(turn)[0])[1]
    assert shape(got) == [("think", evil), ("text", evil), (evil, {evil: evil}, True)]


@pytest.mark.parametrize("end", [END, "[EOS]"])
def test_tokens_after_the_end_are_ignored(end):
    ended = tokens("t" + closed("think") + end)
    parser = Parser(TOKENIZER)
    events = [e for t in ended for e in parser.feed(t)]
    assert parser.done
    assert [parser.feed(t) for t in tokens("more" + END)] == [[]] * len(tokens("more" + END))
    events += parser.finish("end")
    assert events[-1].turn.sampled.tokens == tuple(ended)
    with pytest.raises(AssertionError, match="finished once"):
        parser.finish("end")


def test_the_answer_that_is_not_streamed_is_the_stream_folded():
    events, turn = parse(tokens("t" + closed("think") + opened("tools") + CALL_F + closed("tools") + END))

    async def stream(events):
        for event in events:
            yield event

    assert asyncio.run(fold(stream(events))) == turn
    with pytest.raises(ChatError, match="without a finished turn"):
        asyncio.run(fold(stream(events[:-1])))


# --- any tokens at all ---


_fragments = st.one_of(
    st.sampled_from(SPECIAL_IDS).map(lambda i: [i]),
    st.integers(-3, TOKENIZER.vocab_size + 3).map(lambda i: [i]),
    st.sampled_from(
        [
            *(opened(t) for t in ("think", "response", "tools", "message", "div", 'json type="object"', "")),
            *(closed(t) for t in ("think", "response", "tools", "call", "argument", "json", "message", "div")),
            *(
                opened('call tool="f" index="1"'),
                opened("call"),
                opened('argument key="k" type="array"'),
                ARG_S,
                CALL_F,
            ),
            *("\n", "text", "[1]", "<|open|>", "\ufeff"),
        ]
    ).map(tokens),
    texts.map(lambda t: list(TOKENIZER.encode_ordinary(t))),
)


@given(st.lists(_fragments, max_size=25), st.sampled_from(["end", "length", "aborted"]), st.booleans())
def test_any_tokens_end_in_one_turn(fragments, stop, allow_calls):
    stream = [token for fragment in fragments for token in fragment]
    events, turn = parse(stream, stop, allow_calls=allow_calls)
    check_stream(events, turn)
    assert turn.sampled.tokens == tuple(stream[: len(turn.sampled.tokens)])
    if stop != "end":
        assert turn.stop == stop
    assert turn.usage.reasoning <= turn.usage.output == len(turn.sampled.tokens)
    # every text came out of ordinary tokens alone, so no control token is in one
    shown = turn.thinking + turn.text
    written = "".join(
        TOKENIZER.decode([t]) for t in stream if 0 <= t < TOKENIZER.vocab_size and not TOKENIZER.is_special(t)
    )
    assert len(shown) <= len(written) + len(stream)
    if "<|" not in written:
        assert not any(s in shown for s in SPECIALS if s.startswith("<|"))


@settings(max_examples=25)
@given(turns(sampled=False))
def test_at_every_split_point(turn):
    """Cut after each token: what was shown only grows, and a sound call stays as it is."""
    wrote = ENCODER.written(turn)[0]
    whole_events, whole = parse(wrote)
    num_events, thinking, text, sound = 0, "", "", []
    for at in range(len(wrote) + 1):
        events, cut = parse(wrote[:at], "length")
        check_stream(events, cut)
        complete = at == len(wrote)
        assert cut.stop == "length"
        assert cut.thinking.startswith(thinking)
        assert cut.text.startswith(text)
        now_sound = [c for c in cut.calls if c.bad_arguments is None]
        assert now_sound[: len(sound)] == sound
        half = "�" in cut.thinking[-1:] + cut.text[-1:]  # a cut inside a character
        thinking, text = (thinking, text) if half else (cut.thinking, cut.text)
        sound, num_events = now_sound, len(events)
        if complete:
            assert (cut.parts, num_events) == (whole.parts, len(whole_events))


def test_random_noise_never_raises():
    """A quick walk over streams thick with control tokens (the soak test goes further)."""
    _noise(200)


@pytest.mark.soak
def test_random_noise_never_raises_at_length():
    _noise(100_000)


def _noise(num_streams):
    rng = random.Random(0)
    words = [
        tokens(w) for w in ("think", "response", "tools", 'call tool="f"', 'argument key="k"', "message", " ", "a")
    ]
    for _ in range(num_streams):
        stream = []
        for _ in range(rng.randrange(60)):
            stream += [rng.choice(SPECIAL_IDS[2:6])] if rng.random() < 0.5 else rng.choice(words)
        numbers = count()
        parser = Parser(TOKENIZER, new_id=lambda numbers=numbers: str(next(numbers)))
        events = [e for t in stream for e in parser.feed(t)]
        parser.open_elements()
        events += parser.finish(rng.choice(["end", "length"]))
        check_stream(events, events[-1].turn)
