"""The train verbs hand on what was asked; a number of workers that cannot be is refused in words."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longstep.checkpoint import load
from longstep.cli import app
from longstep.train.pack import Shards
from longstep.train.process import usable_cores


def longstep(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["train", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def parts(tmp_path) -> Path:
    out = tmp_path / "parts"
    longstep(
        *("episodes", "--out", out, "--worlds", "tiny", "--parts", 6, "--number", 12, "--processes", 1),
        *("--unsafe-no-sandbox",),
    )
    return out


def test_parts_are_trained_on_as_a_growing_source(tmp_path, parts):
    assert [len(Shards(parts / f"part-000{i}").length_N) for i in range(2)] == [6, 6]
    longstep(
        *("sft", "--out", tmp_path / "run", "--data", f"{parts / 'part-0000'}=1", "--grow", f"{parts}=3"),
        *("--preset", "nano", "--steps", 2, "--batch-tokens", 2048, "--row-tokens", 1024, "--device", "cpu"),
        *("--weights", tmp_path / "weights", "--save-minutes", 5),
    )
    facts = load(tmp_path / "weights", preset="nano").manifest.facts
    assert facts["stage"] == "sft"
    assert facts["step"] == 2
    read = [source["epochs"] * source["tokens"] for source in facts["sources"]]
    assert read[1] / read[0] == pytest.approx(3.0, rel=0.5), "the ratios as they were given"


@pytest.mark.parametrize("number", [0, -3])
def test_no_worker_is_too_few(tmp_path, number):
    for verb in ("episodes", "tokens"):
        arguments = ["train", verb, "--out", str(tmp_path / "o"), "--corpus", "c", "--processes", str(number)]
        if verb == "episodes":
            del arguments[4:6]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert "--processes" in result.output
        assert not (tmp_path / "o").exists()


def test_cores_are_counted_by_the_system_alone(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    assert usable_cores() == len(os.sched_getaffinity(0)) >= 1
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == os.cpu_count()
