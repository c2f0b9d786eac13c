"""Which tokens run in the next tick: pure planning over sequences and slots; nothing here touches the model.

A sequence is a prompt and what was generated after it. It owns one slot of the model's cache from admission to the end
of its turn; afterwards the slot stays as the *snapshot* of that conversation until the conversation continues or the
slot is needed. A KDA state cannot be cut back, so a snapshot serves only a prompt that starts with all of its tokens.

Invariant (`check`): free + active + kept slots = all slots, and no slot is in two of them.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from longstep.chat.model import Sampling

Stop = Literal["end", "length", "aborted"]


@dataclass(eq=False)
class Sequence:
    """`num_computed` tokens are in the cache. The callbacks run in the engine's thread."""

    tokens: list[int]  # the prompt, then what was generated
    sampling: Sampling
    stop_tokens: frozenset[int]
    on_token: Callable[[int, float], None]  # token, log-probability
    on_stop: Callable[[Stop], None]
    on_error: Callable[[Exception], None]
    num_prompt: int = 0
    num_computed: int = 0
    num_reused: int = 0
    slot: int | None = None
    aborted: bool = False

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt


@dataclass(frozen=True)
class Work:
    """One call of the model: either one chunk of one prompt, or the next token of many sequences."""

    sequences: tuple[Sequence, ...]
    num_tokens: int  # of each


@dataclass
class Slots:
    """Slots of the model's cache: free, active, or kept as snapshots (least recently used first)."""

    num_slots: int
    reset: Callable[[int], None]  # empties a slot before a new conversation takes it
    free: list[int] = field(init=False)
    active: set[int] = field(init=False, default_factory=set)
    kept: "OrderedDict[int, list[int]]" = field(init=False, default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.free = list(range(self.num_slots))

    def take(self, prompt: list[int]) -> tuple[int, int] | None:
        """A slot for this prompt and how many of its tokens the slot already holds; None when all are active.

        The last prompt token is always computed anew: its logits choose the first generated token.
        """
        best: int | None = None
        for slot, tokens in self.kept.items():
            longer = best is None or len(tokens) > len(self.kept[best])
            if longer and len(tokens) < len(prompt) and prompt[: len(tokens)] == tokens:
                best = slot
        if best is not None:
            num_reused = len(self.kept.pop(best))
            self.active.add(best)
            return best, num_reused
        if self.free:
            slot = self.free.pop()
        elif self.kept:
            slot, _ = self.kept.popitem(last=False)
        else:
            return None
        self.reset(slot)
        self.active.add(slot)
        return slot, 0

    def keep(self, slot: int, tokens: list[int]) -> None:
        self.active.remove(slot)
        self.kept[slot] = tokens

    def drop(self, slot: int) -> None:
        self.active.remove(slot)
        self.free.append(slot)

    def check(self) -> None:
        everything = [*self.free, *self.active, *self.kept]
        assert sorted(everything) == list(range(self.num_slots)), f"slots lost or doubled: {sorted(everything)}"


class Scheduler:
    """Decodes first, then one chunk of the oldest unfinished prompt. Arrival order holds: nobody overtakes."""

    def __init__(self, slots: Slots, chunk_tokens: int):
        self.slots = slots
        self.chunk_tokens = chunk_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def plan(self) -> list[Work]:
        """The model calls of this tick."""
        while self.waiting:
            got = self.slots.take(self.waiting[0].tokens)
            if got is None:
                break
            seq = self.waiting.popleft()
            seq.slot, seq.num_reused = got
            seq.num_computed = seq.num_reused
            self.running.append(seq)

        work: list[Work] = []
        decodes = tuple(seq for seq in self.running if seq.num_uncomputed == 1)
        if decodes:
            work.append(Work(decodes, 1))
        prompts = [seq for seq in self.running if seq.num_uncomputed > 1]
        if prompts:
            work.append(Work((prompts[0],), min(self.chunk_tokens, prompts[0].num_uncomputed)))
        return work

    def finish(self, seq: Sequence, *, keep: bool) -> None:
        """The turn is over: its slot becomes a snapshot, or is emptied."""
        self.running.remove(seq)
        assert seq.slot is not None
        if keep:
            self.slots.keep(seq.slot, seq.tokens[: seq.num_computed])
        else:
            self.slots.drop(seq.slot)
        seq.slot = None
