"""Training data from experts: the loop's own prompts, verified successes only, and nothing that tests will use."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from longstep.chat.tokenizer import Tokenizer
from longstep.errors import LongstepError, UserError
from longstep.train import episodes
from longstep.train.episodes import EpisodeMaker, Job, jobs, make_episodes, make_parts, offered
from longstep.train.pack import CONTEXT, OUTPUT, OWN, Shards, ShardWriter
from longstep.worlds.base import FIRST_TEST_SEED, Move
from longstep.worlds.tiny import TinyWorld, pairs


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("episodes") / "tiny"
    stats = make_episodes({"tiny": 1.0}, out=out, num_episodes=24, num_processes=0, unsafe=True, quiet=True)
    return out, stats


def texts(shards: Shards, kind: int) -> list[str]:
    """For each episode the text of its tokens of a kind, control tokens left out."""
    tokenizer = Tokenizer.load()
    out = []
    for document, n in enumerate(shards.length_N.tolist()):
        tokens, kinds = shards.read(document, 0, n)
        out.append(b"".join(tokenizer.bytes_of[t] or b"" for t in tokens[kinds == kind]).decode())
    return out


def test_shards_hold_what_the_expert_wrote(made):
    out, stats = made
    shards = Shards(out)
    assert stats["episodes"] == len(shards.length_N) == 24
    assert stats["failures"] == {}
    assert stats["tokens"] == shards.num_tokens
    assert shards.tokenizer == Tokenizer.load().id
    given, own, returned = (texts(shards, kind) for kind in (CONTEXT, OWN, OUTPUT))
    for i in range(24):
        assert "Write the word" in given[i] or "Copy the word" in given[i]
        assert "write_file" in own[i]
        assert own[i].count("Done.") == 1
        assert "Done." not in given[i]
        assert "wrote" in returned[i], "the tool's answer is returned, not written"
        assert "wrote" not in own[i]


def test_statistics_add_up(made):
    out, stats = made
    assert json.loads((out / "stats.json").read_text()) == stats
    totals = Counter()
    for group in stats["groups"]:
        assert group["world"] == "tiny"
        totals.update({k: group[k] for k in ("episodes", "tokens", "steps")})
    assert totals["episodes"] == 24
    assert totals["tokens"] == stats["tokens"]
    assert {group["effort"] for group in stats["groups"]} == {"low", "high", "max"}


def test_a_pool_of_processes_makes_the_same(made, tmp_path):
    """Same tokens in the same order, whoever is done first."""
    out, _ = made
    make_episodes({"tiny": 1.0}, out=tmp_path / "b", num_episodes=24, num_processes=2, unsafe=True, quiet=True)
    a, b = Shards(out), Shards(tmp_path / "b")
    assert a.length_N.tolist() == b.length_N.tolist()
    for document, n in enumerate(a.length_N.tolist()):
        for one, other in zip(a.read(document, 0, n), b.read(document, 0, n), strict=True):
            assert np.array_equal(one, other)


def test_jobs_share_out_by_weight_and_count_seeds_by_world():
    plan = list(jobs({"a": 3.0, "b": 1.0}, {"low": 1.0, "max": 1.0}, 100, 400, 0.5))
    names = Counter(job.world for job in plan)
    assert names["a"] / 400 == pytest.approx(0.75, abs=0.07)
    for name in "ab":
        assert [j.seed for j in plan if j.world == name] == list(range(100, 100 + names[name]))
    assert {job.effort for job in plan} == {"low", "max"}
    assert sum(job.verify for job in plan) / 400 == pytest.approx(0.5, abs=0.08)
    assert plan == list(jobs({"a": 3.0, "b": 1.0}, {"low": 1.0, "max": 1.0}, 100, 400, 0.5))


def test_offered_tools_always_hold_the_tasks_own():
    lists = [offered(("read_file", "write_file"), random.Random(i)) for i in range(200)]
    assert all({"read_file", "write_file"} <= set(names) for names in lists)
    assert all(len(set(names)) == len(names) for names in lists)
    assert 0.6 < sum(names == ("read_file", "write_file") for names in lists) / 200 < 0.85
    assert any("shell" in names for names in lists)


class Wrong(TinyWorld):
    """An expert that writes the wrong word, one that breaks, one that hangs, by seed."""

    def expert(self, task, effort, rng):
        if task.seed == 1:
            raise RuntimeError("the expert broke")
        if task.seed == 2:
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # the limit comes at once
            while True:
                pass
        if task.seed == 3:
            yield from super().expert(task, effort, rng)
            return
        yield Move(calls=(("write_file", {"path": task.secret.target, "text": "wrong"}),))
        yield Move(text="Done.")


def test_failures_are_counted_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(episodes, "world", lambda name: Wrong())
    stats = make_episodes({"tiny": 1.0}, out=tmp_path / "a", num_episodes=4, num_processes=0, unsafe=True, quiet=True)
    assert stats["episodes"] == 1
    reasons = " ".join(stats["failures"])
    assert "the expert failed" in reasons
    assert "RuntimeError: the expert broke" in reasons
    assert "TimeoutError" in reasons
    with EpisodeMaker(None, 8192, unsafe=True) as maker:
        assert maker.make(Job("tiny", 0, "low", verify=False)).tokens is not None, "unverified, it would be used"


def test_held_out_families_and_test_seeds_are_refused(monkeypatch, tmp_path):
    class HeldOut(TinyWorld):
        held_out = frozenset({"copy", "write"})

    monkeypatch.setattr(episodes, "world", lambda name: HeldOut())
    with EpisodeMaker(None, 8192, unsafe=True) as maker:
        assert "held out" in maker.make(Job("tiny", 0, "low", True)).failure
        assert "training seeds" in maker.make(Job("tiny", FIRST_TEST_SEED, "low", True)).failure
    with pytest.raises(UserError, match="not all below 1000000"):
        make_episodes({"tiny": 1.0}, out=tmp_path / "a", num_episodes=10, first_seed=FIRST_TEST_SEED - 5)


def test_training_never_shows_a_test_pair(made):
    out, _ = made
    shown = " ".join(texts(Shards(out), CONTEXT))
    assert not any(f"Write the word {w} to {f}" in shown for w, f in pairs("test"))


def test_limits_end_it(tmp_path):
    long = make_episodes(
        {"tiny": 1.0}, out=tmp_path / "a", num_episodes=50, num_processes=0, max_tokens=1000, unsafe=True, quiet=True
    )
    assert 1000 <= long["tokens"] < 2000
    short = make_episodes(
        {"tiny": 1.0}, out=tmp_path / "b", num_episodes=3, num_processes=0, max_document=100, unsafe=True, quiet=True
    )
    assert short["episodes"] == 0
    assert "longer than 100 tokens" in " ".join(short["failures"])
    timed = make_episodes(
        {"tiny": 1.0}, out=tmp_path / "c", num_episodes=50, num_processes=0, minutes=0.0, unsafe=True, quiet=True
    )
    assert timed["episodes"] == 1


def test_a_worker_that_dies_costs_its_own_episodes_only(tmp_path, monkeypatch):
    """The plan is cut so that one chunk's worker is killed from within; all others still arrive."""
    monkeypatch.setattr(episodes, "_CHUNK", 2)
    monkeypatch.setattr(episodes, "_work", _die_at_seed_4)
    stats = make_episodes({"tiny": 1.0}, out=tmp_path / "a", num_episodes=10, num_processes=1, unsafe=True, quiet=True)
    assert stats["failures"] == {"tiny : a worker process died": 2}
    assert stats["episodes"] == 8


def _die_at_seed_4(some):
    if any(job.seed == 4 for job in some):
        os.kill(os.getpid(), signal.SIGKILL)
    return [episodes._maker.make(job) for job in some]


def test_mistakes_are_told(tmp_path):
    with pytest.raises(UserError, match="there is no world"):
        make_episodes({"nowhere": 1.0}, out=tmp_path / "a", num_episodes=1)
    with pytest.raises(UserError, match="at least one world"):
        make_episodes({}, out=tmp_path / "a", num_episodes=1)
    with pytest.raises(UserError, match="-1 processes cannot work"):
        make_episodes({"tiny": 1.0}, out=tmp_path / "a", num_episodes=1, num_processes=-1)
    with pytest.raises(UserError, match="0 episodes from seed 5"):
        make_episodes({"tiny": 1.0}, out=tmp_path / "a", num_episodes=0, first_seed=5)
    assert not (tmp_path / "a").exists()


def in_parts(out, **changes):
    arguments = {"part_episodes": 5, "num_processes": 0, "unsafe": True, "quiet": True} | changes
    return make_parts({"tiny": 1.0}, out=out, **arguments)


def all_tokens(folders) -> list[list[int]]:
    sources = [Shards(folder) for folder in folders]
    return [s.read(d, 0, n)[0].tolist() for s in sources for d, n in enumerate(s.length_N.tolist())]


def test_parts_are_the_episodes_in_order_and_go_on(made, tmp_path):
    out, _ = made
    assert in_parts(tmp_path / "p", num_episodes=10) == 2
    assert in_parts(tmp_path / "p", num_episodes=24) == 5, "goes on after the last part"
    assert sorted(f.name for f in (tmp_path / "p").iterdir()) == [f"part-{i:04d}" for i in range(5)]
    assert [len(Shards(f).length_N) for f in sorted((tmp_path / "p").iterdir())] == [5, 5, 5, 5, 4]
    assert all_tokens(sorted((tmp_path / "p").iterdir())) == all_tokens([out])
    with pytest.raises(UserError, match="holds parts written with"):
        in_parts(tmp_path / "p", part_episodes=6)


def test_parts_appear_whole(tmp_path, monkeypatch):
    """What is half written has a name that no reader looks for, and the next call clears it away."""
    real = ShardWriter.close

    def killed(self, meta=None):
        real(self, meta)
        if self.folder.name == ".part-0001":
            raise SystemError("killed")

    monkeypatch.setattr(ShardWriter, "close", killed)
    with pytest.raises(SystemError):
        in_parts(tmp_path, num_episodes=10)
    assert sorted(f.name for f in tmp_path.iterdir()) == [".part-0001", "part-0000"]
    monkeypatch.undo()
    in_parts(tmp_path, num_episodes=10)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["part-0000", "part-0001"]


def test_parts_refuse_the_tests_seeds_and_end_before_them(tmp_path):
    with pytest.raises(UserError, match="not all below 1000000"):
        in_parts(tmp_path, first_seed=FIRST_TEST_SEED - 5, num_episodes=6)
    assert in_parts(tmp_path, first_seed=FIRST_TEST_SEED - 7) == 2
    assert len(all_tokens(sorted(tmp_path.iterdir()))) == 7
    with pytest.raises(UserError, match="ask for 1 or more"):
        in_parts(tmp_path, part_episodes=0)


def test_parts_without_one_good_episode_are_an_error(tmp_path):
    with pytest.raises(LongstepError, match=r"none of the 5 episodes of part-0000 can be used.*longer than 9 tokens"):
        in_parts(tmp_path, max_document=9)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_signal_ends_the_writer_and_its_workers(tmp_path, number):
    """SIGTERM keeps even the part in hand; after SIGKILL no worker waits for a parent that is gone."""
    command = [sys.executable, "-c", "from longstep.cli import main; main()", "train", "episodes", "--out", "parts"]
    command += ["--worlds", "tiny", "--parts", "30", "--processes", "1", "--unsafe-no-sandbox"]
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    writer = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    first = writer.stdout.readline()
    family = descendants(writer.pid)
    assert family, "it has workers"
    os.kill(writer.pid, number)
    rest = writer.communicate(timeout=30)[0]
    assert first.startswith("part-0000: 30 episodes")
    folders = sorted(f for f in (tmp_path / "parts").iterdir() if not f.name.startswith("."))
    lines = [first, *rest.splitlines()]
    assert [line.partition(":")[0] for line in lines] == [f.name for f in folders]
    if number == signal.SIGTERM:
        assert writer.returncode == 0
        assert len(folders) == len(list((tmp_path / "parts").iterdir())), "nothing hidden is left"
    assert len(all_tokens(folders)) >= 30
    deadline = time.monotonic() + 10
    while alive := [pid for pid in family if running(pid)]:
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.1)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def descendants(pid: int) -> list[int]:
    children = [int(c) for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
    return children + [d for child in children for d in descendants(child)]
