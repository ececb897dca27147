"""Add parameters to a command's function, which typer reads from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function, with evaluated annotations."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def take(wrapper: Callable[..., Any], parameters: list[inspect.Parameter]) -> None:
    """Give a wrapper these parameters, by keyword only."""
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    wrapper.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
