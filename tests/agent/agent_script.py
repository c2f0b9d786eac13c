"""A scripted model that is a function of the history alone, and tools whose effects can be counted.

The model wants the words w0, w1, ... in notes.txt, once each and in order. It reads the file when it is not sure what
happened, as a careful agent does, so a run that was killed anywhere must end in the same file.

As a program (`python agent_script.py FOLDER NUM_WORDS PAUSE_S`) it starts or resumes the run in FOLDER.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from longstep.agent import journal
from longstep.agent.loop import Done, Episode, Limits, Think, run_episode
from longstep.chat.model import ChatRequest, Event, Sampling, TurnDone
from longstep.errors import SandboxError
from longstep.messages import Text, Thinking, ToolCall, ToolResult, ToolSpec, Turn, User
from longstep.sandbox.base import CommandResult
from longstep.tools.base import Tool, ToolContext, ToolOutput


class NoSandbox:
    name = "none"

    def run(self, argv: Any, *, workspace: Any, limits: Any = None) -> CommandResult:
        raise SandboxError("no commands here")


class Append:
    """Not safe to repeat: the word is appended each time. Every run of it is counted in runs.txt beside the folder."""

    spec = ToolSpec(
        name="append",
        description="Append a word to notes.txt.",
        parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    )
    safe_to_repeat = False

    def __init__(self, pause_s: float = 0.0):
        self.pause_s = pause_s

    def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        time.sleep(self.pause_s)
        with (context.workspace / "notes.txt").open("a") as file:
            file.write(arguments["word"] + "\n")
        time.sleep(self.pause_s)
        return ToolOutput(text="ok " + "x" * (journal.BLOB_BYTES if arguments["word"] == "w1" else 0))


class Look:
    spec = ToolSpec(name="look", description="The words.", parameters={"type": "object", "properties": {}})
    safe_to_repeat = True

    def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        path = context.workspace / "notes.txt"
        return ToolOutput(text=" ".join(path.read_text().split()) if path.exists() else "(empty)")


class Careful:
    """Two words per turn; looks after every second turn and whenever an outcome is unknown."""

    name = "careful"
    context_tokens = 1 << 20

    def __init__(self, num_words: int):
        self.words = [f"w{i}" for i in range(num_words)]

    def count_tokens(self, request: ChatRequest) -> int:
        return len(request.messages)

    async def stream(self, request: ChatRequest) -> AsyncIterator[Event]:
        yield TurnDone(self.turn(request.messages))

    def turn(self, history: tuple[Any, ...]) -> Turn:
        num_calls = sum(len(m.calls) for m in history if isinstance(m, Turn))
        turns = [m for m in history if isinstance(m, Turn)]

        def say(*calls: tuple[str, dict[str, Any]], text: str = "") -> Turn:
            made = [ToolCall(id=f"c{num_calls + i}", name=n, arguments=a) for i, (n, a) in enumerate(calls)]
            parts = (Thinking(text=f"turn {len(turns)}"), *([Text(text=text)] if text else []), *made)
            return Turn(parts=parts, stop="calls" if calls else "end", effort="low")

        last = history[-1]
        if not isinstance(last, ToolResult) or last.name != "look" or last.is_error:
            return say(("look", {}))
        have = [word for word in last.text.split("\n[")[0].split() if word != "(empty)"]  # without a limit's note
        missing = self.words[len(have) :]
        if not missing:
            return say(text="All words stand.")
        return say(*(("append", {"word": word}) for word in missing[:2]))


def tools(pause_s: float = 0.0) -> dict[str, Tool]:
    return {"append": Append(pause_s), "look": Look()}


def header(folder: Path) -> journal.Header:
    return journal.Header(
        run_id=folder.name,
        task="Write the words.",
        model="careful",
        effort="low",
        limits=Limits(max_steps=500),
        sampling=Sampling(temperature=0.0),
        tools=tuple(tool.spec for tool in tools().values()),
        workspace=str(folder / "workspace"),
    )


def run_or_resume(folder: Path, num_words: int, pause_s: float = 0.0) -> Episode | None:
    """Run to the end; None if there was nothing left to do."""
    made = tools(pause_s)
    context = ToolContext(workspace=folder / "workspace", sandbox=NoSandbox())
    context.workspace.mkdir(exist_ok=True)
    state: Any
    if (folder / "journal.jsonl").exists():
        going = journal.resume(folder, made)
        book, state, limits = going.journal, going.state, going.limits
    else:
        book = journal.start(folder, header(folder))
        state, limits = Think((User(text=header(folder).task),)), header(folder).limits
    with book:
        if isinstance(state, Done):
            return None
        return asyncio.run(
            run_episode(
                Careful(num_words), state, tools=made, context=context, effort="low", limits=limits, journal=book
            )
        )


if __name__ == "__main__":
    run_or_resume(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
