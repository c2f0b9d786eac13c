"""What an evaluation keeps: one record for each episode, in a file that only grows, and the header that it belongs to.

The file is JSON lines: a header, then records as they happen. A run that stops loses at most the line that was being
written; a run that goes on with other settings is refused.
"""

import fcntl
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from longstep.agent.loop import Why
from longstep.chat.model import Sampling
from longstep.errors import JournalError, UserError
from longstep.messages import Effort, Usage
from longstep.worlds.base import Split, Verdict

FORMAT = 1
Outcome = Literal["solved", "failed", "step limit", "context limit", "time limit", "infrastructure error"]
_OF_WHY: Mapping[Why, Outcome] = {
    "answered": "failed",
    "no answer": "failed",
    "out of steps": "step limit",
    "out of context": "context limit",
    "out of time": "time limit",
    "stopped": "infrastructure error",
}


def outcome_of(why: Why, verdict: Verdict) -> Outcome:
    """The final state decides: an episode that ran into a limit with its task done is solved."""
    return "solved" if verdict.success else _OF_WHY[why]


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars for a million tokens, by disjoint bucket. `name` says whose prices these are."""

    name: str
    fresh_input: float
    cache_read: float
    cache_write: float
    output: float

    def cost(self, usage: Usage) -> float:
        """Reasoning is a part of output and not paid twice."""
        tokens = (usage.fresh_input, usage.cache_read, usage.cache_write, usage.output)
        prices = (self.fresh_input, self.cache_read, self.cache_write, self.output)
        return sum(t * p for t, p in zip(tokens, prices, strict=True)) / 1e6


# What the same tokens would cost at the released model's list price: a scale for comparing efforts, not a bill.
K3_LIST = Prices(name="K3 list price, July 2026", fresh_input=3.0, cache_read=0.30, cache_write=3.0, output=15.0)


class Key(NamedTuple):
    world: str
    family: str
    seed: int
    effort: Effort

    def __str__(self) -> str:
        return f"{self.world}/{self.family}/{self.seed}/{self.effort}"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One episode, played by `model` (the name of an attack, say).

    `usage` holds four disjoint buckets, and reasoning as a part of output. Times are in seconds.
    """

    world: str
    family: str
    seed: int
    effort: Effort
    split: Split
    held_out: bool
    outcome: Outcome
    model: str
    checks: dict[str, bool] = {}
    steps: int = 0
    usage: Usage = Usage()
    wall_s: float = 0.0
    model_s: float = 0.0
    tool_s: float = 0.0
    why: str = ""  # how the loop ended
    error: str = ""  # what broke, if anything did

    @property
    def key(self) -> Key:
        return Key(self.world, self.family, self.seed, self.effort)

    @property
    def counted(self) -> bool:
        """Infrastructure errors are listed, and run again on resumption; they are nobody's failure."""
        return self.outcome != "infrastructure error"

    @property
    def solved(self) -> bool:
        return self.outcome == "solved"


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every episode of a file has in common."""

    longstep_eval: int = FORMAT
    model: str
    context_tokens: int | None = None
    sampling: Sampling


class RecordFile:
    """Opens or begins the file.

    Raises UserError if it is another run's or in use, JournalError if it is damaged before its tail.
    """

    def __init__(self, path: Path, header: Header):
        self.path = path
        self.done: dict[Key, Record] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        try:
            self._lock()  # before reading: another process may be writing
            if path.stat().st_size > 0:
                self._read(header)
            else:
                self._write(header)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{self.path}: another evaluation is writing it; wait for that one, or give another --json FILE"
            ) from None

    def _read(self, header: Header) -> None:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        first, *lines = whole.splitlines() or [b""]
        try:
            found = msgspec.json.decode(first, type=Header)
        except msgspec.DecodeError as e:
            raise JournalError(f"{self.path}: its first line is not the header of an evaluation ({e})") from e
        if found != header:
            raise UserError(
                f"{self.path}: holds episodes of another run ({found}); this one is {header}. "
                f"Give another --json FILE, or move that one away"
            )
        for number, line in enumerate(lines, start=2):
            try:
                record = msgspec.json.decode(line, type=Record)
            except msgspec.DecodeError as e:
                raise JournalError(f"{self.path}: line {number} cannot be read ({e}); repair or remove it") from e
            self.done[record.key] = record
        if len(whole) < len(data):  # the line that was being written when the run stopped
            with self.path.open("r+b") as file:
                file.truncate(len(whole))

    def add(self, record: Record) -> None:
        self.done[record.key] = record
        self._write(record)

    def _write(self, line: Header | Record) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
