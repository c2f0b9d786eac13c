"""The record of a run: what was about to happen, what came of it, and the state that followed.

A run is a folder `runs/ID` under $LONGSTEP_HOME (else ~/.local/share/longstep):

    journal.jsonl    one record per line, append-only
    blobs/HASH       long results and files, by the blake2b-256 of their bytes
    workspace/       the folder that the agent works in

A line is `{"n":..,"at":..,"record":{"kind":..}, "sum":".."}`. `sum` is the blake2b-64 of the previous line's sum and of
this line's bytes before `,"sum"`, so a line that is lost, changed or moved breaks the chain at a known place. The first
record is the header; each effect is an intent, written and synced before it, and an outcome after it; state records let
a reader, and `rebuild`, check themselves. A call that was refused has an outcome without an intent: it was never run.

Reading tolerates a torn tail: a last line that is incomplete or fails its sum was being written when the process died,
and is dropped. Damage anywhere before is refused (JournalError).

Resuming rebuilds the state from the outcomes with the loop's own pure transitions. A call with an outcome is never run
again. A call with an intent and no outcome is run again if its tool is safe to repeat; else the model is told that the
outcome is unknown, and the turn's later calls are not run. A model call without an outcome is asked again.
"""

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from longstep.agent.loop import UNKNOWN, Act, Done, Limits, State, Think, Why, after_result, after_turn, num_turns
from longstep.chat.model import Sampling
from longstep.errors import JournalError, UserError
from longstep.messages import Effort, ToolCall, ToolResult, ToolSpec, Turn, User
from longstep.tools.base import Tool

VERSION = 1
# A result longer than this stands in the journal as a blob's hash.
BLOB_BYTES = 16 << 10


# ------------------------------------------------------------------------------------------------------------ records


class _Record(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, tag_field="kind"
):
    pass


class Header(_Record, frozen=True, kw_only=True, tag="header", omit_defaults=False):
    """All that is needed to go on: the task, the terms, and where the work stands. The version is always written."""

    version: int = VERSION
    run_id: str
    task: str
    model: str
    effort: Effort
    limits: Limits
    sampling: Sampling
    tools: tuple[ToolSpec, ...]
    workspace: str  # the folder in which the tools act
    source: str | None = None  # the user's folder, of which `workspace` is a copy
    files: str = ""  # blob: the manifest of `workspace` at the start (`agent.folders`)
    world: str | None = None
    family: str | None = None
    seed: int | None = None


class Resumed(_Record, frozen=True, kw_only=True, tag="resumed"):
    """The run goes on in another process, perhaps under other limits."""

    limits: Limits
    dropped_bytes: int  # of a torn tail


class ModelIntent(_Record, frozen=True, kw_only=True, tag="model intent"):
    step: int
    prompt_tokens: int


class ModelOutcome(_Record, frozen=True, kw_only=True, tag="model outcome"):
    step: int
    turn: Turn
    wall_s: float


class ToolIntent(_Record, frozen=True, kw_only=True, tag="tool intent"):
    """Arguments stand in the turn of the same step."""

    step: int
    call_id: str
    name: str


class ToolOutcome(_Record, frozen=True, kw_only=True, tag="tool outcome"):
    """`text` as the model sees it, or the hash of its bytes in `blob`."""

    step: int
    call_id: str
    name: str
    text: str = ""
    blob: str | None = None
    is_error: bool = False
    wall_s: float = 0.0


class StateRecord(_Record, frozen=True, kw_only=True, tag="state"):
    state: Literal["think", "act", "done"]
    num_messages: int
    pending: tuple[str, ...] = ()  # call ids
    why: Why | None = None


class VerdictRecord(_Record, frozen=True, kw_only=True, tag="verdict"):
    """What verification said after the episode. Names of checks that failed are in `failed`."""

    success: bool
    passed: tuple[str, ...]
    failed: tuple[str, ...]


Record = Header | Resumed | ModelIntent | ModelOutcome | ToolIntent | ToolOutcome | StateRecord | VerdictRecord


class Line(msgspec.Struct, frozen=True, kw_only=True):
    n: int  # from 0 without gaps
    at: str  # UTC, ISO 8601
    record: Record
    sum: str = ""


def _sum(previous: str, body: bytes) -> str:
    return hashlib.blake2b(previous.encode() + body, digest_size=8).hexdigest()


def _encode(n: int, record: Record, previous: str) -> tuple[bytes, str]:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    body = msgspec.json.encode({"n": n, "at": at, "record": record})[:-1]
    total = _sum(previous, body)
    return body + f',"sum":"{total}"}}\n'.encode(), total


# -------------------------------------------------------------------------------------------------------------- blobs


@dataclass(frozen=True)
class Blobs:
    """Bytes by their hash. Writing is atomic and idempotent; reading checks the hash."""

    folder: Path

    @staticmethod
    def name(data: bytes) -> str:
        return hashlib.blake2b(data, digest_size=32).hexdigest()

    def put(self, data: bytes, *, sync: bool = True) -> str:
        name = self.name(data)
        path = self.folder / name
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            part = self.folder / f".{name}.{secrets.token_hex(4)}"
            with part.open("wb") as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            part.replace(path)
        return name

    def get(self, name: str) -> bytes:
        path = self.folder / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise JournalError(
                f"{path}: {error.strerror}, but the journal refers to it; restore the file, or start the task again"
            ) from None
        if self.name(data) != name:
            raise JournalError(f"{path}: its bytes do not match its name; restore the file, or start the task again")
        return data


# ------------------------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a journal file holds: its whole lines, and how many bytes of a torn tail follow them."""

    lines: tuple[Line, ...]
    valid_bytes: int
    dropped_bytes: int

    @property
    def header(self) -> Header:
        header = self.lines[0].record
        assert isinstance(header, Header), "read() checked it"
        return header


def read(path: Path) -> Contents:
    """Every whole line of a journal. Raises JournalError if it is missing, of another version, or damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}; `longstep run` starts a run") from None
    lines: list[Line] = []
    valid_bytes, previous = 0, ""
    while valid_bytes < len(data):
        end = data.find(b"\n", valid_bytes)
        raw = data[valid_bytes : end if end >= 0 else len(data)]
        line = _decode(raw, len(lines), previous, path) if end >= 0 else None
        if line is None:
            if 0 <= end < len(data) - 1:
                raise JournalError(
                    f"{path}: line {len(lines) + 1} is damaged, and records follow it, so the run cannot be continued "
                    f"without losing steps silently; restore the file from a copy, or start the task again"
                )
            break
        lines.append(line)
        valid_bytes, previous = end + 1, line.sum
    if not lines:
        raise JournalError(f"{path}: the run ended before its first record was written; start the task again")
    return Contents(lines=tuple(lines), valid_bytes=valid_bytes, dropped_bytes=len(data) - valid_bytes)


def _decode(raw: bytes, n: int, previous: str, path: Path) -> Line | None:
    """The line, or None if it is not what was written. A whole line of another version is an error, not damage."""
    body, mark, _ = raw.rpartition(b',"sum":"')
    if not mark or raw != body + f',"sum":"{_sum(previous, body)}"}}'.encode():
        return None
    if n == 0:
        version = msgspec.json.decode(raw).get("record", {}).get("version", VERSION)
        if version != VERSION:
            raise JournalError(
                f"{path}: journal version {version}, but this program reads version {VERSION}; "
                f"use the program that wrote it"
            )
    try:
        line = msgspec.json.decode(raw, type=Line)
    except msgspec.DecodeError as error:
        raise JournalError(f"{path}: line {n + 1} is whole but is no record of version {VERSION}: {error}") from None
    if line.n != n or isinstance(line.record, Header) != (n == 0):
        return None
    return line


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """Where a run stands. `unknown` is the call that was started and has no outcome."""

    state: State
    limits: Limits
    used_s: float
    unknown: ToolCall | None


def rebuild(contents: Contents, blobs: Blobs) -> Rebuilt:
    """The state after the last whole record, from outcomes alone. Raises JournalError where records contradict."""
    header = contents.header
    state: State = Think((User(text=header.task),))
    limits, used_s, started = header.limits, 0.0, ""  # the call that was started last
    for line in contents.lines:
        record = line.record
        try:
            match record:
                case Resumed():
                    limits = record.limits
                    if isinstance(state, Done):  # resumed under wider limits
                        state = Think(state.history)
                case ModelOutcome():
                    assert isinstance(state, Think), "a turn follows Think"
                    state = after_turn(state.history, record.turn)
                    used_s += record.wall_s
                case ToolIntent():
                    assert isinstance(state, Act), "a call follows Act"
                    assert state.pending[0].id == record.call_id, "calls start in call order"
                    started = record.call_id
                case ToolOutcome():
                    assert isinstance(state, Act), "a result follows Act"
                    text = record.text if record.blob is None else blobs.get(record.blob).decode()
                    result = ToolResult(call_id=record.call_id, name=record.name, text=text, is_error=record.is_error)
                    state = after_result(state, result)
                    used_s += record.wall_s
                case StateRecord(state="done", why=why) if why is not None and not isinstance(state, Done):
                    state = Done(state.history, why)
                case StateRecord():
                    assert record == _state_record(state), f"the records before it lead to {_state_record(state)}"
                case _:
                    pass
        except AssertionError as error:
            raise JournalError(
                f"run {header.run_id}: record {line.n} does not follow from those before it ({error}); "
                f"start the task again"
            ) from None
    unknown = state.pending[0] if isinstance(state, Act) and state.pending[0].id == started else None
    return Rebuilt(state=state, limits=limits, used_s=used_s, unknown=unknown)


def _state_record(state: State) -> StateRecord:
    match state:
        case Think(history):
            return StateRecord(state="think", num_messages=len(history))
        case Act(history, pending, results):
            pending_ids = tuple(call.id for call in pending)
            return StateRecord(state="act", num_messages=len(history) + len(results), pending=pending_ids)
        case Done(history, why):
            return StateRecord(state="done", num_messages=len(history), why=why)


# ------------------------------------------------------------------------------------------------------------ writing


class RunJournal:
    """The open journal of one run; the loop's `Journal`. One process at a time holds it."""

    def __init__(self, folder: Path, contents: Contents | None, fd: int):
        """Use `start` or `resume`. `fd` is the locked file, `contents` what it held; None for a new one."""
        self.folder = folder
        self.path = folder / "journal.jsonl"
        self.blobs = Blobs(folder / "blobs")
        self._fd = fd
        self._n = len(contents.lines) if contents else 0
        self._previous = contents.lines[-1].sum if contents else ""
        self._last_state: StateRecord | None = None

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> "RunJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, record: Record, *, sync: bool = False) -> None:
        """Append one record. After it returns the record survives a killed process; with `sync`, a lost machine."""
        data, self._previous = _encode(self._n, record, self._previous)
        self._n += 1
        try:
            if os.write(self._fd, data) != len(data):  # a full disk takes a part, and leaves a torn tail
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            raise JournalError(
                f"{self.path}: {error.strerror} while writing record {self._n - 1}; "
                f"make room, then `longstep run --resume {self.folder.name}`"
            ) from None

    def model_intent(self, step: int, prompt_tokens: int) -> None:
        self.write(ModelIntent(step=step, prompt_tokens=prompt_tokens))

    def model_outcome(self, step: int, turn: Turn, wall_s: float) -> None:
        self.write(ModelOutcome(step=step, turn=turn, wall_s=round(wall_s, 6)))

    def tool_intent(self, step: int, call: ToolCall) -> None:
        self.write(ToolIntent(step=step, call_id=call.id, name=call.name), sync=True)

    def tool_outcome(self, step: int, result: ToolResult, wall_s: float) -> None:
        data = result.text.encode()
        blob = self.blobs.put(data) if len(data) > BLOB_BYTES else None
        record = ToolOutcome(
            step=step,
            call_id=result.call_id,
            name=result.name,
            text="" if blob else result.text,
            blob=blob,
            is_error=result.is_error,
            wall_s=round(wall_s, 6),
        )
        self.write(record)

    def state(self, state: State) -> None:
        record = _state_record(state)
        if record != self._last_state:
            self.write(record, sync=not isinstance(state, Act))  # once per step
            self._last_state = record


# --------------------------------------------------------------------------------------------------------------- runs


def runs_folder() -> Path:
    """Raises UserError where there is neither $LONGSTEP_HOME nor a home folder."""
    home = os.environ.get("LONGSTEP_HOME")
    try:
        return ((Path(home) if home else Path.home() / ".local/share/longstep") / "runs").resolve()
    except RuntimeError:
        raise UserError("there is no home folder to keep runs in; set LONGSTEP_HOME to a folder") from None


def new_run_folder() -> Path:
    """An empty folder for a new run; its name is the run's id."""
    run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    folder = runs_folder() / run_id
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(
            f"{folder}: {error.strerror}; runs are kept there, so make it writable, "
            f"or set LONGSTEP_HOME to a folder that is"
        ) from None
    return folder


def run_folder(run_id: str) -> Path:
    """The folder of an existing run. Raises UserError that names the newest runs."""
    folder = runs_folder() / run_id
    if run_id and "/" not in run_id and (folder / "journal.jsonl").is_file():
        return folder
    known = sorted((p.parent.name for p in runs_folder().glob("*/journal.jsonl")), reverse=True)[:5]
    raise UserError(
        f"no run {run_id!r} in {runs_folder()}; " + (f"newest: {', '.join(known)}" if known else "it has none")
    )


@dataclass(frozen=True, kw_only=True)
class Continued:
    """An existing run, open for writing, and where it stands. `dropped_bytes` of a torn tail were cut off."""

    header: Header
    journal: RunJournal
    state: State
    limits: Limits
    used_s: float
    dropped_bytes: int
    unknown: ToolCall | None


def start(folder: Path, header: Header) -> RunJournal:
    """A new journal in an empty run folder."""
    journal = RunJournal(folder, None, _lock(folder, os.O_CREAT | os.O_EXCL))
    journal.write(header, sync=True)
    return journal


def resume(folder: Path, tools: Mapping[str, Tool], *, max_steps: int | None = None) -> Continued:
    """Open a run and rebuild its state, settling a call whose outcome is unknown (module docstring).

    `max_steps` replaces the run's own; a run that ended at a limit goes on if the limit is now another. Raises
    JournalError if the journal is damaged or in use.
    """
    fd = _lock(folder, 0)  # before reading: another process may be writing
    try:
        contents = read(folder / "journal.jsonl")
        if contents.dropped_bytes:
            os.ftruncate(fd, contents.valid_bytes)
        journal = RunJournal(folder, contents, fd)
        rebuilt = rebuild(contents, journal.blobs)
        state, unknown = rebuilt.state, rebuilt.unknown
        limits = rebuilt.limits if max_steps is None else replace(rebuilt.limits, max_steps=max_steps)
        if not isinstance(state, Done) or (state.why.startswith("out of") and limits != rebuilt.limits):
            journal.write(Resumed(limits=limits, dropped_bytes=contents.dropped_bytes))
            if isinstance(state, Done):
                state = Think(state.history)
        if unknown is not None and not (unknown.name in tools and tools[unknown.name].safe_to_repeat):
            assert isinstance(state, Act), "only Act has calls"
            result = ToolResult(call_id=unknown.id, name=unknown.name, text=UNKNOWN, is_error=True)
            journal.tool_outcome(num_turns(state.history), result, 0.0)
            state = after_result(state, result)
    except BaseException:
        os.close(fd)
        raise
    return Continued(
        header=contents.header,
        journal=journal,
        state=state,
        limits=limits,
        used_s=rebuilt.used_s,
        dropped_bytes=contents.dropped_bytes,
        unknown=unknown,
    )


def _lock(folder: Path, flags: int) -> int:
    """The journal's file, open to append, held by this process alone."""
    path = folder / "journal.jsonl"
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}; `longstep run` starts a run") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise JournalError(f"run {folder.name} is open in another process; end that one, then resume") from None
    return fd
