"""Phrases are data: read, checked and identified by what they render."""

import json

import msgspec
import pytest

from longstep.chat import phrases as module
from longstep.chat.phrases import DEFAULT_PATH, Phrases, body_hashes, identify
from longstep.errors import UserError


def test_ours_are_identified_and_others_are_not():
    ours = Phrases.load()
    assert identify(ours) == "longstep"
    assert identify(msgspec.structs.replace(ours, tools="You have: {tools}")) == "unknown"
    assert set(body_hashes(ours)) == set(module.RELEASED_K3)


def test_the_released_wording_is_identified_by_its_hashes(monkeypatch):
    """With hashes of other words in the table's place: the released words are not ours to keep here."""
    other = msgspec.structs.replace(Phrases.load(), tools="# T\n{tools}")
    monkeypatch.setattr(module, "RELEASED_K3", body_hashes(other))
    assert identify(other) == "released K3 wording"
    for name in module.RELEASED_K3:
        monkeypatch.setitem(module.RELEASED_K3, name, "0" * 16)
        assert identify(other) == "unknown"
        monkeypatch.setitem(module.RELEASED_K3, name, body_hashes(other)[name])


def test_braces_in_phrases_and_tools_are_plain_text():
    words = msgspec.structs.replace(Phrases.load(), tools="{x} {tools} {}")
    assert words.tools_body('[{"schema":"{tools}"}]') == '{x} [{"schema":"{tools}"}] {}'


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tools": "no slot"}, r"tools holds \{tools\} 0 times"),
        ({"new_tools": "{tools}{tools}"}, r"new_tools holds \{tools\} 2 times"),
        ({"response_format": {"json_object": "a", "json_schema": "b"}}, r"holds \{schema\} 0 times"),
        ({"extra": "x"}, "unknown field `extra`"),
        ({"effort": {"low": "a", "high": "b"}}, "missing required field `max`"),
    ],
)
def test_a_file_of_another_form_says_what_is_wrong(tmp_path, change, says):
    file = tmp_path / "phrases.json"
    file.write_text(json.dumps(json.loads(DEFAULT_PATH.read_text()) | change))
    with pytest.raises(UserError, match=says):
        Phrases.load(tmp_path)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(UserError, match="cannot read the phrases"):
        Phrases.load(tmp_path / "none.json")
    (tmp_path / "torn.json").write_text('{"effort"')
    with pytest.raises(UserError, match="not a phrases file"):
        Phrases.load(tmp_path / "torn.json")
