"""A corpus as token shards: its text, or repairs of bugs that are put into its functions.

A text document is its tokens and [EOS]. A repair is a short conversation in the form of an episode: the function as
`read_file` shows it, then the thought and the edit that mend it (`worlds.repair.function_repairs`).

`learn_tokenizer` makes the vocabulary that all of it is written in.
"""

import multiprocessing
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice, repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from longstep.chat.tokenizer import EOS, Tokenizer, train_tokenizer
from longstep.chat.xtml import Encoder
from longstep.errors import UserError
from longstep.messages import EFFORTS, Thinking, ToolCall, ToolResult, Turn, User
from longstep.train.corpus import documents
from longstep.train.episodes import encode_episode
from longstep.train.pack import Shards, ShardWriter
from longstep.train.process import usable_cores
from longstep.worlds.repair.function_repairs import function_repairs

_CHUNK = 64  # documents that a worker takes at once
_CORPUS_SHARE = 0.25  # of the corpus's documents, to learn a tokenizer from
_EPISODES_TIMES = 4  # how often the text of episodes counts, which is far less than the corpus's

Encoded = tuple[NDArray[np.uint16], NDArray[np.uint8] | None]

_tokenizer: Tokenizer
_encoder: Encoder
_repairs: bool


def _start_worker(tokenizer_file: Path | None, repairs: bool) -> None:
    global _tokenizer, _encoder, _repairs
    _tokenizer = Tokenizer.load(tokenizer_file)
    _encoder, _repairs = Encoder(_tokenizer), repairs


def _encode(chunk: list[str]) -> list[Encoded]:
    if _repairs:
        return [encoded for text in chunk for encoded in _repairs_of(text)]
    end = [_tokenizer.special(EOS)]
    return [(np.asarray([*ids, *end], np.uint16), None) for ids in _tokenizer.encode_ordinary_batch(chunk)]


def _repairs_of(text: str) -> Iterator[Encoded]:
    for number, repair in enumerate(function_repairs(text, random.Random(text))):
        effort = EFFORTS[number % len(EFFORTS)]
        path, start = "code.py", int(repair.listing.partition("|")[0])
        read = ToolCall(id="read", name="read_file", arguments={"path": path, "start": start})
        edit = ToolCall(id="edit", name="edit_file", arguments={"path": path, "old": repair.old, "new": repair.new})
        think = "" if effort == "low" else repair.think
        history = (
            User(text=f"Fix the bug in {path}, line {start} on."),
            Turn(parts=(read,), stop="calls"),
            ToolResult(call_id="read", name="read_file", text=repair.listing),
            Turn(parts=(Thinking(text=think), edit), stop="calls"),
        )
        yield encode_episode(_encoder, history, (), effort)


def write_tokens(
    corpus: Path,
    out: Path,
    *,
    repairs: bool = False,
    num_processes: int | None = None,
    max_tokens: int | None = None,
    tokenizer_file: Path | None = None,
    quiet: bool = False,
) -> int:
    """Write the shards; returns their number of tokens. The same for the same arguments.

    Raises UserError if `corpus` holds no corpus or `out` holds shards already.
    """
    tokenizer = Tokenizer.load(tokenizer_file)
    writer = ShardWriter(out, tokenizer=tokenizer.id)
    num_tokens = 0
    context = multiprocessing.get_context("forkserver")
    with context.Pool(num_processes or usable_cores(), _start_worker, (tokenizer_file, repairs)) as pool:
        for encoded in pool.imap(_encode, _chunks(documents(corpus))):
            for tokens, kinds in encoded:
                writer.add(tokens, kinds)
                num_tokens += tokens.size
            if max_tokens is not None and num_tokens >= max_tokens:
                break
    writer.close({"vocab_size": tokenizer.vocab_size, "repairs": repairs})
    Console(quiet=quiet, highlight=False).print(f"{out}: {num_tokens:,} tokens")
    return num_tokens


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    texts = iter(texts)
    while chunk := list(islice(texts, _CHUNK)):
        yield chunk


def learn_tokenizer(
    corpus: Path,
    episodes: Sequence[Path],
    out: Path,
    *,
    vocab_size: int = 8192,
    tokenizer_file: Path | None = None,
) -> Tokenizer:
    """Learn a vocabulary from a quarter of a corpus and from all ordinary text of episodes, four times; write `out`.

    `episodes` are folders of token shards, written with the tokenizer in `tokenizer_file`; their text is what stands
    between control tokens. The same for the same arguments. Raises UserError for shards of another tokenizer, an `out`
    that exists, or too little text.
    """
    if out.exists():
        raise UserError(f"{out} is there already; what was written with it needs it, so name another file")
    written_with = Tokenizer.load(tokenizer_file)
    sources = [Shards(folder) for folder in episodes]
    for source in sources:
        if source.tokenizer != written_with.id:
            raise UserError(
                f"{source.folder} was written with tokenizer {source.tokenizer}, but {written_with.id} is in use; "
                f"make its episodes again"
            )
    rng = random.Random(0)
    sampled = (text for text in documents(corpus) if rng.random() < _CORPUS_SHARE)
    runs = (text for source in sources for text in _ordinary_runs(source, written_with))
    repeated = (text for run in runs for text in repeat(run, _EPISODES_TIMES))
    return train_tokenizer(chain(sampled, repeated), out, vocab_size)


def _ordinary_runs(source: Shards, tokenizer: Tokenizer) -> Iterator[str]:
    for document, num_tokens in enumerate(source.length_N.tolist()):
        tokens, _ = source.read(document, 0, num_tokens)
        for special, run in groupby(tokens.tolist(), tokenizer.is_special):
            if not special:
                yield tokenizer.decode(run)
