"""shell: one command line in the sandbox. Each call starts anew in the workspace; only files stay."""

from longstep.sandbox.base import CommandResult, Limits
from longstep.tools.base import ToolContext, ToolOutput
from longstep.tools.function import ToolMistake, tool
from longstep.tools.slim import slim

MAX_COMMAND_BYTES = 100_000  # the kernel takes 128 KiB in one argument


def render(result: CommandResult, limits: Limits) -> ToolOutput:
    """ "exit N" or "killed after T s", then stdout, then stderr under "stderr:"."""
    killed = result.exit_code is None
    parts = [f"killed after {limits.time_s:g} s" if killed else f"exit {result.exit_code}"]
    if result.stdout.strip("\n"):
        parts.append(slim(result.stdout))
    if result.dropped_bytes:
        parts.append(f"... {result.dropped_bytes} bytes left out ...")
    if result.stderr.strip("\n"):
        parts += ["stderr:", slim(result.stderr)]
    return ToolOutput(text="\n".join(parts), is_error=killed)


@tool("shell", "Run a shell command.", {"command": "string"}, {}, safe_to_repeat=False)
def shell(context: ToolContext, command: str) -> ToolOutput:
    if not command.strip() or "\0" in command:
        raise ToolMistake("shell: command must be text for sh, not empty, without NUL")
    if len(command.encode()) > MAX_COMMAND_BYTES:
        raise ToolMistake("shell: the command is too long. Write a script with write_file and run that")
    limits = Limits()
    return render(context.sandbox.run(["sh", "-c", command], workspace=context.workspace, limits=limits), limits)
