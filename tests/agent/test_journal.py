"""The journal: resuming from any prefix of its bytes, refusing damage, and a real process that is killed."""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from agent_script import Careful, NoSandbox, header, run_or_resume, tools

from longstep.agent import journal
from longstep.agent.journal import UNKNOWN, Blobs, ModelOutcome, Resumed, StateRecord, ToolIntent, ToolOutcome
from longstep.agent.loop import Act, Done, Limits, Think, run_episode
from longstep.errors import JournalError, UserError
from longstep.messages import ToolResult, User
from longstep.tools.base import ToolContext

NUM_WORDS = 5
WORDS = [f"w{i}" for i in range(NUM_WORDS)]


def notes(folder: Path) -> list[str]:
    path = folder / "workspace/notes.txt"
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "run-1"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A whole run, with the workspace as it was at each moment between two writes to the journal.

    Returns (folder, moments): moments are (journal bytes so far, words in the file), in order.
    """
    folder = tmp_path_factory.mktemp("recorded") / "run-1"
    folder.mkdir()
    moments: list[tuple[int, tuple[str, ...]]] = []
    write = journal.RunJournal.write

    def spy(self, record, *, sync=False):
        moments.append((self.path.stat().st_size, tuple(notes(folder))))  # before
        write(self, record, sync=sync)
        moments.append((self.path.stat().st_size, tuple(notes(folder))))  # after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal.RunJournal, "write", spy)
        episode = run_or_resume(folder, NUM_WORDS)
    assert episode is not None
    assert episode.why == "answered"
    return folder, moments


def test_a_run_is_recorded_whole(recorded):
    """Intent before outcome for each effect, states between, and the history can be had back."""
    folder, _ = recorded
    contents = journal.read(folder / "journal.jsonl")
    assert f'"version":{journal.VERSION}' in (folder / "journal.jsonl").read_text().partition("\n")[0]
    kinds = [msgspec.json.decode(msgspec.json.encode(line.record))["kind"] for line in contents.lines]
    assert kinds[:8] == [
        *("header", "state", "model intent", "model outcome", "state", "tool intent", "tool outcome", "state"),
    ]
    assert kinds[-1] == "state"
    assert [line.n for line in contents.lines] == list(range(len(kinds)))
    rebuilt = journal.rebuild(contents, Blobs(folder / "blobs"))
    assert isinstance(rebuilt.state, Done)
    again = asyncio.run(
        run_episode(
            Careful(NUM_WORDS), "Write the words.", tools=tools(), effort="low", limits=Limits(max_steps=500),
            context=ToolContext(workspace=_fresh(folder.parent / "again"), sandbox=NoSandbox()),
        )
    )  # fmt: skip
    assert rebuilt.state.history == again.history


def _fresh(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_long_result_is_a_blob(recorded):
    folder, _ = recorded
    contents = journal.read(folder / "journal.jsonl")
    blobs = [line.record for line in contents.lines if isinstance(line.record, ToolOutcome) and line.record.blob]
    assert len(blobs) == 1
    assert len(Blobs(folder / "blobs").get(blobs[0].blob)) > journal.BLOB_BYTES
    assert max(len(line) for line in (folder / "journal.jsonl").read_bytes().splitlines()) < 4096


def _check_prefix(recorded: Path, target: Path, num_bytes: int, words: tuple[str, ...]) -> None:
    """Put back the moment at which `num_bytes` were written and the file held `words`, and run on to the end."""
    shutil.rmtree(target, ignore_errors=True)
    (target / "workspace").mkdir(parents=True)
    shutil.copytree(recorded / "blobs", target / "blobs")
    data = (recorded / "journal.jsonl").read_bytes()[:num_bytes]
    (target / "journal.jsonl").write_bytes(data)
    if words:
        (target / "workspace/notes.txt").write_text("\n".join(words) + "\n")
    run_or_resume(target, NUM_WORDS)
    assert notes(target) == WORDS, f"killed after {num_bytes} bytes with {len(words)} words written"
    _check_no_done_tool_ran_again(target)


def _check_no_done_tool_ran_again(folder: Path) -> None:
    """In the whole journal, at most one intent of each call of an unsafe tool, and none after its outcome."""
    contents = journal.read(folder / "journal.jsonl")
    started, done = [], set()
    for line in contents.lines:
        if isinstance(line.record, ToolIntent):
            assert line.record.call_id not in done
            if line.record.name == "append":
                assert line.record.call_id not in started
            started.append(line.record.call_id)
        if isinstance(line.record, ToolOutcome):
            assert line.record.call_id not in done
            done.add(line.record.call_id)


def test_resumes_from_every_moment(recorded, tmp_path):
    """Between any two writes: before and after each intent, effect and outcome."""
    folder, moments = recorded
    assert len(moments) > 60
    first_bytes = moments[1][0]
    for num_bytes, words in sorted(set(moments)):
        if num_bytes >= first_bytes:
            _check_prefix(folder, tmp_path / "run-1", num_bytes, words)


def test_every_byte_of_a_record_is_the_moment_before_it(recorded, tmp_path):
    """R65: torn anywhere, the journal reads as if the write had not begun, so the test above speaks for every byte."""
    folder, _ = recorded
    data = (folder / "journal.jsonl").read_bytes()
    whole = journal.read(folder / "journal.jsonl").lines
    path = tmp_path / "journal.jsonl"
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for num_bytes in (*ends, *range(ends[-9], len(data))):
        path.write_bytes(data[:num_bytes])
        num_whole = sum(end <= num_bytes for end in ends)
        contents = journal.read(path)
        assert contents.lines == whole[:num_whole]
        assert contents.valid_bytes == ends[num_whole - 1] == num_bytes - contents.dropped_bytes


@pytest.mark.parametrize("num_records", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_resumes_from_every_byte_of_the_last_records(recorded, tmp_path, num_records):
    folder, moments = recorded
    before = moments[::2]
    for num_bytes in range(before[-num_records][0], moments[-1][0]):
        words = [w for size, w in before if size <= num_bytes][-1]  # as it was when this write began
        _check_prefix(folder, tmp_path / "run-1", num_bytes, words)


def test_a_torn_tail_is_said_and_cut_off(recorded, tmp_path):
    folder, _ = recorded
    run = tmp_path / "run-1"
    shutil.copytree(folder, run)
    data = (run / "journal.jsonl").read_bytes()
    for tail in (b'{"n":', b"\x00" * 50, data.splitlines()[-1][:-3] + b"\n"):
        (run / "journal.jsonl").write_bytes(data + tail)
        contents = journal.read(run / "journal.jsonl")
        assert contents.dropped_bytes == len(tail)
        going = journal.resume(run, tools())
        going.journal.close()
        assert going.dropped_bytes == len(tail)
        assert (run / "journal.jsonl").read_bytes() == data


@pytest.mark.parametrize("damage", ["flip", "drop", "swap", "other run", "version", "forged", "renumbered"])
def test_damage_before_the_tail_is_refused(recorded, tmp_path, damage):
    folder, _ = recorded
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    if damage == "flip":
        lines[4] = lines[4].replace(b'"act"', b'"aCt"')
    elif damage == "drop":
        del lines[4]
    elif damage == "swap":
        lines[4], lines[5] = lines[5], lines[4]
    elif damage == "other run":
        # whole in itself and with the right number: only the chain tells
        (tmp_path / "other").mkdir()
        run_or_resume(tmp_path / "other", NUM_WORDS)
        lines[4] = (tmp_path / "other/journal.jsonl").read_bytes().splitlines(keepends=True)[4]
    elif damage == "version":
        lines[0] = _signed(json.loads(lines[0]) | {}, "", version=2)
    elif damage == "forged":
        # rightly signed, but it contradicts what came before
        previous = json.loads(lines[3])["sum"]
        lines[4:] = [
            _signed({"n": 4, "at": "x", "record": {"kind": "state", "state": "think", "num_messages": 7}}, previous)
        ]
    elif damage == "renumbered":
        previous = json.loads(lines[3])["sum"]
        lines[4:] = [_signed({"n": 9, "at": "x", "record": json.loads(lines[4])["record"]}, previous), b"{}\n"]
    run = tmp_path / "run-1"
    run.mkdir()
    (run / "journal.jsonl").write_bytes(b"".join(lines))
    shutil.copytree(folder / "blobs", run / "blobs")
    expected = {
        "version": "journal version 2, but this program reads version 1",
        "forged": "record 4 does not follow from those before it",
    }
    with pytest.raises(JournalError, match=expected.get(damage, r"line 5 is damaged.*start the task again")):
        journal.resume(run, tools())
    assert (run / "journal.jsonl").read_bytes() == b"".join(lines), "nothing is lost by trying"


def _signed(line: dict, previous: str, version: int | None = None) -> bytes:
    line.pop("sum", None)
    if version is not None:
        line["record"]["version"] = version
    body = msgspec.json.encode(line)[:-1]
    return body + f',"sum":"{journal._sum(previous, body)}"}}\n'.encode()


def test_a_missing_or_changed_blob_is_refused(recorded, tmp_path):
    folder, _ = recorded
    run = tmp_path / "run-1"
    shutil.copytree(folder, run)
    (blob,) = (run / "blobs").iterdir()
    blob.write_bytes(b"other")
    with pytest.raises(JournalError, match="do not match its name"):
        journal.resume(run, tools())
    blob.unlink()
    with pytest.raises(JournalError, match=r"No such file.*restore the file"):
        journal.resume(run, tools())


def test_unknown_outcome_is_told_and_a_safe_tool_runs_again(recorded, tmp_path):
    """R67, R68: the model reads that the outcome of `append` is unknown; `look` is simply run again."""
    folder, _ = recorded
    contents = journal.read(folder / "journal.jsonl")
    data = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for name in ("append", "look"):
        n = next(x.n for x in contents.lines if isinstance(x.record, ToolIntent) and x.record.name == name)
        run = tmp_path / name
        run.mkdir()
        (run / "journal.jsonl").write_bytes(b"".join(data[: n + 1]))
        going = journal.resume(run, tools())
        going.journal.close()
        assert going.unknown is not None
        assert going.unknown.name == name
        if name == "look":
            assert isinstance(going.state, Act)
            assert going.state.pending[0] == going.unknown
        else:
            assert isinstance(going.state, Act)  # the turn's second call is still to run
            assert going.state.results == (
                ToolResult(call_id=going.unknown.id, name="append", text=UNKNOWN, is_error=True),
            )
        again = journal.resume(run, tools())  # the verdict "unknown" is itself on record
        again.journal.close()
        assert again.state == going.state


def test_a_run_that_ended_at_a_limit_goes_on_under_a_wider_one(folder):
    made = tools()
    short = msgspec.structs.replace(header(folder), limits=Limits(max_steps=2))
    workspace = folder / "workspace"
    workspace.mkdir()
    context = ToolContext(workspace=workspace, sandbox=NoSandbox())
    with journal.start(folder, short) as book:
        episode = asyncio.run(
            run_episode(
                Careful(NUM_WORDS), short.task, tools=made, context=context, limits=short.limits, journal=book
            )
        )  # fmt: skip
    assert episode.why == "out of steps"
    same = journal.resume(folder, made)
    same.journal.close()
    assert same.state == Done(episode.history, "out of steps")

    wider = journal.resume(folder, made, max_steps=50)
    with wider.journal as book:
        assert wider.state == Think(episode.history)
        asyncio.run(
            run_episode(
                Careful(NUM_WORDS), wider.state, tools=made, context=context, limits=wider.limits, journal=book
            )
        )  # fmt: skip
    assert notes(folder) == WORDS
    end = journal.resume(folder, made)
    end.journal.close()
    assert (end.limits.max_steps, type(end.state)) == (50, Done)
    assert end.used_s > 0


def test_one_process_at_a_time(folder):
    with (
        journal.start(folder, header(folder)),
        pytest.raises(JournalError, match="run run-1 is open in another process"),
    ):
        journal.resume(folder, tools())
    journal.resume(folder, tools()).journal.close()


def test_a_full_disk_says_how_to_go_on(folder):
    with journal.start(folder, header(folder)) as book:
        full = os.open("/dev/full", os.O_WRONLY)
        book._fd, own = full, book._fd
        with pytest.raises(JournalError, match=r"No space left.*make room, then `longstep run --resume run-1`"):
            book.state(Think((User(text="x"),)))
        book._fd = own
        os.close(full)


def test_a_journal_without_a_header(folder):
    (folder / "journal.jsonl").write_bytes(b'{"n":0,"at":')
    with pytest.raises(JournalError, match="ended before its first record"):
        journal.resume(folder, tools())
    with pytest.raises(JournalError, match="No such file"):
        journal.resume(folder / "nowhere", tools())


def test_where_runs_live(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSTEP_HOME", str(tmp_path / "home"))
    with pytest.raises(UserError, match=r"no run 'x' in .*; it has none"):
        journal.run_folder("x")
    made = journal.new_run_folder()
    assert made.parent == tmp_path / "home/runs"
    journal.start(made, header(made)).close()
    assert journal.run_folder(made.name) == made
    for bad in ("x", "", "../runs/" + made.name):
        with pytest.raises(UserError, match=f"newest: {made.name}"):
            journal.run_folder(bad)
    monkeypatch.setenv("LONGSTEP_HOME", "/proc/nowhere")
    with pytest.raises(UserError, match="set LONGSTEP_HOME"):
        journal.new_run_folder()
    monkeypatch.delenv("LONGSTEP_HOME")
    assert journal.runs_folder() == Path.home() / ".local/share/longstep/runs"


def test_a_killed_process_ends_in_the_same_state(tmp_path):
    """kill -9 at random moments, resumed each time, until it is through: each word stands once, in order."""
    folder = tmp_path / "run-1"
    folder.mkdir()
    script, num_words = Path(__file__).with_name("agent_script.py"), 24
    rng = random.Random(7)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    num_kills = 0
    while True:
        command = [sys.executable, str(script), str(folder), str(num_words), "0.01"]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        size = (folder / "journal.jsonl").stat().st_size if (folder / "journal.jsonl").exists() else 0
        while process.poll() is None and not (
            (folder / "journal.jsonl").exists() and (folder / "journal.jsonl").stat().st_size > size
        ):
            time.sleep(0.005)  # until it is under way, not in its imports
        try:
            _, error = process.communicate(timeout=rng.uniform(0.0, 0.3))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            num_kills += 1
            continue
        assert process.returncode == 0, error.decode()
        break
    assert num_kills >= 3
    assert notes(folder) == [f"w{i}" for i in range(num_words)]
    _check_no_done_tool_ran_again(folder)
    contents = journal.read(folder / "journal.jsonl")
    assert sum(isinstance(line.record, Resumed) for line in contents.lines) >= 3
    assert isinstance(contents.lines[-1].record, StateRecord)
    assert any(isinstance(line.record, ModelOutcome) for line in contents.lines)


def test_no_home_is_a_sentence(monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("LONGSTEP_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UserError, match="set LONGSTEP_HOME"):
        journal.runs_folder()
