"""Bugs put in on purpose: each kind finds the places in clean source where it applies, one small change each.

A `Mutation` is a few neighbouring lines, clean and buggy; undoing it is the repair. Kinds are plain generators over the
syntax tree of one function or class (module-wide for imports), so they work on templates and on any other source.
`KINDS` maps a kind's name to its generator; whether the change breaks a test is for the caller to find out.

Sources must be ASCII where a mutation applies: column offsets of `ast` count bytes.
"""

import ast
import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

BUILTINS = frozenset(
    [
        "abs",
        "all",
        "any",
        "bool",
        "dict",
        "divmod",
        "enumerate",
        "filter",
        "float",
        "frozenset",
        "int",
        "isinstance",
        "len",
        "list",
        "map",
        "max",
        "min",
        "next",
        "open",
        "print",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "sorted",
        "str",
        "sum",
        "tuple",
        "type",
        "zip",
        "super",
        "True",
        "False",
        "None",
        "ValueError",
        "KeyError",
        "TypeError",
        "IndexError",
    ]
)


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """Lines `first` (from 1) up to `first + len(clean) - 1` of the clean source become `buggy`."""

    kind: str
    first: int
    clean: tuple[str, ...]
    buggy: tuple[str, ...]
    wrong: str = ""  # the changed piece as it stands in the buggy line, and what it was; empty for whole lines
    right: str = ""

    @property
    def line(self) -> int:
        """The number in the buggy file of the line to look at: the first line that differs, or where one is missing."""
        for i, (a, b) in enumerate(zip(self.clean, self.buggy, strict=False)):
            if a != b:
                return self.first + i
        return self.first + min(len(self.clean), len(self.buggy)) - 1

    def apply(self, source: str) -> str:
        lines = source.split("\n")
        at = slice(self.first - 1, self.first - 1 + len(self.clean))
        assert tuple(lines[at]) == self.clean, "a mutation belongs to the source it was made from"
        lines[at] = self.buggy
        return "\n".join(lines)

    def moved(self, lines: int) -> "Mutation":
        return Mutation(
            kind=self.kind,
            first=self.first + lines,
            clean=self.clean,
            buggy=self.buggy,
            wrong=self.wrong,
            right=self.right,
        )


def edit_text(lines: tuple[str, ...]) -> str:
    """The lines as an argument of edit_file: the first without its indentation, the others as they stand."""
    return "\n".join(lines).strip()


class View:
    """One function or class (`node`) in its module's lines, with what the kinds ask for: names, docstring, changes."""

    def __init__(self, lines: list[str], node: ast.AST, rng: random.Random):
        self.lines = lines
        self.node = node
        self.rng = rng
        self.nodes = list(ast.walk(node))
        self.doc = " ".join(
            ast.get_docstring(n) or "" for n in self.nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)
        )

    def swap(self, kind: str, line: int, start: int, end: int, new: str) -> Mutation:
        """Replace columns start to end of one line."""
        old = self.lines[line - 1]
        return Mutation(
            kind=kind,
            first=line,
            clean=(old,),
            buggy=((old[:start] + new + old[end:]).rstrip(),),
            wrong=new.strip(),
            right=old[start:end].strip(),
        )

    def replace(self, kind: str, node: ast.expr, new: str) -> Iterator[Mutation]:
        if node.lineno == node.end_lineno and node.end_col_offset is not None:
            yield self.swap(kind, node.lineno, node.col_offset, node.end_col_offset, new)

    def between(self, kind: str, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Mutation]:
        """Replace the operator between two operands on one line."""
        if left.end_lineno == right.lineno and left.end_col_offset is not None:
            start = self.lines[right.lineno - 1].find(old, left.end_col_offset, right.col_offset)
            if start >= 0:
                yield self.swap(kind, right.lineno, start, start + len(old), new)

    def text(self, node: ast.AST) -> str:
        """Source of a node on one line, else empty."""
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", -1)
        return self.lines[line - 1][node.col_offset : node.end_col_offset] if line == end else ""  # type: ignore[attr-defined]

    def functions(self) -> Iterator[ast.FunctionDef]:
        yield from (n for n in self.nodes if isinstance(n, ast.FunctionDef))

    def conditions(self) -> Iterator[ast.expr]:
        for n in self.nodes:
            if isinstance(n, ast.If | ast.While | ast.IfExp):
                yield n.test
            elif isinstance(n, ast.comprehension):
                yield from n.ifs

    def called(self, name: str) -> Iterator[ast.Call]:
        for n in self.nodes:
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name:
                yield n

    def methods(self) -> Iterator[tuple[ast.Call, ast.Attribute]]:
        for n in self.nodes:
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute):
                yield n, n.func

    def misspell(self, name: str) -> str:
        """One slip of a typist: a letter lost, doubled, or two swapped."""
        i = self.rng.randrange(1, len(name) - 1)
        slips = [name[:i] + name[i + 1 :], name[: i + 1] + name[i:]]
        if name[i] != name[i + 1]:
            slips.append(name[:i] + name[i + 1] + name[i] + name[i + 2 :])
        return self.rng.choice(slips)


Kind = Callable[[View], Iterator[Mutation]]
_COMPARE = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


# What the traceback leads to.


def misspelt_name(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and len(n.id) > 3:
            if n.id in BUILTINS and v.rng.random() < 0.8:
                continue
            yield from v.replace("misspelt_name", n, v.misspell(n.id))


def misspelt_attribute(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self" and len(n.attr) > 3:
            end = n.end_col_offset or 0
            if isinstance(n.ctx, ast.Load) and n.lineno == n.end_lineno:
                yield v.swap("misspelt_attribute", n.lineno, end - len(n.attr), end, v.misspell(n.attr))


def misspelt_method(v: View) -> Iterator[Mutation]:
    for _, f in v.methods():
        if not (isinstance(f.value, ast.Name) and f.value.id == "self") and len(f.attr) > 3:
            end = f.end_col_offset or 0
            if f.lineno == f.end_lineno:
                yield v.swap("misspelt_method", f.lineno, end - len(f.attr), end, v.misspell(f.attr))


def missing_import(v: View) -> Iterator[Mutation]:
    """`node` is a module here. The line before the import stays, so that the repair has something to hold on to."""
    body = v.node.body if isinstance(v.node, ast.Module) else []
    for n in body:
        if isinstance(n, ast.Import | ast.ImportFrom) and n.lineno == n.end_lineno and n.lineno > 1:
            first = n.lineno - 1
            while first > 1 and not v.lines[first - 1].strip():
                first -= 1
            if v.lines[first - 1].strip() and "__future__" not in v.lines[n.lineno - 1]:
                clean = tuple(v.lines[first - 1 : n.lineno])
                yield Mutation(kind="missing_import", first=first, clean=clean, buggy=clean[:1])


def missing_self(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self":
            yield from v.replace("missing_self", n, n.attr)
    for f in v.functions():
        if f.args.args and f.args.args[0].arg == "self":
            line = v.lines[f.lineno - 1]
            new = line.replace("(self, ", "(", 1) if "(self, " in line else line.replace("(self)", "()", 1)
            if new != line:
                yield Mutation(kind="missing_self", first=f.lineno, clean=(line,), buggy=(new,))


def wrong_key(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant) and isinstance(n.slice.value, str):
            key = n.slice.value
            if len(key) > 3 and key.isidentifier():
                yield from v.replace("wrong_key", n.slice, f'"{v.misspell(key)}"')


def missing_cast(v: View) -> Iterator[Mutation]:
    for name in ("str", "int", "float", "list"):
        for n in v.called(name):
            if len(n.args) == 1 and not n.keywords and (inner := v.text(n.args[0])):
                yield from v.replace("missing_cast", n, inner)


def missing_call(v: View) -> Iterator[Mutation]:
    for n, f in v.methods():
        if not n.args and not n.keywords and (inner := v.text(f)):
            yield from v.replace("missing_call", n, inner)


def missing_colon(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.FunctionDef | ast.If | ast.For | ast.While | ast.ClassDef):
            line = v.lines[n.lineno - 1]
            if line.endswith(":"):
                yield Mutation(kind="missing_colon", first=n.lineno, clean=(line,), buggy=(line[:-1],))


def unclosed_bracket(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.Assign | ast.Return | ast.Expr | ast.AugAssign) and n.lineno == n.end_lineno:
            line = v.lines[n.lineno - 1]
            if line[-1:] in (")", "]", "}") and not line.lstrip().startswith(('"', "'")):
                yield Mutation(kind="unclosed_bracket", first=n.lineno, clean=(line,), buggy=(line[:-1],))


def wrong_arguments(v: View) -> Iterator[Mutation]:
    """Arguments swapped, or one left out, in a call of a function or method of the project."""
    for n in v.nodes:
        if not isinstance(n, ast.Call) or len(n.args) < 1 or n.lineno != n.end_lineno:
            continue
        own = isinstance(n.func, ast.Name) and n.func.id not in BUILTINS
        own = own or (
            isinstance(n.func, ast.Attribute) and isinstance(n.func.value, ast.Name) and n.func.value.id == "self"
        )
        texts = [v.text(a) for a in n.args]
        if own and not any(isinstance(a, ast.Starred) for a in n.args):
            start, end = n.args[0].col_offset, n.args[-1].end_col_offset or 0
            if len(texts) > 1 and texts[0] != texts[1]:
                swapped = ", ".join([texts[1], texts[0], *texts[2:]])
                yield v.swap("wrong_arguments", n.lineno, start, end, swapped)
            yield v.swap("wrong_arguments", n.lineno, start, end, ", ".join(texts[:-1]))


# What the docstring and a failing assertion lead to.


def boundary(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.Compare) and len(n.ops) == 1 and type(n.ops[0]) in _COMPARE:
            op = _COMPARE[type(n.ops[0])]
            yield from v.between("boundary", n.left, n.comparators[0], op, op[0] if len(op) == 2 else op + "=")


def reversed_comparison(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.Compare) and len(n.ops) == 1 and type(n.ops[0]) in _COMPARE:
            op = _COMPARE[type(n.ops[0])]
            new = op.replace("<", "?").replace(">", "<").replace("?", ">")
            yield from v.between("reversed_comparison", n.left, n.comparators[0], op, new)


def _off_by_one(v: View, node: ast.expr) -> Iterator[Mutation]:
    text = v.text(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and text.endswith(" 1"):
        yield from v.replace("off_by_one", node, text[:-4])
    elif isinstance(node, ast.Constant) and isinstance(node.value, int) and 0 <= node.value < 10:
        yield from v.replace("off_by_one", node, str(node.value + 1 if node.value == 0 else node.value - 1))
    elif isinstance(node, ast.Name | ast.Call | ast.Attribute) and text:
        yield from v.replace("off_by_one", node, text + v.rng.choice((" + 1", " - 1")))


def off_by_one(v: View) -> Iterator[Mutation]:
    for call in v.called("range"):
        for arg in call.args[:2]:
            yield from _off_by_one(v, arg)
    for n in v.nodes:
        if isinstance(n, ast.Slice):
            for bound in (n.lower, n.upper):
                if bound is not None:
                    yield from _off_by_one(v, bound)
        elif isinstance(n, ast.Subscript) and isinstance(n.slice, ast.BinOp):
            yield from _off_by_one(v, n.slice)


def _texty(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def wrong_operator(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.BinOp) and type(n.op) in _ARITHMETIC and not _texty(n.left) and not _texty(n.right):
            if isinstance(n.right, ast.Constant) and n.right.value == 1:
                continue  # that is off_by_one's
            op = _ARITHMETIC[type(n.op)]
            for new in "+-*".replace(op, ""):
                yield from v.between("wrong_operator", n.left, n.right, op, new)
        elif isinstance(n, ast.AugAssign) and type(n.op) in _ARITHMETIC and not _texty(n.value):
            op = _ARITHMETIC[type(n.op)]
            target = n.target
            yield from v.between("wrong_operator", target, n.value, op + "=", {"+": "-=", "-": "+=", "*": "+="}[op])


def lost_update(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.AugAssign):
            line = v.lines[n.lineno - 1]
            at = line.find("= ", n.target.end_col_offset or 0)
            start = line.rfind(" ", 0, at) + 1
            if n.target.end_lineno == n.lineno and at > start > 0:
                yield v.swap("lost_update", n.lineno, start, at + 1, "=")


def and_or(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.BoolOp) and len(n.values) == 2:
            old, new = ("and", "or") if isinstance(n.op, ast.And) else ("or", "and")
            yield from v.between("and_or", n.values[0], n.values[1], old, new)


def inverted_condition(v: View) -> Iterator[Mutation]:
    kind = "inverted_condition"
    for test in v.conditions():
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and (inner := v.text(test.operand)):
            yield from v.replace(kind, test, inner)
        elif isinstance(test, ast.Compare) and len(test.ops) == 1:
            for op, old, new in (
                (ast.Eq, "==", "!="),
                (ast.NotEq, "!=", "=="),
                (ast.In, "in", "not in"),
                (ast.NotIn, "not in", "in"),
                (ast.Is, "is", "is not"),
                (ast.IsNot, "is not", "is"),
            ):
                if type(test.ops[0]) is op:
                    yield from v.between(kind, test.left, test.comparators[0], old, new)
        elif isinstance(test, ast.Name | ast.Call | ast.Attribute) and (inner := v.text(test)):
            yield from v.replace(kind, test, "not " + inner)


def early_return(v: View) -> Iterator[Mutation]:
    """A return after a loop slips into the loop. The line before it is part of the change: edits need a hold."""
    for n in v.nodes:
        body = getattr(n, "body", None)
        if not isinstance(body, list):
            continue
        for loop, last in itertools.pairwise(body):
            if isinstance(loop, ast.For | ast.While) and isinstance(last, ast.Return):
                before = v.lines[last.lineno - 2]
                line = v.lines[last.lineno - 1]
                if before.strip() and last.lineno == last.end_lineno and not loop.orelse:
                    yield Mutation(
                        kind="early_return",
                        first=last.lineno - 1,
                        clean=(before, line),
                        buggy=(before, " " * (loop.body[0].col_offset - last.col_offset) + line),
                    )


def missing_return(v: View) -> Iterator[Mutation]:
    for f in v.functions():
        last = f.body[-1]
        if isinstance(last, ast.Return) and last.value is not None and last.lineno == last.end_lineno:
            line, before = v.lines[last.lineno - 1], v.lines[last.lineno - 2]
            if isinstance(last.value, ast.Name) and len(f.body) > 1 and before.strip():
                yield Mutation(kind="missing_return", first=last.lineno - 1, clean=(before, line), buggy=(before,))
            else:
                yield Mutation(
                    kind="missing_return", first=last.lineno, clean=(line,), buggy=(line.replace("return ", "", 1),)
                )


def wrong_start(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant) and type(n.value.value) is int:
            yield from v.replace("wrong_start", n.value, {0: "1", 1: "0"}.get(n.value.value, str(n.value.value + 1)))
    for call in v.called("enumerate"):
        for keyword in call.keywords:
            if keyword.arg == "start" and isinstance(keyword.value, ast.Constant):
                yield from v.replace("wrong_start", keyword.value, "0" if keyword.value.value == 1 else "1")


_SEPARATORS = (", ", "; ", ": ", " - ", ",", ";", ":", "-", "/", "|", "=", "#", ".", " ", "_", "*", "+", "\\n")


def wrong_constant(v: View) -> Iterator[Mutation]:
    """A number that the docstring names, or a separator."""
    for n in v.nodes:
        if not isinstance(n, ast.Constant) or n.lineno != n.end_lineno:
            continue
        value, text = n.value, v.text(n)
        if type(value) is int and value > 1 and re.search(rf"\b{value}\b", v.doc):
            yield from v.replace("wrong_constant", n, str(v.rng.choice((value + 1, value - 1, value * 10))))
        elif isinstance(value, str) and text[1:-1] in _SEPARATORS and text[0] in "\"'":
            like = [s for s in _SEPARATORS[:4] if s != text[1:-1]]
            if text[1:-1] not in _SEPARATORS[:4]:
                like = [s for s in _SEPARATORS[4:15] if s != text[1:-1]]
            yield from v.replace("wrong_constant", n, f'"{v.rng.choice(like)}"')


def wrong_end(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.Subscript) and v.text(n.slice) in ("0", "-1"):
            yield from v.replace("wrong_end", n.slice, "-1" if v.text(n.slice) == "0" else "0")
    for call, f in v.methods():
        if f.attr == "pop" and [v.text(a) for a in call.args] in ([], ["0"]) and (text := v.text(f)):
            yield from v.replace("wrong_end", call, text + ("()" if call.args else "(0)"))


def min_max(v: View) -> Iterator[Mutation]:
    for old, new in (("min", "max"), ("max", "min")):
        for call in v.called(old):
            yield from v.replace("min_max", call.func, new)


def any_all(v: View) -> Iterator[Mutation]:
    for old, new in (("any", "all"), ("all", "any")):
        for call in v.called(old):
            yield from v.replace("any_all", call.func, new)


def wrong_variable(v: View) -> Iterator[Mutation]:
    """One parameter in the place of another."""
    for f in v.functions():
        names = [a.arg for a in f.args.args if a.arg != "self"]
        for n in ast.walk(f):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names and len(names) > 1:
                yield from v.replace("wrong_variable", n, v.rng.choice([x for x in names if x != n.id]))


def reverse_flag(v: View) -> Iterator[Mutation]:
    calls = [*v.called("sorted"), *(c for c, f in v.methods() if f.attr == "sort")]
    for call in calls:
        if call.lineno != call.end_lineno:
            continue
        flag = next((k for k in call.keywords if k.arg == "reverse"), None)
        end = call.end_col_offset or 0
        if flag is None:
            yield v.swap(
                "reverse_flag",
                call.lineno,
                end - 1,
                end,
                ", reverse=True)" if call.args or call.keywords else "reverse=True)",
            )
        elif v.text(flag.value) == "True":
            line = v.lines[call.lineno - 1]
            start = line.rfind(",", 0, flag.col_offset)
            start = start if start > call.col_offset else flag.col_offset
            yield v.swap("reverse_flag", call.lineno, start, flag.end_col_offset or 0, "")


def wrong_division(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div | ast.FloorDiv | ast.Mod):
            old = {ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}[type(n.op)]
            for new in {"/": ("//",), "//": ("/", "%"), "%": ("//",)}[old]:
                yield from v.between("wrong_division", n.left, n.right, old, new)


def missing_clean(v: View) -> Iterator[Mutation]:
    for n, f in v.methods():
        if f.attr in ("strip", "lower", "upper", "title", "capitalize") and not n.args and (inner := v.text(f.value)):
            yield from v.replace("missing_clean", n, inner)


_METHODS = (
    ("startswith", "endswith"),
    ("lower", "upper"),
    ("lstrip", "rstrip"),
    ("find", "rfind"),
    ("add", "discard"),
    ("ljust", "rjust"),
    ("union", "intersection"),
    ("append", "extend"),
    ("title", "upper"),
    ("keys", "values"),
    ("items", "keys"),
    ("values", "keys"),
)


def wrong_method(v: View) -> Iterator[Mutation]:
    for _, f in v.methods():
        for pair in _METHODS:
            if f.attr in pair and f.lineno == f.end_lineno:
                new = pair[1 - pair.index(f.attr)]
                end = f.end_col_offset or 0
                yield v.swap("wrong_method", f.lineno, end - len(f.attr), end, new)


def wrong_bool(v: View) -> Iterator[Mutation]:
    for n in v.nodes:
        if isinstance(n, ast.Return | ast.Assign) and isinstance(n.value, ast.Constant) and type(n.value.value) is bool:
            yield from v.replace("wrong_bool", n.value, str(not n.value.value))


def wrong_default(v: View) -> Iterator[Mutation]:
    """What is returned, or looked up, when there is nothing."""
    for call, f in v.methods():
        if f.attr == "get" and len(call.args) == 2 and isinstance(call.args[1], ast.Constant):
            yield from v.replace("wrong_default", call.args[1], "1" if call.args[1].value == 0 else "0")
    for n in v.nodes:
        if isinstance(n, ast.If) and isinstance(n.body[0], ast.Return) and isinstance(n.body[0].value, ast.Constant):
            value = n.body[0].value
            if value.value is None or type(value.value) is int:
                yield from v.replace("wrong_default", value, "1" if value.value == 0 else "0")


_ALL: tuple[Kind, ...] = (
    misspelt_name,
    misspelt_attribute,
    misspelt_method,
    missing_import,
    missing_self,
    wrong_key,
    missing_cast,
    missing_call,
    missing_colon,
    unclosed_bracket,
    wrong_arguments,
    boundary,
    reversed_comparison,
    off_by_one,
    wrong_operator,
    lost_update,
    and_or,
    inverted_condition,
    early_return,
    missing_return,
    wrong_start,
    wrong_constant,
    wrong_end,
    min_max,
    any_all,
    wrong_variable,
    reverse_flag,
    wrong_division,
    missing_clean,
    wrong_method,
    wrong_bool,
    wrong_default,
)
KINDS: dict[str, Kind] = {kind.__name__: kind for kind in _ALL}

# Never trained on, fixed before the first training run. Each has a trained neighbour: misspelt_name and
# misspelt_attribute, missing_colon, boundary.
HELD_OUT = frozenset({"misspelt_method", "unclosed_bracket", "reversed_comparison"})
TRAINED = tuple(k for k in KINDS if k not in HELD_OUT)


def mutations(kind: str, source: str, node: ast.AST, rng: random.Random) -> list[Mutation]:
    """All places in `node`, a part of `source`'s syntax tree, where `kind` applies."""
    view = View(source.split("\n"), node, rng)
    return [m for m in KINDS[kind](view) if m.clean != m.buggy]
