"""Packing: no token is lost, the mask stays with its token, documents stay apart, a resumed run sees the same."""

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longstep.errors import UserError
from longstep.train.pack import CONTEXT, OUTPUT, OWN, Packer, Shards, ShardWriter, Source

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=25)


def write(folder: Path, lengths: list[int], tokenizer: str = "t") -> Path:
    """Token values are unique in the source, and kinds follow from them."""
    writer = ShardWriter(folder, tokenizer=tokenizer)
    start = 1
    for n in lengths:
        tokens = np.arange(start, start + n)
        writer.add(tokens, tokens % 3)
        start += n
    writer.close()
    return folder


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=LENGTHS, split=st.booleans(), seed=st.integers(0, 5))
def test_an_epoch_holds_every_token_once(tmp_path_factory, lengths, split, seed):
    folder = write(tmp_path_factory.mktemp("pack") / "a", lengths)
    packer = Packer([Source(folder=folder, split=split)], batch_tokens=64, max_document=32, seed=seed)
    stream = packer._pieces(0)
    spans: dict[int, list] = {}
    remaining = sum(lengths)
    while remaining:
        piece = next(stream)
        spans.setdefault(piece.document, []).append((piece.start, piece.stop))
        remaining -= piece.num_tokens
    for document, n in enumerate(lengths):
        covered = [t for start, stop in sorted(spans[document]) for t in range(start, stop)]
        assert covered == list(range(n)), "each document whole, in order, once"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=LENGTHS, split=st.booleans(), seed=st.integers(0, 5))
def test_batches_are_what_the_stream_gives(tmp_path_factory, lengths, split, seed):
    """Nothing is dropped or doubled on the way from the stream of pieces to the batches."""
    folder = write(tmp_path_factory.mktemp("pack") / "a", lengths)
    packer = Packer([Source(folder=folder, split=split)], batch_tokens=64, max_document=32, seed=seed)
    planned = list(islice(packer.plan(), 12))
    tokens = [(p.document, t) for pieces in planned for p in pieces for t in range(p.start, p.stop)]
    stream = islice(packer._pieces(0), sum(len(pieces) for pieces in planned) + 300)
    given_out = Counter((p.document, t) for p in stream for t in range(p.start, p.stop))
    assert not Counter(tokens) - given_out, "a batch holds only what the stream gave, as often as it did"
    for pieces in planned:
        assert sum(p.num_tokens for p in pieces) <= 64
        if split and len(pieces) < packer.max_documents - 1:
            assert sum(p.num_tokens for p in pieces) == 64, "text fills a batch to the last token"
        if not split:
            assert all(p.start % 32 == 0 for p in pieces), "an episode is cut only where it is longer than a row"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=LENGTHS, split=st.booleans())
def test_targets_and_weights_stay_with_their_tokens(tmp_path_factory, lengths, split):
    folder = write(tmp_path_factory.mktemp("pack") / "a", lengths)
    packer = Packer([Source(folder=folder, split=split)], batch_tokens=64, max_document=32, output_weight=0.25)
    for batch in islice(packer.batches(), 4):
        token_T, bounds = batch.token_BT[0], batch.cu_seqlens.tolist()
        assert batch.token_BT.shape == (1, 64)
        assert bounds[0] == 0
        assert bounds[-1] == 64
        assert all(a < b for a, b in pairwise(bounds))
        for a, b in pairwise(bounds):
            if token_T[a] == 0:  # padding
                assert batch.weight_T[a:b].sum() == 0
                continue
            assert torch.equal(token_T[a:b], torch.arange(int(token_T[a]), int(token_T[a]) + b - a))
            assert torch.equal(batch.target_T[a : b - 1], token_T[a + 1 : b])
            want = torch.tensor([0.0, 1.0, 0.25])[token_T[a + 1 : b] % 3]
            assert torch.equal(batch.weight_T[a : b - 1], want), "the weight is that of the token to be predicted"
            assert batch.weight_T[b - 1] == 0, "a document's last token predicts nothing"


def test_kinds_survive_the_disk(tmp_path):
    writer = ShardWriter(tmp_path / "a", tokenizer="t", meta={"of": "test"})
    writer.add([5, 6, 7], [CONTEXT, OUTPUT, OWN])
    writer.add([])
    writer.add(np.array([65535], np.int64))
    writer.close({"more": 1})
    shards = Shards(tmp_path / "a")
    assert shards.length_N.tolist() == [3, 1]
    assert shards.meta == {"of": "test", "more": 1}
    tokens, kinds = shards.read(0, 1, 3)
    assert tokens.tolist() == [6, 7]
    assert kinds.tolist() == [OUTPUT, OWN]
    assert shards.read(1, 0, 1)[0].tolist() == [65535]


def test_text_needs_no_kinds_file(tmp_path):
    writer = ShardWriter(tmp_path / "a", tokenizer="t")
    writer.add([1, 2, 3])
    writer.close()
    assert sorted(p.suffix for p in (tmp_path / "a").iterdir()) == [".json", ".lengths", ".tokens"]
    assert Shards(tmp_path / "a").read(0, 0, 3)[1].tolist() == [OWN] * 3


@pytest.mark.parametrize("split", [False, True])
def test_resumed_batches_are_the_same(tmp_path, split):
    folder = write(tmp_path / "a", list(range(1, 40)))
    packer = Packer([Source(folder=folder, split=split)], batch_tokens=128, max_document=64, seed=3)
    straight = [b.token_BT for b in islice(packer.batches(), 9)]
    resumed = [b.token_BT for b in islice(packer.batches(start=4), 5)]
    assert all(torch.equal(a, b) for a, b in zip(straight[4:], resumed, strict=True))
    halves = [list(islice(packer.batches(start=r, stride=2), 4)) for r in (0, 1)]
    together = [half[i].token_BT for i in range(4) for half in halves]
    assert all(torch.equal(a, b) for a, b in zip(straight, together, strict=False))
    other = Packer([Source(folder=folder, split=split)], batch_tokens=128, max_document=64, seed=4)
    assert not torch.equal(next(other.batches()).token_BT, straight[0])


def test_ratios_hold_and_epochs_are_counted(tmp_path):
    a, b = write(tmp_path / "a", [20] * 10), write(tmp_path / "b", [7] * 100)
    packer = Packer(
        [Source(folder=a, ratio=3.0), Source(folder=b, ratio=1.0, split=True)],
        batch_tokens=256,
        max_document=64,
        max_documents=99,
    )
    epochs = packer.epochs(20)
    tokens = [e * s.num_tokens for e, s in zip(epochs, packer.sources, strict=True)]
    assert tokens[0] / tokens[1] == pytest.approx(3.0, rel=0.05)
    assert epochs[0] > 15, "a small source is gone through again and again"


def test_long_waits_do_not_grow(tmp_path):
    """Episodes of more than half a batch leave room that others must fill, and nobody waits for ever."""
    folder = write(tmp_path / "a", [40] * 30 + [9] * 30)
    packer = Packer([Source(folder=folder)], batch_tokens=64, max_document=64)
    fill = [sum(p.num_tokens for p in pieces) for pieces in islice(packer.plan(), 60)]
    assert np.mean(fill) > 0.75 * 64
    late = {p.document for pieces in islice(packer.plan(), 60) for p in pieces}
    assert len(late) == 60, "every document came within two epochs"


def test_mistakes_are_told(tmp_path):
    with pytest.raises(UserError, match="no token shards"):
        Shards(tmp_path)
    folder = write(tmp_path / "a", [5])
    with pytest.raises(UserError, match="already holds"):
        ShardWriter(folder, tokenizer="t")
    with pytest.raises(UserError, match="do not fit a batch"):
        Packer([Source(folder=folder)], batch_tokens=8, max_document=16)
    other = write(tmp_path / "b", [5], tokenizer="u")
    with pytest.raises(UserError, match="different tokenizers"):
        Packer([Source(folder=folder), Source(folder=other)], batch_tokens=8, max_document=8)
    with (folder / "0000.tokens").open("r+b") as file:
        file.truncate(6)
    with pytest.raises(UserError, match="has 3 tokens, expected 5"):
        Shards(folder)
    (folder / "index.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        Shards(folder)
    (folder / "index.json").write_text('{"format": 9}')
    with pytest.raises(UserError, match="format 9, expected 1"):
        Shards(folder)


def test_a_growing_source_joins_at_the_level_of_the_others(tmp_path):
    """Nothing at first, then parts one by one: the share is as asked, and a new part is read as fast as the old."""
    fixed = write(tmp_path / "fixed", [20] * 50)
    grown = tmp_path / "grown"
    packer = Packer(
        [Source(folder=fixed), Source(folder=grown, ratio=3.0, grow=True)], batch_tokens=64, max_document=64
    )
    stream = packer._mixed()

    def served(num_pieces: int) -> dict[tuple[int, int], int]:
        tokens: dict[tuple[int, int], int] = {}
        for piece in islice(stream, num_pieces):
            tokens[piece.source, piece.part] = tokens.get((piece.source, piece.part), 0) + piece.num_tokens
        return tokens

    assert set(served(3000)) == {(0, 0)}, "the others carry on alone"
    write(grown / "part-0000", [20] * 100)
    served(256)  # the look is due within these
    got = served(4000)
    assert got[1, 0] / got[0, 0] == pytest.approx(3.0, rel=0.02), "it does not make up for what it missed"
    write(grown / "part-0001", [10] * 100)
    (grown / "part-0002").mkdir()  # not complete
    write(grown / ".part-0003", [10] * 100)  # not by its name
    served(256)
    got = served(8000)
    assert (got[1, 0] + got[1, 1]) / got[0, 0] == pytest.approx(3.0, rel=0.02)
    assert got[1, 0] / got[1, 1] == pytest.approx(2.0, rel=0.02), "by tokens, not behind and not ahead"
    assert set(got) == {(0, 0), (1, 0), (1, 1)}
    assert packer.sources[1].num_tokens == 3000
    assert packer.epochs(40)[1] == pytest.approx(0.75 * 40 * 60 / 3000, rel=0.1)


def test_batches_of_a_growing_source_hold_its_parts(tmp_path):
    grown = tmp_path / "grown"
    write(grown / "part-0000", [5, 6])
    write(grown / "part-0001", [7])
    packer = Packer([Source(folder=grown, grow=True)], batch_tokens=18, max_document=18)
    batch = next(packer.batches())
    lengths = sorted(b - a for a, b in pairwise(batch.cu_seqlens.tolist()))
    assert lengths == [5, 6, 7]
    for a, b in pairwise(batch.cu_seqlens.tolist()):
        first = int(batch.token_BT[0, a])
        assert batch.token_BT[0, a:b].tolist() == list(range(first, first + b - a))


def test_a_growing_source_tells_mistakes(tmp_path):
    with pytest.raises(UserError, match="there is no data yet"):
        Packer([Source(folder=tmp_path / "none", grow=True)], batch_tokens=8, max_document=8)
    fixed = write(tmp_path / "fixed", [5])
    with pytest.raises(UserError, match="must be above 0"):
        Packer([Source(folder=fixed, ratio=0.0)], batch_tokens=8, max_document=8)
    packer = Packer([Source(folder=fixed), Source(folder=tmp_path / "g", grow=True)], batch_tokens=8, max_document=8)
    write(tmp_path / "g" / "part-0000", [5], tokenizer="u")
    with pytest.raises(UserError, match="different tokenizers"):
        next(packer.batches())
