"""A workspace as a value: what a task starts from, what it must end as, and how the two meet a real folder.

Atoms apply their effect to a `Tree` in plain Python; nothing here runs a command, so the expected end is computed by
other means than those by which an agent reaches it.
"""

import gzip
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

MAX_READ_BYTES = 1 << 20  # generated files are far smaller; more is certainly wrong and is not read


class Clash(Exception):  # noqa: N818 (no error: a reason to draw again)
    """The parameters drawn for one item do not fit the rest of the task; the generator draws again."""


@dataclass(frozen=True)
class File:
    """`mode` None: any will do, because the file is new and no item sets it. `members` of a tar: path -> text."""

    text: str = ""
    mode: int | None = 0o644
    pack: Literal["", "gz", "tar"] = ""
    members: tuple[tuple[str, str], ...] = ()

    def to_bytes(self) -> bytes:
        if self.pack == "":
            return self.text.encode()
        if self.pack == "gz":
            return gzip.compress(self.text.encode(), mtime=0)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path, text in self.members:
                info = tarfile.TarInfo(path)
                info.size = len(text.encode())
                info.mode = 0o644
                tar.addfile(info, io.BytesIO(text.encode()))
        return gzip.compress(buffer.getvalue(), mtime=0)


def parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def base(path: str) -> str:
    return path.rpartition("/")[2]


def folder_of(path: str) -> str:
    """ "" for a file at the top."""
    return path.rpartition("/")[0]


@dataclass
class Tree:
    files: dict[str, File] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def copy(self) -> "Tree":
        return Tree(dict(self.files), set(self.folders))

    def mkdir(self, path: str) -> None:
        if path in self.files:
            raise Clash(f"{path} is a file")
        self.folders.update((path, *parents(path)))

    def put(self, path: str, file: File) -> None:
        """A new file. Overwriting one would make an instruction ambiguous, so that it is a clash."""
        if path in self.files or path in self.folders:
            raise Clash(f"{path} exists")
        self.folders.update(parents(path))
        self.files[path] = file

    def take(self, path: str) -> File:
        if path not in self.files:
            raise Clash(f"{path} is gone")
        return self.files.pop(path)

    def get(self, path: str) -> File:
        if path not in self.files:
            raise Clash(f"{path} is gone")
        return self.files[path]

    def text(self, path: str) -> str:
        """The text of a plain file that is not empty."""
        file = self.get(path)
        if file.pack or not file.text:
            raise Clash(f"{path} is not plain text")
        return file.text

    def lines(self, path: str) -> list[str]:
        return self.text(path).splitlines()

    def write(self, path: str, text: str) -> None:
        """New text for a file that exists; it keeps its mode."""
        old = self.text(path)
        if text == old:
            raise Clash(f"{path} would not change")
        self.files[path] = replace(self.files[path], text=text)

    def report(self, path: str, text: str) -> None:
        """A new file made by an item: its mode is free."""
        if not text.strip():
            raise Clash(f"{path} would be empty")
        self.put(path, File(text if text.endswith("\n") else text + "\n", mode=None))

    def inside(self, folder: str) -> list[str]:
        """Files directly in a folder, sorted."""
        return sorted(p for p in self.files if folder_of(p) == folder)

    def below(self, folder: str) -> list[str]:
        return sorted(p for p in self.files if p.startswith(folder + "/"))

    def changed_since(self, before: "Tree") -> set[str]:
        """Files and folders that differ."""
        files = {p for p in self.files.keys() | before.files.keys() if self.files.get(p) != before.files.get(p)}
        return files | (self.folders ^ before.folders)

    def write_to(self, workspace: Path) -> None:
        root = str(workspace)
        for folder in sorted(self.folders):
            os.makedirs(f"{root}/{folder}", mode=0o755, exist_ok=True)
        for path, file in self.files.items():
            target = f"{root}/{path}"
            with open(target, "wb") as out:
                out.write(file.to_bytes())
            os.chmod(target, 0o644 if file.mode is None else file.mode)


@dataclass(frozen=True)
class Found:
    """A file as it lies on disk. `problem` says why it was not read (a link, a device, too large)."""

    data: bytes = b""
    mode: int = 0
    problem: str = ""


def read_tree(workspace: Path) -> tuple[dict[str, Found], set[str]]:
    """All files and folders below the workspace. Links are never followed."""
    files: dict[str, Found] = {}
    folders: set[str] = set()
    pending = [""]
    while pending:
        folder = pending.pop()
        for entry in os.scandir(workspace / folder):
            path = f"{folder}/{entry.name}" if folder else entry.name
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                folders.add(path)
                pending.append(path)
            elif not stat.S_ISREG(info.st_mode):
                files[path] = Found(problem="not a regular file")
            elif info.st_size > MAX_READ_BYTES:
                files[path] = Found(problem=f"{info.st_size} bytes, far more than expected")
            else:
                try:
                    data = Path(entry.path).read_bytes()
                except PermissionError:
                    files[path] = Found(problem="not readable")
                else:
                    files[path] = Found(data, stat.S_IMODE(info.st_mode))
    return files, folders


def _loose(text: str) -> list[str]:
    """Lines without the white space around them and without empty lines at the end: `wc` may pad its numbers."""
    return [line.strip() for line in text.rstrip().splitlines()]


def _unpack(data: bytes) -> bytes:
    """Raises zlib.error unless the data are one gzip stream and nothing more. A bomb stops at the limit."""
    stream = zlib.decompressobj(wbits=31)
    text = stream.decompress(data, MAX_READ_BYTES)
    if not stream.eof or stream.unused_data:
        raise zlib.error("not one whole stream")
    return text


def _members(data: bytes) -> dict[str, str]:
    members: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(_unpack(data)), mode="r:") as tar:
        for info in tar:
            if info.isdir():
                continue
            content = tar.extractfile(info) if info.isreg() else None
            path = info.name.removeprefix("./")
            if content is None or path in members:
                raise tarfile.ReadError(f"{path}: not a regular file, or there twice")
            members[path] = content.read().decode()
    return members


def difference(found: Found | None, want: File | None, exact: bool) -> str:
    """Why a file is not what it should be; "" if it is. Unless `exact`, white space at the ends of lines is free."""
    if want is None:
        return "" if found is None else "should not be there"
    if found is None:
        return "is missing"
    if found.problem:
        return found.problem
    if want.mode is not None and found.mode != want.mode:
        return f"has mode {found.mode:o}, expected {want.mode:o}"
    if want.pack == "tar":
        try:
            same = _members(found.data) == dict(want.members)
        except (tarfile.TarError, zlib.error, UnicodeDecodeError, EOFError) as error:
            return f"is not a readable archive ({type(error).__name__})"
        return "" if same else "has other members than expected"
    data = found.data
    if want.pack == "gz":
        try:
            data = _unpack(data)
        except zlib.error:
            return "is not gzip data"
    if exact:
        return "" if data == want.text.encode() else "was changed"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "is not text"
    return "" if _loose(text) == _loose(want.text) else "has other content than expected"
