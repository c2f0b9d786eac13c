"""Continuous batching over one model in one thread: plan, run, commit, until nothing is left to do.

Sequences of different lengths decode together, one token each a tick; prompts are read in chunks between. A sequence's
random numbers come from its own seed and position, so that what it samples does not depend on who else is running
(up to the rounding of batched matrix products).
"""

import queue
import threading
import weakref

import torch

from longstep.engine.scheduler import Scheduler, Sequence, Slots, Work
from longstep.model.cache import PAGE, Cache
from longstep.model.decode import prepare
from longstep.model.network import Model
from longstep.ops.sample import sample


class Engine:
    """Owns the model and its cache. `submit` may be called from any thread; callbacks run in the engine's thread."""

    def __init__(self, model: Model, *, num_slots: int, max_tokens: int, chunk_tokens: int = 512):
        self.model = model.eval()
        parameter = next(model.parameters())
        self.device, self.max_tokens = parameter.device, max_tokens
        if parameter.device.type == "cpu" and parameter.dtype == torch.float32:
            prepare(self.model)  # half the time a token
        # every slot can hold a whole context, so that an admitted sequence never runs out of pages
        num_positions = num_slots * (-(-max_tokens // PAGE) * PAGE)
        self.cache = Cache(model.cfg, num_slots, num_positions, dtype=parameter.dtype, device=parameter.device)
        self._cache_slots = [self.cache.alloc() for _ in range(num_slots)]
        self.scheduler = Scheduler(Slots(num_slots, self._reset), chunk_tokens)
        self._inbox: queue.SimpleQueue[Sequence | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, seq: Sequence) -> None:
        self._inbox.put(seq)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name="longstep-engine", daemon=True)
                self._thread.start()
                # at exit: a thread that is still inside torch when the interpreter goes aborts the process
                weakref.finalize(self, _end, self._inbox, self._thread)

    def close(self) -> None:
        """Ends the thread after the running tick. Sequences in flight are aborted."""
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """When idle: no sequence left, and every slot accounted for."""
        busy = [*self.scheduler.running, *self.scheduler.waiting]
        assert not busy, f"not idle: {len(busy)} sequences are left"
        self.scheduler.slots.check()

    @torch.inference_mode()
    def _serve(self) -> None:
        while self._receive():
            for work in self.scheduler.plan():
                try:
                    self._run(work)
                except Exception as error:  # the caller of each sequence hears of it; others go on
                    for seq in work.sequences:
                        self.scheduler.finish(seq, keep=False)
                        seq.on_error(error)

    def _receive(self) -> bool:
        """Take what has arrived; wait when there is nothing to do. False when asked to close."""
        idle = not self.scheduler.running and not self.scheduler.waiting
        while True:
            try:
                seq = self._inbox.get(block=idle)
            except queue.Empty:
                break
            if seq is None:
                for left in [*self.scheduler.running]:
                    self.scheduler.finish(left, keep=False)
                    left.on_stop("aborted")
                for left in self.scheduler.waiting:
                    left.on_stop("aborted")
                self.scheduler.waiting.clear()
                return False
            self.scheduler.waiting.append(seq)
            idle = False
        for seq in [s for s in self.scheduler.running if s.aborted]:
            # what is computed is whole, so the snapshot is good
            self.scheduler.finish(seq, keep=True)
            seq.on_stop("aborted")
        return True

    def _run(self, work: Work) -> None:
        tokens_BT = torch.tensor(
            [seq.tokens[seq.num_computed : seq.num_computed + work.num_tokens] for seq in work.sequences],
            device=self.device,
        )
        slots = [self._cache_slots[seq.slot] for seq in work.sequences if seq.slot is not None]
        hidden_BTD = self.model(tokens_BT, cache=self.cache, slots=slots)
        for seq in work.sequences:
            seq.num_computed += work.num_tokens
        ready = [seq for seq in work.sequences if seq.num_uncomputed == 0]
        if not ready:
            return  # a prompt's chunk before its last
        self._commit(ready, self.model.logits(hidden_BTD[:, -1]).float())

    def _commit(self, ready: list[Sequence], logits_BV: torch.Tensor) -> None:
        """Sample one token for each sequence; end those that are done."""
        tokens, logprobs = sample(
            logits_BV,
            torch.tensor([seq.sampling.temperature for seq in ready], device=self.device),
            torch.tensor([seq.sampling.top_p for seq in ready], device=self.device),
            torch.tensor([_uniform(seq) for seq in ready], device=self.device, dtype=torch.float64),
        )
        for seq, token, logprob in zip(ready, tokens.tolist(), logprobs.tolist(), strict=True):
            seq.tokens.append(token)
            seq.on_token(token, logprob)
            full = seq.num_generated >= seq.sampling.max_tokens or len(seq.tokens) >= self.max_tokens
            if token in seq.stop_tokens or full:
                self.scheduler.finish(seq, keep=True)
                seq.on_stop("end" if token in seq.stop_tokens else "length")

    def _reset(self, slot: int) -> None:
        old = self._cache_slots[slot]
        self.cache.free(old)
        self._cache_slots[slot] = self.cache.alloc()


def _uniform(seq: Sequence) -> float:
    """The sequence's random number at this position: a function of its seed and position alone."""
    if seq.sampling.temperature == 0:
        return 0.0
    generator = torch.Generator().manual_seed((seq.sampling.seed << 24) + len(seq.tokens))
    return float(torch.rand((), generator=generator, dtype=torch.float64))


def _end(inbox: "queue.SimpleQueue[Sequence | None]", thread: threading.Thread) -> None:
    inbox.put(None)
    thread.join()
