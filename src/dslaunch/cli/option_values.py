"""Values of options and arguments, converted without pydantic where that is simple.

Typer makes a pydantic validator for every parameter of a command, given or not. Importing pydantic
and making the validators takes longer than all else that a short command does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer._coercion import RuntimeParam, TypeDescriptor, build_runtime_param


def with_simple_conversion(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command, which convert their values with `SimpleConversion`."""
    for parameter in parameters:
        descriptor = parameter.type_descriptor
        parameter._runtime_param = SimpleConversion(
            descriptor.parameter_info, descriptor.annotation, descriptor
        )
    return parameters


@dataclass(frozen=True)
class SimpleConversion(RuntimeParam):
    """Converts texts and paths, and leaves all else, such as numbers, to Typer."""

    descriptor: TypeDescriptor

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        wanted = self.annotation
        if wanted is str and isinstance(value, str):
            return value
        if wanted is Path and isinstance(value, str | Path):
            if value == "" and not ctx.resilient_parsing:
                from dslaunch.cli.usage_errors import empty_value

                raise empty_value(param.opts[0] if param.opts[0][0] == "-" else param.metavar)
            return Path(value)
        if wanted == list[str] and all(isinstance(each, str) for each in value):
            return list(value)
        if wanted in (int, float) and isinstance(value, wanted) and value == param.default:
            return value
        return build_runtime_param(self.descriptor)._coerce_value(value, param=param, ctx=ctx)
