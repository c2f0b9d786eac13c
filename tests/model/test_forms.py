"""Forms of one thing agree: cached and uncached, packed and separate, sparse and dense, to 1e-10 in float64."""

from itertools import pairwise

import pytest
import torch
from small_network import CONFIG, DENSE, WIDE_DSA, build, rel, tokens

from longstep.errors import UserError
from longstep.model.cache import PAGE, Cache

BOUND = 1e-10


def cache_for(cfg, num_slots=4, max_tokens=1024):
    return Cache(cfg, num_slots, max_tokens, dtype=torch.float64)


@pytest.mark.parametrize("cfg", [CONFIG, DENSE], ids=["dsa", "mla"])
@pytest.mark.parametrize(
    "split",
    [[150], [1] * 30 + [120], [64, 64, 22], [3, 70, 1, 1, 16, 17, 2, 40], [149, 1]],
    ids=lambda s: f"{len(s)}parts",
)
def test_cached_is_uncached_in_any_split(cfg, split):
    model, ids, cache = build(cfg), tokens(150), cache_for(cfg)
    slot, got = cache.alloc(), []
    for start, end in pairwise([sum(split[:n]) for n in range(len(split) + 1)]):
        got.append(model(ids[:, start:end], cache=cache, slots=[slot]))
    assert (error := rel(torch.cat(got, 1), model(ids))) < BOUND, f"{error:.1e}"
    assert cache.lengths[slot] == 150


def test_memory_that_nobody_wrote_is_never_read():
    """Pools are not cleared when they are made: not-a-numbers left in them must not reach a result."""
    model, ids, cache = build(CONFIG), tokens(100), cache_for(CONFIG)
    cache.kv.fill_(torch.nan)
    cache.index_keys.fill_(torch.nan)
    slot = cache.alloc()
    got = [model(part, cache=cache, slots=[slot]) for part in ids.split([30, 69, 1], dim=1)]
    assert (error := rel(torch.cat(got, 1), model(ids))) < BOUND, f"{error:.1e}"


def test_sequences_of_different_lengths_decode_together():
    """A batch of rows, one token each, is the rows one by one, whatever their order in the batch and their slots."""
    model, cache = build(CONFIG), cache_for(CONFIG)
    lengths = [5, 130, 71]
    ids = [tokens(n + 4, seed=n)[0] for n in lengths]
    slots = [cache.alloc() for _ in lengths]
    for slot, row, n in zip(slots, ids, lengths, strict=True):
        model(row[None, :n], cache=cache, slots=[slot])
    for step in range(4):
        order = [1, 2, 0] if step % 2 else [2, 0, 1]
        batch = torch.stack([ids[i][lengths[i] + step] for i in order])[:, None]
        got = model(batch, cache=cache, slots=[slots[i] for i in order])
        for row, i in zip(got, order, strict=True):
            want = model(ids[i][None, : lengths[i] + step + 1])[0, -1:]
            assert (error := rel(row, want)) < BOUND, f"{error:.1e}"


def test_scattered_pages_read_like_a_run():
    """A sequence grows, in any split, through a pool in which another one's page lies in its way."""
    model, ids, got = build(CONFIG), tokens(5 * PAGE), []
    cache = cache_for(CONFIG, num_slots=2, max_tokens=6 * PAGE)
    long, short = cache.alloc(), cache.alloc()
    for start, end in pairwise([0, 1, 30, 100, 101, 200, 5 * PAGE]):
        got.append(model(ids[:, start:end], cache=cache, slots=[long]))
        if start == 0:
            model(tokens(10, seed=9), cache=cache, slots=[short])
    assert cache._pages[long] == [0, 1, 2, 5, 4]
    cache.check()
    assert (error := rel(torch.cat(got, 1), model(ids))) < BOUND, f"{error:.1e}"


def test_a_copy_goes_its_own_way():
    model, cache, ids = build(CONFIG), cache_for(CONFIG), tokens(100)
    slot = cache.alloc()
    model(ids[:, :90], cache=cache, slots=[slot])
    snapshot = cache.copy(slot)
    model(tokens(20, seed=9), cache=cache, slots=[slot])
    got = model(ids[:, 90:], cache=cache, slots=[snapshot])
    assert (error := rel(got, model(ids)[:, 90:])) < BOUND, f"{error:.1e}"


@pytest.mark.parametrize("cfg", [CONFIG, DENSE], ids=["dsa", "mla"])
def test_packed_documents_do_not_see_each_other(cfg):
    model, ids = build(cfg), tokens(200)
    bounds = [0, 1, 1, 66, 130, 133, 200]  # one of one token, one of none
    got = model(ids, cu_seqlens=torch.tensor(bounds, dtype=torch.int32))
    want = torch.cat([model(ids[:, a:b]) for a, b in pairwise(bounds) if b > a], 1)
    assert (error := rel(got, want)) < BOUND, f"{error:.1e}"
    assert rel(model(ids), want) > 1e-3, "documents do see each other when nothing parts them"


def test_rows_of_a_batch_are_separate():
    model, ids = build(CONFIG), tokens(70, batch=3)
    want = torch.cat([model(row[None]) for row in ids])
    assert (error := rel(model(ids), want)) < BOUND, f"{error:.1e}"


def test_dsa_is_mla_while_everything_is_selected():
    sparse, dense, ids = build(WIDE_DSA), build(WIDE_DSA), tokens(120)
    for layer in dense.layers:
        if hasattr(layer.attn, "indexer"):
            layer.attn.indexer = None
    assert (error := rel(sparse(ids), dense(ids))) < BOUND, f"{error:.1e}"


def test_dsa_with_room_for_all_is_mla_through_the_index(monkeypatch):
    """Not by the short cut for short contexts: the index chooses every position, and sparse attention reads them."""
    model, ids = build(CONFIG), tokens(60)
    want = build(WIDE_DSA)(ids)
    import longstep.model.layers as layers

    select = layers.index.select
    monkeypatch.setattr(layers.index, "select", lambda scores, top_k: select(scores, 60))
    assert (error := rel(model(ids), want)) < BOUND, f"{error:.1e}"


def test_the_index_matters_past_top_k():
    ids = tokens(60)
    got, dense = build(CONFIG)(ids), build(WIDE_DSA)(ids)
    top_k = CONFIG.dsa.top_k
    assert rel(got[:, :top_k], dense[:, :top_k]) < BOUND
    assert rel(got[:, top_k:], dense[:, top_k:]) > 1e-3


def test_a_full_cache_says_so_before_computing():
    model, cache = build(CONFIG), cache_for(CONFIG, num_slots=1, max_tokens=PAGE)
    slot = cache.alloc()
    model(tokens(60), cache=cache, slots=[slot])
    before = cache.states.clone()
    with pytest.raises(UserError, match="free pages"):
        model(tokens(10), cache=cache, slots=[slot])
    assert cache.lengths[slot] == 60
    assert torch.equal(before, cache.states)
