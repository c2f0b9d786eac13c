"""A project from a seed: modules, tests that the clean program passes, one mutation that they catch.

Nothing is run by pytest here. The modules are our own templates, so they are executed in this process: the clean ones
say what a test has to expect, the mutated one says which inputs show the bug.
"""

import ast
import builtins
import functools
import random
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

from longstep.errors import WorldError
from longstep.worlds.base import Split
from longstep.worlds.repair.grammar import COMBINED_MODULE, combined_block
from longstep.worlds.repair.mutate import KINDS, Mutation, View
from longstep.worlds.repair.templates import (
    Block,
    Filler,
    ModuleTemplate,
    Piece,
    draw_case,
    library,
    show,
    without_docstrings,
)

NAMED_RESULTS = 0.1  # share of tests that keep a result in a variable before they look at it
COMBINED = 0.5  # share of training projects whose broken definition comes from grammar.py
NO_DOCSTRINGS = 0.15  # share of training projects without docstrings, for the kinds that a reader can see without
NUM_DRAWS = 14  # cases tried on clean and mutated code
MAX_TRIES = 60
LINE_WIDTH = 140  # of a test line
# Where the modules and the tests lie.
_LAYOUTS = (("{package}/", "tests/"), ("", "tests/"), ("", ""))
_NO_DOCSTRING_NEEDED = frozenset(
    (
        *("misspelt_name", "misspelt_attribute", "missing_import", "missing_self", "missing_call", "missing_colon"),
        *("early_return", "lost_update", "missing_return", "wrong_arguments"),
    )
)
_NOT_COMBINED = frozenset(("missing_import", "wrong_arguments"))
_COMBINED_NAMES = ("metrics", "policy", "figures", "logic", "overview", "extras", "basics", "digest", "core")
_COMBINED_DOCS = ("Small functions for $items.", "Rules and figures.", "Helpers for $items.", "What the program knows.")
_MAX_TRACED = 5_000  # lines that a program with `while` may run per case


@dataclass(frozen=True, kw_only=True)
class Case:
    """One test: statements, then assertions with the values that the clean program gives."""

    names: tuple[str, ...]  # what it has to import
    statements: tuple[str, ...]
    asserts: tuple[str, ...]
    values: tuple[str, ...]

    def holds(self, found: tuple[str, ...] | None) -> bool:
        """Whether the assertions hold for what was found, given as text; None stands for an exception."""
        return found is not None and all(map(_agree, found, self.values))

    def lines(self) -> list[str]:
        return [*self.statements, *map(_assertion, self.asserts, self.values)]


@dataclass(frozen=True, kw_only=True)
class Project:
    """`files` is the start state, bug included; `clean` the mutated module without its bug."""

    split: Split
    package: str
    root: str  # where the modules are: "package/", or "" where they lie at the top
    files: Mapping[str, str]
    path: str  # of the mutated module
    clean: str
    mutation: Mutation
    owner: str  # top-level function or class that holds the bug, "" for a module-level line
    hidden_tests: str
    num_tests: int
    num_hidden: int
    visible: tuple[Case, ...]  # of the broken definition; some fail
    raises: bool  # whether the first visible failure is an exception of the program, not an assertion

    def is_source(self, path: str) -> bool:
        return path.startswith(self.root) and path.endswith(".py") and not is_test(path)

    def fails_with(self, source: str) -> bool:
        """Whether some test that the bug breaks is still broken with this text of the module, and every test ends."""
        modules = {_name(p): text for p, text in self.files.items() if self.is_source(p)}
        modules[_name(self.path)] = source
        world = Namespaces(modules)
        broken = [not case.holds(world.results(case)) for case in self.visible]
        return any(broken) and not world.endless


def is_test(path: str) -> bool:
    return path.rpartition("/")[2].startswith("test_")


def _name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _agree(found: str, wanted: str) -> bool:
    if found == wanted or wanted in ("True", "False", "None"):  # those are asserted with `is`
        return found == wanted
    try:
        return bool(ast.literal_eval(found) == ast.literal_eval(wanted))  # 4.0 == 4
    except (ValueError, SyntaxError):
        return False


def _assertion(expression: str, value: str) -> str:
    return f"assert {expression} {'is' if value in ('True', 'False', 'None') else '=='} {value}"


class Namespaces:
    """Modules by dotted name, executed on demand, importing one another without touching sys.modules."""

    def __init__(self, sources: Mapping[str, str]):
        self._sources = sources
        self._made: dict[str, dict[str, Any]] = {}
        self.endless = False  # whether some case did not end
        self._loops = any("while " in source for source in sources.values())
        self._builtins = vars(builtins) | {"__import__": self._import}

    def module(self, name: str) -> dict[str, Any]:
        if name not in self._made:
            space: dict[str, Any] = {"__builtins__": self._builtins, "__name__": name}
            exec(_compiled(self._sources[name]), space)
            self._made[name] = space
        return self._made[name]

    def _import(
        self, name: str, globals_: object = None, locals_: object = None, fromlist: tuple[str, ...] = (), level: int = 0
    ) -> Any:
        if name in self._sources and fromlist:
            return SimpleNamespace(**{k: v for k, v in self.module(name).items() if not k.startswith("__")})
        return __import__(name, None, None, fromlist, level)

    def values(self, case: Case) -> tuple[str, ...] | None:
        """What the assertions of a case give, as literals; None if anything raises, or is no short literal."""
        found = self.results(case)
        return found if found is not None and all(map(_is_literal, found)) else None

    def results(self, case: Case) -> tuple[str, ...] | None:
        """What the assertions of a case give, as text; None if anything raises."""
        try:
            space: dict[str, Any] = {"__builtins__": self._builtins}
            for name, source in self._sources.items():
                wanted = [n for n in case.names if f"def {n}(" in source or f"class {n}:" in source]
                if wanted:
                    space |= {n: self.module(name)[n] for n in wanted}
            with _Watch(self._loops):
                for statement in case.statements:
                    exec(statement, space)
                return tuple(show(eval(e, space)) for e in case.asserts)
        except _EndlessError:
            self.endless = True
            return None
        except Exception:
            return None


@functools.lru_cache(maxsize=2_000)
def _compiled(source: str) -> CodeType:
    return compile(source, "<template>", "exec")


def _is_literal(text: str) -> bool:
    return len(text) <= 80 and "object at" not in text and text[:1] != "<" and "nan" not in text and "inf" not in text


class _EndlessError(Exception):
    pass


class _Watch:
    """Ends a case that runs too many lines. Tracing is slow, so only programs with `while` are traced."""

    def __init__(self, on: bool):
        self._on = on
        self._left = _MAX_TRACED
        self._before: Any = None

    def _trace(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith("<"):  # code of a library
            return None
        if event == "line":  # at other events a generator may be closing, where exceptions are swallowed
            self._left -= 1
            if self._left < 0:
                raise _EndlessError
        return self._trace

    def __enter__(self) -> None:
        if self._on:
            self._before = sys.gettrace()
            sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        if self._on:
            sys.settrace(self._before)


@functools.cache
def _views(split: Split) -> tuple[tuple[Block, View], ...]:
    rng = random.Random(0)
    lib = library(split)
    filler = Filler(rng, lib.domains[0])
    views = []
    for block in lib.blocks:
        piece = filler.piece(block)
        text = "\n".join(['"""Doc."""', "", *piece.imports, "", "", piece.helper, "", "", piece.main])
        views.append((block, View(text.split("\n"), ast.parse(text), rng)))
    return tuple(views)


@functools.cache
def blocks_for(kind: str, split: Split) -> tuple[Block, ...]:
    """The blocks in which a kind of bug can be put."""
    found = []
    for block, view in _views(split):
        if next(iter(KINDS[kind](view)), None) is not None:
            found.append(block)
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Definitions that stay together in one module."""

    text: str
    names: tuple[str, ...]
    imports: tuple[str, ...]
    needs: tuple[str, ...]  # names of the part's helper, which may live in another module
    piece: Piece


@dataclass
class _Module:
    name: str
    doc: str
    parts: list[_Part]

    def text(self, homes: Mapping[str, str]) -> str:
        """The module's source; `homes` tells the dotted name of the module in which a name is defined."""
        imports = {line for part in self.parts for line in part.imports}
        here = {name for part in self.parts for name in part.names}
        local = {f"from {homes[n]} import {n}" for part in self.parts for n in part.needs if n not in here}
        head = [f'"""{self.doc}"""']
        for group in (imports, local):
            if group:
                head += ["", *sorted(group, key=lambda line: (line.startswith("from"), line))]
        return "\n\n\n".join(["\n".join(head), *(part.text for part in self.parts)]) + "\n"


def build(seed: int, kind: str, split: Split) -> Project:
    """The project of a seed, the same for ever. Raises WorldError if no template takes this kind of bug."""
    rng = random.Random(f"repair {seed} {kind}")
    blocks = blocks_for(kind, split)
    if not blocks:
        raise WorldError(f"repair: no {split} template has a place for a bug of kind {kind}")
    combined = split == "train" and kind not in _NOT_COMBINED and rng.random() < COMBINED
    for number in range(MAX_TRIES):
        if combined and number < MAX_TRIES // 2:
            block = combined_block(rng)
        else:
            block = rng.choices(blocks, weights=[b.variety for b in blocks])[0]
        project = _attempt(rng, kind, split, block)
        if project is not None:
            return project
    raise WorldError(f"repair: seed {seed}, kind {kind}: no project in {MAX_TRIES} tries whose tests catch the bug")


def _attempt(rng: random.Random, kind: str, split: Split, target: Block) -> Project | None:
    lib = library(split)
    filler = Filler(rng, rng.choice(lib.domains), vary=split == "train")
    package = filler.nouns["package"]
    root, tests_at = rng.choices(_LAYOUTS, weights=(8, 1, 1))[0]
    root = root.format(package=package)
    dot = root.replace("/", ".")
    if kind in _NO_DOCSTRING_NEEDED and filler.vary and rng.random() < NO_DOCSTRINGS:
        filler.style = without_docstrings
    piece = filler.piece(target)
    if target.module == COMBINED_MODULE and not _has_place(rng, kind, piece):
        return None
    modules = _lay_out(
        rng, filler, lib.modules, target, piece, taken=sys.stdlib_module_names if not root else {package}
    )
    homes = {name: f"{dot}{m.name}" for m in modules for part in m.parts for name in part.names}
    sources = {f"{dot}{m.name}": m.text(homes) for m in modules}
    clean = Namespaces(sources)

    owner = rng.choice((*piece.helper_names, *piece.main_names))
    home = homes[owner]
    source = sources[home]
    mutation = _mutate(rng, kind, source, owner)
    if mutation is None:
        return None
    buggy = Namespaces(sources | {home: mutation.apply(source)})

    shows, others = _try_cases(rng, split, piece, tuple(homes), clean, buggy)
    if len(shows) < 2 or buggy.endless:  # a program without end would make every run of the tests wait for its limit
        return None
    num_others = rng.choice((0, 1, 1, 2))
    visible = [*others[:num_others], shows[0], *shows[2:3]]
    if rng.random() < NAMED_RESULTS:
        visible = [_with_name(case) for case in visible]
    if rng.random() < 0.6:
        rng.shuffle(visible)
    hidden = [shows[1], *shows[3:6], *others[num_others : num_others + 3]]

    files = {f"{root}__init__.py": f'"""{package.capitalize()}."""\n'} if root else {}
    if rng.random() < 0.3:
        lines = [f"- {m.name}: {m.doc}" for m in modules]
        files["README.md"] = "\n".join([f"# {package}", "", *lines]) + "\n"
    num_tests = 0
    more: list[tuple[str, list[Case]]] = []
    for m in modules:
        text = sources[f"{dot}{m.name}"]
        files[f"{root}{m.name}.py"] = mutation.apply(text) if f"{dot}{m.name}" == home else text
        tests: list[tuple[str, list[Case]]] = []
        for part in m.parts:
            if part.piece is piece:
                if part.names == piece.main_names or part.names == (*piece.helper_names, *piece.main_names):
                    tests.append((part.names[-1], visible))
                continue
            cases = _draw(rng, split, part.piece, tuple(homes), clean, 3)
            if cases:
                tests.append((part.names[-1], cases[:2]))
                more.append((part.names[-1], cases[2:]))
        text, count = _test_file(homes, tests)
        num_tests += count
        if count:
            files[f"{tests_at}test_{m.name}.py"] = text
    hidden_tests, num_hidden = _test_file(homes, [(piece.main_names[-1], hidden), *more])
    return Project(
        split=split,
        package=package,
        root=root,
        files=files,
        path=f"{home.replace('.', '/')}.py",
        clean=source,
        mutation=mutation,
        owner=owner,
        hidden_tests=hidden_tests,
        num_tests=num_tests,
        num_hidden=num_hidden,
        visible=tuple(visible),
        raises=next(found for c in visible if not c.holds(found := buggy.results(c))) is None,
    )


def _lay_out(
    rng: random.Random,
    filler: Filler,
    templates: tuple[ModuleTemplate, ...],
    target: Block,
    piece: Piece,
    taken: Collection[str],
) -> list[_Module]:
    """Two to four modules of three to six definitions, `piece` among them; its helper may stand in an earlier one."""
    home = next((m for m in templates if target in m.blocks), None)
    if home is None:  # a combined block: it lives among the functions of any module, under another name
        home = replace(rng.choice(templates), names=_COMBINED_NAMES, docs=_COMBINED_DOCS)
    others = rng.sample([m for m in templates if m is not home], rng.choice((1, 1, 2, 2, 3)))
    functions = {*piece.helper_names, *piece.main_names}
    names = set(taken)
    modules: list[_Module] = []
    for template in (*others, home):
        free = [n for n in template.names if n not in names] or [f"{template.names[0]}_{len(modules) + 1}"]
        module = _Module(rng.choice(free), filler.renderer()(rng.choice(template.docs)), [])
        names.add(module.name)
        size = rng.choice((2, 3, 3, 4))
        for block in rng.sample(template.blocks, min(size + 1, len(template.blocks))):
            if len(module.parts) == size:
                break
            if block is target:
                continue
            other = filler.piece(block)
            if functions.isdisjoint((*other.helper_names, *other.main_names)):
                functions |= {*other.helper_names, *other.main_names}
                module.parts.append(_whole(other))
        modules.append(module)
    target_module = modules[-1]
    if piece.helper and len(modules) > 1 and rng.random() < 0.6:
        helper = _Part(text=piece.helper, names=piece.helper_names, imports=(), needs=(), piece=piece)
        main = _Part(
            text=piece.main, names=piece.main_names, imports=piece.imports, needs=piece.helper_names, piece=piece
        )
        _insert(rng, modules[0], helper)
        _insert(rng, target_module, main)
    else:
        _insert(rng, target_module, _whole(piece))
    if rng.random() < 0.5:
        modules.reverse()
    return modules


def _has_place(rng: random.Random, kind: str, piece: Piece) -> bool:
    view = View(piece.main.split("\n"), ast.parse(piece.main), rng)
    return next(iter(KINDS[kind](view)), None) is not None


def _insert(rng: random.Random, module: _Module, part: _Part) -> None:
    module.parts.insert(rng.randint(0, len(module.parts)), part)


def _whole(piece: Piece) -> _Part:
    return _Part(
        text="\n\n\n".join(x for x in (piece.helper, piece.main) if x),
        names=(*piece.helper_names, *piece.main_names),
        imports=piece.imports,
        needs=(),
        piece=piece,
    )


def definition_of(source: str, name: str) -> ast.FunctionDef | ast.ClassDef:
    """The top-level function or class of this name. Raises SyntaxError where the source has a broken line."""
    tree = ast.parse(source)
    return next(n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name)


def _mutate(rng: random.Random, kind: str, source: str, owner: str) -> Mutation | None:
    """One mutation of this kind in the definition of `owner`, or of an import that it uses."""
    tree = ast.parse(source)
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == owner)
    view = View(source.split("\n"), tree if kind == "missing_import" else node, rng)
    found = [m for m in KINDS[kind](view) if m.clean != m.buggy]
    if kind == "missing_import":
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        found = [m for m in found if used & set(m.clean[-1].replace(",", " ").split())]
    return rng.choice(found) if found else None


def _draw(
    rng: random.Random, split: Split, piece: Piece, names: tuple[str, ...], world: Namespaces, count: int
) -> list[Case]:
    """Up to `count` different cases with the values that `world` gives."""
    cases: dict[tuple[str, ...], Case] = {}
    for _ in range(2 * count):
        if len(cases) == count:
            break
        statements, asserts = draw_case(piece, split, rng)
        words = set(re.findall(r"\w+", " ".join((*statements, *asserts))))
        used = tuple(n for n in names if n in words)
        case = Case(names=used, statements=statements, asserts=asserts, values=())
        key = (*statements, *asserts)
        if key in cases or any(len(line) > LINE_WIDTH - 10 for line in key):
            continue
        values = world.values(case)
        if values is not None:
            cases[key] = Case(names=used, statements=statements, asserts=asserts, values=values)
    return list(cases.values())


def _try_cases(
    rng: random.Random, split: Split, piece: Piece, names: tuple[str, ...], clean: Namespaces, buggy: Namespaces
) -> tuple[list[Case], list[Case]]:
    """Cases that show the bug, and others."""
    shows: list[Case] = []
    others: list[Case] = []
    for case in _draw(rng, split, piece, names, clean, NUM_DRAWS):
        found = buggy.results(case)
        if case.holds(found):
            others.append(case)
        elif found is None or not any(" at 0x" in text for text in found):  # addresses change from run to run
            shows.append(case)
    return shows, others


def _with_name(case: Case) -> Case:
    """The same test, with `result = ...` on a line of its own."""
    if case.statements or len(case.asserts) > 1:
        return case
    return Case(names=case.names, statements=(f"result = {case.asserts[0]}",), asserts=("result",), values=case.values)


def _test_file(homes: Mapping[str, str], tests: list[tuple[str, list[Case]]]) -> tuple[str, int]:
    """A test file and the number of its tests: assertions without statements share one, others have their own."""
    functions: list[str] = []
    used: dict[str, set[str]] = {}
    taken: set[str] = set()
    for name, cases in tests:
        plain = [line for c in cases if not c.statements for line in c.lines()]
        for body in [plain, *(c.lines() for c in cases if c.statements)]:
            if not body:
                continue
            title = f"test_{name.lower()}"
            while title in taken:
                stem, _, number = title.rpartition("_")
                title = f"{stem}_{int(number) + 1}" if number.isdigit() else f"{title}_2"
            taken.add(title)
            functions.append("\n".join([f"def {title}():", *(f"    {line}" for line in body)]))
        for case in cases:
            for n in case.names:
                used.setdefault(homes[n], set()).add(n)
    imports = [f"from {m} import {', '.join(sorted(used[m]))}" for m in sorted(used)]
    return "\n\n\n".join(["\n".join(imports), *functions]) + "\n", len(functions)
