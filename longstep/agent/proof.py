"""Is it done? The agent's word proves nothing: a world's verifier does, or the tests of the user's folder.

For a folder, the tests that the task names (`tests/test_x.py`, `tests/test_x.py::test_y`, if they stand in the folder
at the start), else all that pytest finds, run twice in the sandbox, in throw-away copies: on the start state, and on
the agent's files with every test file and pytest setting put back as it was at the start. It is proved if

- they pass now, at least as many of them as there were, and
- they did not all pass before, or the task named them.
"""

import re
import tempfile
from pathlib import Path

from longstep.agent.folders import Manifest, materialise
from longstep.agent.journal import Blobs
from longstep.sandbox.base import Sandbox
from longstep.tools.run_tests import run_pytest
from longstep.worlds.base import Check, Verdict

_NAMED = re.compile(r"[\w./-]*\w\.py(?:::\w+)*")
_SETTINGS = frozenset({"conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml"})
_COUNT = re.compile(r"(?:PASSED|FAILED \d+ of) (\d+) tests")


def is_test_file(path: str) -> bool:
    """A test, something in a test folder, or a file from which pytest takes settings."""
    *folders, name = path.split("/")
    is_test = name.startswith("test_") or name.endswith("_test.py") or name in _SETTINGS
    return is_test or "tests" in folders or "test" in folders


def named_tests(task: str, files: Manifest) -> tuple[str, ...]:
    """The test files of the folder that the task names, with `::test` where it says so."""
    found = []
    for word in _NAMED.findall(task):
        path = word.split("::")[0].removeprefix("./")
        if path in files and path.endswith(".py") and is_test_file(path):
            found.append(word.removeprefix("./"))
    return tuple(dict.fromkeys(found))


def with_start_tests(before: Manifest, after: Manifest) -> Manifest:
    """The agent's files with the tests and settings of the start, and none that were added."""
    mixed = {path: file for path, file in after.items() if not is_test_file(path)}
    return mixed | {path: file for path, file in before.items() if is_test_file(path)}


def _report(files: Manifest, blobs: Blobs, sandbox: Sandbox, targets: tuple[str, ...], scratch: Path) -> list[str]:
    """pytest's report on each target, in a copy of `files` that is thrown away."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix="verify-") as folder:
        materialise(files, blobs, Path(folder))
        return [run_pytest(sandbox, Path(folder), target).text for target in targets]


def _num_tests(reports: list[str]) -> int:
    return sum(int(found.group(1)) for report in reports if (found := _COUNT.match(report)))


def _all_pass(reports: list[str]) -> bool:
    return all(report.startswith("PASSED") for report in reports)


def verify_folder(
    task: str, before: Manifest, after: Manifest, blobs: Blobs, sandbox: Sandbox, scratch: Path
) -> Verdict:
    """The verdict on a folder (module docstring). Each failed check's `detail` says what is not proved."""
    named = named_tests(task, before)
    targets = named or (".",)
    what = ", ".join(named) or "the folder's tests"
    was = _report(before, blobs, sandbox, targets, scratch)
    if not named and was[0].startswith("no tests found"):
        detail = "no test proves it: pytest finds none in the folder as it was at the start"
        return Verdict(checks=(Check(name="tests exist", passed=False, hidden=False, detail=detail),))
    now = _report(with_start_tests(before, after), blobs, sandbox, targets, scratch)
    checks = [
        Check(name=f"{what} pass", passed=_all_pass(now), hidden=False, detail=_first_failure(now)),
        Check(
            name="no test is missing",
            passed=_num_tests(now) >= _num_tests(was),
            hidden=False,
            detail=f"{_num_tests(was)} tests ran before, {_num_tests(now)} now",
        ),
    ]
    if not named:
        checks.append(
            Check(
                name="a test failed at the start",
                passed=not _all_pass(was),
                hidden=False,
                detail="no test proves it: all tests passed before as well; name the test that shows it in the task",
            )
        )
    return Verdict(checks=tuple(checks))


def _first_failure(reports: list[str]) -> str:
    failed = [report for report in reports if not report.startswith("PASSED")]
    return "; ".join(failed[0].splitlines()[:2]) if failed else ""


def changed_tests(before: Manifest, after: Manifest) -> tuple[str, ...]:
    """Test files and settings that the agent changed, added or deleted."""
    paths = before.keys() | after.keys()
    return tuple(sorted(path for path in paths if is_test_file(path) and before.get(path) != after.get(path)))
