"""A corpus as token shards: its text, or repairs of bugs that are put into its functions.

A text document is its tokens and [EOS]. A repair is a short conversation in the form of an episode: the function as
`read_file` shows it, then the thought and the edit that mend it (`worlds.repair.function_repairs`).
"""

import multiprocessing
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from longstep.chat.tokenizer import EOS, Tokenizer
from longstep.chat.xtml import Encoder
from longstep.messages import EFFORTS, Thinking, ToolCall, ToolResult, Turn, User
from longstep.train.corpus import documents
from longstep.train.episodes import encode_episode
from longstep.train.pack import ShardWriter
from longstep.train.process import usable_cores
from longstep.worlds.repair.function_repairs import function_repairs

_CHUNK = 64  # documents that a worker takes at once

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
