"""Runs pytest in a process of its own and writes a report. Only pytest and the standard library may be imported.

Its source is handed to `python -P -c` in the sandbox (`run_tests.py`), so that nothing of ours has to be visible there,
and to the fork server (`warm_tests.py`). Both give the same report, which goes to the real stdout between two `MARK`s;
what the tests print goes to a file without a name.

    FAILED 1 of 12 tests
    test: tests/test_stock.py::test_total
    at: stock/core.py:12 in total            the deepest line of the workspace that is no test, else the test's
    code: return sum(rows[1:])               what stands there
    test line: assert total(rows) == 12      the deepest line in a test file
    error: AssertionError: assert 9 == 12    the first line of the message
"""

import contextlib
import gc
import json
import linecache
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest

MARK = "\x1elongstep-report\x1e"  # with "record separators", which no ordinary program prints
NUM_DETAILED = 3
WIDTH = 160
TEST_CPU_S = 3.0  # of one test; a loop without end is then a failure like others, with its place
TEST_WALL_S = 10.0
# Parts of pytest that nothing here reads. A config may give options of the second group.
UNUSED = [f"-pno:{name}" for name in ("cacheprovider", "faulthandler")]
PLAIN_NAMES = ["terminal", "pastebin", "stepwise", "setuponly", "setupplan", "unraisableexception", "threadexception"]
UNUSED_IN_PLAIN = [f"-pno:{name}" for name in PLAIN_NAMES]
CONFIGS = ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


class Timeout(BaseException):
    """Not an Exception, so that the code under test does not swallow it."""


def is_test(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py"


def sentence(error: BaseException) -> str:
    """Type and first line of the message."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    try:
        text = str(error)
    except Exception as broken:
        text = f"its str() raised {type(broken).__name__}"
    first = text.split("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def true_error(error: BaseException) -> BaseException:
    """pytest wraps what an import raised in an error of its own."""
    return getattr(error, "cause", None) or error.__cause__ or error


def stop(signum: int, frame: FrameType | None) -> None:
    limit_s = TEST_CPU_S if signum == signal.SIGPROF else TEST_WALL_S
    raise Timeout(f"no end after {limit_s:g} s")


def timed() -> Generator[None, Any, Any]:
    """Stop what runs at the yield when its time is over. Collecting imports the code under test, so it is timed too."""
    signal.signal(signal.SIGPROF, stop)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S)
    signal.setitimer(signal.ITIMER_REAL, TEST_WALL_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


class Report:
    """A pytest plug-in that counts tests and keeps the details of the first failures."""

    def __init__(self, workspace: str):
        self.workspace = os.path.realpath(workspace) + os.sep
        self.passed: set[str] = set()
        self.skipped: set[str] = set()
        self.failed: dict[str, list[str] | None] = {}  # node id -> lines of detail; None beyond NUM_DETAILED
        self.broken: dict[str, list[str] | None] = {}  # the same for files that could not be collected

    def place(self, path: str) -> str | None:
        """The path relative to the workspace, or None for code outside of it."""
        if path.startswith("<"):  # code without a file
            return None
        real = os.path.realpath(path)
        return real[len(self.workspace) :] if real.startswith(self.workspace) else None

    def details(self, error: BaseException) -> list[str]:
        frames: list[tuple[str, int, str, str]] = []
        trace = error.__traceback__
        while trace is not None:
            code, line = trace.tb_frame.f_code, trace.tb_lineno
            path = self.place(code.co_filename)
            if path is not None:
                frames.append((path, line, code.co_name, linecache.getline(code.co_filename, line).strip()))
            trace = trace.tb_next
        if isinstance(error, SyntaxError) and error.filename:
            path, line = self.place(error.filename), error.lineno or 1
            if path is not None:
                frames.append((path, line, "<module>", linecache.getline(error.filename, line).strip()))
        in_code = [frame for frame in frames if not is_test(frame[0])]
        in_tests = [frame for frame in frames if is_test(frame[0])]
        lines = []
        for path, line, name, source in (in_code or in_tests)[-1:]:
            where = "" if name == "<module>" else f" in {name}"
            lines += [f"at: {path}:{line}{where}", f"code: {source}"]
        for _, _, name, source in in_tests[-1:]:
            if name != "<module>":  # else the file could not be collected: no test has run
                lines.append(f"test line: {source}")
        return [*lines, f"error: {sentence(error).replace(self.workspace, '')}"]

    def add(self, found: dict[str, list[str] | None], key: str, first_line: str, error: BaseException) -> None:
        if key not in found:
            detail = [first_line, *self.details(error)] if len(found) < NUM_DETAILED else None
            found[key] = detail and [line[:WIDTH] for line in detail]

    def pytest_configure(self, config: pytest.Config) -> None:
        config.option.tbstyle = "native"  # pytest's own report is thrown away: make it the cheapest

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from timed())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from timed())

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, Any, Any]:
        return (yield from timed())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        if report.failed:
            error = call.excinfo.value if call.excinfo else AssertionError(str(report.longrepr))
            self.add(self.failed, item.nodeid, f"test: {item.nodeid}", error)
        elif report.skipped:
            self.skipped.add(item.nodeid)
        elif report.when == "call":
            self.passed.add(item.nodeid)
        return report

    def pytest_exception_interact(self, node: pytest.Collector, call: pytest.CallInfo[None], report: object) -> None:
        if isinstance(report, pytest.CollectReport) and call.excinfo is not None:
            error = call.excinfo.value
            self.add(self.broken, node.nodeid, f"ERROR collecting {node.nodeid}", true_error(error))

    @pytest.hookimpl(wrapper=True)
    def pytest_load_initial_conftests(self) -> Generator[None, Any, Any]:
        try:
            return (yield)
        except Exception as error:
            cause = true_error(error)
            if cause is not error:
                self.add(self.broken, "conftest.py", "ERROR collecting conftest.py", cause)
            raise

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """The session ends early: by the tests' own hand, or because a file could not be collected."""
        if not self.broken:
            self.add(self.broken, "session", "ERROR running the tests", excinfo.value)

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.add(self.broken, "session", "ERROR running the tests", excinfo.value)

    def text(self) -> str | None:
        """The whole report; None if no test was found."""
        if self.broken:
            found, lines = self.broken, []
        else:
            found = self.failed
            num_tests = len(self.passed | self.failed.keys())
            skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
            if not num_tests and not skipped:
                return None
            if not found:
                return f"PASSED {num_tests} tests{skipped}"
            lines = [f"FAILED {len(found)} of {num_tests} tests{skipped}"]
        lines += [line for detail in found.values() if detail for line in detail]
        if len(found) > NUM_DETAILED:
            lines.append(f"({len(found) - NUM_DETAILED} more)")
        return "\n".join(lines)


def report_on(path: str) -> tuple[str, int]:
    """Run the tests at `path` of the current folder: (report, exit code of pytest). No tests: an empty report."""
    workspace = os.getcwd()
    sys.path.insert(0, workspace)
    out, err = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        config = next((name for name in CONFIGS if os.path.isfile(name)), None)
        unused = UNUSED if config else UNUSED + UNUSED_IN_PLAIN
        if config is None:
            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a plain project asks for no plug-in, and they are slow
        # Never a config from above the workspace.
        arguments = [f"--rootdir={workspace}", f"--config-file={config or os.devnull}", *unused, path]
        report = Report(workspace)
        gc.set_threshold(50_000)  # the collector took a third of the time of a small project
        code = int(pytest.main(arguments, plugins=[report]))
        os.dup2(out, 1)
        os.dup2(err, 2)
        text = report.text()
        if text is None:
            said.seek(0)
            words = said.read().decode("utf-8", "replace").replace(report.workspace, "").strip()
            nothing = code == pytest.ExitCode.NO_TESTS_COLLECTED or words.startswith("ERROR: not found: ")
            text = "" if nothing else f"pytest could not start\n{words}"
    return text, code


def main(path: str) -> None:
    """Print the report on `path` and end the process: threads and exit handlers of the tests have no say."""
    out = os.dup(1)  # tests can close the standard streams
    text, code = report_on(path)
    data = f"{MARK}{text}{MARK}".encode("utf-8", "replace")
    while data:
        data = data[os.write(out, data) :]
    os._exit(code)


def _run_request(request: dict[str, Any]) -> dict[str, Any]:
    """Fork, run one request in the child, give back its output and exit code (None: killed for its time)."""
    reader, writer = os.pipe()
    scratch = tempfile.mkdtemp()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(reader)
        os.dup2(writer, 1)
        os.environ.clear()
        os.environ.update(request["env"])
        tempfile.tempdir = scratch
        for kind, limit in request["rlimits"].items():
            resource.setrlimit(int(kind), (limit, limit))
        os.chdir(request["workspace"])
        try:
            main(request["path"])
        finally:  # main does not return; if it raised, this copy of the server must not go on
            os._exit(70)
    os.close(writer)
    ended = os.pidfd_open(pid)
    output, deadline_s, late = b"", time.monotonic() + request["time_s"], False
    while True:
        ready = select.select([reader, ended], [], [], max(0.0, deadline_s - time.monotonic()))[0]
        late = not ready
        data = os.read(reader, 1 << 16) if reader in ready else b""
        if not data:  # late, or at its end, or the child is and others hold the pipe open
            break
        output = (output + data)[: request["output_bytes"]]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # whatever the tests have left running
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(reader)
    os.close(ended)
    shutil.rmtree(scratch, ignore_errors=True)
    exit_code = None if late else status if status >= 0 else 128 - status
    return {"exit_code": exit_code, "stdout": output.decode("utf-8", "replace")}


def serve() -> None:
    """Answer requests, one JSON line each on stdin, with one JSON line each on stdout, until stdin ends."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "test_dry.py"), "w") as file:
            file.write("def test_dry():\n    assert [1] == [2]\n")
        # A dry run imports what pytest imports only when it runs and when a test fails.
        pytest.main([f"--rootdir={folder}", f"-c{os.devnull}", *UNUSED, *UNUSED_IN_PLAIN, folder], [Report(folder)])
        sys.path.remove(folder)
    del sys.modules["test_dry"]
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every page in every child
    for line in sys.stdin:
        print(json.dumps(_run_request(json.loads(line))), flush=True)
