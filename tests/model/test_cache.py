"""Slots and pages add up, whatever happens in whichever order."""

import random

import pytest
import torch
from small_network import CONFIG, DENSE

from longstep.errors import UserError
from longstep.model.cache import PAGE, Cache


def test_a_single_sequence_is_read_without_a_copy():
    cache = Cache(CONFIG, 1, 10 * PAGE)
    slot = cache.alloc()
    for _ in range(5):
        first = cache.extend([slot], 100)[0]
        view = cache.append(cache.kv, 1, slot, first, torch.full((100, CONFIG.mla.d_cache), float(first)))
        assert view.untyped_storage().data_ptr() == cache.kv.untyped_storage().data_ptr()
        assert len(view) == first + 100
    assert view[::100, 0].tolist() == [0, 100, 200, 300, 400]


def test_sequences_keep_out_of_each_others_way_while_there_is_room():
    cache = Cache(CONFIG, 4, 64 * PAGE)
    slots = [cache.alloc() for _ in range(4)]
    for slot in slots:
        cache.extend([slot], 1)
    for _ in range(7):  # 8 pages each, of 64
        for slot in slots:
            first = cache.extend([slot], PAGE)[0]
            view = cache.append(cache.kv, 0, slot, first, torch.zeros(PAGE, CONFIG.mla.d_cache))
            assert view.untyped_storage().data_ptr() == cache.kv.untyped_storage().data_ptr()


@pytest.mark.parametrize("seed", range(5))
def test_pages_are_neither_lost_nor_shared(seed):
    rng, cache = random.Random(seed), Cache(DENSE, 6, 40 * PAGE)
    live: list[int] = []
    for _ in range(300):
        what = rng.choice(["alloc", "extend", "extend", "copy", "free"])
        try:
            if what == "alloc":
                live.append(cache.alloc())
            elif live and what == "copy":
                live.append(cache.copy(rng.choice(live)))
            elif live and what == "extend":
                cache.extend(rng.sample(live, rng.randint(1, len(live))), rng.randint(1, 150))
            elif live and what == "free":
                cache.free(live.pop(rng.randrange(len(live))))
        except UserError:
            cache.free(live.pop(rng.randrange(len(live))))
        cache.check()
        assert cache.num_free_slots == 6 - len(live)
    for slot in live:
        cache.free(slot)
    assert cache.num_free_pages == 40


def test_a_new_slot_remembers_nothing():
    cache = Cache(CONFIG, 1, PAGE)
    slot = cache.alloc()
    cache.states[:, slot], cache.tails[:, slot] = 1, 1
    cache.free(slot)
    again = cache.alloc()
    assert not cache.states[:, again].any()
    assert not cache.tails[:, again].any()


def test_no_slot_left():
    cache = Cache(CONFIG, 1, PAGE)
    slot = cache.alloc()
    with pytest.raises(UserError, match="1 slots"):
        cache.alloc()
    cache.free(slot)
    with pytest.raises(AssertionError, match="free already"):
        cache.free(slot)


def test_a_copy_that_does_not_fit_leaves_nothing_behind():
    cache = Cache(CONFIG, 2, 3 * PAGE)
    slot = cache.alloc()
    cache.extend([slot], 2 * PAGE)
    with pytest.raises(UserError, match="free pages"):
        cache.copy(slot)
    assert (cache.num_free_slots, cache.num_free_pages) == (1, 1)
    cache.check()


def test_bytes_are_those_of_its_tensors():
    """4 slots, 128 positions, fp32: latents and index keys per position, states and tails per slot."""
    cache = Cache(CONFIG, 4, 100)
    per_position = 3 * (16 + 6)
    per_slot = 2 * (3 * 10 * 10 + 3 * 3 * 30)
    assert cache.num_bytes == 4 * (128 * per_position + 4 * per_slot)
