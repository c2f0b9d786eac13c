"""search_docs: BM25 over the text files under docs/, by the full-text index of sqlite (FTS5).

Every word of the query may match; FTS5's operators are ordinary words here. The order is that of BM25 (title counted
twice), ties by path, so the same folder gives the same answer. The index lives in memory and is kept while paths, times
and sizes of the files stay the same.
"""

import functools
import os
import re
import sqlite3
from pathlib import Path

from longstep.tools.base import ToolContext, ToolOutput
from longstep.tools.function import ToolMistake, tool
from longstep.tools.paths import files_below, read_bytes
from longstep.tools.slim import slim_line

NUM_RESULTS = 5
SNIPPET_WORDS = 12
SUFFIXES = (".md", ".txt")


def _stamps(workspace: Path) -> tuple[tuple[str, int, int], ...]:
    """(path, mtime in ns, bytes) of every document, sorted. Links are not followed."""
    stamps = []
    for path in files_below(workspace, "docs"):
        if path.endswith(SUFFIXES):
            info = os.stat(workspace / path)
            stamps.append((path, info.st_mtime_ns, info.st_size))
    return tuple(stamps)


@functools.lru_cache(maxsize=8)
def _index(workspace: Path, stamps: tuple[tuple[str, int, int], ...]) -> sqlite3.Connection:
    index = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        index.execute("CREATE VIRTUAL TABLE docs USING fts5(path UNINDEXED, title, body, tokenize='porter unicode61')")
    except sqlite3.OperationalError:
        raise ToolMistake("search_docs: this Python's sqlite has no FTS5. Use find_text on docs") from None
    rows = []
    for path, _, _ in stamps:
        try:
            text = read_bytes(workspace, path)[1].decode("utf-8", errors="replace").lstrip()
        except (ToolMistake, OSError):  # binary, huge or unreadable: no document
            continue
        title, _, body = text.partition("\n")
        rows.append((path, title.lstrip("#").strip(), body))
    index.executemany("INSERT INTO docs VALUES (?, ?, ?)", rows)
    return index


@tool("search_docs", "Search the documents in docs.", {"query": "string"}, {}, safe_to_repeat=True)
def search_docs(context: ToolContext, query: str) -> ToolOutput:
    docs = context.workspace / "docs"
    if docs.is_symlink() or not docs.is_dir():
        raise ToolMistake("search_docs: there is no folder docs here. Use find_text")
    words = re.findall(r"\w+", query)
    if not words:
        raise ToolMistake("search_docs: query must hold a word")
    index = _index(context.workspace, _stamps(context.workspace))
    match = " OR ".join(f'"{word}"' for word in words)
    rows = index.execute(
        f"SELECT path, title, snippet(docs, 2, '', '', '...', {SNIPPET_WORDS}) FROM docs WHERE docs MATCH ? "
        f"ORDER BY round(bm25(docs, 0.0, 2.0, 1.0), 9), path LIMIT {NUM_RESULTS}",
        (match,),
    ).fetchall()
    lines = [f"{path}: {title}: {' '.join(snippet.split())}" for path, title, snippet in rows]
    return ToolOutput(text="\n".join(slim_line(line) for line in lines) or "no match")
