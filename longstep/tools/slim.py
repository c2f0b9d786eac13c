"""Shorten text by structure: head, a line that says how much is left out, tail. Never a silent cut."""

HEAD_LINES = 40
TAIL_LINES = 20
WIDTH = 400  # characters of one line


def slim_line(line: str, width: int = WIDTH) -> str:
    """A long line keeps its two ends."""
    if len(line) <= width:
        return line
    end = width // 4
    return f"{line[: width - end]} ... {len(line) - width} characters left out ... {line[-end:]}"


def slim(text: str, head: int = HEAD_LINES, tail: int = TAIL_LINES, width: int = WIDTH) -> str:
    """At most `head` + `tail` lines of `text`, each at most about `width` characters. Lines end at "\\n" only."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()  # a final newline ends the last line; it does not start another
    left_out = len(lines) - head - tail
    if left_out > 1:  # to put a line in place of one line saves nothing
        lines = [*lines[:head], f"... {left_out} lines left out ...", *lines[len(lines) - tail :]]
    return "\n".join(slim_line(line, width) for line in lines)
