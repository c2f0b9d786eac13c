"""What a person sees of a run while it happens: one block a step, a line for what is going on now, the outcome.

     3  think  the sum starts at 1, and the test expects 0
        call   edit_file path='stock/core.py' old='total = 1' new='total = 0'
               edited stock/core.py, line 12
        high · in 1,204 · out 46 · 0.3 s model, 0.0 s tools · context ▰▰▱▱▱▱▱▱▱▱ 1,250/32,768

Where the output is no terminal the same lines come without colour, control codes or the live line. Everything that a
model, a tool or a file said is shown with its control characters made visible: it cannot drive the terminal.
"""

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text as RichText

from longstep.agent.loop import CallFinished, CallStarted, Finished, LoopEvent, ModelEvent, StepStarted, TurnTaken
from longstep.chat.model import ArgumentDelta, CallStart, TextDelta, ThinkDelta
from longstep.messages import ToolCall

RESULT_LINES = 6
PLAIN_WIDTH = 100  # columns where there is no terminal to ask
_VISIBLE = {i: 0x2400 + i for i in range(32) if i not in (9, 10)} | {127: 0x2421}  # C0 as pictures
_VISIBLE |= dict.fromkeys(range(128, 160), 0xFFFD)  # C1
_TO_ASCII = str.maketrans("·…", "-~")


def visible(text: str) -> str:
    """`text` with control characters as pictures (ESC is U+241B); newline and tab stay."""
    return text.translate(_VISIBLE).expandtabs(4)


def printable(text: str, console: Console) -> str:
    """`text` as this console can show it."""
    text = visible(text)
    return text.translate(_TO_ASCII).encode("ascii", "replace").decode() if console.options.ascii_only else text


def fold_line(text: str) -> str:
    """Text of any length as one line."""
    return " ".join(visible(text).split())


def call_lines(call: ToolCall, width: int) -> list[str]:
    """`name key='value' ...` if that fits into `width` columns, else a line for each argument."""
    words = [
        f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in call.arguments.items()
    ]
    if call.bad_arguments is not None:
        words.append(f"unreadable arguments {call.bad_arguments!r}")
    one = " ".join([call.name, *words])
    return [one] if len(one) <= width else [call.name, *(f"  {word}" for word in words)]


def bar(used: int, total: int, ascii_only: bool = False) -> str:
    """Ten cells; one is filled as soon as anything is used."""
    full, empty = ("#", ".") if ascii_only else ("▰", "▱")
    num_full = min(10, max(1 if used else 0, round(10 * used / total)))
    return full * num_full + empty * (10 - num_full)


def make_console(to_stderr: bool = False) -> Console:
    console = Console(highlight=False, markup=False, emoji=False, stderr=to_stderr)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


class LiveView:
    """An observer of the loop that prints to `console`. Use it in `with`: the live line ends with it."""

    def __init__(self, console: Console, effort: str):
        self.console = console
        self.effort = effort
        self.ascii_only = console.options.ascii_only
        self._status, self._start_s = "", 0.0  # what is going on, and since when
        self._tail = ""  # the last that the model wrote
        self._number = ""  # of the step whose first line is still to come
        self._prompt_tokens = self._window_tokens = 0
        self._taken: TurnTaken | None = None
        self._tool_s = 0.0
        self._num_open = 0  # calls of this step without a result
        self._live: Live | None = None
        if console.is_terminal:  # draws at once, so it comes last
            self._live = Live(console=console, transient=True, refresh_per_second=8, get_renderable=self._live_line)

    def __enter__(self) -> "LiveView":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: LoopEvent) -> None:
        match event:
            case StepStarted():
                self._tail, self._tool_s = "", 0.0
                self._prompt_tokens, self._window_tokens = event.prompt_tokens, event.window_tokens
                self.now(f"{event.step:>3}  reading {event.prompt_tokens:,} tokens")
            case ModelEvent():
                self._model_event(event)
            case TurnTaken():
                self._turn_taken(event)
            case CallStarted():
                self.now(f"     running {' '.join(call_lines(event.call, self.console.width))}")
            case CallFinished():
                self._call_finished(event)
            case Finished():
                self.now("")

    def line(self, label: str, text: str, style: str = "") -> None:
        """One line of a block, cut at the width. The first one of a step carries its number."""
        head, self._number = f"{self._number:>3}  {label:<6} ", ""
        row = RichText().append(head, style="dim" if head.startswith("   ") else "bold")
        row.append(printable(text, self.console), style=style)
        self.console.print(row, no_wrap=True, overflow="ellipsis", crop=True)

    def now(self, status: str) -> None:
        """Say what is going on, on the line that is drawn over; '' for nothing."""
        self._status, self._start_s = status, time.monotonic()

    def _live_line(self) -> RichText:
        if not self._status:
            return RichText("")
        status = printable(self._status, self.console).replace("\n", " ")
        return RichText(
            f"{status[: self.console.width - 12]}  {time.monotonic() - self._start_s:.1f} s", "dim", no_wrap=True
        )

    def _model_event(self, event: ModelEvent) -> None:
        match event.event:
            case ThinkDelta(text) | TextDelta(text) | ArgumentDelta(text=text):
                self._tail = (self._tail + text)[-400:]
            case CallStart(name=name):
                self._tail = f"{name} "
            case _:
                return
        self._status = f"{event.step:>3}  writing {fold_line(self._tail)[26 - self.console.width :]}"

    def _turn_taken(self, event: TurnTaken) -> None:
        turn = event.turn
        self._taken, self._number, self._num_open = event, str(event.step), len(turn.calls)
        if turn.thinking.strip():
            self.line("think", fold_line(turn.thinking), "dim italic")
        for i, text in enumerate(visible(turn.text).strip().splitlines()):
            self.line("" if i else "says", text)
        if turn.stop == "length":
            self.line("cut", "the turn reached its token limit", "yellow")
        elif not turn.calls and not turn.text.strip():
            self.line("silent", "neither a call nor an answer", "yellow")
        if not turn.calls:
            self._step_done()

    def _call_finished(self, event: CallFinished) -> None:
        for i, text in enumerate(call_lines(event.call, self.console.width - 12)):
            self.line("" if i else "call", text, "cyan")
        lines = visible(event.result.text).split("\n")
        left_out = len(lines) - RESULT_LINES + 1
        if left_out > 1:
            lines[RESULT_LINES - 2 : -1] = [f"... {left_out} more lines ..."]
        for text in lines:
            self.line("", text, "red" if event.result.is_error else "")
        self._tool_s += event.wall_s
        self._num_open -= 1
        if self._num_open == 0:
            self._step_done()

    def _step_done(self) -> None:
        assert self._taken is not None, "a step has a turn"
        prompt, window, output = self._prompt_tokens, self._window_tokens, self._taken.turn.usage.output
        words = [self.effort, f"{self._taken.wall_s:.1f} s model, {self._tool_s:.1f} s tools"]
        if prompt + output:  # an expert or a scripted model counts none
            words.insert(1, f"in {prompt:,} · out {output:,}")
            used = f"{prompt + output:,}/{window:,}"
            words.append(f"context {bar(prompt + output, window, self.ascii_only)} {used}")
        self.line("", " · ".join(words), "dim")
        self.now("")
