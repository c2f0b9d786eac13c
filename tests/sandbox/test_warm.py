"""The sandbox that is kept alive gives what a new one gives."""

import shutil
import threading
import time

import pytest

from longstep.errors import SandboxError
from longstep.sandbox.base import Limits
from longstep.sandbox.unsafe import open_sandbox
from longstep.sandbox.warm import WarmBubblewrap

COMMANDS = [
    "true",
    "echo a; echo b >&2; exit 7",
    "printf 'no newline'; printf 'nor here' >&2",
    "cd /; x=1; export y=2; umask 0; ulimit -f 1; alias ls=false; set -e; exec 2>/dev/null",
    "pwd; echo $x $y; umask; ls -A; false; echo after",
    "kill -9 $$",
    "kill -TERM $$",
    "nosuch",
    "exec >&- 2>&-; exit 4",
    "sleep 100 & echo left",
    "trap 'echo trapped' EXIT; (trap '' TERM HUP; sleep 100) & echo left too",
    "setsid sleep 100 & echo left in its own session",
    "ps -e -o comm= | grep -c sleep",
    "echo x > /tmp/new; mkdir /tmp/.hidden; ls -A /tmp | wc -l",
    "ls -A /tmp | wc -l",
    "echo x > /dev/shm/new",
    "ls -A /dev/shm",
    "echo 'new\nline' \"quo'te\" '$HOME' \\\\",
    "cat; read line; echo $?",
    "yes | head -c 300000",
    "yes | head -c 300000 >&2",
    "seq 3 | while read i; do echo $i; done",
    "ulimit -a",
    "env | sort",
    "id; whoami; hostname; cat /etc/passwd",
    "echo more >> file; wc -l file; ls -ln file | cut -c1-20",
    "python -c 'import sys; print(sys.argv, sys.prefix)' a",
    "python -c 'bytearray(3 << 30)'",
    "head -c 65M /dev/zero > big; rm -f big",
    "printf '\\036\\036%s' 'marks in the output'; printf '\\036' >&2",
    ")",
    "'",
    "exit 300",
    "# only a comment",
]


def test_the_same_results(sandbox, tmp_path):
    """The commands run in order in two workspaces at the same path, one after the other."""
    workspace = tmp_path / "work"
    results = []
    with WarmBubblewrap() as warm:
        for place in (sandbox, warm):
            workspace.mkdir()
            found = [place.run(["sh", "-c", command], workspace=workspace) for command in COMMANDS]
            results.append([(r.exit_code, r.stdout, r.stderr, r.dropped_bytes) for r in found])
            shutil.rmtree(workspace)
    for command, cold, fast in zip(COMMANDS, *results, strict=True):
        assert fast == cold, command


def test_the_same_arguments(sandbox, workspace):
    arguments = ["a b", "", "$HOME", "'\"", "-c", "new\nline", "ü\udcff", "\\", "`id`", ";exit"]
    code = "import os, sys; print([os.fsencode(word) for word in sys.argv[1:]])"
    with WarmBubblewrap() as warm:
        for _ in range(2):
            results = [p.run(["python", "-c", code, *arguments], workspace=workspace).stdout for p in (sandbox, warm)]
            assert results[0] == results[1]
            assert "udcff" not in results[0]


def test_time_output_and_memory_limits(workspace):
    with WarmBubblewrap() as warm:
        warm.run(["true"], workspace=workspace)
        late = warm.run(["sh", "-c", "yes & sleep 60"], workspace=workspace, limits=Limits(time_s=0.4, output_bytes=10))
        assert (late.exit_code, late.stdout) == (None, "y\n" * 5)
        assert late.dropped_bytes > 1 << 20
        script = "for i in 1 2 3 4 5; do python -c 'import time; x = bytearray(60 << 20); time.sleep(9)' & done; wait"
        big = warm.run(["sh", "-c", script], workspace=workspace, limits=Limits(memory_bytes=200 << 20))
        assert (big.exit_code, big.stderr) == (137, "killed: more than 200 MiB of memory in all\n")
        assert warm.run(["echo", "alive"], workspace=workspace).stdout == "alive\n"


def test_a_long_command(workspace):
    """Longer than a pipe holds."""
    with WarmBubblewrap() as warm:
        assert len(warm.run(["echo", "x" * 100_000], workspace=workspace).stdout) == 100_001


def test_it_is_kept_and_it_is_fast(workspace):
    with WarmBubblewrap() as warm:
        warm.run(["true"], workspace=workspace)
        shell = warm._shell
        walls = [warm.run(["true"], workspace=workspace).wall_s for _ in range(30)]
        assert warm._shell is shell
        assert min(walls) < 0.008, f"{1000 * min(walls):.1f} ms: a new sandbox takes 9"


def test_another_workspace_gets_another_sandbox(tmp_path):
    with WarmBubblewrap() as warm:
        for name in ("a", "b", "a"):
            (tmp_path / name).mkdir(exist_ok=True)
            warm.run(["touch", "file"], workspace=tmp_path / name)
            assert (tmp_path / name / "file").exists()
            assert warm.run(["ls", ".."], workspace=tmp_path / name).stdout == f"{name}\n"


def test_a_folder_made_anew_at_the_same_path(workspace):
    with WarmBubblewrap() as warm:
        for i in range(3):
            (workspace / "file").write_text(f"{i}\n")
            assert warm.run(["cat", "file"], workspace=workspace).stdout == f"{i}\n"
            shutil.rmtree(workspace)
            workspace.mkdir()


def test_the_thread_that_started_it_may_end(workspace):
    """The kernel kills a sandbox with the thread that made it; the next command makes another one."""
    with WarmBubblewrap() as warm:
        for i in range(3):
            thread = threading.Thread(target=warm.run, args=(["touch", f"file{i}"],), kwargs={"workspace": workspace})
            thread.start()
            thread.join()
            time.sleep(0.05)
        assert warm.run(["ls"], workspace=workspace).stdout == "file0\nfile1\nfile2\n"


def test_a_command_that_kills_the_shell_runs_once(workspace):
    with WarmBubblewrap() as warm:
        result = warm.run(["sh", "-c", "echo x >> file; kill -9 -1; sleep 60"], workspace=workspace)
        assert result.exit_code == 137
        assert warm.run(["cat", "file"], workspace=workspace).stdout == "x\n"


def test_no_process_is_left(workspace):
    with WarmBubblewrap() as warm:
        warm.run(["true"], workspace=workspace)
        assert warm._shell is not None
        process = warm._shell.process
    assert process.poll() is not None


def test_failures(workspace, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: no permission' >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(SandboxError, match="no permission"):
        WarmBubblewrap(fake).run(["true"], workspace=workspace)
    with pytest.raises(SandboxError, match="not a folder"):
        WarmBubblewrap().run(["true"], workspace=tmp_path / "nowhere")


def test_open_sandbox_gives_it_when_asked():
    assert [open_sandbox(warm=warm).name for warm in (False, True)] == ["bubblewrap", "warm bubblewrap"]
