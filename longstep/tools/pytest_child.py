"""Runs pytest in a process of its own and writes a report. Only pytest and the standard library may be imported.

Its source is handed to `python -P -c` in the sandbox (`run_tests.py`), so that nothing of ours has to be visible there,
and to the server that forks a process per run (`warm_tests.py`). Both print the same report.

The report stands on the real stdout; what the tests print goes to a file without a name.
"""

import linecache
import os
import signal
import sys
import tempfile

import pytest

MARK = "\x1elongstep-report\x1e"  # before the report; a "record separator", which no ordinary program prints
NUM_DETAILED = 3
WIDTH = 160
TEST_CPU_S = 3.0  # one test; a loop without end is then a failure like others, with its place
TEST_WALL_S = 10.0


class Timeout(BaseException):
    """Not an Exception, so that the code under test does not swallow it."""


def cut(text):
    return text if len(text) <= WIDTH else text[:WIDTH]


class Report:
    """A pytest plugin that collects counts and the first failures."""

    def __init__(self, workspace):
        self.workspace = os.path.realpath(workspace) + os.sep
        self.failed = {}  # node id -> lines of detail, or None beyond NUM_DETAILED
        self.passed = set()
        self.skipped = set()
        self.broken = {}  # the same for files that could not be collected

    def place(self, path):
        """Path relative to the workspace, or None for code outside of it."""
        if path.startswith("<"):  # code without a file
            return None
        real = os.path.realpath(path)
        return real[len(self.workspace) :] if real.startswith(self.workspace) else None

    @staticmethod
    def is_test(path):
        name = os.path.basename(path)
        return name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py"

    def details(self, error):
        """The lines of one failure, from an exception with its traceback."""
        frames = []
        tb = error.__traceback__
        while tb is not None:
            code = tb.tb_frame.f_code
            path = self.place(code.co_filename)
            if path is not None:
                source = linecache.getline(code.co_filename, tb.tb_lineno).strip()
                frames.append((path, tb.tb_lineno, code.co_name, source))
            tb = tb.tb_next
        if isinstance(error, SyntaxError) and error.filename and self.place(error.filename):
            path, line = self.place(error.filename), error.lineno or 1
            frames.append((path, line, "<module>", linecache.getline(error.filename, line).strip()))
        in_code = [frame for frame in frames if not self.is_test(frame[0])]
        in_tests = [frame for frame in frames if self.is_test(frame[0])]
        lines = []
        for path, line, name, source in (in_code or in_tests)[-1:]:
            where = "" if name == "<module>" else f" in {name}"
            lines += [cut(f"at: {path}:{line}{where}"), cut(f"code: {source}")]
        for _, _, name, source in in_tests[-1:]:
            if name == "<module>":  # a file that could not be collected: no test has run
                break
            lines.append(cut(f"test line: {source}"))
        lines.append(cut(f"error: {self.sentence(error)}"))
        return lines

    @staticmethod
    def sentence(error):
        if isinstance(error, SyntaxError):
            return f"{type(error).__name__}: {error.msg}"
        try:
            text = str(error)
        except Exception as broken:
            text = f"<str() raised {type(broken).__name__}>"
        first = text.split("\n")[0]
        return f"{type(error).__name__}: {first}" if first else type(error).__name__

    def add(self, found, key, first_line, error):
        if key not in found:
            found[key] = [cut(first_line), *self.details(error)] if len(found) < NUM_DETAILED else None

    @pytest.hookimpl(hookwrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        def stop(signum, frame):
            raise Timeout(
                f"the test did not end in {TEST_CPU_S:g} s"
                if signum == signal.SIGPROF
                else f"the test did not end in {TEST_WALL_S:g} s"
            )

        signal.signal(signal.SIGPROF, stop)
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S)
        signal.setitimer(signal.ITIMER_REAL, TEST_WALL_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        outcome = yield
        report = outcome.get_result()
        if report.failed:
            error = call.excinfo.value if call.excinfo else AssertionError(str(report.longrepr))
            self.add(self.failed, item.nodeid, f"test: {item.nodeid}", error)
        elif report.skipped:
            self.skipped.add(item.nodeid)
        elif report.when == "call":
            self.passed.add(item.nodeid)

    def pytest_exception_interact(self, node, call, report):
        if isinstance(report, pytest.CollectReport):
            error = call.excinfo.value
            cause = error.__cause__  # pytest wraps the true error of an import in a CollectError
            self.add(self.broken, node.nodeid, f"ERROR collecting {node.nodeid}", cause if cause is not None else error)

    def text(self):
        """The whole report; None if no test was found."""
        found, lines = self.broken, []
        if not self.broken:
            num_failed = len(self.failed)
            num_tests = len(self.passed - self.failed.keys()) + num_failed
            skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
            if num_failed:
                found, lines = self.failed, [f"FAILED {num_failed} of {num_tests} tests{skipped}"]
            elif num_tests or skipped:
                return f"PASSED {num_tests} tests{skipped}"
            else:
                return None
        lines += [line for detail in found.values() if detail for line in detail]
        if len(found) > NUM_DETAILED:
            lines.append(f"({len(found) - NUM_DETAILED} more)")
        return "\n".join(lines)


def main(path):
    """Run the tests at `path` of the current folder; print the report to stdout; never returns."""
    workspace = os.getcwd()
    sys.path.insert(0, workspace)
    out = os.dup(1)
    scratch = tempfile.TemporaryFile()
    os.dup2(scratch.fileno(), 1)
    os.dup2(scratch.fileno(), 2)
    config = next(
        (name for name in ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg") if os.path.isfile(name)), None
    )
    if config is None:  # plug-ins installed beside pytest cost start-up time, and a plain project asks for none
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    report = Report(workspace)
    arguments = [
        "-q",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        f"--rootdir={workspace}",
        "-c",
        config or os.devnull,
        path,
    ]
    code = int(pytest.main(arguments, plugins=[report]))
    text = report.text()
    if text is None:
        sys.stdout.flush()
        scratch.seek(0)
        said = scratch.read().decode("utf-8", "replace").strip()
        text = "" if code == 5 else f"pytest could not start:\n{said}"
    os.write(out, f"{MARK}{text}{MARK}".encode("utf-8", "replace"))
    os._exit(code)
