"""The whole recipe as its script runs it, very small: from a folder of packages to weights that load, through kills."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longstep.checkpoint import load
from longstep.train.pack import Shards

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path):
    """One core's worth of work: nano, and a corpus of a few of our own files."""
    site = tmp_path / "site"
    (site / "ours-1.0.dist-info").mkdir(parents=True)
    (site / "ours-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: ours\nVersion: 1.0\nLicense-Expression: Apache-2.0\n"
    )
    shutil.copytree(ROOT / "longstep" / "tools", site / "ours", ignore=shutil.ignore_patterns("__pycache__"))
    record = [f"{p.relative_to(site)},,\n" for p in sorted((site / "ours").rglob("*.py"))]
    (site / "ours-1.0.dist-info" / "RECORD").write_text("".join(record))
    (tmp_path / "doc").mkdir()
    return os.environ | {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PRESET": "nano",
        "DEVICE": "cpu",
        "BATCH_TOKENS": "1024",
        "PRETRAIN_ROW": "512",
        "ROW_TOKENS": "1024",
        "WARM_UP": "2",
        "PART": "10",
        "WORLDS": "tiny=1",
        "SAVE_MINUTES": "0.03",
        "CORPUS_ARGS": f"--python {site} --docs {tmp_path / 'doc'}",
        "TOKENS_ARGS": "--processes 1",
        "EPISODES_ARGS": "--unsafe-no-sandbox",
    }


def start(out: Path, minutes: float, environment: dict[str, str]) -> subprocess.Popen:
    command = [str(ROOT / "scripts" / "train_micro.sh"), str(out), str(minutes)]
    with (out.parent / "log").open("a") as log:
        return subprocess.Popen(command, cwd=out.parent, env=environment, stdout=log, stderr=subprocess.STDOUT)


def running_in(folder: Path) -> list[int]:
    """Processes that work in a folder, the script's among them."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and os.readlink(process / "cwd") == str(folder):
                found.append(int(process.name))
        except OSError:
            pass
    return found


def wait(done, seconds: float, what: str, log: Path) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"{what}; the log ends:\n{log.read_text()[-2000:]}"
        time.sleep(0.1)


def test_without_episodes_it_ends_before_it_trains(tmp_path, environment):
    script = start(tmp_path / "out", 1.0, environment | {"WORLDS": "nowhere=1"})
    assert script.wait(60) == 1
    assert "no episodes were made" in (tmp_path / "log").read_text()
    assert "there is no world" in (tmp_path / "out" / "episodes.log").read_text()
    assert not (tmp_path / "out" / "pretrain").exists()
    assert running_in(tmp_path) == []


def steps(stage: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (stage / "log.jsonl").read_text().splitlines()]


@pytest.mark.soak  # most of it is the start of Python and torch, a dozen times
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv ties other processes to a script that is killed")
def test_the_recipe_survives_kills_and_ends_with_a_model(tmp_path, environment):
    out, log = tmp_path / "out", tmp_path / "log"

    def facts() -> dict:
        return load(out / "weights", preset="nano").manifest.facts

    def trained(stage: str) -> bool:
        manifest = out / "weights" / "manifest.json"
        return manifest.exists() and f'"stage": "{stage}"' in manifest.read_text()

    script = start(out, 10.0, environment)
    wait(lambda: trained("pretrain"), 60, "no pretraining", log)
    script.terminate()
    assert script.wait(30) == 143
    wait(lambda: not running_in(tmp_path), 10, "a process outlived its script", log)
    num_pretrained = facts()["step"]
    assert num_pretrained > 0

    script = start(out, 0.5, environment)
    wait(lambda: trained("sft"), 60, "no training on episodes", log)
    os.kill(script.pid, signal.SIGKILL)
    script.wait()
    wait(lambda: not running_in(tmp_path), 30, "a process outlived its script", log)
    num_steps = facts()["step"]
    assert facts()["stage"] == "sft"
    assert load(out / "pretrain" / "checkpoint").manifest.facts["step"] >= num_pretrained

    script = start(out, 0.5, environment)
    assert script.wait(90) == 0, log.read_text()[-2000:]
    wait(lambda: not running_in(tmp_path), 10, "a process outlived its script", log)
    assert facts()["step"] > num_steps
    assert steps(out / "sft") == sorted(steps(out / "sft")), "it went on from where it was"
    parts = sorted((out / "episodes").glob("part-*"))
    assert len(parts) > 1
    tokens = {source["folder"]: source["tokens"] for source in facts()["sources"]}
    assert tokens.keys() == {"repairs", "text", "episodes"}
    assert sum(Shards(p).num_tokens for p in parts) >= tokens["episodes"] > Shards(parts[0]).num_tokens
