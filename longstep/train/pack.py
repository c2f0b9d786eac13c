"""Documents on disk as token ids, and batches of them: every batch is one row of exactly the same number of tokens.

On disk a source is a folder:

    index.json       {"format": 1, "tokenizer": ID, "shards": [{"name", "num_tokens", "num_documents"}], "meta": {...}}
    NAME.tokens      uint16, little endian, the documents one after another
    NAME.lengths     uint32, tokens of each document
    NAME.kinds       uint8 per token, see CONTEXT, OWN, OUTPUT; absent where every token is OWN (plain text)

In memory a batch is packed over its whole width: documents stand side by side in [1, T], `cu_seqlens` says where each
begins, and nothing looks across a boundary. An episode is never cut unless it is longer than `max_document`; text is
cut where a batch ends and goes on in the next one. The order depends on (seed, sources) alone, so a run resumes at
batch number n by planning n batches again, from lengths, without reading a token.

A source may grow while it is read (`Source.grow`): its folder then holds part folders, each a source of its own, and
new ones join. Which batch a part first appears in depends on when it was written, so such a run is not the same bit
for bit when it is repeated or resumed, and several processes need not see the same plan; shares stay as asked.
"""

import heapq
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longstep.errors import UserError

FORMAT = 1
CONTEXT, OWN, OUTPUT = 0, 1, 2  # kinds of token: given to the model, written by the model, returned by a tool

_SHARD_TOKENS = 1 << 26
_LOOKAHEAD = 256  # documents that may wait for a batch with room
_LOOK_EVERY = 256  # pieces between looks for new parts


class ShardWriter:
    """Writes a source folder. `index.json` appears at `close`, so a folder with one is complete."""

    def __init__(self, folder: Path, *, tokenizer: str, meta: Mapping[str, Any] | None = None):
        if (folder / "index.json").exists():
            raise UserError(f"{folder} already holds token shards; name another folder, or delete this one first")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._tokenizer, self._meta = folder, tokenizer, dict(meta or {})
        self._shards: list[dict[str, Any]] = []
        self._tokens: list[NDArray[np.uint16]] = []
        self._kinds: list[NDArray[np.uint8]] = []
        self._num_buffered = 0

    def add(self, tokens: Sequence[int] | NDArray[Any], kinds: Sequence[int] | NDArray[Any] | None = None) -> None:
        """One document. Without `kinds` every token is OWN."""
        ids = np.asarray(tokens)
        if ids.size == 0:
            return
        assert ids.min() >= 0, "token ids are stored as uint16"
        assert ids.max() < 1 << 16, "token ids are stored as uint16"
        kind_T = np.full(ids.size, OWN, np.uint8) if kinds is None else np.asarray(kinds, np.uint8)
        assert kind_T.shape == ids.shape, "one kind per token"
        self._tokens.append(ids.astype("<u2"))
        self._kinds.append(kind_T)
        self._num_buffered += ids.size
        if self._num_buffered >= _SHARD_TOKENS:
            self._flush()

    def _flush(self) -> None:
        if not self._tokens:
            return
        name = f"{len(self._shards):04d}"
        np.concatenate(self._tokens).tofile(self.folder / f"{name}.tokens")
        np.array([t.size for t in self._tokens], "<u4").tofile(self.folder / f"{name}.lengths")
        kinds = np.concatenate(self._kinds)
        if (kinds != OWN).any():
            kinds.tofile(self.folder / f"{name}.kinds")
        shard = {"name": name, "num_tokens": self._num_buffered, "num_documents": len(self._tokens)}
        self._shards.append(shard)
        self._tokens, self._kinds, self._num_buffered = [], [], 0

    def close(self, meta: Mapping[str, Any] | None = None) -> None:
        self._flush()
        self._meta.update(meta or {})
        index = {"format": FORMAT, "tokenizer": self._tokenizer, "shards": self._shards, "meta": self._meta}
        part = self.folder / "index.json.part"
        part.write_text(json.dumps(index, indent=1) + "\n")
        part.rename(self.folder / "index.json")


class Shards:
    """A source folder, read through the page cache. `length_N` holds the tokens of each document."""

    def __init__(self, folder: Path):
        try:
            index = json.loads((folder / "index.json").read_text())
        except FileNotFoundError:
            raise UserError(
                f"{folder} holds no token shards (no index.json); make some with `longstep train corpus` or "
                f"`longstep train episodes`"
            ) from None
        except ValueError as error:
            raise UserError(f"{folder / 'index.json'} is not JSON ({error}); write the shards again") from None
        if index.get("format") != FORMAT:
            raise UserError(f"{folder} has shard format {index.get('format')}, expected {FORMAT}; write it again")
        self.folder, self.tokenizer, self.meta = folder, str(index["tokenizer"]), index["meta"]
        self._tokens: list[NDArray[np.uint16]] = []
        self._kinds: list[NDArray[np.uint8] | None] = []
        lengths: list[NDArray[np.int64]] = []
        for shard in index["shards"]:
            path = folder / f"{shard['name']}.tokens"
            tokens = np.memmap(path, "<u2", "r")
            length_N = np.fromfile(folder / f"{shard['name']}.lengths", "<u4").astype(np.int64)
            if tokens.size != shard["num_tokens"] or length_N.sum() != tokens.size:
                raise UserError(f"{path} has {tokens.size} tokens, expected {shard['num_tokens']}; write it again")
            kinds = folder / f"{shard['name']}.kinds"
            self._tokens.append(tokens)
            self._kinds.append(np.memmap(kinds, np.uint8, "r") if kinds.exists() else None)
            lengths.append(length_N)
        if not lengths:
            raise UserError(f"{folder} holds no documents; write the shards again")
        self.length_N: NDArray[np.int64] = np.concatenate(lengths)
        self._shard_N = np.repeat(np.arange(len(lengths)), [n.size for n in lengths])
        self._start_N = np.concatenate([np.cumsum(n) - n for n in lengths])

    @property
    def num_tokens(self) -> int:
        return int(self.length_N.sum())

    def read(self, document: int, start: int, stop: int) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
        """Tokens and kinds of one document from `start` to `stop`."""
        shard, begin = int(self._shard_N[document]), int(self._start_N[document])
        kinds = self._kinds[shard]
        at = slice(begin + start, begin + stop)
        return self._tokens[shard][at], np.full(stop - start, OWN, np.uint8) if kinds is None else kinds[at]


@dataclass(frozen=True, kw_only=True)
class Source:
    """`ratio` is this source's share of all tokens, relative to the others'. `split` allows cutting its documents.

    With `grow`, `folder` holds part folders `part-*` and may be empty at first, or not there yet: until a part is
    complete the other sources have its share. Parts are weighted by their tokens.
    """

    folder: Path
    ratio: float = 1.0
    split: bool = False
    grow: bool = False


@dataclass(frozen=True)
class Piece:
    """Tokens `start:stop` of one document of one part of one source."""

    source: int
    document: int
    start: int
    stop: int
    part: int = 0

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, kw_only=True)
class Batch:
    """T tokens in one row. `weight_T` belongs to the target: 0 at the end of each document and in padding."""

    token_BT: Tensor  # int64 [1, T]
    target_T: Tensor  # int64 [T]
    weight_T: Tensor  # fp32 [T]
    cu_seqlens: Tensor  # int32 [documents + 1]; padding is the last document

    def to(self, device: torch.device, *, max_documents: int) -> "Batch":
        """On a GPU `cu_seqlens` gets a fixed size (documents of no tokens at the end), so that shapes never change."""
        if device.type != "cuda":
            return self
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        ends = torch.full((max_documents + 1,), self.token_BT.shape[1], dtype=torch.int32)
        ends[: len(self.cu_seqlens)] = self.cu_seqlens
        tensors["cu_seqlens"] = ends
        return Batch(**{name: t.pin_memory().to(device, non_blocking=True) for name, t in tensors.items()})


class Parts:
    """What there is of a source: one part, or as many as have been found so far."""

    def __init__(self, option: Source):
        self.folder, self._grow = option.folder, option.grow
        self.parts: list[Shards] = [] if option.grow else [Shards(option.folder)]
        self._known: set[str] = set()
        self.look()

    def look(self) -> None:
        """Take in the parts that have become complete."""
        if not self._grow:
            return
        for index in sorted(self.folder.glob("part-*/index.json")):
            if index.parent.name not in self._known:
                self.parts.append(Shards(index.parent))
                self._known.add(index.parent.name)

    @property
    def num_tokens(self) -> int:
        return sum(part.num_tokens for part in self.parts)

    @property
    def num_documents(self) -> int:
        return sum(part.length_N.size for part in self.parts)


class _Fair:
    """Always the member that has had least for its weight; a new one joins at the level of the one that is due."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._weights: dict[int, float] = {}

    def join(self, member: int, weight: float) -> None:
        self._weights[member] = weight
        heapq.heappush(self._heap, (self._heap[0][0] if self._heap else 0.0, member))

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, member: int) -> bool:
        return member in self._weights

    @property
    def due(self) -> int:
        return self._heap[0][1]

    def serve(self, amount: int) -> None:
        """Give to the one that is due."""
        level, member = self._heap[0]
        heapq.heapreplace(self._heap, (level + amount / self._weights[member], member))


class Packer:
    """Endless batches over several sources, the same for the same arguments unless a source grows."""

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        batch_tokens: int,
        max_document: int,
        seed: int = 0,
        output_weight: float = 0.0,
        max_documents: int | None = None,
    ):
        """`max_documents` per batch, padding included; without it, one for every 256 tokens."""
        if max_document > batch_tokens:
            raise UserError(f"rows of {max_document} tokens do not fit a batch of {batch_tokens}; raise the batch")
        if any(s.ratio <= 0 for s in sources):
            raise UserError("a source's ratio must be above 0; leave the source out instead")
        self.sources = [Parts(s) for s in sources]
        self._options = list(sources)
        self.batch_tokens, self._max_document, self._seed = batch_tokens, max_document, seed
        self.max_documents = max_documents or max(8, batch_tokens // 256)
        self._weights = np.array([0.0, 1.0, output_weight], np.float32)
        present = [part for source in self.sources for part in source.parts]
        if not present:
            folders = ", ".join(str(s.folder) for s in sources)
            raise UserError(f"there is no data yet in {folders}; wait for the first part, or name another source too")
        self.tokenizer = present[0].tokenizer
        for part in present:
            self._check(part)

    def _check(self, part: Shards) -> None:
        if part.tokenizer != self.tokenizer:
            raise UserError(
                f"the sources were written with different tokenizers: {part.folder} with {part.tokenizer}, others with "
                f"{self.tokenizer}; write them again with one"
            )

    def _pieces(self, source: int, part: int = 0) -> Iterator[Piece]:
        length_N = self.sources[source].parts[part].length_N
        epoch = 0
        while True:
            order = np.random.default_rng((self._seed, source, epoch, part)).permutation(length_N.size)
            for document, num_tokens in zip(order.tolist(), length_N[order].tolist(), strict=True):
                for start in range(0, num_tokens, self._max_document):
                    yield Piece(source, document, start, min(start + self._max_document, num_tokens), part)
            epoch += 1

    def _mixed(self) -> Iterator[Piece]:
        """Always from the source that is furthest behind its ratio, and in it from the part that is furthest behind."""
        sources, parts = _Fair(), [_Fair() for _ in self.sources]
        streams: list[list[Iterator[Piece]]] = [[] for _ in self.sources]
        for number in count():
            if number % _LOOK_EVERY == 0:
                for i, source in enumerate(self.sources):
                    source.look()
                    for part in range(len(parts[i]), len(source.parts)):
                        self._check(source.parts[part])
                        parts[i].join(part, source.parts[part].num_tokens)
                        streams[i].append(self._pieces(i, part))
                    if len(parts[i]) and i not in sources:
                        sources.join(i, self._options[i].ratio)
            i = sources.due
            piece = next(streams[i][parts[i].due])
            parts[i].serve(piece.num_tokens)
            sources.serve(piece.num_tokens)
            yield piece

    def plan(self) -> Iterator[tuple[Piece, ...]]:
        """The pieces of each batch in order. They fill it, but where nothing that waits is short enough."""
        stream = self._mixed()
        waiting: deque[Piece] = deque()
        while True:
            left, num_fresh = self.batch_tokens, 0
            taken: list[Piece] = []
            put_back: list[Piece] = []
            while left and len(taken) < self.max_documents - 1:
                if waiting:
                    piece = waiting.popleft()
                elif num_fresh < _LOOKAHEAD and len(put_back) < _LOOKAHEAD:
                    piece, num_fresh = next(stream), num_fresh + (1 if put_back else 0)
                else:
                    break
                if piece.num_tokens <= left:
                    taken.append(piece)
                    left -= piece.num_tokens
                elif self._options[piece.source].split:
                    cut = piece.start + left
                    taken.append(replace(piece, stop=cut))
                    put_back.append(replace(piece, start=cut))
                    left = 0
                else:
                    put_back.append(piece)
            waiting.extendleft(reversed(put_back))
            yield tuple(taken)

    def load(self, pieces: Sequence[Piece]) -> Batch:
        """Read the planned pieces into one row."""
        T = self.batch_tokens
        token_T, weight_T = np.zeros(T + 1, np.int64), np.zeros(T + 1, np.float32)
        ends, at = [0], 0
        for piece in pieces:
            part = self.sources[piece.source].parts[piece.part]
            tokens, kinds = part.read(piece.document, piece.start, piece.stop)
            token_T[at : at + tokens.size] = tokens
            weight_T[at : at + tokens.size] = self._weights[kinds]
            weight_T[at] = 0  # nothing before it in this row predicts a document's first token
            at += tokens.size
            ends.append(at)
        weight_T[at] = 0
        if at < T:
            ends.append(T)
        return Batch(
            token_BT=torch.from_numpy(token_T[None, :T]),
            target_T=torch.from_numpy(token_T[1:].copy()),
            weight_T=torch.from_numpy(weight_T[1:].copy()),
            cu_seqlens=torch.tensor(ends, dtype=torch.int32),
        )

    def batches(self, *, start: int = 0, stride: int = 1) -> Iterator[Batch]:
        """Batches `start`, `start + stride`, ...: with data parallelism each process takes its own residue."""
        for number, pieces in enumerate(self.plan()):
            if number >= start and (number - start) % stride == 0:
                yield self.load(pieces)

    def epochs(self, num_batches: int) -> list[float]:
        """How often `num_batches` batches go through each source, its parts of now taken as there from the start."""
        served = [0] * len(self.sources)
        for _, pieces in zip(range(num_batches), self.plan(), strict=False):
            for piece in pieces:
                served[piece.source] += piece.num_tokens
        return [n / max(1, s.num_tokens) for n, s in zip(served, self.sources, strict=True)]
