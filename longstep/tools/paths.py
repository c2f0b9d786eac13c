"""Paths of a workspace: every way out is shut, at check and at use.

A path is resolved with all its links first and must lie in the workspace; then it is opened folder by folder from the
workspace down, following no link at all, so that a link swapped in between is refused by the kernel.
"""

import os
import stat
from pathlib import Path

from longstep.tools.function import ToolMistake

MAX_DEPTH = 64  # of folders that we look into; a program can make them deeper than Python can recurse
SEARCHED_BYTES = 256 << 20  # of all files that one search reads
SKIPPED_FOLDERS = frozenset({".git", "__pycache__"})
FILE_BYTES = 16 << 20  # files beyond this are for `shell`


def inside(workspace: Path, path: str) -> tuple[str, str]:
    """(shown, real): the path as shown to the model and with links resolved, both relative to the workspace.

    Raises ToolMistake if it leads outside. The path need not exist.
    """
    if "\0" in path:
        raise ToolMistake("a path cannot hold a NUL character")
    root = os.path.realpath(workspace)
    base = os.path.abspath(workspace)
    shown = os.path.relpath(os.path.normpath(os.path.join(base, path)), base)
    real = os.path.relpath(os.path.realpath(os.path.join(root, path)), root)
    for relative in (shown, real):
        if relative == ".." or relative.startswith("../"):
            raise ToolMistake(f"{path}: outside the workspace. Give a path in it, such as . or a/b.txt")
    return shown, real


def open_inside(workspace: Path, real: str, flags: int, make_parents: bool = False) -> int:
    """A file descriptor of `real` (from `inside`). Follows no link, never blocks on a pipe."""
    fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    *folders, name = real.split("/")
    try:
        for folder in folders:
            try:
                new = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            except FileNotFoundError:
                if not make_parents:
                    raise
                os.mkdir(folder, dir_fd=fd)
                new = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = new
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=fd)
    finally:
        os.close(fd)


def read_bytes(workspace: Path, path: str) -> tuple[str, bytes]:
    """(shown path, content) of a text file. Raises ToolMistake with the sentence for the model."""
    shown, real = inside(workspace, path)
    try:
        fd = open_inside(workspace, real, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        raise ToolMistake(f"{shown}: no such file. Use list_files to see what is there") from None
    except PermissionError:
        raise ToolMistake(f"{shown}: permission denied: not readable") from None
    info = os.fstat(fd)
    if stat.S_ISDIR(info.st_mode):
        os.close(fd)
        raise ToolMistake(f"{shown}: a folder, not a file. Use list_files")
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(info.st_mode):
            raise ToolMistake(f"{shown}: not a regular file")
        if not info.st_mode & 0o400:  # root could read it all the same; the model must see what a user would
            raise ToolMistake(f"{shown}: permission denied: not readable")
        if info.st_size > FILE_BYTES:
            raise ToolMistake(f"{shown}: {info.st_size} bytes is too large. Use shell with head, tail or grep")
        data = file.read(FILE_BYTES + 1)
    if b"\0" in data[:8192]:
        raise ToolMistake(f"{shown}: binary file, {len(data)} bytes")
    return shown, data


def write_bytes(workspace: Path, path: str, data: bytes) -> str:
    """Write the whole file, making folders on the way; returns the shown path."""
    shown, real = inside(workspace, path)
    target = os.path.join(workspace, real)
    if real == "." or path.endswith("/") or os.path.isdir(target):
        raise ToolMistake(f"{shown}: a folder, not a file. Give the path of a file")
    # As root the kernel would allow both; the model must see what a user would.
    if os.path.lexists(target):
        mode = os.lstat(target).st_mode
        if not stat.S_ISREG(mode):
            raise ToolMistake(f"{shown}: not a regular file")
        if not mode & 0o200:
            raise ToolMistake(f"{shown}: permission denied: read-only")
    else:
        parent = os.path.dirname(target)
        if os.path.isdir(parent) and not os.stat(parent).st_mode & 0o200:
            raise ToolMistake(f"{shown}: permission denied: its folder is read-only")
    try:
        fd = open_inside(workspace, real, os.O_WRONLY | os.O_CREAT, make_parents=True)
    except (NotADirectoryError, FileExistsError):
        raise ToolMistake(f"{shown}: a part of the path is a file, not a folder") from None
    with os.fdopen(fd, "wb") as file:
        file.truncate()
        file.write(data)
    return shown


def files_below(workspace: Path, real: str) -> list[str]:
    """Regular files at or below `real` (from `inside`), relative to the workspace, sorted. Follows no link.

    Raises ToolMistake if they hold more than one search may read; sparse files can hold much in little space.
    """
    top = os.path.normpath(os.path.join(workspace, real))
    if os.path.isfile(top):
        return [real]
    found: list[str] = []
    num_bytes = 0
    pending = [(top, 0)]
    while pending:
        folder, depth = pending.pop()
        try:
            entries = list(os.scandir(folder))
        except PermissionError:  # a user could not look there
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH and entry.name not in SKIPPED_FOLDERS:
                    pending.append((entry.path, depth + 1))
            elif entry.is_file(follow_symlinks=False):
                found.append(os.path.relpath(entry.path, workspace))
                size = entry.stat(follow_symlinks=False).st_size
                num_bytes += size if size <= FILE_BYTES else 0
    if num_bytes > SEARCHED_BYTES:
        raise ToolMistake(f"{num_bytes >> 20} MiB of files is too much to search. Give a path, or use shell")
    return sorted(found)
