"""The loop: it learns, it resumes to the same bits, it survives bad gradients and signals, processes share the work."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from longstep.checkpoint import load, load_training
from longstep.errors import CheckpointError, LongstepError, UserError
from longstep.train import loop
from longstep.train.loop import TrainConfig, Trainer, train
from longstep.train.optim import OptimConfig
from longstep.train.pack import ShardWriter, Source


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents that count upwards from a random start: the next token follows from the last."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    writer = ShardWriter(folder / "source", tokenizer="t")
    for _ in range(60):
        start, n = rng.integers(0, 50), rng.integers(20, 60)
        writer.add((start + np.arange(n)) % 50 + 10, np.r_[0, np.ones(n - 1, int)])
    writer.close()
    (folder / "tokenizer.json").write_text("{}")
    return folder


def config(data: Path, out: Path, **changes) -> TrainConfig:
    base = TrainConfig(
        stage="sft",
        preset="nano",
        sources=(Source(folder=data / "source"),),
        out=out,
        tokenizer_file=data / "tokenizer.json",
        steps=6,
        batch_tokens=256,
        row_tokens=64,
        warm_up_steps=2,
        report_steps=1,
        device="cpu",
        quiet=True,
    )
    return replace(base, **changes)


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = load_training(folder)
    return {n: t for n, t in state.tensors.items() if n.startswith("model.")}


def test_it_learns_and_leaves_a_checkpoint(data, tmp_path):
    summary = train(config(data, tmp_path, steps=15, optim=OptimConfig(lr=8e-3)))
    assert summary.stopped == "steps"
    assert summary.step == 15
    assert summary.tokens == 15 * 256
    got = losses(tmp_path)
    assert got[0] == pytest.approx(np.log(8192), abs=0.3), "at the start every token is as likely"
    assert got[-1] < got[0] - 2, f"{got[0]:.2f} -> {got[-1]:.2f}"
    line = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert {"step", "tokens", "loss", "lr", "grad_norm", "load", "tokens_per_s", "bad_steps"} <= set(line)
    checkpoint = load(summary.checkpoint, preset="nano", tokenizer="t")
    facts = checkpoint.manifest.facts
    assert facts["step"] == 15
    assert facts["sources"][0]["folder"] == "source"
    assert facts["sources"][0]["epochs"] * facts["sources"][0]["tokens"] == pytest.approx(15 * 256, rel=0.1)
    assert "Stage sft, 15 updates" in (summary.checkpoint / "card.md").read_text()


def test_a_resumed_run_has_the_same_bits(data, tmp_path):
    whole = config(data, tmp_path / "a", decay=1e-9)  # no decay: it would come earlier in a shorter run
    train(whole)
    train(replace(whole, out=tmp_path / "b", steps=3))
    assert train(replace(whole, out=tmp_path / "b", resume=True)).step == 6
    assert losses(tmp_path / "b") == losses(tmp_path / "a")
    one, other = weights(tmp_path / "a" / "checkpoint"), weights(tmp_path / "b" / "checkpoint")
    assert all(torch.equal(one[n], other[n]) for n in one)


def test_weights_alone_resume_with_a_warm_up(data, tmp_path):
    train(config(data, tmp_path, steps=4, report_steps=1))
    folder = tmp_path / "checkpoint"
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in ("training.safetensors", "training.json"):
        (folder / name).unlink()
        del manifest["files"][name]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    summary = train(config(data, tmp_path, steps=7, resume=True, warm_up_steps=3))
    assert summary.step == 7
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert lines[4]["lr"] == pytest.approx(1e-3), "a third of the learning rate in the first step after"


def test_a_run_starts_from_another_ones_weights(data, tmp_path):
    first = train(config(data, tmp_path / "a", steps=3))
    cfg = config(data, tmp_path / "b", init=first.checkpoint, steps=1)
    trainer = Trainer(cfg, torch.device("cpu"), 0, 1)
    want = weights(first.checkpoint)
    assert all(torch.equal(t, want[f"model.{n}"]) for n, t in trainer.model.state_dict().items()), "not rounded"
    assert trainer.step == 0


def test_data_parallel_is_one_larger_batch(data, tmp_path):
    """Two processes with half the batch each do what one does with both halves: same losses, same weights."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_data_parallel, args=(rank, port, data, tmp_path / "two")) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    both = _both_halves(data, tmp_path / "one")
    got = weights(tmp_path / "two" / "checkpoint")
    worst = max(float((got[n] - t).abs().max()) for n, t in both.items())
    assert worst < 2e-3, f"largest difference of a weight {worst:.1e}"  # Muon amplifies rounding where gradients vanish
    facts = json.loads((tmp_path / "two" / "checkpoint" / "manifest.json").read_text())["facts"]
    assert facts["tokens"] == 2 * 2 * 256


def _data_parallel(rank: int, port: int, data: Path, out: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    train(config(data, out, steps=2))


def _both_halves(data: Path, out: Path) -> dict[str, torch.Tensor]:
    """Two updates of one process whose gradient is that of two batches together."""
    trainer = Trainer(config(data, out, steps=2), torch.device("cpu"), 0, 1)
    batches = trainer.packer.batches()
    for step in range(2):
        pair = [next(batches), next(batches)]
        total = sum(b.weight_T.sum() for b in pair)
        proposals, model = [], trainer.model
        for batch in pair:
            hidden = model(batch.token_BT, cu_seqlens=batch.cu_seqlens)
            loss = loop.head_cross_entropy(hidden[0], model.head.weight, batch.target_T, batch.weight_T) / total
            loss.backward()
            kept = [m.balance_bias_E.clone() for m in loop_moe(model)]
            loop.rebalance(model)
            proposals.append([m.balance_bias_E.clone() for m in loop_moe(model)])
            for layer, bias in zip(loop_moe(model), kept, strict=True):
                layer.balance_bias_E.copy_(bias)
        for layer, *biases in zip(loop_moe(model), *proposals, strict=True):
            layer.balance_bias_E.copy_(sum(biases) / 2)
        trainer.optimizer.clip(trainer.optimizer.collect())
        factor = loop.schedule(step, step / 2, warm_up_steps=2, decay=0.3)
        trainer.optimizer.step(trainer.cfg.optim.lr * factor)
        trainer.optimizer.zero_grad()
    return {f"model.{n}": t for n, t in trainer.model.state_dict().items()}


def loop_moe(model):
    from longstep.train.balance import moe_layers

    return moe_layers(model)


def test_a_bad_gradient_is_skipped_and_many_stop(data, tmp_path, monkeypatch):
    real = loop.head_cross_entropy
    calls = 0

    def sometimes_nan(*arguments):
        nonlocal calls
        calls += 1
        return real(*arguments) * (float("nan") if calls == 2 else 1.0)

    monkeypatch.setattr(loop, "head_cross_entropy", sometimes_nan)
    summary = train(config(data, tmp_path / "a", steps=4))
    assert summary.bad_steps == 1
    assert all(torch.isfinite(t).all() for t in weights(summary.checkpoint).values())
    monkeypatch.setattr(loop, "head_cross_entropy", lambda *a: real(*a) * float("inf"))
    with pytest.raises(LongstepError, match="gradient was not finite in 20 updates in a row"):
        train(config(data, tmp_path / "b", steps=40, row_tokens=32, batch_tokens=32))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_saves_and_ends(data, tmp_path, number):
    timer = threading.Timer(1.0, os.kill, (os.getpid(), number))
    before = signal.getsignal(number)
    timer.start()
    try:
        summary = train(config(data, tmp_path, steps=100_000))
    finally:
        timer.cancel()
    assert summary.stopped == "signal"
    assert signal.getsignal(number) == before
    assert load(summary.checkpoint).manifest.facts["step"] == summary.step > 0


def test_time_is_a_limit_and_a_schedule(data, tmp_path):
    started = time.monotonic()
    summary = train(config(data, tmp_path, steps=None, minutes=2.5 / 60, warm_up_steps=0, decay=0.5))
    assert summary.stopped == "time"
    assert time.monotonic() - started < 8
    rates = [json.loads(line)["lr"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rates[-1] < 0.5 * rates[0], "the learning rate has fallen with the time"


def test_time_counts_on_after_a_resumption(data, tmp_path):
    cfg = config(data, tmp_path, steps=None, minutes=1.5 / 60, warm_up_steps=0, decay=0.9)
    first = train(replace(cfg, steps=3))
    elapsed_s = load(first.checkpoint).manifest.facts["elapsed_s"]
    assert 0 < elapsed_s < 1.5
    assert train(replace(cfg, resume=True)).stopped == "time"
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[3]["step"] == 4
    assert elapsed_s < lines[3]["elapsed_s"]
    over = train(replace(cfg, resume=True))
    assert over.step == lines[-1]["step"], "no time is left"
    assert over.loss == pytest.approx(lines[-1]["loss"], abs=1e-3)


def test_weights_are_kept_apart_at_every_save(data, tmp_path, monkeypatch):
    """Killed without a chance to save, a run leaves the weights of its last save, and they load."""
    real, saved = loop.save, []

    def killed_at_the_last(folder, *arguments, **named):
        if "sources" in named["facts"]:
            raise SystemError("killed")
        real(folder, *arguments, **named)
        saved.append((folder, named["facts"]["step"]))

    monkeypatch.setattr(loop, "save", killed_at_the_last)
    with pytest.raises(SystemError):
        train(config(data, tmp_path / "run", steps=3, save_minutes=0.0, weights=tmp_path / "weights"))
    assert saved == [(tmp_path / at, step) for step in (1, 2, 3) for at in ("run/checkpoint", "weights")]
    checkpoint = load(tmp_path / "weights", preset="nano", tokenizer="t")
    assert checkpoint.manifest.facts["step"] == 3
    assert load_training(tmp_path / "weights") is None
    kept = load(tmp_path / "run" / "checkpoint").model.state_dict()
    assert all(torch.equal(t, kept[n]) for n, t in checkpoint.model.state_dict().items())


def test_a_run_on_growing_data_resumes_with_its_weights(data, tmp_path):
    grown = tmp_path / "grown"
    sources = (Source(folder=data / "source"), Source(folder=grown, ratio=3.0, grow=True))
    cfg = config(data, tmp_path / "run", sources=sources, steps=3, decay=1e-9)
    facts = load(train(cfg).checkpoint).manifest.facts
    assert facts["sources"][1] == {"folder": "grown", "tokens": 0, "epochs": 0.0}
    before = weights(tmp_path / "run" / "checkpoint")
    shutil.copytree(data / "source", grown / "part-0000")
    cfg = replace(cfg, steps=5, resume=True)
    trainer = Trainer(cfg, torch.device("cpu"), 0, 1)
    assert all(torch.equal(t, before[f"model.{n}"]) for n, t in trainer.model.state_dict().items())
    assert trainer.optimizer.num_steps == 3
    facts = load(train(cfg).checkpoint).manifest.facts
    assert facts["step"] == 5
    assert facts["sources"][1]["epochs"] * facts["sources"][1]["tokens"] == pytest.approx(0.75 * 5 * 256, rel=0.2)


def test_mistakes_are_told(data, tmp_path):
    cfg = config(data, tmp_path / "a", steps=1)
    train(cfg)
    with pytest.raises(UserError, match="already holds a run"):
        train(cfg)
    with pytest.raises(CheckpointError, match="resume with the same data"):
        train(replace(cfg, resume=True, seed=5))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        train(config(data, tmp_path / "b", resume=True))
    with pytest.raises(CheckpointError, match="holds preset nano, but tiny"):
        train(config(data, tmp_path / "c", preset="tiny", init=tmp_path / "a" / "checkpoint"))
    with pytest.raises(UserError, match="needs an end"):
        config(data, tmp_path / "d", steps=None)
    with pytest.raises(UserError, match="needs data"):
        config(data, tmp_path / "d", sources=())
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="torch sees no GPU"):
            train(config(data, tmp_path / "d", device="cuda"))
    writer = ShardWriter(tmp_path / "large", tokenizer="t")
    writer.add([1, 2])
    writer.close({"vocab_size": 9000})
    with pytest.raises(UserError, match="written with 9000 token ids, but preset nano has 8192"):
        train(config(data, tmp_path / "d", sources=(Source(folder=tmp_path / "large"),)))
