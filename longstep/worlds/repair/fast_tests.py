"""run_tests in a millisecond or two, for data generation: our own generated projects, executed in this process.

`FastTests` gives the report that pytest gives, byte for byte (a test holds it to that), for the plain test files of our
templates: functions of assertions of the form `call == literal` or `call is literal`. Whatever is not plain, imports
that fail, or programs that run long go to the sandbox behind it, which runs pytest. No walls at all: never for code
that a model wrote.
"""

import ast
import builtins
import functools
import linecache
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

from _pytest._io.saferepr import DEFAULT_REPR_MAX_SIZE, saferepr

from longstep.sandbox.base import CommandResult, Limits, Sandbox
from longstep.tools.pytest_child import MARK, Report
from longstep.tools.run_tests import RunsTests

_MAX_TRACED = 20_000  # lines of one run; beyond that, pytest with its limits decides
_SUMMARY_SIZE = (80 - 15 - len("==") - 2) // 2  # of one side where pytest goes on to explain a difference


class _NotPlain(Exception):  # noqa: N818 (no error: a signal)
    """This run is pytest's."""


class FastTests:
    """A sandbox that runs plain tests here, and everything else in the sandbox behind it."""

    def __init__(self, behind: Sandbox):
        if not isinstance(behind, RunsTests):
            raise TypeError(f"{behind.name}: FastTests needs a sandbox with run_pytest behind it, such as WarmTests")
        self.name = f"{behind.name}, plain tests in process"
        self._behind = behind
        self._warm: RunsTests = behind

    def run(self, argv: Sequence[str], *, workspace: Path, limits: Limits = Limits()) -> CommandResult:  # noqa: B008
        return self._behind.run(argv, workspace=workspace, limits=limits)

    def run_pytest(self, workspace: Path, target: str, limits: Limits) -> CommandResult:
        try:
            text = _Run(workspace.resolve(), target.removeprefix("./")).text()
        except _NotPlain:
            return self._warm.run_pytest(workspace, target, limits)
        return CommandResult(exit_code=0 if text.startswith("PASSED") else 1, stdout=f"{MARK}{text}{MARK}", stderr="")


def _equal(left: object, right: object) -> None:
    if left == right:
        return
    explained = isinstance(left, str) and isinstance(right, str)
    explained = explained or (_iterable(left) and _iterable(right))
    size = _SUMMARY_SIZE if explained else DEFAULT_REPR_MAX_SIZE
    raise AssertionError(f"assert {saferepr(left, size)} == {saferepr(right, size)}")


def _same(left: object, right: object) -> None:
    if left is not right:
        raise AssertionError(f"assert {saferepr(left)} is {saferepr(right)}")


def _iterable(value: object) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, str)


@functools.lru_cache(maxsize=256)
def _compiled(path: str, source: str, is_test: bool) -> CodeType:
    """Raises SyntaxError, and _NotPlain for a test file with more than functions of simple assertions."""
    tree = ast.parse(source, path)
    if is_test:
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module != "pytest":
                continue
            if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.args.args:
                raise _NotPlain
            node.body = [_check(n) for n in node.body]
        ast.fix_missing_locations(tree)
    return compile(tree, path, "exec")


def _check(statement: ast.stmt) -> ast.stmt:
    if not isinstance(statement, ast.Assert):
        if isinstance(statement, ast.Assign | ast.Expr):
            return statement
        raise _NotPlain
    test = statement.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or statement.msg:
        raise _NotPlain
    name = {ast.Eq: "@equal", ast.Is: "@same"}.get(type(test.ops[0]))
    if name is None:
        raise _NotPlain
    call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=[test.left, test.comparators[0]], keywords=[])
    # All on the line of the statement, where pytest says that it failed.
    return ast.copy_location(ast.Expr(value=ast.copy_location(call, statement)), statement)


class _Run:
    """One run of the tests of a workspace: modules by dotted name, fresh for each run as in a new process."""

    def __init__(self, workspace: Path, target: str):
        self._root = f"{workspace}/"
        target = "" if target == "." else target
        self._file, _, self._test = target.partition("::")
        self._sources: dict[str, str] = {}
        for path in sorted(workspace.rglob("*")):
            if path.is_file() and path.suffix in (".py", ".ini", ".toml", ".cfg"):
                if path.suffix != ".py" or path.name == "conftest.py" or path.is_symlink():
                    raise _NotPlain
                self._sources[str(path)[len(self._root) :]] = path.read_text(encoding="utf-8")
        self._modules: dict[str, dict[str, Any]] = {}
        self._builtins = vars(builtins) | {"__import__": self._import}
        self._left = _MAX_TRACED

    def text(self) -> str:
        below = f"{self._file}/" if self._file else ""
        tests = [p for p in self._sources if "/test_" in f"/{p}" and f"{p}/".startswith(below)]
        if not tests:
            raise _NotPlain
        report = Report(self._root)
        for path, source in self._sources.items():
            linecache.cache[self._root + path] = (len(source), None, source.splitlines(True), self._root + path)
        before = sys.gettrace()
        if any("while " in source for source in self._sources.values()):
            sys.settrace(self._trace)
        try:
            self._fill(report, tests)
        finally:
            sys.settrace(before)
            text = report.text()
            for path in self._sources:
                linecache.cache.pop(self._root + path, None)
        if text is None:
            raise _NotPlain
        return text

    def _fill(self, report: Report, tests: list[str]) -> None:
        found: list[tuple[str, Callable[[], None]]] = []
        for path in tests:
            try:
                space = self._execute(path, is_test=True)
            except (_NotPlain, ImportError):
                raise _NotPlain from None
            except Exception as error:
                report.add(report.broken, path, f"ERROR collecting {path}", error)
                continue
            found += [
                (f"{path}::{name}", value)
                for name, value in space.items()
                if name.startswith("test_") and (not self._test or name == self._test)
            ]
        if report.broken:
            return
        for name, test in found:
            try:
                test()
            except (_NotPlain, ImportError):
                raise _NotPlain from None
            except Exception as error:
                report.add(report.failed, name, f"test: {name}", error)
            else:
                report.passed.add(name)

    def _execute(self, path: str, is_test: bool) -> dict[str, Any]:
        code = _compiled(self._root + path, self._sources[path], is_test)
        space: dict[str, Any] = {"__builtins__": self._builtins, "__name__": path.removesuffix(".py").replace("/", ".")}
        if is_test:
            space |= {"@equal": _equal, "@same": _same}
        exec(code, space)
        return space

    def _import(
        self, name: str, globals_: object = None, locals_: object = None, fromlist: tuple[str, ...] = (), level: int = 0
    ) -> Any:
        path = name.replace(".", "/") + ".py"
        if path not in self._sources:
            if level or name.partition(".")[0] in {p.partition("/")[0] for p in self._sources}:
                raise _NotPlain
            return __import__(name, None, None, fromlist, level)
        if not fromlist or level:
            raise _NotPlain
        if name not in self._modules:
            self._modules[name] = self._execute(path, is_test=False)
        return SimpleNamespace(**{k: v for k, v in self._modules[name].items() if k[:2] != "__"})

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(self._root):
            return None
        if event == "line":  # at other events a generator may be closing, where exceptions are swallowed
            self._left -= 1
            if self._left < 0:
                raise _NotPlain
        return self._trace
