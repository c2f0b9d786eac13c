"""Tests in a few milliseconds, for data generation: a server that has pytest imported forks for every run.

The report is that of the sandbox, byte for byte, but there are no walls beyond resource limits: for projects that we
generated ourselves, never for code that a model wrote.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from longstep.errors import SandboxError
from longstep.sandbox.base import CommandResult, Limits, Sandbox
from longstep.sandbox.supervise import small_env
from longstep.sandbox.warm import WarmBubblewrap
from longstep.tools.run_tests import SOURCE


class WarmTests:
    """A sandbox that runs pytest in a fork server and everything else in `sandbox`. Close it, or use it in `with`.

    One run at a time: use one object per worker. A warm `sandbox` is closed with it.
    """

    def __init__(self, sandbox: Sandbox):
        self.name = f"{sandbox.name} with warm tests"
        self._sandbox = sandbox
        self._server: subprocess.Popen[str] | None = None

    def run(self, argv: Sequence[str], *, workspace: Path, limits: Limits = Limits()) -> CommandResult:  # noqa: B008
        return self._sandbox.run(argv, workspace=workspace, limits=limits)

    def run_pytest(self, workspace: Path, target: str, limits: Limits) -> CommandResult:
        where = str(workspace.resolve())
        request = {
            "workspace": where,
            "path": target,
            "env": small_env(where),
            "time_s": limits.time_s,
            "output_bytes": limits.output_bytes,
            "rlimits": {
                resource.RLIMIT_AS: limits.memory_bytes,
                resource.RLIMIT_CPU: round(limits.time_s) + 1,
                resource.RLIMIT_FSIZE: limits.file_bytes,
                resource.RLIMIT_CORE: 0,
            },
        }
        server = self._start()
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            answer = server.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.close()
            raise SandboxError("warm tests: the fork server ended; run again, or use the sandbox without warm tests")
        return CommandResult(stderr="", **json.loads(answer))

    def _start(self) -> "subprocess.Popen[str]":
        if self._server is None:
            env = small_env("/") | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-c", f"{SOURCE}\nserve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
                cwd="/",
            )
        return self._server

    def close(self) -> None:
        if isinstance(self._sandbox, WarmBubblewrap):
            self._sandbox.close()
        if self._server is not None:
            server, self._server = self._server, None
            server.kill()
            server.communicate()

    def __enter__(self) -> "WarmTests":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
