"""Why a line is wrong, in a clause: what the docstring says, or what the error says, against what stands in the line.

Used by the expert and by pretraining documents. Everything quoted comes from text that the reader has seen.
"""

import re
from collections.abc import Iterable

# Words of a docstring that call for a piece of code.
_WORDS: dict[str, tuple[str, ...]] = {
    ">=": ("at least", "no less than", "or more", "not below", "at or after"),
    ">": ("more than", "greater than", "above", "over", "larger", "most", "largest", "highest", "longest"),
    "<=": ("at most", "no more than", "up to and including", "included", "at or before", "fits"),
    "<": ("less than", "smaller than", "fewer than", "below", "under", "lowest", "smallest", "not including"),
    "+": ("plus", "sum", "add", "increased by", "more", "after"),
    "-": ("minus", "subtract", "take", "less", "difference", "left", "before", "remains"),
    "*": ("times", "multipl", "product", "twice", "double"),
    "+=": ("add", "sum", "count", "plus", "increase"),
    "-=": ("subtract", "take", "minus", "less", "lower"),
    "*=": ("multipl", "product", "times"),
    "//": ("rounded down", "whole", "divided"),
    "/": ("divided by", "divide", "average", "per", "percent"),
    "%": ("left over", "remainder", "remains", "divide"),
    "and": ("both", "and"),
    "or": ("either", "or"),
    "max": (
        "largest",
        "highest",
        "greatest",
        "longest",
        "most",
        "larger",
        "never less",
        "never below",
        "latest",
        "best",
    ),
    "min": ("smallest", "lowest", "cheapest", "least", "smaller", "never more", "at most", "up to", "earliest"),
    "any": ("any", "at least one"),
    "all": ("all", "every"),
    "0": ("zero", "first", "none", "empty", "0"),
    "-1": ("last", "top", "newest"),
    "1": ("from one", "one", "1"),
    "startswith": ("start", "begin"),
    "endswith": ("end",),
    "lower": ("lower case", "ignoring case", "ignoring"),
    "upper": ("upper case", "capital"),
    "append": ("append", "add", "put", "list"),
    "extend": ("all", "entries"),
    "True": ("True", "tell", "whether"),
    "False": ("False", "True", "whether"),
    "not in": ("not in", "missing", "without", "not"),
    "in": ("in", "have", "contain"),
    "!=": ("not", "differ", "without", "other"),
    "==": ("equal", "same", "with nothing left", "of"),
    "strip": ("spaces at",),
    "reverse": ("first", "order"),
    "return": ("Return", "return", "Tell", "Give", "List"),
}


def phrase(doc: str, piece: str) -> str:
    """The words of the docstring that call for `piece` of code; "" if none do."""
    for words in _WORDS.get(piece, ()):
        if re.search(rf"(?<!\w){re.escape(words)}", doc, re.I):
            return words
    return ""


def _said(doc: str, *pieces: str) -> str:
    for piece in pieces:
        if found := phrase(doc, piece):
            return f'"{found}"'
    return ""


def clause(kind: str, wrong: str, right: str, doc: str) -> str:
    """Why `wrong` should be `right`, for one kind of bug."""
    if kind in ("misspelt_name", "misspelt_attribute", "misspelt_method", "wrong_key"):
        return f"{wrong} is a slip for {right}"
    if kind == "missing_import":
        return f"nothing imports it: {right} is missing"
    if kind == "missing_self":
        return "self is missing"
    if kind == "missing_cast":
        return f"{right.partition('(')[0]}() is missing"
    if kind == "missing_call":
        return "the call () is missing"
    if kind == "missing_colon":
        return "the colon is missing"
    if kind == "unclosed_bracket":
        return "the closing bracket is missing"
    if kind == "wrong_arguments":
        return f"the arguments should be {right}"
    if kind == "missing_return":
        return "the result is not returned"
    if kind == "early_return":
        return "it returns inside the loop; it should return after it"
    if kind == "lost_update":
        return f"it overwrites; it should be {right}"
    if kind == "missing_clean":
        call = right.rpartition(".")[2]
        said = _said(doc, call.removesuffix("()"))
        return f"{said}: {call} is missing" if said else f"{call} is missing"
    if kind == "reverse_flag":
        found = re.search(r"\w+(?: \w+)? first", doc)
        return f'"{found[0]}" needs the other order' if found else "the order is wrong"
    said = _said(doc, right)
    if kind == "inverted_condition":
        return "the condition is the wrong way round"
    return f"{said}: {right}, not {wrong}" if said else f"{right}, not {wrong}"


def code_lines(lines: Iterable[tuple[int, str]]) -> list[int]:
    """The numbers of the lines that are looked at when code is read line by line: no docstrings, heads or comments."""
    numbers, inside = [], False
    for number, line in lines:
        text = line.strip()
        if inside or text.startswith('"""'):
            inside ^= text.count('"""') % 2 == 1
        elif text and not text.startswith(("def ", "class ", "#", "@")):
            numbers.append(number)
    return numbers
