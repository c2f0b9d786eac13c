"""Text to pretrain on, from what is installed where this runs: Python source and documentation, permissive ones only.

`build_corpus` writes a folder:

    manifest.json       what was taken (name, version, licence, files, bytes, sha256), what was left out and why, shards
    shard-0000.jsonl    documents, {"source", "path", "text"} a line, in an order that is the same every time

A distribution is taken if its licence is known and every part of it that must be kept is permissive; one word of
copyleft in any field leaves it out, and so does silence. Vendored folders carry licences of their own and are left out,
as is a file whose head names a copyleft licence. Documentation packages are listed by name with their licences.

Files that no one wrote, or no one reads, are dropped: generated, minified, tables of numbers, exact copies, and files
most of whose lines have been seen before. In prose, a long line that has been seen before is dropped by itself.
"""

import gzip
import hashlib
import importlib.metadata
import json
import platform
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from longstep.errors import UserError

FORMAT = 1
_SHARD_BYTES = 32 << 20
_MIN_BYTES, _MAX_BYTES = 200, 300_000  # of one document
_MAX_LINE = 1000  # characters; longer lines are data or minified code
_LONG_LINE = 30  # characters; shorter lines are repeated by chance
_MAX_SEEN = 0.7  # share of long lines seen before, in source files

# SPDX names; the last row is public domain or close to it.
_PERMISSIVE = frozenset(
    ("MIT", "MIT-0", "MIT-CMU", "BSD-2-Clause", "BSD-3-Clause", "BSD", "0BSD", "Apache-2.0", "ISC", "PSF-2.0")
    + ("Python-2.0", "Zlib", "BSL-1.0", "HPND", "PostgreSQL", "LLVM-exception")
    + ("CC0-1.0", "Unlicense", "blessing", "public-domain")
)
_CLASSIFIERS = {
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
    "zlib/libpng License": "Zlib",
    "The Unlicense (Unlicense)": "Unlicense",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": "CC0-1.0",
    "Public Domain": "public-domain",
}
_FREE_TEXT = (  # the old License field: a name in any spelling
    (r"(the )?(mit|expat)( licen[cs]e)?", "MIT"),
    (r"(new |modified |revised )?(2|3|two|three)?[- ]?(clause )?bsd([- ][23])?([- ]clause)?( licen[cs]e)?", "BSD"),
    (r"(the )?apache( software)?( licen[cs]e)?,?( ?v| version)?[- ]?2(\.0)?( licen[cs]e)?", "Apache-2.0"),
    (r"isc( licen[cs]e)?( \(iscl\))?", "ISC"),
    (r"(psf|python software foundation)([- ]2\.0)?( licen[cs]e)?", "PSF-2.0"),
)
_KNOWN = {"torch": "BSD-3-Clause"}  # whose metadata names the licences of all that its binaries link
_COPYLEFT = re.compile(
    r"\b[AL]?GPL|\bMPL|Mozilla Public|General Public|\bEPL\b|\bCDDL|\bEUPL|CC-BY-SA|Share ?Alike", re.I
)
_VENDORED = frozenset(("vendor", "_vendor", "vendored", "_vendored", "third_party", "extern", "externals", "_extern"))
_GENERATED = re.compile(
    r"do not edit|auto-?generated|(this file|file was|code) (is|was|has been)? ?(automatically )?generated"
)

# Debian's documentation packages: folder below a root -> (package, licence of the text).
DOC_PACKAGES = {
    **{f"python3.{n}": (f"python3.{n}-doc", "PSF-2.0") for n in range(9, 16)},
    "sqlite3": ("sqlite3-doc", "blessing"),
    "postgresql-doc-15": ("postgresql-doc-15", "PostgreSQL"),
    "postgresql-doc-17": ("postgresql-doc-17", "PostgreSQL"),
    "apache2-doc": ("apache2-doc", "Apache-2.0"),
    "python-attr-doc": ("python-attr-doc", "MIT"),
    "python-django-doc": ("python-django-doc", "BSD-3-Clause"),
    "python-flask-doc": ("python-flask-doc", "BSD-3-Clause"),
    "python-jinja2-doc": ("python-jinja2-doc", "BSD-3-Clause"),
    "python-pandas-doc": ("python-pandas-doc", "BSD-3-Clause"),
    "python-requests-doc": ("python-requests-doc", "Apache-2.0"),
    "python-sqlalchemy-doc": ("python-sqlalchemy-doc", "MIT"),
    "python-werkzeug-doc": ("python-werkzeug-doc", "BSD-3-Clause"),
}
_DOC_SKIP = re.compile(r"(^|/)(_sources|_static|_modules|releaselog|search|genindex|py-modindex)(/|[-.\w]*\.html$)")


@dataclass
class Source:
    """One origin of documents. `texts` maps a path inside it to the text."""

    name: str
    version: str
    licence: str
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return sum(len(text.encode()) for text in self.texts.values())


def build_corpus(
    out: Path,
    *,
    python_roots: Sequence[Path] | None = None,
    docs: Sequence[Path] | None = None,
    max_bytes: int,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Gather at most `max_bytes` of UTF-8 text into `out`; returns the manifest.

    `python_roots`: folders of installed distributions, or a standard library; None takes the running interpreter's.
    `docs`: folders like /usr/share/doc, in which the packages of `DOC_PACKAGES` are looked for; None takes that one.
    `tell` gets a line per source as it is read. Where there is more text than `max_bytes`, the largest sources give
    way first. Raises UserError if `out` holds a corpus, or nothing is found.
    """
    if (out / "manifest.json").exists():
        raise UserError(f"{out} already holds a corpus; name another folder, or delete this one first")
    left_out: list[dict[str, str]] = []
    sources: list[Source] = []
    seen = _Seen()
    for source, files in _origins(python_roots, docs, left_out):
        for path, text in files:
            if (kept := seen.keep(text, is_prose=not path.endswith(".py"))) is not None:
                source.texts[path] = kept
        tell(
            f"{source.name} {source.version} ({source.licence}): {len(source.texts)} files, {source.num_bytes:,} bytes"
        )
        if source.texts:
            sources.append(source)
    if not sources:
        raise UserError("no text to learn from was found; name folders of installed Python packages or documentation")
    _fit(sources, max_bytes)
    return _write(out, sources, left_out)


def documents(folder: Path) -> Iterator[str]:
    """The texts of a corpus, shard by shard, in their order. Raises UserError if a shard is not what was written."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError) as e:
        raise UserError(f"{folder} holds no corpus (manifest.json: {e}); make one with `longstep train corpus`") from e
    for shard in manifest["shards"]:
        data = (folder / shard["name"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != shard["sha256"]:
            raise UserError(
                f"{folder / shard['name']} is not the shard that the manifest describes; make the corpus again"
            )
        for line in data.splitlines():
            yield json.loads(line)["text"]


# --- where text comes from ---

_Files = Iterable[tuple[str, str]]


def _origins(
    python_roots: Sequence[Path] | None, docs: Sequence[Path] | None, left_out: list[dict[str, str]]
) -> Iterator[tuple[Source, _Files]]:
    stdlib = Path(sysconfig.get_path("stdlib"))
    roots = list(python_roots) if python_roots is not None else [stdlib, *_site_folders()]
    for root in roots:
        if (root / "argparse.py").exists() and (root / "abc.py").exists():
            version = platform.python_version() if root == stdlib else root.name.removeprefix("python")
            yield Source("cpython", version, "PSF-2.0"), _python_files(root, root.rglob("*.py"))
    for dist in _distributions(root for root in roots if root != stdlib):
        name = dist.metadata["Name"]
        licence, why_not = licence_of(dist)
        if licence is None:
            left_out.append({"name": name, "version": dist.version, "why": why_not})
            continue
        base = Path(str(dist.locate_file("")))
        files = (base / str(file) for file in dist.files or [] if str(file).endswith(".py"))
        yield Source(name, dist.version, licence), _python_files(base, files)
    for root in docs if docs is not None else [Path("/usr/share/doc")]:
        for folder, (package, licence) in DOC_PACKAGES.items():
            if (root / folder).is_dir():
                yield Source(package, _debian_version(root / package), licence), _doc_files(root / folder)


def _site_folders() -> list[Path]:
    return list(dict.fromkeys(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")))


def _distributions(roots: Iterable[Path]) -> list[importlib.metadata.Distribution]:
    found: dict[str, importlib.metadata.Distribution] = {}
    for dist in importlib.metadata.distributions(path=[str(root) for root in roots]):
        if dist.metadata["Name"] and dist.metadata["Name"].lower() != "longstep":  # ourselves, installed editable
            found.setdefault(dist.metadata["Name"].lower(), dist)
    return [found[name] for name in sorted(found)]


def licence_of(dist: importlib.metadata.Distribution) -> tuple[str | None, str]:
    """(licence, "") if it is permissive, else (None, why not)."""
    metadata = dist.metadata
    if (known := _KNOWN.get((metadata["Name"] or "").lower())) is not None:
        return known, ""
    expression = next(iter(metadata.get_all("License-Expression") or []), None)
    text = "".join(metadata.get_all("License") or []).strip().splitlines()
    named = text[0].strip() if text else ""
    classifiers = [c.split(" :: ")[-1] for c in metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    classifiers = [c for c in classifiers if c not in ("OSI Approved", "DFSG approved")]
    stated = [s for s in (expression, named[:200], *classifiers) if s]
    if not stated:
        return None, "no licence stated"
    if any(_COPYLEFT.search(s) for s in stated if s != expression):
        return None, f"copyleft: {'; '.join(stated)}"
    if expression:
        return (expression, "") if _is_permissive(expression) else (None, f"not permissive: {expression}")
    if classifiers:
        unknown = [c for c in classifiers if c not in _CLASSIFIERS]
        if unknown:
            return None, f"not known as permissive: {'; '.join(unknown)}"
        return " AND ".join(dict.fromkeys(_CLASSIFIERS[c] for c in classifiers)), ""
    if _is_permissive(named):
        return named, ""
    for pattern, licence in _FREE_TEXT:
        if re.fullmatch(pattern, named, re.I):
            return licence, ""
    return None, f"not known as permissive: {named[:80]}"


def _is_permissive(expression: str) -> bool:
    """An SPDX expression. One side of an OR is enough where nothing else is joined; otherwise all names must do."""
    names = re.findall(r"[\w.+-]+", expression)
    licences = [name for name in names if name.upper() not in ("AND", "OR", "WITH")]
    operators = {name.upper() for name in names} & {"AND", "OR", "WITH"}
    ok = [name in _PERMISSIVE for name in licences]
    return bool(ok) and (any(ok) if operators == {"OR"} else all(ok))


def _debian_version(folder: Path) -> str:
    """From the head of the package's changelog, `name (version) ...`."""
    try:
        with gzip.open(folder / "changelog.Debian.gz", "rt", errors="replace") as lines:
            found = re.search(r"\(([^)]+)\)", next(lines, ""))
    except OSError:
        return "unknown"
    return found.group(1) if found else "unknown"


def _python_files(base: Path, files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for path in sorted(set(files)):
        relative = path.relative_to(base)
        folders = set(relative.parts[:-1])
        if folders & _VENDORED or folders & {"site-packages", "dist-packages", "__pycache__", ".."}:
            continue
        if (text := _read(path)) is not None and is_source(text):
            yield relative.as_posix(), text


def _doc_files(base: Path) -> Iterator[tuple[str, str]]:
    texts: dict[str, str] = {}
    for path in sorted(base.rglob("*.html")):
        relative = path.relative_to(base).as_posix()
        if not _DOC_SKIP.search(relative) and (html := _read(path, max_bytes=20 * _MAX_BYTES)) is not None:
            texts[relative] = html_text(html)
    # what stands on a fourth of all pages is a menu, not text
    pages_with = Counter(line for text in texts.values() for line in set(text.splitlines()) if line)
    most = max(8, len(texts) // 4)
    for relative, text in texts.items():
        lines = [line for line in text.splitlines() if pages_with[line] <= most]
        kept = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")[:_MAX_BYTES]
        if len(kept) >= _MIN_BYTES:
            yield relative, kept + "\n"


def _read(path: Path, max_bytes: int = _MAX_BYTES) -> str | None:
    try:
        if not _MIN_BYTES <= path.stat().st_size <= max_bytes:
            return None
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_source(text: str) -> bool:
    """Python that people wrote and read: no copyleft or generated head, no very long lines, no tables."""
    head = text[:3000]
    if _COPYLEFT.search(head) or _GENERATED.search(head[:1000].lower()) or "\0" in text:
        return False
    lines = text.splitlines()
    if max(map(len, lines), default=0) > _MAX_LINE or len(text) > 100 * len(lines):
        return False
    letters = sum(map(str.isalpha, text))
    digits = sum(map(str.isdigit, text))
    return letters > 0.3 * len(text) and digits < 0.15 * len(text) and letters > 3 * digits


class _HtmlText(HTMLParser):
    """Readable text of a page: its main part without navigation, code as it stands, one line a block."""

    _SKIPPED = frozenset(("script", "style", "head", "nav", "footer", "aside", "form", "svg", "button"))
    _SKIPPED_CLASSES = frozenset(
        ("related", "sphinxsidebar", "footer", "headerlink", "navheader", "navfooter", "toctree-wrapper", "clearer")
    )
    _BLOCKS = frozenset(
        ("address", "article", "blockquote", "br", "dd", "div", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "hr")
        + ("li", "main", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul")
    )
    _VOID = frozenset(
        ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._out: list[str] = []
        self._skipped: list[str] = []  # open elements from the outermost skipped one on
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped:
            if tag not in self._VOID:
                self._skipped.append(tag)
            return
        values = dict(attrs)
        classes = set((values.get("class") or "").split())
        if tag in self._SKIPPED or classes & self._SKIPPED_CLASSES or values.get("role") == "navigation":
            if tag not in self._VOID:
                self._skipped = [tag]
            return
        if tag in self._BLOCKS:
            self._out.append("\n")
        if tag == "pre":
            self._pre += 1
        elif tag == "li":
            self._out.append("- ")
        elif tag in ("h1", "h2", "h3"):
            self._out.append("#" * int(tag[1]) + " ")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            if tag in self._skipped:  # unclosed elements inside it end with it
                while self._skipped.pop() != tag:
                    pass
            return
        if tag == "pre":
            self._pre = max(0, self._pre - 1)
        if tag in self._BLOCKS:
            self._out.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._out.append(data if self._pre else re.sub(r"\s+", " ", data))

    def text(self) -> str:
        kept: list[str] = []
        bullet = ""
        for line in "".join(self._out).replace("¶", "").split("\n"):
            line = line.rstrip()
            if line.startswith(" ") and not line.startswith("  "):  # a space between blocks, no indentation
                line = line[1:]
            if line == "-":  # the item's text is a block of its own
                bullet = "- "
            elif line:
                kept.append(bullet + line)
                bullet = ""
            elif kept and kept[-1]:
                kept.append("")
        return "\n".join(kept).strip() + "\n"


def html_text(html: str) -> str:
    parser = _HtmlText()
    parser.feed(html)
    parser.close()
    return parser.text()


# --- what is kept of it ---


class _Seen:
    """What has been taken so far: whole texts and long lines, by 8 bytes of their hashes."""

    def __init__(self) -> None:
        self._texts: set[bytes] = set()
        self._lines: set[int] = set()

    def keep(self, text: str, *, is_prose: bool) -> str | None:
        """The text, in prose without the lines that have been seen; None if it is a copy or mostly one."""
        lines = [line.rstrip() for line in text.splitlines()]
        whole = hashlib.blake2b("\n".join(lines).encode("utf-8", "replace"), digest_size=8).digest()
        if whole in self._texts:
            return None
        self._texts.add(whole)
        keys = [hash(stripped) if len(stripped := line.strip()) >= _LONG_LINE else None for line in lines]
        long = [key for key in keys if key is not None]
        num_seen = sum(key in self._lines for key in long)
        if is_prose:
            lines = [line for line, key in zip(lines, keys, strict=True) if key is None or key not in self._lines]
        elif num_seen > _MAX_SEEN * len(long):
            return None
        self._lines.update(long)
        kept = "\n".join(lines).strip("\n") + "\n"
        return kept if len(kept) >= _MIN_BYTES else None


def _order(source: str, path: str) -> bytes:
    """A fixed random order of documents."""
    return hashlib.blake2b(f"{source}\0{path}".encode("utf-8", "replace"), digest_size=8).digest()


def _fit(sources: list[Source], max_bytes: int) -> None:
    """Cut the largest sources to one level such that all together are within `max_bytes`."""
    level = max_bytes
    left = max_bytes
    by_bytes = sorted(sources, key=lambda s: s.num_bytes)
    for i, source in enumerate(by_bytes):
        level = left // (len(by_bytes) - i)
        if source.num_bytes > level:
            break
        left -= source.num_bytes
    else:
        return
    for source in by_bytes:
        used = 0
        kept: dict[str, str] = {}
        for path in sorted(source.texts, key=lambda p: _order(source.name, p)):
            num = len(source.texts[path].encode())
            if used + num <= level:
                kept[path] = source.texts[path]
                used += num
        source.texts = kept


def _write(out: Path, sources: list[Source], left_out: list[dict[str, str]]) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    rows = sorted((_order(s.name, path), s.name, path, text) for s in sources for path, text in s.texts.items())
    shards: list[dict[str, Any]] = []
    buffer = bytearray()

    def flush() -> None:
        if buffer:
            name = f"shard-{len(shards):04d}.jsonl"
            (out / name).write_bytes(buffer)
            shards.append({"name": name, "bytes": len(buffer), "sha256": hashlib.sha256(buffer).hexdigest()})
            buffer.clear()

    for _, name, path, text in rows:
        line = json.dumps({"source": name, "path": path, "text": text}).encode() + b"\n"
        if len(buffer) + len(line) > _SHARD_BYTES:
            flush()
        buffer += line
    flush()
    manifest = {
        "format": FORMAT,
        "bytes": sum(s.num_bytes for s in sources),
        "files": sum(len(s.texts) for s in sources),
        "sources": [
            {
                "name": s.name,
                "version": s.version,
                "licence": s.licence,
                "files": len(s.texts),
                "bytes": s.num_bytes,
                "sha256": _sha256_of(s),
            }
            for s in sorted(sources, key=lambda s: -s.num_bytes)
            if s.texts
        ],
        "left_out": sorted(left_out, key=lambda d: d["name"].lower()),
        "shards": shards,
    }
    part = out / "manifest.json.part"
    part.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    part.rename(out / "manifest.json")
    return manifest


def _sha256_of(source: Source) -> str:
    """Of paths and texts, in the order of paths."""
    digest = hashlib.sha256()
    for path in sorted(source.texts):
        text = source.texts[path].encode()
        digest.update(f"{path}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()
