"""A user's folder: copied to work in, compared, and written back.

The agent never works in the user's own folder. `copy_folder` makes a bounded copy without version control, caches and
installed packages, and says what it left out; `changes` compares the copy with what it was (a manifest of hashes, with
the bytes kept as blobs); `unified` shows the difference in the form that `patch -p1` takes; `apply` writes it back,
all or nothing, and only onto files that are still as they were when the run began.
"""

import difflib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from longstep.agent.journal import Blobs, runs_folder
from longstep.errors import UserError

MAX_BYTES = 64 << 20
MAX_FILES = 10_000
LEFT_OUT = frozenset({
    ".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".hypothesis",
})  # fmt: skip


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file by its content, or a link by where it leads. A file that cannot be read has neither."""

    hash: str = ""
    mode: int = 0o644
    link: str | None = None


Manifest = dict[str, File]  # by path relative to the folder, with "/"


@dataclass(frozen=True, kw_only=True)
class Copied:
    num_files: int
    num_bytes: int
    left_out: tuple[str, ...]  # paths relative to the source


def _leads_outside(folder: Path, path: Path) -> bool:
    target = os.readlink(path)
    # realpath, since Path.resolve raises where links lead in a circle
    return os.path.isabs(target) or not Path(os.path.realpath(path)).is_relative_to(folder.resolve())


def _is_text(path: Path) -> bool:
    """Whether the name, and where a link leads, is UTF-8: no other name can stand in a journal, diff or prompt."""
    try:
        (path.name + (os.readlink(path) if path.is_symlink() else "")).encode()
    except UnicodeEncodeError:
        return False
    return True


def _walk(folder: Path, left_out: list[str], must_read: bool = True) -> Iterator[Path]:
    """Folders, files and inner links below `folder`, sorted, each folder before what it holds."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        if not must_read:  # what an agent has shut is seen as empty
            return
        raise UserError(f"{folder}: {error.strerror}; make it readable, or give another --workspace") from None
    for path in entries:
        if path.name in LEFT_OUT or path == runs_folder() or not _is_text(path):
            left_out.append(str(path))
        elif path.is_symlink() or path.is_file():
            yield path
        elif path.is_dir():
            yield path
            yield from _walk(path, left_out, must_read)
        else:
            left_out.append(str(path))  # a pipe, socket or device


def copy_folder(source: Path, target: Path) -> Copied:
    """Copy `source` to `target`, which is made. Raises UserError, before anything is copied, if it is too large."""
    left_out: list[str] = []
    paths: list[Path] = []
    num_files, num_bytes = 0, 0
    for path in _walk(source, left_out):
        if path.is_symlink() and _leads_outside(source, path):
            left_out.append(str(path))
            continue
        paths.append(path)
        num_files += 1
        num_bytes += path.lstat().st_size if not path.is_dir() else 0
        if num_files > MAX_FILES or num_bytes > MAX_BYTES:
            raise UserError(
                f"{source}: more than {MAX_FILES:,} files or {MAX_BYTES >> 20} MiB, and a run works on a copy; "
                f"give the part that the task is about as --workspace"
            )
    target.mkdir(parents=True)
    for path in paths:
        new = target / path.relative_to(source)
        try:
            if path.is_symlink():
                new.symlink_to(os.readlink(path))
            elif path.is_dir():
                new.mkdir()
            else:
                shutil.copyfile(path, new)
                new.chmod(stat.S_IMODE(path.stat().st_mode) | 0o200)  # the agent may write what the user may
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; the run needs a readable copy of the folder") from None
    relative = (os.fsencode(Path(path).relative_to(source)) for path in left_out)
    names = tuple(sorted(name.decode(errors="replace") for name in relative))
    return Copied(num_files=num_files, num_bytes=num_bytes, left_out=names)


def snapshot(folder: Path, blobs: Blobs) -> Manifest:
    """What the folder holds now; the bytes are kept in `blobs`."""
    found: Manifest = {}
    for path in _walk(folder, [], must_read=False):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = File(link=os.readlink(path))
        elif path.is_file():
            mode = stat.S_IMODE(path.stat().st_mode) & 0o777
            try:
                # not synced: after a lost machine the user's own folder still has them
                found[name] = File(hash=blobs.put(path.read_bytes(), sync=False), mode=mode)
            except PermissionError:
                found[name] = File(mode=mode)
    return found


def materialise(files: Manifest, blobs: Blobs, folder: Path) -> None:
    """Write the files of a manifest that can be read into `folder`, over what is there."""
    for name, file in files.items():
        if not file.hash and file.link is None:
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.link is not None:
            path.unlink(missing_ok=True)
            path.symlink_to(file.link)
        else:
            path.write_bytes(blobs.get(file.hash))
            path.chmod(file.mode | 0o200)


@dataclass(frozen=True, kw_only=True)
class Change:
    """`old` None: a new file; `new` None: a deleted one."""

    path: str
    old: File | None
    new: File | None


def changes(before: Manifest, after: Manifest) -> tuple[Change, ...]:
    paths = sorted(before.keys() | after.keys())
    every = (Change(path=path, old=before.get(path), new=after.get(path)) for path in paths)
    return tuple(change for change in every if change.old != change.new)


def unified(found: Sequence[Change], blobs: Blobs) -> str:
    """The changes as a unified diff; '' if there are none. Binary files, links and modes get a line of their own."""
    parts: list[str] = []
    for change in found:
        old, new = _text(change.old, blobs), _text(change.new, blobs)
        if change.old and change.new and change.old.mode != change.new.mode:
            parts.append(f"mode of {change.path}: {change.old.mode:o} -> {change.new.mode:o}\n")
        if old is None or new is None:
            parts.append(f"binary file {change.path} {_verb(change)}\n")
            continue
        end = "\t" if " " in change.path else ""  # else `patch` takes the name only up to the space
        lines = difflib.unified_diff(
            _split(old),
            _split(new),
            f"a/{change.path}{end}" if change.old else "/dev/null",
            f"b/{change.path}{end}" if change.new else "/dev/null",
        )
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(parts)


def _split(text: str) -> list[str]:
    """Lines end at "\\n" only, as `patch` sees them."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + lines[-1:] * bool(lines[-1])


def _text(file: File | None, blobs: Blobs) -> str | None:
    """The file as text, '' if there is none, None if it is binary or cannot be read."""
    if file is None:
        return ""
    if file.link is not None:
        return f"link to {file.link}\n"
    data = blobs.get(file.hash) if file.hash else b"\0"
    with suppress(UnicodeDecodeError):
        if b"\0" not in data:
            return data.decode()
    return None


def _verb(change: Change) -> str:
    return "is new" if change.old is None else "is deleted" if change.new is None else "differs"


def apply(found: Sequence[Change], source: Path, blobs: Blobs) -> None:
    """Write the changes into `source`: each file by an atomic rename, none of them unless all can be written.

    A change that already stands there is left alone. Raises UserError, with nothing written, if a file there is
    otherwise not as it was when the run began.
    """
    found = [change for change in found if not _stands(source / change.path, change.new)]
    stale = [change.path for change in found if _now(source / change.path) != _without_mode(change.old)]
    stale += [change.path for change in found if not _parents_are_folders(source, change.path)]
    if stale:
        raise UserError(
            f"{', '.join(dict.fromkeys(stale))} changed in {source} since the run began, so nothing was written; "
            f"take what you need from the diff, or start the task again"
        )
    outside = [c.path for c in found if c.new and c.new.link is not None and _is_outside(source, c.path, c.new.link)]
    if outside:
        raise UserError(f"{', '.join(outside)}: a link that leads out of {source}, so nothing was written")
    shut = [c.path for c in found if c.new and not c.new.hash and c.new.link is None]
    if shut:
        raise UserError(f"{', '.join(shut)}: cannot be read any more, so nothing was written")
    staged: list[tuple[Path, Path]] = []
    try:
        for change in found:
            if change.new is not None:
                path = source / change.path
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.longstep")
                staged.append((part, path))
                _stage(part, path, change.new, blobs)
        for part, path in staged:
            part.replace(path)
        for change in found:
            if change.new is None:
                (source / change.path).unlink()
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror} while writing the changes back to {source}") from None
    finally:
        for part, _ in staged:
            part.unlink(missing_ok=True)


def _stage(part: Path, path: Path, new: File, blobs: Blobs) -> None:
    if new.link is not None:
        part.symlink_to(new.link)
        return
    with part.open("wb") as file:
        file.write(blobs.get(new.hash))
        file.flush()
        os.fsync(file.fileno())
    part.chmod(new.mode)
    like = path if path.exists() else path.parent
    if os.geteuid() == 0:  # the file stays its owner's
        os.chown(part, like.stat().st_uid, like.stat().st_gid)


def _now(path: Path) -> File | None:
    """The file as it stands, without its mode."""
    if path.is_symlink():
        return File(link=os.readlink(path))
    if not path.exists():
        return None
    if not path.is_file():
        return File(hash="a folder")
    return File(hash=Blobs.name(path.read_bytes()))


def _stands(path: Path, new: File | None) -> bool:
    if _now(path) != _without_mode(new):
        return False
    return new is None or new.link is not None or stat.S_IMODE(path.stat().st_mode) & 0o777 == new.mode


def _without_mode(file: File | None) -> File | None:
    return file and File(hash=file.hash, link=file.link)


def _parents_are_folders(source: Path, path: str) -> bool:
    """Whether writing `path` stays where it says: no link, and no file, among the folders above it."""
    parents = [source / parent for parent in Path(path).parents if parent != Path(".")]
    return all(not parent.is_symlink() and (parent.is_dir() or not parent.exists()) for parent in parents)


def _is_outside(source: Path, path: str, target: str) -> bool:
    if os.path.isabs(target):
        return True
    return os.path.relpath(os.path.normpath(source / Path(path).parent / target), source).startswith("..")
