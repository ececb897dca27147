"""Add parameters to a command's function, which typer reads from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from msgspec import Struct


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function, with evaluated annotations."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def take(wrapper: Callable[..., Any], parameters: list[inspect.Parameter]) -> None:
    """Give a wrapper these parameters, by keyword only."""
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    wrapper.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of option groups as parameters.

    A group is a Struct of options that several commands have in common, or that belong together;
    the command gets it as one value.
    """
    parameters = parameters_of(command)
    groups = {each.name: each.annotation for each in parameters if _is_group(each.annotation)}
    if not groups:
        return command
    options = {name: parameters_of(group) for name, group in groups.items()}

    @wraps(command)
    def grouped(**given: Any) -> None:
        values = {}
        for name, own in options.items():
            names = [option.name for option in own if option.name in given]
            values[name] = groups[name](**{option: given.pop(option) for option in names})
        command(**given, **values)

    take(grouped, [one for each in parameters for one in options.get(each.name, [each])])
    return grouped


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Struct)
