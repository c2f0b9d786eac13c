"""A corpus as tokens: its text, its repairs, and the vocabulary learnt from it."""

import hashlib
import json
import random

import numpy as np
import pytest

from longstep.chat.tokenizer import EOS, Tokenizer
from longstep.errors import UserError
from longstep.train.corpus import documents
from longstep.train.episodes import make_episodes
from longstep.train.pack import OUTPUT, OWN, Shards, ShardWriter
from longstep.train.tokens import learn_tokenizer, write_tokens

FUNCTION = '''def first_{name}(items, limit):
    """The first item of {name} above a limit, or None."""
    for item in items:
        if item > limit:
            return item
    return None
'''


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """40 documents in the corpus's format."""
    folder = tmp_path_factory.mktemp("tokens") / "corpus"
    folder.mkdir()
    rng = random.Random(0)
    lines = []
    for i in range(40):
        name = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=9))
        lines.append(json.dumps({"source": "s", "path": f"{i}.py", "text": FUNCTION.format(name=name)}))
    data = "".join(line + "\n" for line in lines).encode()
    (folder / "shard-0000.jsonl").write_bytes(data)
    shard = {"name": "shard-0000.jsonl", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "shards": [shard]}))
    return folder


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    out = tmp_path_factory.mktemp("tokens") / "episodes"
    make_episodes({"tiny": 1.0}, out=out, num_episodes=30, num_processes=0, unsafe=True, quiet=True)
    return out


def test_text_is_the_corpus_and_repairs_are_learnt_from(corpus, tmp_path):
    tokenizer = Tokenizer.load()
    num_tokens = write_tokens(corpus, tmp_path / "text", num_processes=1, quiet=True)
    text = Shards(tmp_path / "text")
    assert text.num_tokens == num_tokens
    read = [text.read(d, 0, n)[0].tolist() for d, n in enumerate(text.length_N.tolist())]
    assert [tokenizer.decode(ids[:-1]) for ids in read] == list(documents(corpus))
    assert {ids[-1] for ids in read} == {tokenizer.special(EOS)}

    write_tokens(corpus, tmp_path / "repairs", repairs=True, num_processes=1, quiet=True)
    repairs = Shards(tmp_path / "repairs")
    assert len(repairs.length_N) > 20
    for document, n in enumerate(repairs.length_N.tolist()):
        tokens, kinds = repairs.read(document, 0, n)
        assert "edit_file" in tokenizer.decode(tokens[kinds == OWN])
        assert "def first_" in tokenizer.decode(tokens[kinds == OUTPUT]), "the function is read, not written"
    limited = write_tokens(corpus, tmp_path / "few", num_processes=1, max_tokens=100, quiet=True)
    assert limited >= 100


def test_a_tokenizer_is_learnt_from_both(corpus, episodes, tmp_path):
    made = learn_tokenizer(corpus, [episodes], tmp_path / "a.json", vocab_size=600)
    assert made.vocab_size == 600
    assert len(made.encode_ordinary("write_file")) < 5, "a word of episodes"
    assert len(made.encode_ordinary(" limit")) < 4, "a word of the corpus"
    again = learn_tokenizer(corpus, [episodes], tmp_path / "b.json", vocab_size=600)
    assert again.id == made.id
    write_tokens(corpus, tmp_path / "text", num_processes=1, tokenizer_file=tmp_path / "a.json", quiet=True)
    assert Shards(tmp_path / "text").tokenizer == made.id
    assert Shards(tmp_path / "text").meta["vocab_size"] == 600


def test_control_tokens_are_no_text_to_learn_from(corpus, tmp_path):
    """A word that only ever stands beside control tokens is not glued to their names."""
    shipped = Tokenizer.load()
    ids = [shipped.special(EOS), *shipped.encode_ordinary("zqxzqx"), shipped.special(EOS)]
    writer = ShardWriter(tmp_path / "e", tokenizer=shipped.id)
    writer.add(np.array(ids * 400))
    writer.close()
    made = learn_tokenizer(corpus, [tmp_path / "e"], tmp_path / "t.json", vocab_size=360)
    assert len(made.encode_ordinary("zqxzqx")) == 1, "the most frequent word of all"
    assert len(made.encode_ordinary("EOS")) == 3, "never seen as text"


def test_mistakes_are_told(corpus, episodes, tmp_path):
    with pytest.raises(UserError, match="ask for a smaller vocabulary"):
        learn_tokenizer(corpus, [episodes], tmp_path / "a.json", vocab_size=8192)
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(UserError, match="is there already"):
        learn_tokenizer(corpus, [episodes], tmp_path / "b.json")
    writer = ShardWriter(tmp_path / "other", tokenizer="t")
    writer.add([1])
    writer.close()
    with pytest.raises(UserError, match="written with tokenizer t, but"):
        learn_tokenizer(corpus, [tmp_path / "other"], tmp_path / "c.json")
