"""The commands, each imported when it is called: what is slow to start is slow every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

NAMES = (
    *("run", "ps", "status", "logs", "attach", "stacks", "stop", "clean"),
    *("preflight", "render", "nodes", "validate", "init", "schema"),
)
"""In the order of the help. Each is a function of the module that is named like it."""


def function(name: str) -> Callable[..., None]:
    """The function behind a command."""
    found: Callable[..., None] = getattr(import_module(f"dslaunch.cli.{name}"), name)
    return found


@cache
def load(name: str) -> TyperCommand:
    """Import a command. Its module may hold `CONTEXT`, settings for the option parser."""
    settings = getattr(import_module(f"dslaunch.cli.{name}"), "CONTEXT", None)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, context_settings=settings)(function(name))
    command = typer.main.get_command(app)
    assert isinstance(command, TyperCommand)
    return command


class Lazy(MutableMapping[str, Any]):
    """The commands by name, imported when they are looked up."""

    def __getitem__(self, name: str) -> TyperCommand:
        """Import a command. Raises KeyError if there is none of that name."""
        if name not in NAMES:
            raise KeyError(name)
        return load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)

    def __setitem__(self, name: str, command: Any) -> NoReturn:
        """Raise TypeError: the list of names is the registry."""
        raise TypeError(name)

    __delitem__ = __setitem__  # type: ignore[assignment]


class Commands(TyperGroup):
    """A group whose commands are not imported before they are called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Lazy()
