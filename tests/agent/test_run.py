"""`longstep run` as a user meets it: real worlds, folders and sandbox; the models are experts and scripts."""

import asyncio
import errno
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from longstep.agent import journal
from longstep.agent.folders import File
from longstep.agent.run import PROJECT_TOOLS, Ask, Outcome, folder_tools, run_task
from longstep.chat.model import ChatModel, ChatRequest, Event
from longstep.errors import ChatError, UserError
from longstep.messages import ToolResult
from longstep.worlds.base import Move, Policy, PolicyModel, do_nothing
from longstep.worlds.registry import world

BUG = "def total(numbers):\n    return sum(numbers[1:])\n"
FIXED = "def total(numbers):\n    return sum(numbers)\n"
TEST = """from stock import total


def test_total():
    assert total([1, 2]) == 3


def test_empty():
    assert total([]) == 0
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LONGSTEP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def project(tmp_path) -> Path:
    folder = tmp_path / "stock project"
    (folder / "tests").mkdir(parents=True)
    (folder / "stock.py").write_text(BUG)
    (folder / "tests/test_stock.py").write_text(TEST)
    (folder / ".git").mkdir()
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    return folder


def expert(name: str, seed: int, family: str | None = None) -> Callable[[], ChatModel]:
    made = world(name)
    return lambda: PolicyModel(made.expert(made.task(seed, family), "high", random.Random(1)))


def scripted(policy: Policy) -> Callable[[], ChatModel]:
    return lambda: PolicyModel(policy, name="script")


def repairs() -> Policy:
    (report,) = yield Move(think="Run the tests.\nThen look.", calls=(("run_tests", {}),))
    assert report.text.startswith("FAILED 1 of 2"), report.text
    yield Move(think="It drops the first.", calls=(("read_file", {"path": "stock.py"}),))
    yield Move(calls=(("edit_file", {"path": "stock.py", "old": "numbers[1:]", "new": "numbers"}),))
    yield Move(text="Fixed: the first number was left out.")


def writes(**files: str) -> Policy:
    for path, text in files.items():
        yield Move(calls=(("write_file", {"path": path.replace("__", "/") + ".py", "text": text}),))
    yield Move(text="Done.")


WRITE = (*PROJECT_TOOLS, "write_file", "shell")  # for scripts that make files in a project


def run(ask: Ask, open_model: Callable[[], ChatModel]) -> tuple[Outcome, str]:
    out = io.StringIO()
    outcome = run_task(ask, open_model, Console(file=out, width=100, highlight=False, markup=False, emoji=False))
    return outcome, out.getvalue()


# -------------------------------------------------------------------------------------------------------------- worlds


@pytest.mark.parametrize("name", ["tiny", "terminal", "retrieval"])
def test_an_expert_is_proved_and_doing_nothing_is_not(name):
    outcome, shown = run(Ask(world=name, seed=3), expert(name, 3))
    assert outcome.exit_code == 0
    assert f"proved by {name}'s verifier" in shown
    outcome, shown = run(Ask(world=name, seed=3), scripted(do_nothing(world(name).task(3))))
    assert outcome.exit_code == 1
    assert outcome.sentence.startswith("not proved: the agent says that it is done, but ")
    assert outcome.sentence in shown


def test_what_is_shown_is_plain_where_there_is_no_terminal():
    _, shown = run(Ask(world="tiny", seed=3), expert("tiny", 3))
    lines = shown.splitlines()
    assert "+++ b/omega.txt" in lines
    assert "to write the changes" not in shown, "a world's folder is nobody's"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", shown)
    assert max(len(line) for line in lines if not line.startswith("files:")) <= 100
    assert lines[0].startswith("run 2")
    assert " expert · effort high · at most 4 steps · tiny/copy, seed 3" in lines[0]
    assert "  1  think  Read kappa.txt." in lines
    assert "     call   write_file path='omega.txt' text='lantern'" in lines
    assert "            wrote omega.txt, 1 lines" in lines
    assert "  3  says   Done." in lines


def test_json_is_one_object_and_nothing_else():
    outcome, shown = run(Ask(world="tiny", seed=3, as_json=True, effort="low"), expert("tiny", 3))
    said = json.loads(shown)
    assert shown.count("\n") == 1
    assert said["proved"] is True
    assert (said["exit_code"], said["why"], said["steps"], said["effort"]) == (0, "answered", 3, "low")
    assert (said["world"], said["family"], said["seed"]) == ("tiny", "copy", 3)
    assert [check["passed"] for check in said["checks"]] == [True] * 3
    assert said["run_id"] == outcome.run_id
    assert set(said["usage"]) == {"fresh_input", "cache_read", "cache_write", "output", "reasoning"}


def test_a_world_s_run_has_nothing_to_apply_to_and_needs_its_folder():
    outcome, _ = run(Ask(world="tiny", seed=3), expert("tiny", 3))
    with pytest.raises(UserError, match="is of a world and has no folder to write to"):
        run(Ask(resume=outcome.run_id, apply=True), expert("tiny", 3))
    shutil.rmtree(journal.run_folder(outcome.run_id) / "workspace")
    with pytest.raises(UserError, match="workspace is gone, so it cannot go on"):
        run(Ask(resume=outcome.run_id), expert("tiny", 3))


def test_out_of_steps_says_how_to_go_on():
    model = expert("terminal", 3)()
    outcome, _ = run(Ask(world="terminal", seed=3, max_steps=2), lambda: model)
    assert outcome.exit_code == 1
    assert f"longstep run --resume {outcome.run_id} --max-steps N" in outcome.sentence
    going, _ = run(Ask(resume=outcome.run_id, max_steps=40), lambda: model)  # the same policy goes on
    assert going.exit_code == 0
    assert going.episode.num_steps > 3


# ------------------------------------------------------------------------------------------------------------- folders


def test_a_repaired_folder_is_proved_shown_and_written_back_when_asked(project):
    before = {p: p.read_bytes() for p in project.rglob("*") if p.is_file()}
    outcome, shown = run(Ask(task="Fix the failing test.", workspace=project), scripted(repairs()))
    assert outcome.exit_code == 0
    assert "proved by the tests: 3 of 3 checks" in shown
    assert "left out of the copy: .git" in shown
    assert "-    return sum(numbers[1:])\n+    return sum(numbers)\n" in shown
    assert f"longstep run --resume {outcome.run_id} --apply" in shown
    assert {p: p.read_bytes() for p in project.rglob("*") if p.is_file()} == before, "the folder is untouched"

    applied, shown = run(Ask(resume=outcome.run_id, apply=True), scripted(repairs()))
    assert applied.applied
    assert f"written to {project}" in shown
    assert (project / "stock.py").read_text() == FIXED
    assert sorted(p.name for p in project.iterdir()) == [".git", "stock.py", "tests"]
    again, _ = run(Ask(resume=outcome.run_id, apply=True), scripted(repairs()))
    assert again.exit_code == 0, "what is written already is no reason to refuse"


def test_apply_at_once_writes_only_what_is_proved(project):
    outcome, _ = run(
        Ask(task="Fix it.", workspace=project, tools=WRITE, apply=True), scripted(writes(stock="total = len\n"))
    )
    assert (outcome.exit_code, outcome.applied) == (1, False)
    assert "Not written, since it is not proved; to write it: longstep run --resume" in outcome.sentence
    assert (project / "stock.py").read_text() == BUG
    assert run(Ask(resume=outcome.run_id, apply=True), scripted(repairs()))[0].applied  # seen, and wanted all the same
    assert (project / "stock.py").read_text() == "total = len\n"

    (project / "stock.py").write_text(BUG)
    outcome, _ = run(Ask(task="Fix it.", workspace=project, apply=True), scripted(repairs()))
    assert (outcome.exit_code, outcome.applied) == (0, True)
    assert (project / "stock.py").read_text() == FIXED


def test_apply_refuses_if_the_folder_changed_meanwhile(project):
    outcome, _ = run(Ask(task="Fix it.", workspace=project), scripted(repairs()))
    (project / "stock.py").write_text(BUG + "# mine\n")
    with pytest.raises(UserError, match=r"stock.py changed in .* so nothing was written"):
        run(Ask(resume=outcome.run_id, apply=True), scripted(repairs()))
    assert (project / "stock.py").read_text() == BUG + "# mine\n"


UNPROVED = {
    "wrong": (writes(stock="total = len\n"), "the folder's tests pass: FAILED 1 of 2"),
    "weakened the test": (
        writes(tests__test_stock="def test_total():\n    pass\n\n\ndef test_empty():\n    pass\n"),
        "the agent changed tests/test_stock.py; the verdict is by the tests as they were",
    ),
    "a conftest that skips": (
        writes(conftest="import pytest\n\n\ndef pytest_collection_modifyitems(items):\n    items.clear()\n"),
        "the agent changed conftest.py; the verdict is by the tests as they were",
    ),
    "nothing": (writes(), "the agent says that it is done, but the folder's tests pass: FAILED 1 of 2"),
}


@pytest.mark.parametrize("case", UNPROVED)
def test_what_the_tests_do_not_bear_out_is_not_proved(project, case):
    policy, expected = UNPROVED[case]
    outcome, shown = run(Ask(task="Fix it.", workspace=project, tools=WRITE), scripted(policy))
    assert outcome.exit_code == 1
    assert outcome.sentence.startswith("not proved: ")
    assert expected in outcome.sentence
    assert outcome.sentence in shown


def test_tests_that_passed_before_prove_nothing_unless_named(project):
    (project / "stock.py").write_text(FIXED)
    change = {"stock": FIXED + "\n\ndef mean(numbers):\n    return 0\n"}
    outcome, _ = run(Ask(task="Add a mean.", workspace=project, tools=WRITE), scripted(writes(**change)))
    assert outcome.exit_code == 1
    assert "all tests passed before as well" in outcome.sentence
    task = "Add a mean and keep tests/test_stock.py passing."
    assert run(Ask(task=task, workspace=project, tools=WRITE), scripted(writes(**change)))[0].exit_code == 0
    task = "Write a mean with a test in tests/test_mean.py."  # names a test that the agent itself writes
    change["tests__test_mean"] = "def test_mean():\n    pass\n"
    assert run(Ask(task=task, workspace=project, tools=WRITE), scripted(writes(**change)))[0].exit_code == 1


def test_a_named_test_is_the_one_that_counts(project):
    (project / "tests/test_other.py").write_text("def test_broken():\n    assert False\n")
    task = "Make tests/test_stock.py::test_total pass."
    assert run(Ask(task=task, workspace=project), scripted(repairs_any()))[0].exit_code == 0
    assert run(Ask(task="Make all tests pass.", workspace=project), scripted(repairs_any()))[0].exit_code == 1


def repairs_any() -> Policy:
    yield Move(calls=(("edit_file", {"path": "stock.py", "old": "numbers[1:]", "new": "numbers"}),))
    yield Move(text="Done.")


def test_a_folder_gets_the_tools_of_the_world_that_it_is_like():
    """As the model was taught: the same tools in the same order."""
    for files, name in (
        (("stock.py", "tests/test_stock.py", "docs/a.md"), "repair"),
        (("docs/a.md", "notes.txt"), "retrieval"),
        (("a.txt", "b/c.log"), "terminal"),
        ((), "terminal"),
    ):
        assert folder_tools(dict.fromkeys(files, File(hash="x"))) == world(name).task(0).tools


def test_a_folder_without_tests_is_never_proved(tmp_path):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/a.txt").write_text("a\n")
    outcome, shown = run(Ask(task="Tidy.", workspace=tmp_path / "bare"), scripted(writes(b="x = 1\n")))
    assert outcome.exit_code == 1
    assert "no test proves it: pytest finds none in the folder" in outcome.sentence
    assert "+++ b/b.py" in shown


# ------------------------------------------------------------------------------------------------------------ bad input


BAD = {
    "unknown effort": (Ask(task="x", effort="extreme"), "effort 'extreme': there are low, high and max"),
    "no steps": (Ask(task="x", max_steps=0), "--max-steps 0"),
    "empty task": (Ask(task=" \n"), "the task is empty"),
    "no task": (Ask(), "the task is empty"),
    "unknown world": (Ask(world="mars", seed=1), "no world 'mars'"),
    "unknown family": (Ask(world="tiny", seed=1, family="x"), "no family 'x'"),
    "negative seed": (Ask(world="tiny", seed=-1), "--seed -1"),
    "world and task": (Ask(world="tiny", task="x"), "--world brings its own task"),
    "world and apply": (Ask(world="tiny", apply=True), "--apply writes back to a --workspace"),
    "seed without world": (Ask(task="x", seed=3), "belong to a --world"),
    "resume and task": (Ask(resume="x", task="y"), "leave out a task"),
    "unknown tool": (Ask(task="x", tools=("fly",)), "tool 'fly'"),
    "world and tools": (Ask(world="tiny", tools=("shell",)), "leave out the task, --workspace and --tools"),
    "resume and effort": (Ask(resume="x", effort="low"), "leave out --effort"),
    "resume and family": (Ask(resume="x", family="y"), "leave out --family"),
    "no text": (Ask(task="caf\udce9"), "the task is not UTF-8"),
    "unknown run": (Ask(resume="20990101-000000-0000"), "no run '20990101-000000-0000'"),
    "missing workspace": (Ask(task="x", workspace=Path("/nowhere/at/all")), "there is no such folder"),
    "a file as workspace": (Ask(task="x", workspace=Path("/etc/hostname")), "a file, not a folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_asked_is_a_sentence_and_makes_nothing(case, home):
    ask, expected = BAD[case]

    def no_model() -> ChatModel:
        raise AssertionError("refused before any model is loaded")

    with pytest.raises(UserError) as caught:
        run(ask, no_model)
    assert expected in str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert not list(home.glob("runs/*"))


def test_an_unwritable_workspace_is_refused(project, home):
    project.chmod(0o555)
    with pytest.raises(UserError, match="not writable"):
        run(Ask(task="x", workspace=project), scripted(repairs()))
    project.chmod(0o755)
    assert not list(home.glob("runs/*"))


def test_a_task_longer_than_the_context_is_refused(project, home):
    class Narrow(PolicyModel):
        context_tokens = 1000

        def count_tokens(self, request: ChatRequest) -> int:
            return len(str(request.messages).split())

    with pytest.raises(UserError, match=r"the task is 2,\d+ tokens .* script has a context of 1,000 tokens"):
        run(Ask(task="word " * 2000, workspace=project), lambda: Narrow(repairs(), name="script"))
    assert not list(home.glob("runs/*"))


def test_a_torn_journal_is_said_and_gone_on_from(home):
    model = expert("terminal", 3)()
    outcome, _ = run(Ask(world="terminal", seed=3, max_steps=3), lambda: model)
    path = home / "runs" / outcome.run_id / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"n":12,"at":"2026')
    going, shown = run(Ask(resume=outcome.run_id, max_steps=40), lambda: model)
    assert going.exit_code == 0
    assert "the journal's last record was cut off while it was written; 18 bytes dropped" in shown
    assert "goes on after 3 steps" in shown


def test_tool_output_cannot_drive_the_terminal(project):
    (project / "evil.txt").write_text("\x1b[2J\x1b]0;owned\x07 hello\r\x9b31m")

    def policy() -> Policy:
        yield Move(think="\x1b[31mred", calls=(("read_file", {"path": "evil.txt"}),))
        yield Move(text="\x1b[2Jdone")

    _, shown = run(Ask(task="Look.\x1b[0m", workspace=project), scripted(policy()))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    assert "\u241b[2J" in shown


def test_a_console_that_knows_only_ascii(project):
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii"), width=100, highlight=False, markup=False)
    outcome = run_task(Ask(task="Fix \u00e9.", workspace=project), scripted(repairs()), console)
    console.file.flush()
    assert outcome.exit_code == 0
    assert b"proved by the tests" in raw.getvalue()


def test_a_model_that_breaks_keeps_the_run(project, home, capsys):
    class Broken(PolicyModel):
        async def stream(self, request: ChatRequest) -> AsyncIterator[Event]:
            if any(isinstance(m, ToolResult) for m in request.messages):
                raise ChatError("the endpoint went away")
            async for event in super().stream(request):
                yield event

    with pytest.raises(ChatError, match="went away"):
        run(Ask(task="Fix it.", workspace=project), lambda: Broken(repairs(), name="script"))
    (folder,) = home.glob("runs/*")
    assert f"the run is kept: longstep run --resume {folder.name}" in capsys.readouterr().err

    def rest() -> Policy:
        yield Move(calls=(("edit_file", {"path": "stock.py", "old": "numbers[1:]", "new": "numbers"}),))
        yield Move(text="Done.")

    outcome, shown = run(Ask(resume=folder.name), lambda: PolicyModel(rest(), name="other"))
    assert outcome.exit_code == 0
    assert outcome.episode.num_steps == 3
    assert "begun with script, goes on with other" in shown


def test_output_that_cannot_be_written_keeps_the_run(project, home, capsys):
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        run_task(Ask(task="Fix it.", workspace=project), scripted(repairs()), Console(file=Full()))
    (folder,) = home.glob("runs/*")
    assert f"the run is kept: longstep run --resume {folder.name}" in capsys.readouterr().err


INTERRUPTED = """
import sys
from pathlib import Path
from longstep.agent.run import Ask, run_task
from longstep.worlds.base import Move, PolicyModel

def policy():
    yield Move(calls=(("write_file", {"path": "a.txt", "text": "1"}),))
    yield Move(calls=(("shell", {"command": "sleep 2; echo slept > b.txt"}),))
    yield Move(text="Done.")

ask = Ask(task="Wait.", workspace=Path(sys.argv[1]), tools=("shell", "write_file", "read_file"))
outcome = run_task(ask, lambda: PolicyModel(policy(), name="script"))
sys.exit(outcome.exit_code)
"""


def test_ctrl_c_keeps_the_state(project, home):
    """The started tool runs to its end and its outcome is on record; the run goes on without running it again."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, project], env=environment, **pipes)
    deadline = time.monotonic() + 60
    while not any('"name":"shell"' in path.read_text() for path in home.glob("runs/*/journal.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)  # the tool is under way
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    (folder,) = home.glob("runs/*")
    assert process.returncode == 130, err
    assert f"stopped; nothing is lost: longstep run --resume {folder.name}" in out
    assert "Traceback" not in err

    def rest() -> Policy:
        yield Move(calls=(("read_file", {"path": "b.txt"}),))
        yield Move(text="Done.")

    outcome, _ = run(Ask(resume=folder.name), scripted(rest()))
    results = [m.text for m in outcome.episode.history if isinstance(m, ToolResult)]
    assert results == ["wrote a.txt, 1 lines", "exit 0", "1| slept"]


def test_the_live_view_on_a_terminal(project):
    """Colours, and the live line goes away at the end; nothing is wider than the terminal."""
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system="truecolor", highlight=False, markup=False)
    outcome = run_task(Ask(task="Fix it.", workspace=project), scripted(repairs()), console)
    shown = out.getvalue()
    assert outcome.exit_code == 0
    assert "\x1b[" in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "call   edit_file path='stock.py' old='numbers[1:]' new='numbers'" in plain
    assert all(len(line) <= 100 for line in re.split(r"[\n\r]", plain))


def test_the_journal_of_a_run_rebuilds_its_history(home):
    outcome, _ = run(Ask(world="retrieval", seed=5), expert("retrieval", 5))
    folder = home / "runs" / outcome.run_id
    contents = journal.read(folder / "journal.jsonl")
    rebuilt = journal.rebuild(contents, journal.Blobs(folder / "blobs"))
    assert rebuilt.state.history == outcome.episode.history
    assert isinstance(contents.lines[-1].record, journal.VerdictRecord)
    assert contents.lines[-1].record.success
    # and shows the same again, without a model call
    again, _ = run(Ask(resume=outcome.run_id), scripted(do_nothing(world("retrieval").task(5))))
    assert again.episode.history == outcome.episode.history
    assert again.exit_code == 0


def test_scripts_above_speak_the_protocol(project):
    """The models of this file are `ChatModel`s, streamed by the same loop as a real one."""
    model: Any = scripted(repairs())()
    assert isinstance(model, ChatModel)
    events = asyncio.run(_first(model, project))
    assert events[0].turn.calls[0].name == "run_tests"


async def _first(model: ChatModel, project: Path) -> list[Any]:
    return [event async for event in model.stream(ChatRequest(messages=()))]
