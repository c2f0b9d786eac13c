"""What a command in the sandbox cannot do. Every test here runs the real bubblewrap."""

import os
import platform
import socket
import threading

import pytest

from longstep.sandbox.base import CommandResult, Limits
from longstep.sandbox.bubblewrap import TMP_BYTES


@pytest.fixture
def sh(sandbox, workspace):
    def run(script: str, **limits) -> CommandResult:
        return sandbox.run(["sh", "-c", script], workspace=workspace, limits=Limits(**limits))

    return run


def test_the_workspace_is_at_its_own_path_and_writable(sh, workspace):
    result = sh("pwd; echo text > new; cat new")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{workspace}\ntext\n", "")
    assert (workspace / "new").read_text() == "text\n"


def test_nothing_else_is_writable(sh, tmp_path):
    """Every folder that the command can see, but for the workspace and the private tmpfs, refuses a new file."""
    script = """
for d in / /*/ /etc/*/ /usr/*/ /dev/*/ /proc/*/ $(dirname $(command -v python)) $PWD; do
    touch "$d/new" 2>/dev/null && echo "$d"
done
for f in /etc/passwd /usr/bin/env /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do
    (echo x >> $f) 2>/dev/null && echo "$f"
done
"""
    written = sh(script).stdout.split()
    assert written == ["/tmp/", "/dev/shm/", str(tmp_path / "work")]


def test_the_folder_above_shows_the_workspace_alone(sh, tmp_path):
    (tmp_path / "secret").touch()
    assert sh("ls -A ..; touch ../new").stdout == "work\n"
    assert not (tmp_path / "new").exists()


def test_tmp_is_private_and_new_for_every_command(sh):
    assert sh("echo a > /tmp/a; cat /tmp/a").stdout == "a\n"
    assert sh("cat /tmp/a").exit_code != 0


def test_no_host_files_users_or_variables(sh, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    script = (
        r"env; cat /proc/*/environ | tr '\0' '\n'; cat /etc/passwd /etc/shadow /etc/hostname; ls -A /home /root $HOME"
    )
    seen = sh(f"{script}; hostname; whoami").stdout
    assert "s3cret" not in seen
    assert "agent:x:1000" in seen
    assert "daemon" not in seen  # a user of every Linux
    assert socket.gethostname() not in seen
    assert "\nsandbox\n" in seen
    assert seen.endswith("agent\n")


def test_only_own_processes_are_seen(sh):
    pids = sh("ls /proc | grep -c '^[0-9]'").stdout
    assert int(pids) < 8
    assert sh(f"kill -0 {os.getpid()}").exit_code != 0 or os.getpid() < 8


def test_the_network_is_unreachable(sh):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert "ConnectionRefusedError" in sh(f'python -c "{script}"').stderr
    script = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
    assert "Network is unreachable" in sh(f'python -c "{script}"').stderr


def test_abstract_sockets_of_the_host_are_unreachable(sh):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0longstep-test")
        server.listen()
        script = "import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + 'longstep-test')"
        assert "ConnectionRefusedError" in sh(f'python -c "{script}"').stderr


def test_no_socket_reaches_the_host_of_a_virtual_machine(sh):
    """No namespace holds AF_VSOCK; the filter of system calls does. The families of ordinary programs work."""
    script = "import socket; [socket.socket(f).close() for f in (1, 2, 10)]; print(1); socket.socket({})"
    for family in ("socket.AF_VSOCK", "socket.AF_ALG", "socket.AF_PACKET, socket.SOCK_RAW"):
        result = sh(f'python -c "{script.format(family)}"')
        assert result.stdout == "1\n"
        assert "Address family not supported" in result.stderr


def test_no_new_user_namespace(sh):
    assert "Operation not permitted" in sh("unshare --user true").stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls are those of x86-64")
@pytest.mark.parametrize("number", [248, 249, 250, 272, 298, 308, 321, 323, 425, 426, 435, 0x40000027, 250 | 1 << 32])
def test_refused_system_calls(sh, number):
    """Keyrings, namespaces, io_uring and the like; also by the x32 numbers and with bits that the kernel drops."""
    script = (
        f"import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall(ctypes.c_long({number}), 0, 0, 0, 0)"
    )
    result = sh(f'python -c "{script}, ctypes.get_errno())"')
    assert result.stdout in ("-1 1\n", "-1 38\n")  # EPERM, ENOSYS


def test_threads_subprocesses_and_event_loops_work_under_the_filter(sh):
    script = """
import asyncio, subprocess, threading, multiprocessing
t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()
print(subprocess.run(['echo', 'process'], capture_output=True, text=True).stdout.strip())
print(multiprocessing.get_context('fork').Pool(2).map(abs, [-1, 2]))
async def main():
    return await (await asyncio.create_subprocess_exec('true')).wait()
print(asyncio.run(main()))
"""
    assert sh(f'python -c "{script}"').stdout == "thread\nprocess\n[1, 2]\n0\n"


def test_links_lead_nowhere(sh, workspace, tmp_path):
    (tmp_path / "secret").write_text("s3cret")
    (workspace / "link").symlink_to(tmp_path / "secret")
    (workspace / "up").symlink_to("..")
    result = sh("cat link up/secret ../secret; echo bad > link")
    assert "s3cret" not in result.stdout
    assert (tmp_path / "secret").read_text() == "s3cret"


def test_no_user_rises(sh):
    result = sh("id -u; cat /proc/self/status | grep -E 'NoNewPrivs|CapEff|CapPrm'; mount -t tmpfs none /usr; su -c id")
    lines = result.stdout.split()
    assert lines[0] == "1000"
    assert lines[1:] == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1"]


def test_files_belong_to_whoever_runs_us_or_can_be_removed(sh, workspace):
    """A folder that a command shut can still be opened, listed and deleted by the host."""
    sh("mkdir -p a/b; echo x > a/b/c; chmod 755 a")
    assert (workspace / "a/b/c").read_text() == "x\n"
    (workspace / "a/b/c").unlink()


# --- limits -----------------------------------------------------------------------------------------------------------


def test_time_kills_all_descendants(sh, workspace):
    """A grandchild in its own session, told to write after the kill, never does."""
    late = "import time; time.sleep(0.8); open('late', 'w')"
    script = f'setsid python -c "{late}" & (setsid sleep 0.8; touch late2) & sleep 100'
    result = sh(script, time_s=0.4)
    assert result.exit_code is None
    assert 0.4 <= result.wall_s < 2
    threading.Event().wait(0.8)
    assert list(workspace.iterdir()) == []


def test_background_processes_end_with_the_command(sh, workspace):
    result = sh("(sleep 0.3; touch late) & echo done", time_s=10)
    assert result.stdout == "done\n"
    assert result.wall_s < 0.3
    threading.Event().wait(0.4)
    assert list(workspace.iterdir()) == []


def test_a_process_that_closes_its_output_is_still_timed(sh):
    result = sh("exec >&- 2>&-; sleep 100", time_s=0.3)
    assert result.exit_code is None


def test_a_flood_is_counted_and_neither_fills_memory_nor_hangs(sh):
    result = sh("yes & yes >&2", time_s=0.5, output_bytes=1000)
    assert result.exit_code is None
    assert result.stdout == "y\n" * 500
    assert result.stderr == "y\n" * 500
    assert result.dropped_bytes > 1 << 20
    assert result.wall_s < 2


def test_output_is_whole_up_to_the_limit(sh):
    result = sh("printf 12345; printf abc >&2", output_bytes=5)
    assert (result.stdout, result.stderr, result.dropped_bytes) == ("12345", "abc", 0)
    result = sh("printf 123456; printf abcdef >&2", output_bytes=5)
    assert (result.stdout, result.stderr, result.dropped_bytes) == ("12345", "abcde", 2)


def test_memory_of_one_process(sh):
    assert "MemoryError" in sh("python -c 'bytearray(300 << 20)'", memory_bytes=200 << 20).stderr
    assert sh("python -c 'bytearray(100 << 20)'", memory_bytes=200 << 20).exit_code == 0


def test_memory_of_many_processes(sh):
    eater = "for i in 1 2 3 4 5; do python -c 'import time; x = bytearray(60 << 20); time.sleep(9)' & done; wait"
    result = sh(eater, memory_bytes=200 << 20)
    assert result.exit_code == 137
    assert result.stderr == "killed: more than 200 MiB of memory in all\n"
    assert result.wall_s < 5


def test_the_kernel_ends_a_command_before_us(sh):
    assert sh("cat /proc/self/oom_score_adj; echo 0 > /proc/self/oom_score_adj").stdout == "1000\n"
    assert sh("(echo 0 > /proc/self/oom_score_adj) 2>/dev/null; cat /proc/self/oom_score_adj").stdout == "1000\n"


def test_shared_memory_counts_once(sh):
    """Five forks of a process with 60 MiB do not make 300."""
    script = "import os, time; x = bytearray(60 << 20); [os.fork() for _ in range(3)]; time.sleep(0.5)"
    assert sh(f"python -c '{script}'", memory_bytes=300 << 20).exit_code == 0


def test_tmp_and_shm_are_bounded(sh):
    script = "for i in 1 2 3 4 5 6; do head -c 50M /dev/zero > {0}/$i || break; done; cat {0}/[1-6] | wc -c"
    for where in ("/tmp", "/dev/shm"):
        result = sh(script.format(where))
        assert "No space left on device" in result.stderr
        assert 0.9 * TMP_BYTES < int(result.stdout) <= TMP_BYTES


def test_file_size(sh, workspace):
    result = sh("head -c 3M /dev/zero > big", file_bytes=1 << 20)
    assert result.exit_code != 0
    assert (workspace / "big").stat().st_size == 1 << 20


def test_open_files(sh):
    result = sh("python -c 'import os; [os.pipe() for _ in range(600)]'")
    assert "Too many open files" in result.stderr


def test_number_of_files(sh, workspace):
    script = "import itertools; [open(str(i), 'w').close() for i in itertools.count()]"
    result = sh(f'python -c "{script}"', workspace_files=12_000)
    assert result.stderr.endswith("killed: more than 12000 files in the workspace\n")


def test_folders_deeper_than_python_recurses(sh, sandbox, workspace):
    """A command may make them; the next command runs all the same."""
    deep = "import os\nfor _ in range(1100):\n    os.mkdir('d'); os.chdir('d')"
    assert sh(f'python -c "{deep}"').exit_code == 0
    (workspace / "new").write_text("ours\n")
    assert sh("echo more >> new; cat new").stdout == "ours\nmore\n"
    assert sh("rm -rf d; ls").stdout == "new\n"


def test_workspace_size(sh):
    result = sh("i=0; while :; do i=$((i+1)); head -c 40M /dev/zero > big$i; done", workspace_bytes=100 << 20)
    assert result.exit_code == 137
    assert result.stderr == "killed: more than 100 MiB in the workspace\n"


def test_fork_bomb(sh):
    script = """
import os, time
n = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(100)
        n += 1
except OSError:
    print(n)
"""
    result = sh(f'python -c "{script}"', num_processes=20)
    assert 10 < int(result.stdout) < 20
    assert sh("bomb() { bomb | bomb & }; bomb; sleep 100", time_s=0.5).exit_code is None
    assert sh("echo alive").stdout == "alive\n"


def test_cpu_time(sandbox, workspace):
    """Two seconds of CPU in parallel cannot be had in one second of wall time, and a busy loop ends in time."""
    result = sandbox.run(["python", "-c", "while True: pass"], workspace=workspace, limits=Limits(time_s=0.5))
    assert result.exit_code is None
