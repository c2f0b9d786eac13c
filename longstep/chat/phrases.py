"""The words that the encoder puts round tools, effort, tool choice and response format: data, not code.

A model knows the words that it was trained with, so they ship beside the tokenizer and a user may bring others.
docs/phrases.md describes the file.
"""

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from longstep.errors import UserError
from longstep.messages import Effort

DEFAULT_PATH = Path(__file__).parent / "data" / "phrases.json"


class EffortPhrases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    low: str
    high: str
    max: str


class ToolChoicePhrases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    none: str
    required: str


class ResponseFormatPhrases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    json_object: str
    json_schema: str  # holds {schema}


class Phrases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bodies of the encoder's own system messages. `{tools}` and `{schema}` are where compact JSON goes."""

    effort: EffortPhrases
    tools: str
    new_tools: str
    tool_choice: ToolChoicePhrases
    response_format: ResponseFormatPhrases

    @staticmethod
    def load(path: Path | None = None) -> "Phrases":
        """From a file, a folder that holds `phrases.json`, or (None) the one in the package."""
        file = DEFAULT_PATH if path is None else path / "phrases.json" if path.is_dir() else path
        try:
            phrases = msgspec.json.decode(file.read_bytes(), type=Phrases)
        except OSError as e:
            raise UserError(f"{file}: cannot read the phrases ({e.strerror}); docs/phrases.md shows the file") from e
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise UserError(f"{file}: not a phrases file ({e}); docs/phrases.md shows its form") from e
        for name, text, slot in (
            ("tools", phrases.tools, "{tools}"),
            ("new_tools", phrases.new_tools, "{tools}"),
            ("response_format.json_schema", phrases.response_format.json_schema, "{schema}"),
        ):
            if text.count(slot) != 1:
                raise UserError(f"{file}: {name} holds {slot} {text.count(slot)} times; expected once")
        return phrases

    def effort_body(self, effort: Effort) -> str:
        return {"low": self.effort.low, "high": self.effort.high, "max": self.effort.max}[effort].strip()

    def tools_body(self, tools_json: str, *, new: bool = False) -> str:
        return (self.new_tools if new else self.tools).replace("{tools}", tools_json)

    def tool_choice_body(self, choice: Literal["none", "required"]) -> str:
        return (self.tool_choice.none if choice == "none" else self.tool_choice.required).strip()

    def json_object_body(self) -> str:
        return self.response_format.json_object.strip()

    def json_schema_body(self, schema_json: str) -> str:
        return self.response_format.json_schema.replace("{schema}", schema_json).strip()


# First 16 hex digits of the SHA-256 of each body as the released K3 encoder renders it, with the tools and the schema
# of `body_hashes`. (Its fourth effort, medium, is not one that the model's API takes.)
RELEASED_K3 = {
    "effort low": "003035f6bf61ffe6",
    "effort high": "a8513c631231c09d",
    "effort max": "20389202b5a9e0b3",
    "tools": "9703b1679dd8277a",
    "new tools": "8ba504f7f70343b3",
    "tool choice required": "e2c3dc236d94164a",
    "tool choice none": "efabd595d24633a1",
    "json_object": "a88696fd119e35ca",
    "json_schema": "0d88be0cf72d30d7",
}


def body_hashes(phrases: Phrases) -> dict[str, str]:
    """Each body's hash, in the form of `RELEASED_K3`."""
    tools = '[{"function":{"name":"f","parameters":{}},"type":"function"}]'
    bodies = {
        "effort low": phrases.effort_body("low"),
        "effort high": phrases.effort_body("high"),
        "effort max": phrases.effort_body("max"),
        "tools": phrases.tools_body(tools),
        "new tools": phrases.tools_body(tools, new=True),
        "tool choice required": phrases.tool_choice_body("required"),
        "tool choice none": phrases.tool_choice_body("none"),
        "json_object": phrases.json_object_body(),
        "json_schema": phrases.json_schema_body('{"type":"object"}'),
    }
    return {name: hashlib.sha256(body.encode()).hexdigest()[:16] for name, body in bodies.items()}


def identify(phrases: Phrases) -> Literal["released K3 wording", "longstep", "unknown"]:
    """Whose words these are, by the bodies that they render."""
    hashes = body_hashes(phrases)
    if hashes == RELEASED_K3:
        return "released K3 wording"
    return "longstep" if hashes == body_hashes(Phrases.load()) else "unknown"
