"""list_files, read_file, write_file, edit_file, find_text: in-process, confined to the workspace."""

import os

from longstep.tools.base import ToolContext, ToolOutput
from longstep.tools.function import ToolMistake, tool
from longstep.tools.paths import files_below, inside, open_inside, read_bytes, write_bytes
from longstep.tools.slim import slim, slim_line

MAX_LINES = 200  # of one read_file
MAX_MATCHES = 40


def _lines(data: bytes) -> list[str]:
    """Lines end at "\\n"; a "\\r" before it is not shown. A final newline starts no line."""
    lines = data.decode("utf-8", errors="replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


@tool("list_files", "List a folder.", {}, {"path": "string"}, safe_to_repeat=True)
def list_files(context: ToolContext, path: str = ".") -> ToolOutput:
    shown, real = inside(context.workspace, path)
    try:
        folder = open_inside(context.workspace, real, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise ToolMistake(f"{shown}: no such folder. Use list_files of .") from None
    except NotADirectoryError:
        raise ToolMistake(f"{shown}: a file, not a folder. Use read_file") from None
    lines = []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_symlink():
                    lines.append(f"{entry.name} -> {os.readlink(entry.name, dir_fd=folder)}")
                elif entry.is_dir():
                    lines.append(f"{entry.name}/")
                else:
                    lines.append(f"{entry.name}  {entry.stat(follow_symlinks=False).st_size}")
    finally:
        os.close(folder)
    return ToolOutput(text=slim("\n".join(lines)) if lines else "(empty)")


@tool("read_file", "Read numbered lines of a file.", {"path": "string"}, {"start": "integer", "lines": "integer"},
      safe_to_repeat=True)  # fmt: skip
def read_file(context: ToolContext, path: str, start: int = 1, lines: int = 60) -> ToolOutput:
    shown, data = read_bytes(context.workspace, path)
    every = _lines(data)
    if not every:
        return ToolOutput(text="(empty)")
    if not 1 <= start <= len(every):
        raise ToolMistake(f"{shown}: has {len(every)} lines; start must be from 1 to {len(every)}")
    if lines < 1:
        raise ToolMistake(f"{shown}: lines must be 1 or more")
    end = min(len(every), start - 1 + min(lines, MAX_LINES))
    out = [f"{i}| {slim_line(every[i - 1])}" for i in range(start, end + 1)]
    if end < len(every):
        out.append(f"(lines {start}-{end} of {len(every)})")
    return ToolOutput(text="\n".join(out))


@tool("write_file", "Write a whole file.", {"path": "string", "text": "string"}, {}, safe_to_repeat=True)
def write_file(context: ToolContext, path: str, text: str) -> ToolOutput:
    data = text.encode()
    shown = write_bytes(context.workspace, path, data)
    return ToolOutput(text=f"wrote {shown}, {len(_lines(data))} lines")


@tool("edit_file", "Replace the only place of old by new.", {"path": "string", "old": "string", "new": "string"}, {},
      safe_to_repeat=False)  # fmt: skip
def edit_file(context: ToolContext, path: str, old: str, new: str) -> ToolOutput:
    if not old:
        raise ToolMistake("edit_file: old is empty. Give the text to replace, or use write_file")
    if old == new:
        raise ToolMistake("edit_file: old and new are the same. Nothing to do")
    shown, data = read_bytes(context.workspace, path)
    old_bytes, new_bytes = old.encode(), new.encode()
    if old_bytes not in data and b"\r\n" in data:  # what read_file showed has plain newlines
        old_bytes, new_bytes = old_bytes.replace(b"\n", b"\r\n"), new_bytes.replace(b"\n", b"\r\n")
    count = data.count(old_bytes)
    if count == 0:
        raise ToolMistake(f"{shown}: old is not in the file. Read it and copy the text exactly")
    if count > 1:
        raise ToolMistake(f"{shown}: old occurs {count} times. Give more of the text around it")
    at = data.index(old_bytes)
    write_bytes(context.workspace, path, data[:at] + new_bytes + data[at + len(old_bytes) :])
    line = data.count(b"\n", 0, at) + 1
    return ToolOutput(text=f"edited {shown}, line {line}")


@tool("find_text", "Find literal text in files.", {"text": "string"}, {"path": "string"}, safe_to_repeat=True)
def find_text(context: ToolContext, text: str, path: str = ".") -> ToolOutput:
    if not text or "\n" in text:
        raise ToolMistake("find_text: text must be a part of one line, not empty")
    shown, real = inside(context.workspace, path)
    if not os.path.exists(context.workspace / real):
        raise ToolMistake(f"{shown}: no such file or folder. Use list_files to see what is there")
    wanted = text.encode()
    matches: list[str] = []
    num_matches = 0
    for name in files_below(context.workspace, real):
        try:
            _, data = read_bytes(context.workspace, name)
        except (ToolMistake, OSError):  # binary, huge or unreadable: not text
            continue
        if wanted not in data:
            continue
        for i, line in enumerate(_lines(data), 1):
            if text in line:
                num_matches += 1
                if num_matches <= MAX_MATCHES:
                    matches.append(f"{name}:{i}: {slim_line(line.strip(), 160)}")
    if num_matches > MAX_MATCHES:
        matches.append(f"({num_matches - MAX_MATCHES} more)")
    return ToolOutput(text="\n".join(matches) or "no match")
