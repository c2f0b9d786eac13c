"""What the network remembers of each sequence: pages of latents for attention layers, a state for KDA layers.

A *slot* is one sequence's place. Attention layers keep C = kv latent + shared key (and, with DSA, one index key) per
position, in pages of 64 positions out of one pool; KDA layers keep a recurrent matrix in fp32 and the convolution's
tail, of the same size at any length. A state cannot be cut back: to return to an earlier point, `copy` beforehand.

A sequence's pages lie one after another wherever the pool allows it, so that a single sequence is read as one view,
without a copy.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from longstep.errors import UserError
from longstep.model.config import ModelConfig

PAGE = 64  # positions


class Cache:
    """Room for `num_slots` sequences with `max_tokens` positions in all (rounded up to pages), on one device.

    `dtype` is that of latents, index keys and tails; states are fp32, or float64 if `dtype` is.
    """

    def __init__(
        self,
        cfg: ModelConfig,
        num_slots: int,
        max_tokens: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        self.cfg = cfg
        self.num_slots = num_slots
        self.num_pages = -(-max_tokens // PAGE)
        kda, positions = cfg.kda, self.num_pages * PAGE
        state_dtype = torch.promote_types(dtype, torch.float32)
        # latents [attention layer, position, C], index keys [attention layer, position, I]; not cleared, since nothing
        # reads a position before it is written, so that a CPU hands out memory only for what is used
        self.kv = torch.empty(cfg.num_attention, positions, cfg.mla.d_cache, dtype=dtype, device=device)
        d_index = cfg.dsa.head_dim if cfg.dsa else 0
        self.index_keys = torch.empty(cfg.num_attention, positions, d_index, dtype=dtype, device=device)
        # states [KDA layer, slot, H, K, V], tails [KDA layer, slot, W - 1, q | k | v channels]
        shape = (cfg.num_kda, num_slots, kda.num_heads, kda.head_dim, kda.head_dim)
        self.states = torch.zeros(shape, dtype=state_dtype, device=device)
        self.tails = torch.zeros(cfg.num_kda, num_slots, kda.conv_width - 1, 3 * kda.width, dtype=dtype, device=device)
        self.lengths = [0] * num_slots  # positions held by each slot
        self._pages: list[list[int]] = [[] for _ in range(num_slots)]
        self._is_run = [True] * num_slots  # the slot's pages follow one another
        self._free_slots = list(range(num_slots))[::-1]
        self._page_taken = [False] * self.num_pages

    @property
    def num_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.kv, self.index_keys, self.states, self.tails))

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def num_free_pages(self) -> int:
        return self._page_taken.count(False)

    def alloc(self) -> int:
        """An empty slot. Raises UserError when all are taken."""
        if not self._free_slots:
            raise UserError(
                f"all {self.num_slots} slots of the cache are taken; free one, or make the cache with more slots"
            )
        slot = self._free_slots.pop()
        self.states[:, slot] = 0
        self.tails[:, slot] = 0
        return slot

    def free(self, slot: int) -> None:
        """Give the slot and its pages back."""
        assert slot not in self._free_slots, f"slot {slot} is free already"
        for page in self._pages[slot]:
            self._page_taken[page] = False
        self._pages[slot], self._is_run[slot], self.lengths[slot] = [], True, 0
        self._free_slots.append(slot)

    def copy(self, slot: int) -> int:
        """A new slot that holds the same sequence: a snapshot, or a branch. Raises UserError when there is no room."""
        new = self.alloc()
        try:
            self.extend([new], self.lengths[slot])
        except UserError:
            self.free(new)
            raise
        self.states[:, new] = self.states[:, slot]
        self.tails[:, new] = self.tails[:, slot]
        for theirs, ours in zip(self._pages[slot], self._pages[new], strict=True):
            to, of = (slice(p * PAGE, (p + 1) * PAGE) for p in (ours, theirs))
            self.kv[:, to] = self.kv[:, of]
            self.index_keys[:, to] = self.index_keys[:, of]
        return new

    def extend(self, slots: Sequence[int], num_tokens: int) -> list[int]:
        """Make room for `num_tokens` more positions in each slot; returns the lengths before. All slots or none.

        Raises UserError when the pool has too few pages. The caller writes the new positions with `append`.
        """
        first = [self.lengths[slot] for slot in slots]
        need = [
            -(-(length + num_tokens) // PAGE) - len(self._pages[slot])
            for slot, length in zip(slots, first, strict=True)
        ]
        if sum(need) > 0:
            if sum(need) > self.num_free_pages:
                raise UserError(
                    f"the cache has {self.num_free_pages} free pages of {PAGE} positions, {sum(need)} are needed for "
                    f"{num_tokens} more tokens; free a sequence, or make the cache with more max_tokens"
                )
            for slot, n in zip(slots, need, strict=True):
                self._grow(slot, n)
        for slot in slots:
            self.lengths[slot] += num_tokens
        return first

    def _grow(self, slot: int, num_pages: int) -> None:
        pages = self._pages[slot]
        for _ in range(num_pages):
            following = pages[-1] + 1 if pages else self.num_pages
            if following >= self.num_pages or self._page_taken[following]:
                following = self._roomiest_page()
            self._page_taken[following] = True
            pages.append(following)
            self._is_run[slot] = len(pages) == 1 or (self._is_run[slot] and following == pages[-2] + 1)

    def _roomiest_page(self) -> int:
        """Where a run of pages can grow longest without being in another sequence's way."""
        best_run, best_page, start = 0, -1, None
        for page in range(self.num_pages + 1):
            is_free = page < self.num_pages and not self._page_taken[page]
            if is_free and start is None:
                start = page
            elif not is_free and start is not None:
                # the sequence before this run, if any, may grow into its first half
                page_in_run = start if start == 0 else (start + page) // 2
                if page - page_in_run > best_run:
                    best_run, best_page = page - page_in_run, page_in_run
                start = None
        assert best_page >= 0, "extend has checked that there are free pages"
        return best_page

    def append(self, pool: Tensor, layer: int, slot: int, first: int, new_TC: Tensor) -> Tensor:
        """Write positions from `first` on into `pool` (`kv` or `index_keys`) of an attention layer.

        Returns all positions up to there, [first + T, C]: a view where the pages lie in one run, else a copy.
        """
        end = first + len(new_TC)
        if self._is_run[slot]:
            start = self._pages[slot][0] * PAGE
            pool[layer, start + first : start + end] = new_TC
        else:
            pool[layer, self._rows(slot, end)[first:]] = new_TC.to(pool.dtype)
        return self.read(pool[layer], slot, end)

    def read(self, pool_SC: Tensor, slot: int, length: int) -> Tensor:
        """The first `length` positions of a sequence in one layer's pool: a view of a run, else a copy."""
        if self._is_run[slot]:
            start = self._pages[slot][0] * PAGE
            return pool_SC[start : start + length]
        return pool_SC[self._rows(slot, length)]

    def row(self, slot: int, position: int) -> int:
        """Where in a layer's pool a position of a sequence lies."""
        return self._pages[slot][position // PAGE] * PAGE + position % PAGE

    def _rows(self, slot: int, length: int) -> Tensor:
        pages = torch.tensor(self._pages[slot], device=self.kv.device)
        return (pages[:, None] * PAGE + torch.arange(PAGE, device=self.kv.device)).flatten()[:length]

    def check(self) -> None:
        """Asserts that free and used add up: no page lost, none in two sequences."""
        used = [page for pages in self._pages for page in pages]
        assert len(used) == len(set(used)), "a page belongs to two sequences"
        assert sorted(used) == [p for p, taken in enumerate(self._page_taken) if taken], "a page was lost"
        assert all(-(-n // PAGE) == len(p) for n, p in zip(self.lengths, self._pages, strict=True)), "lengths are off"
