from hypothesis import given
from hypothesis import strategies as st

from longstep.tools.slim import slim, slim_line


def test_short_text_is_untouched():
    assert slim("a\nb", 1, 1) == "a\nb"
    assert slim("a\nb\nc", 1, 1) == "a\nb\nc"  # a line in place of one line saves nothing
    assert slim("", 1, 1) == ""


def test_the_middle_is_counted():
    assert slim("a\nb\nc\nd\n", 1, 1) == "a\n... 2 lines left out ...\nd"
    assert slim("a\nb\nc\nd\n", 2, 0) == "a\nb\n... 2 lines left out ..."


def test_a_long_line_keeps_its_ends():
    assert slim_line("a" * 30 + "b" * 30 + "c" * 30, 40) == "a" * 30 + " ... 50 characters left out ... " + "c" * 10


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=60), max_size=40), st.integers(1, 5),
       st.integers(0, 5))  # fmt: skip
def test_what_is_left_out_and_what_is_kept_make_the_whole(lines, head, tail):
    text = "\n".join(lines) + "\n"
    out = slim(text, head, tail, width=1000).split("\n")
    mark = [i for i, line in enumerate(out) if line.startswith("... ") and line.endswith(" lines left out ...")]
    if mark:
        (at,) = mark
        left_out = int(out[at].split()[1])
        assert out[:at] == lines[:head]
        assert out[at + 1 :] == lines[len(lines) - tail :]
        assert left_out + head + tail == len(lines)
    else:
        assert out == (lines or [""])
