"""Project templates: text with slots, read from train.txt and test.txt, which share nothing but English.

A file has word lists (`@words`), domains (`@domain`, the nouns and field names that fill slots) and modules (`@module`,
followed by blocks). A block is one or a few functions or a class, then the inputs on which it is tried:

    @module stock levels | Count and sum $items.
    def count_${items}_$cmpname($items, limit):
        '''<<Count|Return the number of>> $items with a $num $cmp limit.'''
        return sum(1 for $item in $items if $item["$num"] $op limit)
    ? RS(2, 4, $key=W, $num=I(1, 9)), I(1, 9)

`$slot` or `${slot}` (`$slot_x` for `${slot}_x`) is a noun or a coupled choice ($cmp "at least" with $op ">="),
`<<a|b>>` one of several wordings, and
`<<X:a|b>>` the same choice everywhere in the block. `? a, b` tries the block's last function; `!` lines run first and
`=` lines are what a test asserts, with `#generator#` for each input. `~` alone on a line begins a helper, which may
live in another module of the project. Expected values are not written here: the clean program computes them.
"""

import functools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longstep.worlds.base import Split

Gen = Callable[[random.Random], Any]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A few definitions as text with slots. `cases` are (statements, assertions), inputs still to be drawn."""

    module: str
    imports: tuple[str, ...]
    helper: str  # "" if there is none
    main: str
    cases: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

    @functools.cached_property
    def variety(self) -> int:
        """1 to 5: blocks with more slots are drawn more often, so that fewer functions come twice."""
        return 1 + min(4, len(set(re.findall(r"\$\w+|<<.*?>>", self.main))))


@dataclass(frozen=True, kw_only=True)
class ModuleTemplate:
    names: tuple[str, ...]
    docs: tuple[str, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Library:
    """All templates of one split."""

    words: tuple[str, ...]
    domains: tuple[dict[str, tuple[str, ...]], ...]
    modules: tuple[ModuleTemplate, ...]

    @functools.cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(b for m in self.modules for b in m.blocks)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A block with its slots filled: definitions ready to stand in a module, and its cases."""

    imports: tuple[str, ...]
    helper: str
    main: str
    cases: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    helper_names: tuple[str, ...] = field(default=())
    main_names: tuple[str, ...] = field(default=())


@functools.cache
def library(split: Split) -> Library:
    return parse((Path(__file__).parent / f"{split}.txt").read_text(encoding="utf-8"))


def parse(text: str) -> Library:
    """Read a template file. Raises ValueError, naming the line, on what the format above does not know."""
    words: list[str] = []
    domains: list[dict[str, tuple[str, ...]]] = []
    modules: list[tuple[tuple[str, ...], tuple[str, ...], list[Block]]] = []
    chunk: list[str] = []

    def close() -> None:
        if chunk:
            names, _, blocks = modules[-1]
            blocks.append(block_of(names[0], chunk))
            chunk.clear()

    in_cases = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("@"):
            close()
            word, _, rest = line.partition(" ")
            if word == "@words":
                words += rest.split()
            elif word == "@domain":
                pairs = (part.split(":") for part in rest.split("|"))
                domains.append({k.strip(): tuple(v.split()) for k, v in pairs})
            elif word == "@module":
                head, *docs = rest.split("|")
                modules.append((tuple(head.split()), tuple(d.strip() for d in docs), []))
            else:
                raise ValueError(f"template line {number}: {word} is not one of @words, @domain, @module")
        elif line.startswith(("? ", "! ", "= ")):
            chunk.append(line)
            in_cases = True
        elif line.startswith("#"):
            continue
        else:
            if in_cases and line.strip():
                close()
                in_cases = False
            if line.strip() or chunk:
                chunk.append(line)
    close()
    return Library(
        words=tuple(words),
        domains=tuple(domains),
        modules=tuple(ModuleTemplate(names=n, docs=d, blocks=tuple(b)) for n, d, b in modules),
    )


def block_of(module: str, lines: list[str]) -> Block:
    """A block from its lines of text; `module` is where it belongs."""
    code = [x for x in lines if not x.startswith(("? ", "! ", "= "))]
    imports = tuple(x for x in code if x.startswith(("import ", "from ")))
    body = "\n".join(x for x in code if x not in imports)
    main, _, helper = body.partition("\n~\n")
    cases: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    before: list[str] = []
    after: list[str] = []
    for line in lines:
        sign, rest = line[:2], line[2:]
        if sign not in ("? ", "! ", "= "):
            continue
        if sign != "= " and after:
            cases.append((tuple(before), tuple(after)))
            before, after = [], []
        if sign == "? ":
            name = re.findall(r"^def ([^(]+)\(", main, re.M)[-1]
            arguments = ", ".join(f"#{a}#" for a in _split_arguments(rest))
            cases.append(((), (f"{name}({arguments})",)))
        elif sign == "! ":
            before.append(rest)
        else:
            after.append(rest)
    if after:
        cases.append((tuple(before), tuple(after)))
    if not cases:
        raise ValueError(f"template block without inputs: {main.strip().splitlines()[0]!r}")
    return Block(module=module, imports=imports, helper=helper.strip(), main=main.strip(), cases=tuple(cases))


def _split_arguments(text: str) -> list[str]:
    parts, depth, start, quote = [], 0, 0, ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


# Coupled choices: one row is drawn, and gives several slots.
_COMPARE = (
    (">=", "at least", "at_least", "or more"),
    (">=", "at least", "from", "or more"),
    (">=", "no less than", "not_below", "or more"),
    (">", "more than", "over", "and more"),
    (">", "more than", "above", "and more"),
    (">", "greater than", "beyond", "and more"),
    ("<=", "at most", "up_to", "or less"),
    ("<=", "at most", "within", "or less"),
    ("<=", "no more than", "not_over", "or less"),
    ("<", "less than", "under", "and less"),
    ("<", "less than", "below", "and less"),
    ("<", "smaller than", "short_of", "and less"),
)
_PLAIN = {"op": 0, "cmp": 1, "cmpname": 2}
_EXTREME = (
    ("max", "largest", ">", ", reverse=True", "smallest"),
    ("max", "highest", ">", ", reverse=True", "lowest"),
    ("max", "greatest", ">", ", reverse=True", "least"),
    ("min", "smallest", "<", "", "largest"),
    ("min", "lowest", "<", "", "highest"),
    ("min", "least", "<", "", "greatest"),
)
_ENDS = (("first", "0"), ("last", "-1"))
_SEPARATORS = (
    ("a comma", ","),
    ("a semicolon", ";"),
    ("a colon", ":"),
    ("a dash", "-"),
    ("a slash", "/"),
    ("a bar", "|"),
    ("an equals sign", "="),
)
_JOINERS = (
    ("a comma and a space", ", "),
    ("a semicolon and a space", "; "),
    ("a space", " "),
    ("a dash", "-"),
    ("a slash", "/"),
    ("a plus sign", "+"),
)


def _choices(rng: random.Random) -> dict[str, str]:
    slots: dict[str, str] = {}
    for suffix in ("", "2"):
        row = rng.choice(_COMPARE)
        slots |= {name + suffix: row[i] for name, i in _PLAIN.items()}
        function, word, sign, flag, other = rng.choice(_EXTREME)
        slots |= {f"max{suffix}": function, f"most{suffix}": word, f"sign{suffix}": sign, f"rev{suffix}": flag}
        slots[f"least{suffix}"] = other
        slots[f"end{suffix}"], slots[f"idx{suffix}"] = rng.choice(_ENDS)
        slots[f"sepname{suffix}"], slots[f"sep{suffix}"] = rng.choice(_SEPARATORS)
        slots[f"joinname{suffix}"], slots[f"join{suffix}"] = rng.choice(_JOINERS)
    n1, n2, n3 = rng.sample(range(2, 13), 3)
    slots |= {"n1": str(n1), "n2": str(n2), "n3": str(n3), "start": str(rng.choice((0, 0, 0, 1, 2, 5, 10)))}
    slots["pct"] = str(rng.choice((5, 10, 15, 20, 25, 30, 40)))
    return slots


_SLOT = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_CHOICE = re.compile(r"<<(?:([A-Z]):)?(.*?)>>(?!>)")


# Training pieces are also varied after filling, so that a function is seldom seen twice: other names for what many
# templates call the same (one row, one choice of column), other words for the same comparison.
_SYNONYMS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"values": ("figures", "numbers", "data"), "value": ("figure", "number", "entry")},
    {"total": ("amount", "whole", "acc")},
    {"result": ("out", "output", "collected")},
    {"words": ("terms", "tokens"), "word": ("term", "token")},
    {"text": ("content", "phrase", "string")},
    {"names": ("labels", "tags"), "name": ("label", "tag")},
    {"limit": ("bound", "threshold", "cutoff", "border")},
    {"grid": ("matrix", "cells", "field")},
    {"readings": ("measures", "probes"), "reading": ("measure", "probe")},
    {"entries": ("bookings", "postings"), "entry": ("booking", "posting")},
    {"scores": ("marks", "grades"), "score": ("mark", "grade")},
    {"table": ("mapping", "register")},
    {"amounts": ("quantities", "portions"), "amount": ("quantity", "portion")},
    {"best": ("top", "chosen", "winning")},
    {"kept": ("picked", "remaining")},
    {"people": ("persons", "visitors"), "person": ("human", "visitor")},
    {"prices": ("costs", "rates"), "price": ("cost", "rate")},
    {"lines": ("rows", "records"), "line": ("row", "record")},
    {"low": ("bottom", "minimum"), "high": ("ceiling", "maximum")},
    {"groups": ("bundles", "clusters"), "group": ("bundle", "cluster")},
    {"events": ("changes", "moves"), "event": ("change", "move")},
    {"found": ("hits", "matching")},
)
_PHRASES = (
    (re.compile(r"(?<!no )(?<!not )\b(?:more|greater) than\b"), ("more than", "greater than", "above", "over")),
    (re.compile(r"\b(?:less|smaller) than\b(?! \w+ (?:and|or) more)"), ("less than", "smaller than", "below", "under")),
    (re.compile(r"\bat least\b"), ("at least", "no less than", "not less than")),
    (re.compile(r"\bat most\b"), ("at most", "no more than", "not more than")),
    (re.compile(r"\bReturn True if\b"), ("Return True if", "Tell whether", "Say whether", "Check that")),
    (re.compile(r"\bAdd up\b"), ("Add up", "Sum", "Return the sum of")),
    (re.compile(r"\bCount the\b"), ("Count the", "Return the number of")),
    (re.compile(r"\bboth included\b"), ("both included", "inclusive", "ends included")),
    (re.compile(r"\brounded down\b"), ("rounded down", "without the rest")),
    (re.compile(r"\bstarting from zero\b"), ("starting from zero", "beginning with 0", "from zero on")),
    (re.compile(r"\bignoring case\b"), ("ignoring case", "in any case of letters")),
)


_HINTS = {
    "values": "list[int]",
    "numbers": "list[int]",
    "limit": "int",
    "count": "int",
    "number": "int",
    "amount": "int",
    "price": "int",
    "width": "int",
    "n": "int",
    "text": "str",
    "line": "str",
    "word": "str",
    "name": "str",
    "words": "list[str]",
    "lines": "list[str]",
    "names": "list[str]",
    "grid": "list[list[int]]",
    "scores": "dict[str, int]",
    "table": "dict[str, int]",
}


def _hinted(text: str) -> str:
    """Type hints for parameters of well-known names."""

    def hint(m: re.Match[str]) -> str:
        names = [f"{p}: {_HINTS[p]}" if p in _HINTS else p for p in m[2].split(", ")]
        return f"{m[1]}({', '.join(names)}):"

    return re.sub(r"^( *def \w+)\((.*)\):$", hint, text, flags=re.M)


def _open_docstrings(text: str) -> str:
    """Docstrings of one line with their quotes on lines of their own."""
    return re.sub(r'^( +)"""(.*)"""$', r'\1"""\n\1\2\n\1"""', text, flags=re.M)


def without_docstrings(text: str) -> str:
    return re.sub(r'^ +"""(?:[^"]|"(?!""))*"""\n+', "", text, flags=re.M)


def _vary(rng: random.Random, text: str) -> Callable[[str], str]:
    """Other names and words for one piece; `text` is all of it, so that no new name meets an old one."""
    words = set(re.findall(r"\w+", text))
    names: dict[str, str] = {}
    for row in _SYNONYMS:
        if words & row.keys() and rng.random() < 0.5 and not any(f".{old}" in text for old in row):
            i = rng.randrange(min(map(len, row.values())))
            chosen = {old: new[i] for old, new in row.items()}
            if words.isdisjoint(chosen.values()) and not set(chosen.values()) & set(names.values()):
                names |= chosen
    renamed = re.compile(rf"(?<![.\w])({'|'.join(names)})\b") if names else None
    phrases = [(pattern, rng.choice(options)) for pattern, options in _PHRASES]

    def vary(text: str) -> str:
        if renamed is not None:
            text = renamed.sub(lambda m: names[m[1]], text)
        parts = text.split('"""')
        for i in range(1, len(parts), 2):
            for pattern, new in phrases:
                parts[i] = pattern.sub(new, parts[i])
        return '"""'.join(parts)

    return vary


class Filler:
    """Fills slots from one domain: nouns stay the same in the whole project, coupled choices change per block."""

    def __init__(self, rng: random.Random, domain: dict[str, tuple[str, ...]], vary: bool = False):
        self.rng = rng
        self.vary = vary
        self.style: Callable[[str], str] | None = (
            rng.choice((None, None, None, None, None, _hinted, _open_docstrings)) if vary else None
        )
        self.nouns = {k: rng.choice(v) for k, v in domain.items()}
        for name in [k for k in domain if k not in ("item", "items") and len(domain[k]) > 1]:
            self.nouns[name + "2"] = rng.choice([v for v in domain[name] if v != self.nouns[name]])
        for name in list(self.nouns):
            self.nouns[name[0].upper() + name[1:]] = self.nouns[name][0].upper() + self.nouns[name][1:]

    def renderer(self) -> Callable[[str], str]:
        """A function that fills text, all texts of one block alike."""
        slots = self.nouns | _choices(self.rng)
        named: dict[str, int] = {}

        def choose(m: re.Match[str]) -> str:
            options: list[str] = m[2].split("|")
            if m[1] is None:
                return self.rng.choice(options)
            at = named.setdefault(m[1], self.rng.randrange(len(options)))
            return options[at % len(options)]

        def slot(m: re.Match[str]) -> str:
            name, rest = m[1] or m[2], ""
            while name not in slots:  # $key_with is $key and then "_with"
                name, mark, last = name.rpartition("_")
                if not mark:
                    raise ValueError(f"template: there is no slot {m[0]}")
                rest = f"_{last}{rest}"
            return slots[name] + rest

        def render(text: str) -> str:
            text = _CHOICE.sub(choose, text)
            return _SLOT.sub(slot, text)

        return render

    def piece(self, block: Block) -> Piece:
        render = self.renderer()
        main, helper = render(block.main), render(block.helper)
        cases = tuple((tuple(map(render, s)), tuple(map(render, a))) for s, a in block.cases)
        if self.vary:
            if self.style is not None:
                main, helper = self.style(main), self.style(helper)
            vary = _vary(self.rng, " ".join((main, helper, *(x for s, a in cases for x in (*s, *a)))))
            main, helper = vary(main), vary(helper)
            cases = tuple((tuple(map(vary, s)), tuple(map(vary, a))) for s, a in cases)
        return Piece(
            imports=tuple(map(render, block.imports)),
            helper=helper,
            main=main,
            cases=cases,
            helper_names=tuple(re.findall(r"^(?:def|class) (\w+)", helper, re.M)),
            main_names=tuple(re.findall(r"^(?:def|class) (\w+)", main, re.M)),
        )


# Inputs. A generator is a function of rng; the names below are what a template may use.


def _int(low: int, high: int) -> Gen:
    return lambda rng: rng.randint(low, high)


def _half(low: int, high: int) -> Gen:
    return lambda rng: rng.randint(2 * low, 2 * high) / 2


def _draw(g: Any, rng: random.Random) -> Any:
    return g(rng) if callable(g) else g


def _list(g: Any, low: int = 2, high: int = 5) -> Gen:
    return lambda rng: [_draw(g, rng) for _ in range(rng.randint(low, high))]


def _sorted(g: Any, low: int = 2, high: int = 5) -> Gen:
    return lambda rng: sorted(_draw(g, rng) for _ in range(rng.randint(low, high)))


def _dict(k: Any, v: Any, low: int = 2, high: int = 4) -> Gen:
    return lambda rng: {_draw(k, rng): _draw(v, rng) for _ in range(rng.randint(low, high))}


def _tuple(*gs: Any) -> Gen:
    return lambda rng: tuple(_draw(g, rng) for g in gs)


def _record(**fields: Any) -> Gen:
    return lambda rng: {k: _draw(g, rng) for k, g in fields.items()}


def _records(low: int, high: int, /, **fields: Any) -> Gen:
    return _list(_record(**fields), low, high)


def _choice(*options: Any) -> Gen:
    return lambda rng: _draw(rng.choice(options), rng)


def _format(text: str, *gs: Any) -> Gen:
    return lambda rng: text.format(*(_draw(g, rng) for g in gs))


def _join(sep: str, g: Any, low: int = 2, high: int = 4) -> Gen:
    return lambda rng: sep.join(str(_draw(g, rng)) for _ in range(rng.randint(low, high)))


def _padded(g: Any) -> Gen:
    return lambda rng: rng.choice(("", " ", "  ")) + str(_draw(g, rng)) + rng.choice(("", " ", "  "))


def _cased(g: Any) -> Gen:
    return lambda rng: getattr(str(_draw(g, rng)), rng.choice(("lower", "upper", "title")))()


def _grid(rows: Any, columns: Any, g: Any) -> Gen:
    def draw(rng: random.Random) -> Any:
        r, c = _draw(rows, rng), _draw(columns, rng)
        return [[_draw(g, rng) for _ in range(c)] for _ in range(r)]

    return draw


@functools.cache
def _names(split: Split) -> dict[str, Any]:
    words = library(split).words
    return {
        "W": lambda rng: rng.choice(words),
        "V": lambda rng: rng.choice(words[:4]),  # few, so that they meet again
        "B": lambda rng: rng.random() < 0.5,
        "I": _int,
        "H": _half,
        "L": _list,
        "SL": _sorted,
        "D": _dict,
        "T": _tuple,
        "R": _record,
        "RS": _records,
        "C": _choice,
        "F": _format,
        "J": _join,
        "P": _padded,
        "M": _cased,
        "G": _grid,
    }


@functools.lru_cache(maxsize=20_000)
def generator(text: str, split: Split) -> Gen:
    value = eval(text, dict(_names(split)))  # our own template files, never a user's text
    return value if callable(value) else lambda rng: value


def show(value: Any) -> str:
    """A literal as a formatter would leave it: double quotes where nothing speaks against them."""
    if isinstance(value, str):
        plain = repr(value)
        return f'"{plain[1:-1]}"' if plain[0] == "'" and '"' not in plain else plain
    if isinstance(value, list):
        return "[" + ", ".join(map(show, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(show, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{show(k)}: {show(v)}" for k, v in value.items()) + "}"
    if isinstance(value, set) and value:
        return "{" + ", ".join(map(show, sorted(value))) + "}"
    return repr(value)


def draw_case(piece: Piece, split: Split, rng: random.Random) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """One case of a piece with its inputs drawn: statements, then expressions to assert."""

    def fill(text: str) -> str:
        parts = text.split("#")
        for i in range(1, len(parts), 2):
            parts[i] = show(generator(parts[i], split)(rng))
        return "".join(parts)

    statements, asserts = rng.choice(piece.cases)
    return tuple(map(fill, statements)), tuple(map(fill, asserts))


def definitions(pieces: Iterator[Piece]) -> list[str]:
    return [n for p in pieces for n in (*p.helper_names, *p.main_names)]
