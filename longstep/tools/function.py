"""A tool from a function: the spec is built here once, arguments are checked against it, mistakes become results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from longstep.messages import ToolSpec
from longstep.tools.base import ToolContext, ToolOutput

_TYPES: dict[str, type] = {"string": str, "integer": int}


class ToolMistake(Exception):  # noqa: N818 (the mistake is the model's, not an error of ours)
    """What the model did wrong, as the sentence that it will read."""


@dataclass(frozen=True, kw_only=True)
class FunctionTool:
    """`function` takes the context and the checked arguments. It raises ToolMistake for what the model did wrong."""

    spec: ToolSpec
    safe_to_repeat: bool
    function: Callable[..., ToolOutput]

    def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        try:
            self._check(arguments)
            output = self.function(context, **arguments)
        except ToolMistake as mistake:
            output = ToolOutput(text=str(mistake), is_error=True)
        except OSError as error:
            output = ToolOutput(text=f"{error.strerror or error}", is_error=True)
        except ValueError as error:  # text that is no text: lone surrogates, NUL in a path
            output = ToolOutput(text=f"not readable as text: {error}", is_error=True)
        # File names and program output may hold bytes that are no UTF-8; a result is always valid text.
        return ToolOutput(text=output.text.encode("utf-8", "replace").decode(), is_error=output.is_error)

    def _check(self, arguments: Mapping[str, Any]) -> None:
        properties, required = self.spec.parameters["properties"], self.spec.parameters["required"]
        accepted = ", ".join(f"{k} ({v['type']}{'' if k in required else ', optional'})" for k, v in properties.items())
        for key, value in arguments.items():
            if key not in properties:
                raise ToolMistake(f"{self.spec.name} has no argument {key[:40]!r}. It accepts: {accepted}")
            wanted = properties[key]["type"]
            if not isinstance(value, _TYPES[wanted]) or isinstance(value, bool):
                raise ToolMistake(f"{self.spec.name}: {key} must be of type {wanted}. It accepts: {accepted}")
        for key in required:
            if key not in arguments:
                raise ToolMistake(f"{self.spec.name}: {key} is missing. It accepts: {accepted}")


def tool(
    name: str, description: str, required: Mapping[str, str], optional: Mapping[str, str], *, safe_to_repeat: bool
) -> Callable[[Callable[..., ToolOutput]], FunctionTool]:
    """Decorator. `required` and `optional` map argument names to "string" or "integer".

    The spec stands in every prompt, so it holds nothing that the name of an argument says already.
    """
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in (*required.items(), *optional.items())},
        "required": list(required),
    }
    spec = ToolSpec(name=name, description=description, parameters=parameters)

    def wrap(function: Callable[..., ToolOutput]) -> FunctionTool:
        return FunctionTool(spec=spec, safe_to_repeat=safe_to_repeat, function=function)

    return wrap
