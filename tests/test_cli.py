"""What every verb has in common: an outcome that is no success is one sentence and an exit code, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from longstep.cli import main

ROOT = Path(__file__).parents[1]


def longstep(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    """The exit code of the command."""
    monkeypatch.setattr(sys, "argv", ["longstep", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_ctrl_c_is_a_sentence(monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("longstep.model.count.print_count", interrupted)
    assert longstep(monkeypatch, "count") == 130
    assert capsys.readouterr().err == "longstep: stopped; nothing that was written is lost\n"


COUNT = [sys.executable, "-m", "longstep", "count", "--preset", "nano"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_disk_is_a_sentence(form):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COUNT, *form], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "longstep: output: No space left on device\n")


def test_a_closed_pipe_is_no_error_to_speak_of():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COUNT, "--json"], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["count", "--preset", "huge"], "preset 'huge' is unknown"),
        (["demo", "--seed", "-3"], "--seed -3: seeds count from 0"),
        (["run"], "the task is empty"),
        (["run", "\udcff\udcfe"], "the task is not UTF-8"),
        (["render", "/nowhere.json"], "cannot read the request"),
        (["eval", "run", "--json", "x.json", "--worlds", "mars"], "there is no world 'mars'"),
        (["eval", "run", "--json", "x.json", "--seeds", "3"], "seeds '3': expected A:B"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_exit_code_2(monkeypatch, capsys, words, sentence):
    assert longstep(monkeypatch, *words) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert err.count("\n") == 1
    assert not out
