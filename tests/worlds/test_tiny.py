"""The tiny world: its pairs are split, and its verifier sees the word, the place and nothing else."""

import random
from pathlib import Path

import pytest
from world_play import PlainShell, play

from longstep.errors import UserError, WorldError
from longstep.messages import ToolResult
from longstep.worlds.base import FIRST_TEST_SEED
from longstep.worlds.tiny import FILES, WORDS, TinyWorld, pairs

WORLD = TinyWorld()
SANDBOX = PlainShell()


def test_no_pair_of_training_is_a_pair_of_testing_but_every_word_and_file_is_trained() -> None:
    train, test = set(pairs("train")), set(pairs("test"))
    assert len(train) + len(test) == len(WORDS) * len(FILES)
    assert not train & test
    for side in (train, test):
        assert {w for w, _ in side} == set(WORDS)
        assert {f for _, f in side} == set(FILES)


@pytest.mark.parametrize("family", ["write", "copy"])
def test_tasks_draw_all_pairs_of_their_side_and_no_other(family: str) -> None:
    for first in (0, FIRST_TEST_SEED):
        tasks = [WORLD.task(seed, family) for seed in range(first, first + 1500)]
        drawn = {(t.secret.word, t.secret.target) for t in tasks}
        assert drawn == set(pairs(tasks[0].split))


@pytest.mark.parametrize("family", ["write", "copy"])
def test_an_answer_in_the_wrong_place_or_with_more_in_it_is_refused(family: str, tmp_path: Path) -> None:
    task = WORLD.task(7, family)
    word, target, source = task.secret.word, task.secret.target, task.secret.source
    good = {target: word} | ({source: word} if source else {})
    cases: list[tuple[bool, dict[str, str]]] = [
        (True, good),
        (True, good | {target: word + "\n"}),
        (False, good | {target: word + " too"}),
        (False, good | {"more.txt": ""}),
        (False, {f: w for f, w in good.items() if f != target}),
    ]
    if source:
        cases.append((False, good | {source: "changed"}))
    for i, (expected, files) in enumerate(cases):
        workspace = tmp_path / f"{i}"
        workspace.mkdir()
        for name, text in files.items():
            (workspace / name).write_text(text)
        assert WORLD.verify(task, workspace, SANDBOX).success is expected, files
    (workspace / target).unlink(missing_ok=True)
    (workspace / target).symlink_to("/etc/hostname")
    assert not WORLD.verify(task, workspace, SANDBOX).success


def test_the_copying_expert_writes_what_it_read(tmp_path: Path) -> None:
    """The word is in no instruction: change the file behind the expert's back and the answer changes."""
    task = WORLD.task(3, "copy")
    assert task.secret.word not in task.instruction
    WORLD.set_up(task, tmp_path)
    (tmp_path / task.secret.source).write_text("other")
    play(WORLD.expert(task, "low", random.Random(0)), task, tmp_path, SANDBOX)
    assert (tmp_path / task.secret.target).read_text() == "other"


def test_a_check_that_fails_stops_the_expert() -> None:
    expert = WORLD.expert(WORLD.task(0, "write"), "max", random.Random(0))
    result = ToolResult(call_id="1", name="write_file", text="wrote")
    next(expert)
    expert.send((result,))
    with pytest.raises(WorldError, match="wrote"):
        expert.send((ToolResult(call_id="2", name="read_file", text="1| nothing"),))


def test_an_unknown_family_is_refused_with_the_list() -> None:
    with pytest.raises(UserError, match="write, copy"):
        WORLD.task(0, "nosuch")
