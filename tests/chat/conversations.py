"""Conversations for property tests: any text, control tokens' names included; turns whole, odd and cut short."""

from itertools import count

from hypothesis import strategies as st

from longstep.chat.parser import Parser
from longstep.chat.tokenizer import SPECIALS, Tokenizer
from longstep.chat.xtml import Encoder
from longstep.messages import System, Text, Thinking, ToolCall, ToolResult, ToolSpec, Turn, User

TOKENIZER = Tokenizer.load()
ENCODER = Encoder(TOKENIZER)
BYTE_TOKEN = {data[0]: i for i, data in enumerate(TOKENIZER.bytes_of) if data is not None and len(data) == 1}

# no lone surrogates: they have no UTF-8 form, and so no JSON form either
_characters = st.characters(exclude_categories=["Cs"])
texts = st.one_of(
    st.text(_characters, max_size=12),
    st.lists(
        st.sampled_from([*SPECIALS, " ", "\n", '"', "&", "&quot;", "think", 'message role="user"', "日本", "é", "12"]),
        max_size=4,
    ).map("".join),
)
names = st.one_of(st.sampled_from(["read_file", "shell", 'a"b&c', "&amp;"]), texts.filter(lambda t: bool(t.strip())))
values = st.recursive(
    st.one_of(texts, st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(-1e9, 1e9)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=4,
)
arguments = st.dictionaries(names, values, max_size=3)
specs = st.builds(
    ToolSpec, name=names, description=texts, parameters=st.dictionaries(st.text("abc", max_size=3), values, max_size=2)
)


def bytewise(tokens, choose):
    """Other tokens for the same text: ordinary tokens for which `choose()` holds, as their bytes."""
    out = []
    for token in tokens:
        data = TOKENIZER.bytes_of[token]
        out += [token] if data is None or not choose() else [BYTE_TOKEN[b] for b in data]
    return out


def parse(tokens, stop="end", **options):
    """(events, turn) of a whole turn; call ids call-0, call-1, ..."""
    numbers = count()
    parser = Parser(TOKENIZER, new_id=lambda: f"call-{next(numbers)}", **options)
    events = [event for token in tokens for event in parser.feed(token)]
    events += parser.finish(stop)
    return events, events[-1].turn


@st.composite
def turns(draw, sampled=True):
    """A turn as another program would give it, or (half of them) as this tokenizer's model sampled it."""
    parts = [Thinking(text=draw(texts))] if draw(st.booleans()) else []
    if draw(st.booleans()):
        parts.append(Text(text=draw(texts)))
    for i in range(draw(st.integers(0, 2))):
        parts.append(ToolCall(id=f"c{draw(st.integers(0, 10**9))}-{i}", name=draw(names), arguments=draw(arguments)))
    turn = Turn(parts=tuple(parts), stop="calls" if any(isinstance(p, ToolCall) for p in parts) else "end")
    if not sampled or draw(st.booleans()):
        return turn
    tokens = bytewise(ENCODER.written(turn)[0], lambda: draw(st.booleans()) if draw(st.booleans()) else False)
    if draw(st.booleans()):
        return parse(tokens)[1]
    return parse(tokens[: draw(st.integers(0, len(tokens) - 1))], draw(st.sampled_from(["length", "aborted"])))[1]


@st.composite
def histories(draw, max_rounds=3):
    """Rounds of question, turn, and results of its calls, these in any order and sometimes unmatched."""
    history = [System(text=draw(texts))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, max_rounds))):
        history.append(User(text=draw(texts), name=draw(st.none() | names)))
        if draw(st.integers(0, 4)) == 0:
            history.append(System(tools=(draw(specs),)))
        turn = draw(turns())
        history.append(turn)
        for call in draw(st.permutations(turn.calls)):
            wrong = draw(st.integers(0, 9)) == 0
            history.append(ToolResult(call_id="lost" if wrong else call.id, name=call.name, text=draw(texts)))
    return tuple(history)
