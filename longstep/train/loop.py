"""The training loop: packed batches in, a checkpoint that loads out, whatever happens in between.

One update: forward over [1, T] packed tokens, cross-entropy in chunks, backward, clip, Muon and AdamW, experts balanced
by quantile. Weights and optimizer state are fp32; on a GPU activations are bf16 and the parts between the kernels are
compiled. Under `torchrun` each process takes its own batches and gradients are summed.

A run lives in a folder: `log.jsonl` (a line per report) and `checkpoint/` (see longstep.checkpoint), replaced every few
minutes, at the end, at a time limit and on Ctrl-C or SIGTERM. `resume` goes on from it to the same loss; with a source
that grows, weights, optimizer and place in the schedule are the same, and the order of the data is another.
"""

import json
import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor

from longstep.checkpoint import TrainingState, load_training, load_weights, read_manifest, save
from longstep.checkpoint import load as load_checkpoint
from longstep.errors import CheckpointError, LongstepError, UserError
from longstep.model.config import preset
from longstep.model.network import Model
from longstep.train.balance import rebalance
from longstep.train.loss import head_cross_entropy
from longstep.train.optim import OptimConfig, Optimizer, schedule
from longstep.train.pack import Batch, Packer, Source
from longstep.train.process import stop_flag
from longstep.train.speed import compile_parts

Stage = Literal["pretrain", "sft"]

_MAX_BAD_STEPS = 20  # updates in a row without a finite gradient


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A run. With `steps` the schedule follows them and `minutes` only stops it; without, it follows the time.

    `minutes` are those of the whole run: the time before a resumption counts.
    """

    stage: Stage
    preset: str
    sources: tuple[Source, ...]
    out: Path
    tokenizer_file: Path
    weights: Path | None = None  # whenever a checkpoint is saved, its weights alone are saved here too
    steps: int | None = None
    minutes: float | None = None
    init: Path | None = None  # a checkpoint whose weights to start from
    resume: bool = False
    batch_tokens: int = 131072  # per process and update
    row_tokens: int = 8192  # longest document
    max_documents: int | None = None  # per batch
    optim: OptimConfig = field(default_factory=OptimConfig)
    warm_up_steps: int = 100
    decay: float = 0.3  # last share of the run, over which the learning rate falls
    output_weight: float = 0.0  # weight of tokens that tools returned, against 1 for the model's own
    seed: int = 0
    device: str = "auto"
    compile: bool = True  # on a GPU
    save_minutes: float = 4.0
    report_steps: int = 10
    card: str = ""
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise UserError("a training run needs an end: give --steps, --minutes or both")
        if not self.sources:
            raise UserError("a training run needs data: name at least one folder of token shards")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run did. `loss` is the mean over the last report."""

    checkpoint: Path
    step: int
    tokens: int
    loss: float
    tokens_per_s: float
    load_ratio: float
    stopped: Literal["steps", "time", "signal"]
    bad_steps: int


def _choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {name} is not here (torch sees no GPU); use --device cpu")
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return torch.device(name)


@contextmanager
def _process_group(device: torch.device) -> Iterator[tuple[int, int]]:
    """(rank, number of processes); starts and ends the group that `torchrun` describes."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0, 1
        return
    started = not dist.is_initialized()
    if started:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        if started:
            dist.destroy_process_group()


@contextmanager
def _prefetched(batches: Iterator[Batch]) -> Iterator[Iterator[Batch]]:
    """The same batches, read by a thread while the device works."""
    ready: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=4)
    done = threading.Event()

    def put(item: Batch | BaseException) -> bool:
        while not done.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def read() -> None:
        try:
            for batch in batches:
                if not put(batch):
                    return
        except BaseException as error:
            put(error)

    def take() -> Iterator[Batch]:
        while True:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item

    thread = threading.Thread(target=read, daemon=True, name="batches")
    thread.start()
    try:
        yield take()
    finally:
        done.set()
        thread.join()


def _weights(state: TrainingState) -> dict[str, Tensor]:
    prefix = "model."
    return {n.removeprefix(prefix): t for n, t in state.tensors.items() if n.startswith(prefix)}


class Trainer:
    """A model, its optimizer and its place in the data. `update` is one step; `train` is the loop around it."""

    def __init__(self, cfg: TrainConfig, device: torch.device, rank: int, num_processes: int):
        self.cfg, self.device, self.rank, self.num_processes = cfg, device, rank, num_processes
        self.folder = cfg.out / "checkpoint"
        self.packer = Packer(
            cfg.sources,
            batch_tokens=cfg.batch_tokens,
            max_document=cfg.row_tokens,
            seed=cfg.seed,
            output_weight=cfg.output_weight,
            max_documents=cfg.max_documents,
        )
        on_gpu = device.type == "cuda"
        torch.manual_seed(cfg.seed)
        self.model = Model(preset(cfg.preset).as_mla(), compute_dtype=torch.bfloat16 if on_gpu else None)
        vocab_size = self.model.cfg.vocab_size
        for part in (part for source in self.packer.sources for part in source.parts):
            if int(part.meta.get("vocab_size", 0)) > vocab_size:
                raise UserError(
                    f"{part.folder} was written with {part.meta['vocab_size']} token ids, but preset {cfg.preset} "
                    f"has {vocab_size}; choose another preset or tokenizer"
                )
        state = self._start_weights()
        self.model.to(device).train()
        self.optimizer = Optimizer(self.model.named_parameters(), cfg.optim)
        self.step, self.tokens, self.loss = 0, 0, float("nan")
        self.elapsed_s = 0.0  # as of the last save
        self.restarted_at = 0  # the step from which the warm-up counts
        self.bad_steps, self.bad_in_a_row = (torch.zeros((), device=device) for _ in range(2))
        if state is not None:
            prefix = "optimizer."
            tensors = {n.removeprefix(prefix): t for n, t in state.tensors.items() if n.startswith(prefix)}
            self.optimizer.load_state_dict(tensors)
            torch.set_rng_state(state.tensors["random"])
        if cfg.resume:
            facts = read_manifest(self.folder).facts
            self.step, self.tokens, self.loss = int(facts["step"]), int(facts["tokens"]), float(facts["loss"])
            self.elapsed_s = float(facts.get("elapsed_s", 0.0))
            self.restarted_at = int(state.facts["restarted_at"]) if state is not None else self.step
        if on_gpu:
            from longstep.ops.mla.varlen import set_longest_document

            set_longest_document(cfg.row_tokens)
            if cfg.compile:
                compile_parts(self.model)

    def _start_weights(self) -> TrainingState | None:
        """Fill the model: from the run's own checkpoint, from `init`, or not at all. Returns what else was kept."""
        cfg = self.cfg
        if cfg.resume:
            state = load_training(self.folder)
            if state is None:  # weights alone: the optimizer starts anew, with a warm-up
                self._take(self.folder)
                return None
            if state.facts["data"] != self._data_facts():
                raise CheckpointError(
                    f"{self.folder} was trained on {state.facts['data']}, but this run names {self._data_facts()}; "
                    f"resume with the same data, or start a new run with --init {self.folder}"
                )
            load_weights(self.model, _weights(state), str(self.folder))
            return state
        if cfg.init is not None:
            self._take(cfg.init)
        return None

    def _take(self, folder: Path) -> None:
        checkpoint = load_checkpoint(folder, preset=self.cfg.preset, tokenizer=self.packer.tokenizer)
        state = load_training(folder)  # its weights, if it is there, have not been rounded
        load_weights(self.model, checkpoint.model.state_dict() if state is None else _weights(state), str(folder))

    def _data_facts(self) -> dict[str, Any]:
        cfg = self.cfg
        return {
            "sources": [
                {"grow": True} if option.grow else {"documents": source.num_documents, "tokens": source.num_tokens}
                for option, source in zip(cfg.sources, self.packer.sources, strict=True)
            ],
            "ratios": [s.ratio for s in cfg.sources],
            "seed": cfg.seed,
            "batch_tokens": cfg.batch_tokens,
            "row_tokens": cfg.row_tokens,
            "processes": self.num_processes,
        }

    def update(self, batch: Batch, lr: float) -> tuple[Tensor, Tensor, Tensor]:
        """One optimizer step, skipped if the gradient is not finite. Nothing here waits for the device.

        Returns mean loss, gradient norm and max/mean load by layer, on the device.
        """
        batch = batch.to(self.device, max_documents=self.packer.max_documents)
        total = batch.weight_T.sum()
        if self.num_processes > 1:
            dist.all_reduce(total)
        hidden_BTD = self.model(batch.token_BT, cu_seqlens=batch.cu_seqlens)
        loss_sum = head_cross_entropy(hidden_BTD[0], self.model.head.weight, batch.target_T, batch.weight_T)
        loss = loss_sum / total.clamp(min=1e-9)
        loss.backward()  # type: ignore[no-untyped-call]
        loss = loss.detach()
        gradient = self.optimizer.collect()
        if self.num_processes > 1:
            dist.all_reduce(gradient)
            dist.all_reduce(loss)
        norm, finite = self.optimizer.clip(gradient)
        ratios = rebalance(self.model)
        self.optimizer.step(lr, finite)
        self.optimizer.zero_grad()
        self.bad_steps += 1 - finite
        self.bad_in_a_row = (self.bad_in_a_row + 1) * (1 - finite)
        return loss, norm, ratios

    def sources(self) -> list[dict[str, Any]]:
        """What the run has read: folder, its tokens, and how often they were gone through."""
        epochs = self.packer.epochs(self.step * self.num_processes)
        return [
            {"folder": s.folder.name, "tokens": s.num_tokens, "epochs": round(n, 3)}
            for s, n in zip(self.packer.sources, epochs, strict=True)
        ]

    def save(self, *, last: bool = False) -> None:
        """Write the checkpoint (process 0 alone). The last one of a run also says what was read."""
        if self.rank:
            return
        cfg = self.cfg
        tensors = {f"model.{n}": t for n, t in self.model.state_dict().items()}
        tensors |= {f"optimizer.{n}": t for n, t in self.optimizer.state_dict().items()}
        tensors["random"] = torch.get_rng_state()
        training = {"data": self._data_facts(), "restarted_at": self.restarted_at}
        facts: dict[str, Any] = {
            "stage": cfg.stage,
            "step": self.step,
            "tokens": self.tokens,
            "loss": round(self.loss, 4),
        }
        facts["elapsed_s"] = round(self.elapsed_s, 1)
        if last:
            facts["sources"] = self.sources()
        state = TrainingState(tensors=tensors, facts=training)
        for folder, kept in ((self.folder, state), (cfg.weights, None)):
            if folder is None:
                continue
            save(
                folder,
                self.model,
                tokenizer_file=cfg.tokenizer_file,
                tokenizer=self.packer.tokenizer,
                card=cfg.card or f"# {cfg.preset}\n\nStage {cfg.stage}, {self.step} updates, {self.tokens:,} tokens.\n",
                facts=facts,
                training=kept,
            )


def train(cfg: TrainConfig) -> Summary:
    """Train until the steps are done, the time is over or a signal comes. Always leaves a checkpoint that loads.

    Raises UserError or CheckpointError before anything is trained, LongstepError if the gradient stays not finite.
    """
    started_s = time.monotonic()
    device = _choose_device(cfg.device)
    console = Console(quiet=cfg.quiet, highlight=False)
    if not cfg.resume and (cfg.out / "checkpoint").exists():
        raise UserError(f"{cfg.out} already holds a run; go on with --resume, or name another folder")
    with _process_group(device) as (rank, num_processes), stop_flag() as stop:
        trainer = Trainer(cfg, device, rank, num_processes)
        cfg.out.mkdir(parents=True, exist_ok=True)
        batches = trainer.packer.batches(start=trainer.step * num_processes + rank, stride=num_processes)
        with _prefetched(batches) as fetched:
            return _run(trainer, fetched, stop, console, started_s)


def _run(
    trainer: Trainer, batches: Iterator[Batch], stop: threading.Event, console: Console, started_s: float
) -> Summary:
    cfg = trainer.cfg
    limit_s = None if cfg.minutes is None else 60 * cfg.minutes
    started_s -= trainer.elapsed_s
    saved_s = reported_s = time.monotonic()
    first_step = reported_step = trainer.step
    losses: list[Tensor] = []
    bad_steps, tokens_per_s, ratio = 0, 0.0, 1.0
    update_tokens = cfg.batch_tokens * trainer.num_processes

    def why_stop() -> Literal["steps", "time", "signal"] | None:
        if cfg.steps is not None and trainer.step >= cfg.steps:
            return "steps"
        if limit_s is not None and time.monotonic() - started_s >= limit_s:
            return "time"
        return "signal" if stop.is_set() else None

    while True:
        reason = _agreed(why_stop(), trainer)
        if reason is not None:
            break
        elapsed_s = time.monotonic() - started_s
        progress = trainer.step / cfg.steps if cfg.steps is not None else elapsed_s / (limit_s or 1.0)
        factor = schedule(
            trainer.step - trainer.restarted_at, progress, warm_up_steps=cfg.warm_up_steps, decay=cfg.decay
        )
        loss, norm, ratios = trainer.update(next(batches), cfg.optim.lr * factor)
        trainer.step += 1
        trainer.tokens += update_tokens
        losses.append(loss)
        if trainer.step % cfg.report_steps == 0 or trainer.step == first_step + 1:
            trainer.loss = float(torch.stack(losses).nanmean())  # waits for the device
            bad_steps = int(trainer.bad_steps)
            if trainer.bad_in_a_row >= _MAX_BAD_STEPS:
                raise LongstepError(
                    f"training stopped at step {trainer.step}: the gradient was not finite in "
                    f"{int(trainer.bad_in_a_row)} updates in a row; the checkpoint in {trainer.folder}, if any, is "
                    f"from before: resume it with a lower --lr"
                )
            now_s = time.monotonic()
            ratio = float(ratios.max())
            tokens_per_s = update_tokens * (trainer.step - reported_step) / (now_s - reported_s)
            left_s = _left_s(trainer, limit_s, now_s - started_s, tokens_per_s)
            line = {
                "step": trainer.step,
                "tokens": trainer.tokens,
                "loss": round(trainer.loss, 5),
                "lr": cfg.optim.lr * factor,
                "grad_norm": round(float(norm), 4),
                "load": round(ratio, 3),
                "tokens_per_s": round(tokens_per_s),
                "bad_steps": bad_steps,
                "elapsed_s": round(now_s - started_s, 2),
            }
            _report(trainer, console, line, left_s)
            losses, reported_s, reported_step = [], now_s, trainer.step
        if time.monotonic() - saved_s >= 60 * cfg.save_minutes and not trainer.bad_in_a_row:
            trainer.elapsed_s = time.monotonic() - started_s
            trainer.save()
            saved_s = time.monotonic()
    bad_steps = int(trainer.bad_steps)
    if losses:
        trainer.loss = float(torch.stack(losses).nanmean())
    trainer.elapsed_s = time.monotonic() - started_s
    trainer.save(last=True)
    console.print(f"stopped ({reason}) at step {trainer.step}: {trainer.folder}")
    return Summary(
        checkpoint=trainer.folder,
        step=trainer.step,
        tokens=trainer.tokens,
        loss=trainer.loss,
        tokens_per_s=tokens_per_s,
        load_ratio=ratio,
        stopped=reason,
        bad_steps=bad_steps,
    )


def _agreed(
    reason: Literal["steps", "time", "signal"] | None, trainer: Trainer
) -> Literal["steps", "time", "signal"] | None:
    """With several processes all stop in the same step, for the reason of the one that has the strongest."""
    if trainer.num_processes == 1:
        return reason
    order: tuple[Literal["steps", "time", "signal"] | None, ...] = (None, "steps", "time", "signal")
    code = torch.tensor(order.index(reason), device=trainer.device)
    dist.all_reduce(code, op=dist.ReduceOp.MAX)
    return order[int(code)]


def _left_s(trainer: Trainer, limit_s: float | None, elapsed_s: float, tokens_per_s: float) -> float:
    cfg = trainer.cfg
    ends = [] if limit_s is None else [limit_s - elapsed_s]
    if cfg.steps is not None:
        ends.append((cfg.steps - trainer.step) * cfg.batch_tokens * trainer.num_processes / tokens_per_s)
    return min(ends)


def _report(trainer: Trainer, console: Console, line: dict[str, Any], left_s: float) -> None:
    if trainer.rank:
        return
    with (trainer.cfg.out / "log.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    console.print(
        f"step {line['step']:>6}  loss {line['loss']:.4f}  {line['tokens_per_s'] / 1e3:,.0f}k tok/s  "
        f"lr {line['lr']:.2e}  grad {line['grad_norm']:.2f}  load {line['load']:.2f}  left {left_s / 60:.1f} min"
    )
