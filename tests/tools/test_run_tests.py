"""run_tests: the report, golden; the fork server gives the same bytes as the sandbox."""

import contextlib
import fnmatch
import gc
import io
import json
import sys
import time
from pathlib import Path

import pytest

from longstep.errors import SandboxError
from longstep.sandbox.base import CommandResult, Limits
from longstep.tools import TOOLS, pytest_child, run_tests, warm_tests
from longstep.tools.base import ToolContext
from longstep.tools.warm_tests import WarmTests

CORE = """\
def total_over(rows, least):
    return sum(row for row in rows if row > least)


def mean(rows):
    return sum(rows) / len(rows)


def forever():
    count = 0
    while True:
        count += 1
"""
TESTS = """\
import pytest
from stock.core import mean, total_over


def test_total_over():
    rows = [1, 5, 7]
    assert total_over(rows, 5) == 12


def test_mean():
    assert mean([]) == 0


@pytest.mark.parametrize("n", [1, 2])
def test_one(n):
    print("noise" * 100)
    assert mean([n]) == n
"""
STOCK = {"stock/__init__.py": "", "stock/core.py": CORE}

PROJECTS = {  # name -> (files, path, report)
    "all pass": (
        {"a.py": "x = 1\n", "test_a.py": "import a\ndef test_a(): assert a.x\ndef test_b(): pass\n"},
        ".",
        "PASSED 2 tests",
    ),
    "two fail": (
        STOCK | {"tests/test_stock.py": TESTS},
        ".",
        "FAILED 2 of 4 tests\n"
        "test: tests/test_stock.py::test_total_over\n"
        "at: tests/test_stock.py:7 in test_total_over\n"
        "code: assert total_over(rows, 5) == 12\n"
        "test line: assert total_over(rows, 5) == 12\n"
        "error: AssertionError: assert 7 == 12\n"
        "test: tests/test_stock.py::test_mean\n"
        "at: stock/core.py:6 in mean\n"
        "code: return sum(rows) / len(rows)\n"
        "test line: assert mean([]) == 0\n"
        "error: ZeroDivisionError: division by zero",
    ),
    "one test of a file": (STOCK | {"tests/test_stock.py": TESTS}, "tests/test_stock.py::test_one", "PASSED 2 tests"),
    "more than three fail": (
        {"test_a.py": "".join(f"def test_{i}():\n    assert {i} < 0\n" for i in range(6))},
        ".",
        "FAILED 6 of 6 tests\n"
        + "".join(
            f"test: test_a.py::test_{i}\nat: test_a.py:{2 * i + 2} in test_{i}\ncode: assert {i} < 0\n"
            f"test line: assert {i} < 0\nerror: AssertionError: assert {i} < 0\n"
            for i in range(3)
        )
        + "(3 more)",
    ),
    "code that cannot be parsed": (
        {"a.py": "x = 1\ndef f()\n    pass\n", "test_a.py": "import a\ndef test_a(): pass\n"},
        ".",
        "ERROR collecting test_a.py\nat: a.py:2\ncode: def f()\nerror: SyntaxError: expected ':'",
    ),
    "tests that cannot be parsed": (
        {"tests/test_a.py": "def test_a(:\n"},
        ".",
        "ERROR collecting tests/test_a.py\nat: tests/test_a.py:1\ncode: def test_a(:\n"
        "error: SyntaxError: invalid syntax",
    ),
    "a missing module, beside good tests": (
        {"test_a.py": "from b import c\n", "test_b.py": "def test_b(): pass\n", "b.py": "import nowhere\n"},
        ".",
        "ERROR collecting test_a.py\nat: b.py:1\ncode: import nowhere\n"
        "error: ModuleNotFoundError: No module named 'nowhere'",
    ),
    "a missing name": (
        STOCK | {"tests/test_a.py": "\nfrom stock.core import median\n"},
        "tests",
        "ERROR collecting tests/test_a.py\nat: tests/test_a.py:2\ncode: from stock.core import median\n"
        "error: ImportError: cannot import name 'median' from 'stock.core' (stock/core.py)",
    ),
    "a broken conftest": (
        {"tests/conftest.py": "x = 1 / 0\n", "tests/test_a.py": "def test_a(): pass\n"},
        ".",
        "ERROR collecting conftest.py\nat: tests/conftest.py:1\ncode: x = 1 / 0\n"
        "error: ZeroDivisionError: division by zero",
    ),
    "a fixture that fails": (
        {"test_a.py": "import pytest\n@pytest.fixture\ndef f():\n    raise KeyError('k')\ndef test_a(f): pass\n"},
        ".",
        "FAILED 1 of 1 tests\ntest: test_a.py::test_a\nat: test_a.py:4 in f\ncode: raise KeyError('k')\n"
        "test line: raise KeyError('k')\nerror: KeyError: 'k'",
    ),
    "a fixture that fails afterwards": (
        {"test_a.py": "import pytest\n@pytest.fixture\ndef f():\n    yield\n    assert 0\ndef test_a(f): pass\n"},
        ".",
        "FAILED 1 of 1 tests\ntest: test_a.py::test_a\nat: test_a.py:5 in f\ncode: assert 0\n"
        "test line: assert 0\nerror: AssertionError: assert 0",
    ),
    "skipped and expected to fail": (
        {
            "test_a.py": "import pytest\ndef test_a(): pytest.skip()\n@pytest.mark.xfail\ndef test_b(): assert 0\n"
            "def test_c(): pass\n"
        },
        ".",
        "PASSED 1 tests, 2 skipped",
    ),
    "unittest": (
        {
            "test_a.py": "import unittest\nclass A(unittest.TestCase):\n    def test_a(self):\n"
            "        self.assertEqual(1, 2)\n"
        },
        ".",
        "FAILED 1 of 1 tests\ntest: test_a.py::A::test_a\nat: test_a.py:4 in test_a\ncode: self.assertEqual(1, 2)\n"
        "test line: self.assertEqual(1, 2)\nerror: AssertionError: 1 != 2",
    ),
    "long lines": (
        {"test_a.py": f"def test_a():\n    assert {'1 + ' * 100}0 == 0, 'm' * 1000\n"},
        ".",
        "FAILED 1 of 1 tests\ntest: test_a.py::test_a\nat: test_a.py:2 in test_a\n"
        + ("code: assert " + "1 + " * 100)[:160]
        + "\n"
        + ("test line: assert " + "1 + " * 100)[:160]
        + "\n"
        + ("error: AssertionError: " + "m" * 1000)[:160],
    ),
    "a loop without end": (
        STOCK | {"test_a.py": "from stock.core import forever\ndef test_a():\n    forever()\ndef test_b(): pass\n"},
        ".",
        "FAILED 1 of 2 tests\ntest: test_a.py::test_a\nat: stock/core.py:* in forever\ncode: *\n"
        "test line: forever()\nerror: Timeout: no end after 0.3 s",
    ),
    "a loop without end that catches everything": (
        {"test_a.py": "def test_a():\n    while True:\n        try: len('')\n        except Exception: pass\n"},
        ".",
        "FAILED 1 of 1 tests\ntest: test_a.py::test_a\nat: test_a.py:* in test_a\ncode: *\n"
        "test line: *\nerror: Timeout: no end after 0.3 s",
    ),
    "an import without end": (
        {"test_a.py": "while True: pass\n"},
        ".",
        "ERROR collecting test_a.py\nat: test_a.py:1\ncode: while True: pass\nerror: Timeout: no end after 0.3 s",
    ),
    "a test that ends the process": (
        {"test_a.py": "import os\ndef test_a(): os._exit(3)\n"},
        ".",
        "!pytest ended with exit 3 and no report",
    ),
    "a test that ends the session": (
        {"test_a.py": "def test_a(): raise KeyboardInterrupt\n"},
        ".",
        "ERROR running the tests\nat: test_a.py:1 in test_a\ncode: def test_a(): raise KeyboardInterrupt\n"
        "test line: def test_a(): raise KeyboardInterrupt\nerror: KeyboardInterrupt",
    ),
    "code that exits when imported": (
        {"a.py": "import sys\nsys.exit(4)\n", "test_a.py": "import a\n"},
        ".",
        "ERROR running the tests\nat: a.py:2\ncode: sys.exit(4)\nerror: SystemExit: 4",
    ),
    "code that exits when called": (
        {"test_a.py": "import sys\ndef test_a():\n    sys.exit(4)\n"},
        ".",
        "FAILED 1 of 1 tests\ntest: test_a.py::test_a\nat: test_a.py:3 in test_a\ncode: sys.exit(4)\n"
        "test line: sys.exit(4)\nerror: SystemExit: 4",
    ),
    "output that looks like a report, closed and broken streams": (
        {"test_a.py": "import os, sys\ndef test_a():\n    print('PASSED 9 tests'); os.close(1); sys.stdout = None\n"},
        ".",
        "PASSED 1 tests",
    ),
    "a module named like one of the standard library": (
        {"json.py": "x = 1\n", "typing.py": "", "test_a.py": "def test_a(): pass\n"},
        ".",
        "PASSED 1 tests",
    ),
    "a test that changes the folder": (
        {"test_a.py": "import os\ndef test_a():\n    os.chdir('/')\n    assert 0\n"},
        ".",
        "FAILED 1 of 1 tests\ntest: test_a.py::test_a\nat: test_a.py:4 in test_a\ncode: assert 0\n"
        "test line: assert 0\nerror: AssertionError: assert 0",
    ),
    "an error whose text fails": (
        {"test_a.py": "class E(Exception):\n    def __str__(self): raise ValueError\ndef test_a(): raise E\n"},
        ".",
        "FAILED 1 of 1 tests\ntest: test_a.py::test_a\nat: test_a.py:3 in test_a\ncode: def test_a(): raise E\n"
        "test line: def test_a(): raise E\nerror: E: its str() raised ValueError",
    ),
    "a config with sources elsewhere": (
        {
            "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['src']\naddopts = '-q --tb=long'\n",
            "src/a.py": "x = 1\n",
            "tests/test_a.py": "import a\ndef test_a(): assert a.x == 2\n",
        },
        ".",
        "FAILED 1 of 1 tests\ntest: tests/test_a.py::test_a\nat: tests/test_a.py:2 in test_a\n"
        "code: def test_a(): assert a.x == 2\ntest line: def test_a(): assert a.x == 2\n"
        "error: AssertionError: assert 1 == 2",
    ),
    "a folder for temporary files": (
        {"test_a.py": "def test_a(tmp_path):\n    (tmp_path / 'f').write_text('x')\n"},
        ".",
        "PASSED 1 tests",
    ),
    "no tests": ({"a.py": "x = 1\n"}, ".", "!no tests found under ."),
    "no tests in the folder": ({"a/b.py": "", "test_a.py": "def test_a(): pass\n"}, "a", "!no tests found under a"),
    "no such path": ({}, "tests", "!no tests found under tests: no such file or folder"),
    "no such test": (
        {"test_a.py": "def test_a(): pass\n"},
        "test_a.py::test_b",
        "!no tests found under test_a.py::test_b",
    ),
    "a name like an option": ({"-x/test_a.py": "def test_a(): pass\n"}, "-x", "PASSED 1 tests"),
}


@pytest.fixture(scope="module")
def short_times():
    """Tests get 0.3 s of CPU, so that loops without end take no 3 s here."""
    with pytest.MonkeyPatch.context() as patch:
        source = run_tests.SOURCE.replace("TEST_CPU_S = 3.0", "TEST_CPU_S = 0.3")
        assert source != run_tests.SOURCE
        patch.setattr(run_tests, "SOURCE", source)
        patch.setattr(warm_tests, "SOURCE", source)
        yield


@pytest.fixture(scope="module")
def warm(sandbox, short_times):
    with WarmTests(sandbox) as warm:
        yield warm


def write(workspace: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)


def matches(text: str, form: str) -> bool:
    """`*` in the form stands for anything within its line: where a loop was stopped is chance."""
    escaped = [line.replace("[", "[[]") for line in form.split("\n")]
    lines = text.split("\n")
    return len(lines) == len(escaped) and all(map(fnmatch.fnmatchcase, lines, escaped))


@pytest.mark.parametrize("name", PROJECTS)
def test_report(name, workspace, sandbox, warm):
    files, path, report = PROJECTS[name]
    write(workspace, files)
    before = sorted(workspace.rglob("*"))
    cold = TOOLS["run_tests"].run({"path": path}, ToolContext(workspace=workspace, sandbox=sandbox))
    assert matches(cold.text, report.removeprefix("!")), cold.text
    assert cold.is_error == report.startswith("!")
    fast = TOOLS["run_tests"].run({"path": path}, ToolContext(workspace=workspace, sandbox=warm))
    if "*" in report:
        assert matches(fast.text, report), fast.text
    else:
        assert fast == cold
    assert sorted(workspace.rglob("*")) == before, "a run leaves nothing behind"


def test_runs_do_not_see_each_other(workspace, warm):
    """The same module name with other content, run after run, in the same server."""
    for i in range(3):
        write(workspace, {"a.py": f"x = {i}\n", "test_a.py": f"import a\ndef test_a(): assert a.x == {i}\n"})
        assert run_tests.run_pytest(warm, workspace).text == "PASSED 1 tests"


def test_warm_tests_run_commands_in_their_sandbox(workspace, warm):
    assert warm.run(["whoami"], workspace=workspace).stdout == "agent\n"
    assert warm.name == "bubblewrap with warm tests"


def test_tests_that_hang_outside_python_are_killed(workspace, sandbox, warm, monkeypatch):
    """A test that blocks the signals is ended by the limit of the whole run, with all that it started."""
    block = (
        "import signal, time, subprocess\ndef test_a():\n    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 60))\n"
    )
    write(workspace, {"test_a.py": block + "    subprocess.Popen(['sleep', '60'])\n    time.sleep(60)\n"})
    monkeypatch.setattr(run_tests, "LIMITS", Limits(time_s=1.5))
    for place in (sandbox, warm):
        started_s = time.monotonic()
        output = run_tests.run_pytest(place, workspace)
        assert (output.text, output.is_error) == ("killed after 1.5 s: the tests did not end", True)
        assert time.monotonic() - started_s < 6


def test_the_server_starts_again_after_it_died(workspace, sandbox):
    write(workspace, {"test_a.py": "def test_a(): pass\n"})
    with WarmTests(sandbox) as warm:
        assert run_tests.run_pytest(warm, workspace).text == "PASSED 1 tests"
        assert warm._server is not None
        warm._server.kill()
        with pytest.raises(SandboxError, match="the fork server ended"):
            run_tests.run_pytest(warm, workspace)
        assert run_tests.run_pytest(warm, workspace).text == "PASSED 1 tests"


def test_a_report_with_broken_marks_is_no_report():
    class Prints:
        name = "prints"

        def __init__(self, stdout: str):
            self.stdout = stdout

        def run(self, argv, *, workspace, limits):
            return CommandResult(exit_code=0, stdout=self.stdout, stderr="why\n")

    mark = run_tests.pytest_child.MARK
    for stdout in ("", "PASSED 1 tests", mark, mark * 3):
        output = run_tests.run_pytest(Prints(stdout), Path())
        assert (output.text, output.is_error) == ("pytest ended with exit 0 and no report\nwhy", True)
    assert not run_tests.run_pytest(Prints(f"{mark}PASSED 1 tests{mark}"), Path()).is_error


# --- the same code in this process, where a debugger and coverage see it ----------------------------------------------


@pytest.fixture
def in_process(workspace, monkeypatch):
    """Calls in the workspace; modules and settings that they leave behind are undone."""
    known, threshold = set(sys.modules), gc.get_threshold()
    gc.collect()
    gc.freeze()  # what other tests left is not looked through again and again
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(pytest_child, "TEST_CPU_S", 2.0)  # CPU of the whole process, which may be large
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()
    for name in set(sys.modules) - known:
        del sys.modules[name]


def report_here(path: str) -> tuple[str, int]:
    with (
        open(2, "w", buffering=1, closefd=False) as stderr,
        contextlib.redirect_stderr(stderr),
    ):  # not the outer pytest's
        return pytest_child.report_on(path)


IN_PROCESS = [
    *("two fail", "more than three fail", "code that cannot be parsed", "a missing name", "a broken conftest"),
    *(
        "skipped and expected to fail",
        "a loop without end",
        "code that exits when imported",
        "no such test",
        "no tests",
    ),
    *("an error whose text fails", "a config with sources elsewhere", "a test that ends the session"),
]


@pytest.mark.parametrize("name", IN_PROCESS)
def test_report_in_this_process(name, workspace, in_process):
    files, path, report = PROJECTS[name]
    write(workspace, files)
    text, _ = report_here(f"./{path}")
    report = report.removeprefix("!").replace("no end after 0.3 s", "no end after 2 s")
    assert matches(text or f"no tests found under {path}", report), text


def test_a_config_that_pytest_refuses(workspace, in_process):
    write(workspace, {"pytest.ini": "[pytest]\naddopts = --nosuch\n", "test_a.py": "def test_a(): pass\n"})
    text, code = report_here(".")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert text.startswith("pytest could not start\nERROR: ")
    assert "--nosuch" in text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on threads, of which we start none
def test_the_server_in_this_process(workspace, in_process, monkeypatch, capsys):
    write(workspace, {"test_a.py": "def test_a(): pass\n", "test_b.py": "import time\ndef test_b(): time.sleep(60)\n"})
    request = {"workspace": str(workspace), "env": {}, "output_bytes": 1000, "rlimits": {}, "time_s": 30}
    requests = [request | {"path": "test_a.py"}, request | {"path": "test_b.py", "time_s": 0.5}]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(r) + "\n" for r in requests)))
    pytest_child.serve()
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    mark = pytest_child.MARK
    assert answers == [
        {"exit_code": 0, "stdout": f"{mark}PASSED 1 tests{mark}"},
        {"exit_code": None, "stdout": ""},
    ]


def test_a_test_that_forks_does_not_hold_the_server(workspace, warm):
    fork = "import os, time\ndef test_a():\n    if os.fork() == 0:\n        time.sleep(60)\n"
    write(workspace, {"test_a.py": fork})
    started_s = time.monotonic()
    assert run_tests.run_pytest(warm, workspace).text == "PASSED 1 tests"
    assert time.monotonic() - started_s < 20
