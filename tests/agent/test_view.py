"""The live view, event by event, where a run in test_run.py does not come by."""

import io

import pytest
from rich.console import Console

from longstep.agent.loop import CallFinished, CallStarted, ModelEvent, StepStarted, TurnTaken
from longstep.agent.view import LiveView, bar, call_lines, fold_line, make_console
from longstep.chat.model import ArgumentDelta, CallStart, TextDelta, ThinkDelta
from longstep.messages import Text, Thinking, ToolCall, ToolResult, Turn, Usage


@pytest.mark.parametrize(
    ("used", "cells"), [(0, 0), (1, 1), (100, 1), (149, 1), (151, 2), (999, 10), (1000, 10), (3000, 10)]
)
def test_bar(used, cells):
    assert bar(used, 1000) == "▰" * cells + "▱" * (10 - cells)
    assert bar(used, 1000, ascii_only=True) == "#" * cells + "." * (10 - cells)


def test_a_call_is_one_line_if_it_fits():
    call = ToolCall(id="1", name="read_file", arguments={"path": "a\nb.py", "start": 3})
    assert call_lines(call, 80) == ["read_file path='a\\nb.py' start=3"]
    assert call_lines(call, 20) == ["read_file", "  path='a\\nb.py'", "  start=3"]
    bad = ToolCall(id="1", name="shell", arguments={}, bad_arguments='{"command": \x1b')
    assert call_lines(bad, 80) == ["shell unreadable arguments '{\"command\": \\x1b'"]
    assert call_lines(ToolCall(id="1", name="run_tests", arguments={}), 80) == ["run_tests"]


def test_folded_text_is_one_visible_line():
    assert fold_line("a\n\n  b\t c\x07") == "a b c␇"


def lines_of(*turns: Turn, results: tuple[ToolResult, ...] = ()) -> list[str]:
    out = io.StringIO()
    with LiveView(Console(file=out, width=100, highlight=False, markup=False), "max") as view:
        for step, turn in enumerate(turns, 1):
            view(StepStarted(step, 100, 1000))
            view(TurnTaken(step, turn, 1.25))
            for call, result in zip(turn.calls, results, strict=True):
                view(CallStarted(step, call))
                view(CallFinished(step, call, result, 0.5))
    return out.getvalue().splitlines()


def test_turns_that_say_nothing_or_are_cut():
    stats = "            max · in 100 · out 7 · 1.2 s model, 0.0 s tools · context ▰▱▱▱▱▱▱▱▱▱ 107/1,000"
    usage = Usage(output=7)
    assert lines_of(Turn(parts=(), usage=usage)) == ["  1  silent neither a call nor an answer", stats]
    cut = Turn(parts=(Thinking(text="so"), Text(text="x")), stop="length", usage=usage)
    assert lines_of(cut) == [
        "  1  think  so",
        "     says   x",
        "     cut    the turn reached its token limit",
        stats,
    ]


@pytest.mark.parametrize(
    ("num_lines", "shown"),
    [(6, "1 2 3 4 5 6"), (7, "1 2 3 4 ...2 7"), (50, "1 2 3 4 ...45 50")],
)
def test_a_long_result_keeps_its_ends(num_lines, shown):
    call = ToolCall(id="1", name="shell", arguments={})
    text = "\n".join(str(i) for i in range(1, num_lines + 1))
    got = lines_of(
        Turn(parts=(call, call), stop="calls"),
        results=(ToolResult(call_id="1", name="shell", text=text), ToolResult(call_id="1", name="shell", text="ok")),
    )
    want = [f"... {w[3:]} more lines ..." if w.startswith("...") else w for w in shown.split()]
    assert got[0] == "  1  call   shell"
    assert got[1:-3] == [f"            {line}" for line in want]
    assert got[-3:-1] == ["     call   shell", "            ok"]
    assert "1.0 s tools" in got[-1]


def test_the_live_line_says_what_the_model_writes():
    """Thinking, then the call with its arguments; long text shows its end."""
    view = LiveView(Console(file=io.StringIO(), width=50, force_terminal=True), "low")
    seen = []
    view(StepStarted(3, 1234, 5000))
    seen.append(view._live_line().plain)
    for event in (
        ThinkDelta("a\nb " * 100 + "end"),
        CallStart(0, "id", "shell"),
        ArgumentDelta(0, "command", "string", "ls"),
        TextDelta(" -l"),
    ):
        view(ModelEvent(3, event))
        seen.append(view._live_line().plain)
    assert seen[0].startswith("  3  reading 1,234 tokens  0.")
    assert "  3  writing a b a b" not in seen[1]
    assert " a b end  0." in seen[1]
    assert [line.split("writing ")[1].split("  ")[0] for line in seen[2:]] == ["shell", "shell ls", "shell ls -l"]
    assert all(len(line) <= 50 for line in seen)


def test_a_console_without_a_terminal_has_a_fixed_width():
    console = make_console()
    assert not console.is_terminal
    assert console.width == 100
    assert make_console(to_stderr=True).stderr
