"""What all tools share: short specs, checked arguments, and that nothing a model writes can raise."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longstep.errors import UserError
from longstep.sandbox.base import CommandResult, Limits
from longstep.tools import TOOLS, toolset
from longstep.tools.base import ToolContext, ToolOutput

ARGUMENTS = {  # name -> (required, optional)
    "list_files": ([], ["path"]),
    "read_file": (["path"], ["start", "lines"]),
    "write_file": (["path", "text"], []),
    "edit_file": (["path", "old", "new"], []),
    "find_text": (["text"], ["path"]),
    "shell": (["command"], []),
    "run_tests": ([], ["path"]),
    "search_docs": (["query"], []),
}


def test_names_and_arguments_are_those_that_the_worlds_use():
    assert {n: (t.spec.parameters["required"], list(t.spec.parameters["properties"])) for n, t in TOOLS.items()} == {
        n: (required, [*required, *optional]) for n, (required, optional) in ARGUMENTS.items()
    }
    assert all(tool.spec.name == name for name, tool in TOOLS.items())


def test_specs_are_short():
    """A model pays every character of a spec in every episode; the tokenizer makes one token of about 3.3."""
    for tool in TOOLS.values():
        spec = {"name": tool.spec.name, "description": tool.spec.description, "parameters": tool.spec.parameters}
        assert len(json.dumps(spec, separators=(",", ":"))) <= 230, tool.spec.name
        assert len(tool.spec.description) <= 40


def test_what_may_be_repeated():
    assert {name for name, tool in TOOLS.items() if not tool.safe_to_repeat} == {"edit_file", "shell"}


def test_toolset():
    assert list(toolset(["shell", "read_file"])) == ["shell", "read_file"]
    with pytest.raises(UserError, match="'sheel': there is no such tool; there are list_files, "):
        toolset(["sheel"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "read_file: path is missing. It accepts: path (string), start (integer, optional), "
         "lines (integer, optional)"),
        ({"path": 3}, "read_file: path must be of type string. It accepts: "),
        ({"path": None}, "read_file: path must be of type string. It accepts: "),
        ({"path": "a", "start": "1"}, "read_file: start must be of type integer. It accepts: "),
        ({"path": "a", "start": True}, "read_file: start must be of type integer. It accepts: "),
        ({"path": "a", "start": 1.0}, "read_file: start must be of type integer. It accepts: "),
        ({"file": "a"}, "read_file has no argument 'file'. It accepts: path (string), "),
    ],
)  # fmt: skip
def test_wrong_arguments_are_told_what_is_accepted(call, arguments, said):
    output = call("read_file", **arguments)
    assert output.is_error
    assert output.text.startswith(said)


LIMITS = Limits()


class Nothing:
    """A sandbox that runs nothing: the fuzz is about arguments."""

    name = "nothing"

    def run(self, argv, *, workspace, limits=LIMITS) -> CommandResult:
        assert all("\0" not in word for word in argv)
        return CommandResult(exit_code=0, stdout="", stderr="")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(
        ["", ".", "..", "a", "a/b", "/", "/etc/passwd", "\0", "a\0b", "\ud800", "x" * 5000, "a/" * 3000, "::", "-x",
         "a::b", "docs", "docs/a.md", "\n", "*", '"', "NEAR(", "a AND", 10**30, -1]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(data=st.data())
def test_no_arguments_raise(workspace, data):
    """Any JSON object gives a result, and its text can be encoded; nothing appears outside the workspace."""
    (workspace / "docs").mkdir(exist_ok=True)
    (workspace / "docs/a.md").write_text("# A\nx\n")
    name = data.draw(st.sampled_from(sorted(TOOLS)))
    required, optional = ARGUMENTS[name]
    keys = st.sampled_from([*required, *optional, "other", "", "self", "context"])
    arguments = data.draw(st.dictionaries(keys, values, max_size=4))
    if data.draw(st.booleans()):
        arguments = {key: data.draw(values) for key in required} | arguments
    output = TOOLS[name].run(arguments, ToolContext(workspace=workspace, sandbox=Nothing()))
    assert isinstance(output, ToolOutput)
    output.text.encode()
    assert [path.name for path in workspace.parent.iterdir()] == ["work"]
