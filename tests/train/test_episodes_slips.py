"""A slip is read in training and never learnt; what follows it is."""

import numpy as np

from longstep.chat.tokenizer import Tokenizer
from longstep.chat.xtml import Encoder
from longstep.messages import Text, ToolCall, ToolResult, Turn, User
from longstep.train.episodes import encode_episode
from longstep.train.pack import CONTEXT, OWN


def test_only_the_slip_is_context():
    turns = [
        Turn(parts=(ToolCall(id=name, name="shell", arguments={"command": name}),), stop="calls")
        for name in ("wrong", "right")
    ]
    history = (
        User(text="go"),
        turns[0],
        ToolResult(call_id="wrong", name="shell", text="exit 1"),
        turns[1],
        ToolResult(call_id="right", name="shell", text="exit 0"),
        Turn(parts=(Text(text="Done."),)),
    )
    encoder = Encoder(Tokenizer.load())
    tokens, plain = encode_episode(encoder, history, (), "high")
    same, kinds = encode_episode(encoder, history, (), "high", slips=(0,))
    assert (tokens == same).all()
    changed = np.flatnonzero(plain != kinds)
    slip = list(encoder.written(turns[0])[0])
    assert tokens[changed].tolist() == slip, "exactly the first turn's own tokens"
    assert (plain[changed] == OWN).all()
    assert (kinds[changed] == CONTEXT).all()
