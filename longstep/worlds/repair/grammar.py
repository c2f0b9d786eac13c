"""Functions and classes put together from phrases, for training: each has a docstring that says what its code does.

Hand-written templates (train.txt) show how people write; these show that only the docstring decides. Every sort below
gives a block in the format of templates.py, slots included, so that nouns, names and wording vary once more.
"""

import random
from collections.abc import Callable, Sequence

from longstep.worlds.repair.templates import Block, block_of

COMBINED_MODULE = "combined"
_COMPARE = (
    ("at least", ">="),
    ("more than", ">"),
    ("at most", "<="),
    ("less than", "<"),
)
_ADJECTIVES = (
    *("plain", "marked", "usual", "open", "closed", "early", "late", "local", "inner", "outer", "main", "extra", "net"),
    *("final", "basic", "daily", "weekly", "double", "partial", "common", "special", "active", "spare", "fresh", "old"),
    *("known", "fair", "quick", "steady", "minor", "major", "pending", "ready", "public", "private", "lower", "solid"),
    *("light", "heavy", "warm", "cold", "north", "south", "inbound", "outbound", "yearly", "central", "regular", "raw"),
)
_LABELS = (
    "low",
    "high",
    "small",
    "large",
    "ok",
    "bad",
    "free",
    "full",
    "on",
    "off",
    "new",
    "done",
    "odd",
    "even",
    "far",
)
_MARKS = (("a dash", "-"), ("a dot", "."), ("a star", "*"), ("a plus sign", "+"), ("a slash", "/"))


class _Maker:
    def __init__(self, rng: random.Random):
        self.rng = rng
        self.params: list[str] = []  # further parameters of the function, with inputs
        self.inputs: list[str] = []

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def number(self, low: int = 2, high: int = 9) -> int:
        return self.rng.randint(low, high)

    def bound(self) -> str:
        """A parameter or a number to compare with."""
        if len(self.params) < 2 and self.rng.random() < 0.6:
            name = next(n for n in self.rng.sample(("limit", "low", "goal", "minimum"), 4) if n not in self.params)
            self.params.append(name)
            self.inputs.append("I(2, 8)")
            return name
        return str(self.number())

    def condition(self, value: str) -> tuple[str, str]:
        """(what the docstring says after "is", the code)."""
        sort = self.rng.choice(("compare", "compare", "compare", "divides", "equal"))
        if sort == "divides":
            k = self.rng.choice((2, 3, 4))
            if self.rng.random() < 0.6:
                return f"a multiple of {k}", f"{value} % {k} == 0"
            return f"not a multiple of {k}", f"{value} % {k} != 0"
        bound = self.bound()
        if sort == "equal":
            return self.rng.choice(
                ((f"equal to {bound}", f"{value} == {bound}"), (f"not {bound}", f"{value} != {bound}"))
            )
        words, op = self.rng.choice(_COMPARE)
        return f"{words} {bound}", f"{value} {op} {bound}"

    def conditions(self, value: str) -> tuple[str, str]:
        words, code = self.condition(value)
        if self.rng.random() < 0.3:
            joint = self.pick("and", "or")
            more, other = self.condition(value)
            if other != code:
                return f"{words} {joint} {more}", f"{code} {joint} {other}"
        return words, code

    def change(self, value: str) -> tuple[str, str]:
        """(what the docstring says, the code) of a value that is changed, or not."""
        n = self.number()
        return self.rng.choice(
            (
                ("", value),
                ("", value),
                (f"plus {n}", f"{value} + {n}"),
                (f"minus {n}", f"{value} - {n}"),
                (f"times {n}", f"{value} * {n}"),
                (f"divided by {n}, rounded down", f"{value} // {n}"),
                ("times itself", f"{value} * {value}"),
            )
        )

    def name(self, word: str) -> str:
        return f"{word}_{self.rng.choice(_ADJECTIVES)}"

    def function(
        self, name: str, params: Sequence[str], doc: str, lines: Sequence[str], inputs: Sequence[str]
    ) -> Block:
        return block_of(
            COMBINED_MODULE,
            [
                f"def {name}({', '.join(params)}):",
                f'    """{doc}"""',
                *(f"    {line}" for line in lines),
                f"? {', '.join(inputs)}",
            ],
        )


def _loop(start: str, loop: str, test: str, action: str, result: str) -> list[str]:
    return [start, f"for {loop}:", f"    if {test}:", f"        {action}", f"return {result}"]


def _found(values: str, default: str, result: str) -> list[str]:
    return [f"found = {values}", "if not found:", f"    return {default}", f"return {result}"]


def _over(m: _Maker, source: str, loop: str, noun: str, all_of_them: str, value: str, inputs: str) -> Block:
    """Something about the values of a list that meet a condition. `noun` has "{}" in the place of the condition."""
    words, test = m.conditions(value)
    changed, expression = m.change(value)
    those = noun.format(words)
    each = f", each {changed}" if changed else ""
    default = m.pick("None", "0", "-1")
    most, function, sign, flag = m.rng.choice((("largest", "max", ">", ", reverse=True"), ("smallest", "min", "<", "")))
    end, index = m.rng.choice((("first", "0"), ("last", "-1")))
    total = m.pick("total", "result", "answer", "current")
    changed_ones, ones = f"{expression} for {loop} if {test}", f"{value} for {loop} if {test}"
    sort = m.pick("sum", "sum", "count", "list", "list", most, "any", "product", end, "sorted", "best", "average")
    short: list[str] = []  # the body in one line, where there is one
    if sort == "sum":
        doc = f"Add up {those}{each}, starting from zero."
        body = _loop(f"{total} = 0", loop, test, f"{total} += {expression}", total)
        short = [f"return sum({changed_ones})"]
    elif sort == "count":
        doc = f"Count {those}."
        body = _loop(f"{total} = 0", loop, test, f"{total} += 1", total)
        short = [f"return sum(1 for {loop} if {test})"]
    elif sort == "list":
        doc = f"{m.pick('Return', 'List', 'Collect')} {those}{each}."
        body = _loop(f"{total} = []", loop, test, f"{total}.append({expression})", total)
        short = [f"return [{changed_ones}]"]
    elif sort == "product":
        doc = f"Multiply {those}{each}, starting from one."
        body = _loop(f"{total} = 1", loop, test, f"{total} *= {expression}", total)
    elif sort == "any":
        which, word = m.rng.choice((("any", "any"), ("all", "every")))
        doc = f"Return True if {word} one of {all_of_them} is {words}."
        sure, inside, outside = (test, "True", "False")
        if which == "all":
            sure, inside, outside = (
                f"not ({test})" if " and " in test or " or " in test else f"not {test}",
                outside,
                inside,
            )
        body = [f"for {loop}:", f"    if {sure}:", f"        return {inside}", f"return {outside}"]
        short = [f"return {which}({test} for {loop})"]
    elif sort == "sorted":
        doc = f"Return {those}{each}, sorted, the {most} first."
        body = [f"found = [{changed_ones}]", f"return sorted(found{flag})"]
        short = [f"return sorted([{changed_ones}]{flag})"]
    elif sort == end:
        doc = f"Return the {end} of {those}, or {default} if there are none."
        body = _found(f"[{ones}]", default, f"found[{index}]")
    elif sort == "average":
        doc = f"Return the average of {those}, rounded to 1 digit, or {default} if there are none."
        body = _found(f"[{ones}]", default, "round(sum(found) / len(found), 1)")
    elif sort == "best":
        doc = f"Return the {most} of {those}, or None if there are none."
        whole = f"({test})" if " or " in test else test
        better = f"{whole} and (best is None or {value} {sign} best)"
        body = _loop("best = None", loop, better, f"best = {value}", "best")
    else:
        doc = f"Return the {most} of {those}{each}, or {default} if there are none."
        body = _found(f"[{changed_ones}]", default, f"{function}(found)")
    lines = short if short and m.rng.random() < 0.5 else body
    return m.function(m.name(sort), [source, *m.params], doc, lines, [inputs, *m.inputs])


def _values(m: _Maker) -> Block:
    return _over(m, "values", "value in values", "the values that are {}", "the values", "value", "L(I(1, 9), 3, 5)")


def _records(m: _Maker) -> Block:
    field = m.pick("$num", "$num", "$num2")
    noun = m.pick(f"the {field} of all $items where it is {{}}", f"the {field} of $items that is {{}}")
    inputs = m.pick("RS(2, 3, $key=W, $num=I(1, 9), $num2=I(1, 9))", "RS(2, 4, $num=I(1, 9), $num2=I(1, 9))")
    return _over(m, "$items", "$item in $items", noun, f"the ${{items}}'s {field}", f'$item["{field}"]', inputs)


def _table(m: _Maker) -> Block:
    """Something about the entries of a dict."""
    words, test = m.conditions("value")
    changed, expression = m.change("value")
    each = f", each value {changed}" if changed else ""
    those = f"the entries of table whose value is {words}"
    most, function = m.rng.choice((("largest", "max"), ("smallest", "min")))
    entries = "name, value in table.items()"
    sort = m.pick("keys", "dict", "sum", "best", "count")
    short: list[str] = []
    if sort == "keys":
        doc = f"Return the names in table whose value is {words}, sorted."
        body = _loop("names = []", entries, test, "names.append(name)", "sorted(names)")
        short = [f"return sorted(name for {entries} if {test})"]
    elif sort == "dict":
        doc = f"Return a dict with {those}{each}."
        body = _loop("result = {}", entries, test, f"result[name] = {expression}", "result")
        short = [f"return {{name: {expression} for {entries} if {test}}}"]
    elif sort == "sum":
        doc = f"Add up {those}{each}."
        body = _loop("total = 0", "value in table.values()", test, f"total += {expression}", "total")
    elif sort == "count":
        doc = f"Count {those}."
        body = [f"return len([name for {entries} if {test}])"]
    else:
        doc = f"Return the name with the {most} value among {those}, or None."
        body = _found(f"[name for {entries} if {test}]", "None", f"{function}(found, key=table.get)")
    lines = short if short and m.rng.random() < 0.5 else body
    return m.function(m.name(sort), ["table", *m.params], doc, lines, ["D(W, I(1, 9), 2, 4)", *m.inputs])


def _decision(m: _Maker) -> Block:
    """Two or three cases, told apart by comparisons."""
    pairs = (("amount", "weight"), ("age", "days"), ("level", "speed"), ("points", "rank"), ("size", "price"))
    a, b = m.rng.choice(pairs)

    def outcome() -> tuple[str, str]:
        k = m.number()
        return m.rng.choice(
            (
                (str(k), str(k)),
                (f"{a} plus {b}", f"{a} + {b}"),
                (f"{a} minus {k}", f"{a} - {k}"),
                (f"{a} times {k}", f"{a} * {k}"),
                (f"{b} times {k}", f"{b} * {k}"),
                (f"{b} plus {k}", f"{b} + {k}"),
            )
        )

    results = [outcome() for _ in range(3)]
    if m.rng.random() < 0.5:
        results = [(f'"{x}"', f'"{x}"') for x in m.rng.sample(_LABELS, 3)]

    def asked(name: str) -> tuple[str, str]:
        (words, op), k = m.rng.choice(_COMPARE), m.number(2, 12)
        return f"{name} is {words} {k}", f"{name} {op} {k}"

    said, test = asked(a)
    if m.rng.random() < 0.5:
        joint, (more, other) = m.pick("and", "or"), asked(b)
        said, test = f"{said} {joint} {more}", f"{test} {joint} {other}"
    doc = f"Return {results[0][0]} if {said}, "
    lines = [f"if {test}:", f"    return {results[0][1]}"]
    if m.rng.random() < 0.6:
        said, test = asked(m.pick(a, b))
        doc += f"{results[1][0]} if {said}, "
        lines += [f"if {test}:", f"    return {results[1][1]}"]
    doc += f"else {results[2][0]}."
    return m.function(m.name("rate"), [a, b], doc, [*lines, f"return {results[2][1]}"], ["I(1, 14)", "I(1, 14)"])


def _formula(m: _Maker) -> Block:
    names = m.rng.sample(("width", "height", "count", "price", "hours", "rate", "fee", "bonus"), 3)
    ops = (("plus", "+"), ("minus", "-"), ("times", "*"))
    (w1, o1), (w2, o2) = m.rng.choice(ops), m.rng.choice(ops[:2])
    last = m.pick(names[2], str(m.number()))
    said, first = f"{names[0]} {w1} {names[1]}", f"{names[0]} {o1} {names[1]}"
    sort = m.pick("sum", "bounded", "share", "floor")
    if sort == "sum":
        doc, lines = f"Return {said}, {w2} {last}.", [f"return {first} {o2} {last}"]
    elif sort == "bounded":
        side, function = m.rng.choice((("at most", "min"), ("at least", "max")))
        doc, lines = f"Return {said}, but {side} {last}.", [f"return {function}({first}, {last})"]
    elif sort == "share":
        what, op = m.rng.choice((("rounded down", "//"), ("and return the remainder", "%")))
        doc, lines = f"Divide {said} by {last}, {what}.", [f"return ({first}) {op} {last}"]
    else:
        doc = f"Return {said}, {w2} {last}, but 0 if that is less than 0."
        lines = [f"result = {first} {o2} {last}", "if result < 0:", "    return 0", "return result"]
    params = [n for n in names if n in (names[0], names[1], last)]
    return m.function(m.name("compute"), params, doc, lines, ["I(2, 12)"] * len(params))


def _range(m: _Maker) -> Block:
    """A loop over whole numbers."""
    first, closed = m.rng.choice((0, 1, 1, 2)), m.rng.random() < 0.6
    stop, span = ("n + 1", "to n, both included") if closed else ("n", "up to but not including n")
    loop = f"i in range({first}, {stop})" if first else f"i in range({stop})"
    words, test = m.condition("i")
    changed, expression = m.change("i")
    those = f"the numbers from {first} {span}, that are {words}"
    each = f", each {changed}" if changed else ""
    sort = m.pick("sum", "list", "count")
    if sort == "sum":
        doc = f"Add up {those}{each}, starting from zero."
        lines = _loop("total = 0", loop, test, f"total += {expression}", "total")
    elif sort == "count":
        doc = f"Count {those}."
        lines = _loop("count = 0", loop, test, "count += 1", "count")
    else:
        doc, lines = f"List {those}{each}.", [f"return [{expression} for {loop} if {test}]"]
    return m.function(m.name(sort), ["n", *m.params], doc, lines, ["I(3, 9)", *m.inputs])


def _text(m: _Maker) -> Block:
    """Steps on a text, one after the other."""
    k = m.number(2, 3)
    (name, mark), (other, sign) = m.rng.choice(_MARKS), m.rng.choice(_MARKS)
    case = m.pick("lower", "upper")
    steps = m.rng.sample(
        (
            ("remove spaces at both ends", "text.strip()"),
            (f"turn it to {case} case", f"text.{case}()"),
            (f"replace spaces by {name}", f'text.replace(" ", "{mark}")'),
            m.rng.choice(
                ((f"keep the first {k} letters", f"text[:{k}]"), (f"drop the first {k} letters", f"text[{k}:]"))
            ),
            m.rng.choice(
                ((f"add {other} at the end", f'text + "{sign}"'), (f"put {other} before it", f'"{sign}" + text'))
            ),
        ),
        m.rng.choice((2, 2, 3)),
    )
    doc = f"Take text, {', '.join(said for said, _ in steps[:-1])} and {steps[-1][0]}."
    lines = [*(f"text = {code}" for _, code in steps[:-1]), f"return {steps[-1][1]}"]
    return m.function(m.name("format"), ["text"], doc, lines, ['P(M(J(" ", W, 1, 2)))'])


def _words(m: _Maker) -> Block:
    """Words that meet a condition, changed and joined."""
    (words, op), k, letter = m.rng.choice(_COMPARE), m.number(4, 6), m.pick("a", "e", "b", "s")
    said, test = m.rng.choice(
        (
            (f"have {words} {k} letters", f"len(word) {op} {k}"),
            (f'start with "{letter}"', f'word.startswith("{letter}")'),
            (f'end with "{letter}"', f'word.endswith("{letter}")'),
            (f'contain "{letter}"', f'"{letter}" in word'),
            (f'do not contain "{letter}"', f'"{letter}" not in word'),
        )
    )
    case, code = m.rng.choice((("", "word"), (" in upper case", "word.upper()"), (" in title case", "word.title()")))
    name, mark = m.rng.choice((*_MARKS, ("a comma and a space", ", "), ("a space", " ")))
    sort = m.pick("join", "count", "list", "longest")
    if sort == "join":
        doc = f"Join the words that {said}{case} with {name} between them."
        lines = [f'return "{mark}".join({code} for word in words if {test})']
    elif sort == "count":
        doc, lines = f"Count the words that {said}.", _loop("count = 0", "word in words", test, "count += 1", "count")
    elif sort == "list":
        doc = f"Return the words that {said}{case}."
        lines = _loop("found = []", "word in words", test, f"found.append({code})", "found")
    else:
        which, function = m.rng.choice((("most", "max"), ("least", "min")))
        doc = f"Return the word with the {which} letters of those that {said}, or None if there are none."
        lines = _found(f"[word for word in words if {test}]", "None", f"{function}(found, key=len)")
    return m.function(m.name(sort), ["words"], doc, lines, ['L(C(W, W, "bassa", "essence", "beta", "area"), 3, 4)'])


def _object(m: _Maker) -> Block:
    """A class with a limit, a list, a sum and a counter, and two or three methods that use them."""
    start = m.rng.choice((0, 0, 1, m.number()))
    (w1, op1), (w2, op2) = m.rng.choice(_COMPARE), m.rng.choice(_COMPARE)
    items = m.pick("values", "readings", "entries", "loads")
    count = m.pick("count", "rejected", "misses", "skipped")
    total = m.pick("total", "level", "balance")
    add, n = m.pick("add", "put", "store", "record"), m.number(2, 4)
    most, function = m.rng.choice((("largest", "max"), ("smallest", "min")))
    end, index = m.rng.choice((("first", "0"), ("last", "-1")))
    # name and parameter, docstring, body, input
    methods: tuple[tuple[str, str, list[str], str], ...] = (
        (
            f"{most}(self)",
            f"Return the {most} of the {items}, or None if there are none.",
            [f"if not self.{items}:", "    return None", f"return {function}(self.{items})"],
            "",
        ),
        (
            f"{end}_one(self)",
            f"Return the {end} of the {items}, or 0 if there are none.",
            [f"if len(self.{items}) == 0:", "    return 0", f"return self.{items}[{index}]"],
            "",
        ),
        (
            f"count_{m.rng.choice(_ADJECTIVES)}(self, bound)",
            f"Count the {items} that are {w2} bound.",
            [f"return sum(1 for value in self.{items} if value {op2} bound)"],
            "#I(1, 9)#",
        ),
        ("left(self)", f"Return the limit minus the {total}.", [f"return self.limit - self.{total}"], ""),
        (
            "grow(self, amount)",
            f"Add amount times {n} to the limit and return the limit.",
            [f"self.limit += amount * {n}", "return self.limit"],
            "#I(1, 5)#",
        ),
        (
            "shrink(self, amount)",
            f"Subtract amount from the limit, but never go below {start}; return the limit.",
            [f"self.limit = max(self.limit - amount, {start})", "return self.limit"],
            "#I(1, 9)#",
        ),
        (
            "is_done(self)",
            f"Return True if the {total} is {w1} the limit.",
            [f"return self.{total} {op1} self.limit"],
            "",
        ),
        (
            "clear(self)",
            f"Forget the {items} and set the {total} to {start}; return how many {items} there were.",
            [f"number = len(self.{items})", f"self.{items} = []", f"self.{total} = {start}", "return number"],
            "",
        ),
    )
    lines = [
        "class $Thing:",
        f'    """Keeps {items} and their {total}, which starts from {start}."""',
        "",
        "    def __init__(self, limit):",
        "        self.limit = limit",
        f"        self.{items} = []",
        f"        self.{total} = {start}",
        f"        self.{count} = 0",
        "",
        f"    def {add}(self, value):",
        f'        """Append value and add it to the {total} if it is {w1} the limit, else add 1 to {count}."""',
        f"        if value {op1} self.limit:",
        f"            self.{items}.append(value)",
        f"            self.{total} += value",
        "        else:",
        f"            self.{count} += 1",
        f"        return self.{total}",
    ]
    calls = []
    for head, doc, body, given in m.rng.sample(methods, m.rng.choice((2, 3))):
        lines += ["", f"    def {head}:", f'        """{doc}"""', *(f"        {line}" for line in body)]
        calls.append(f"= $thing.{head.partition('(')[0]}({given})")
    lines += ["! $thing = $Thing(#I(3, 7)#)", *[f"= $thing.{add}(#I(1, 9)#)"] * 2, f"= $thing.{count}"]
    lines += ["! $thing = $Thing(#I(3, 7)#)", *[f"! $thing.{add}(#I(1, 9)#)"] * m.rng.choice((1, 2)), *calls]
    return block_of(COMBINED_MODULE, lines)


_SORTS: tuple[Callable[[_Maker], Block], ...] = (
    *(_values, _values, _records, _records, _table, _decision, _decision),
    *(_formula, _range, _text, _words, _words, _object, _object),
)


def combined_block(rng: random.Random) -> Block:
    """A block that nobody has written: hardly ever the same one twice."""
    return rng.choice(_SORTS)(_Maker(rng))
