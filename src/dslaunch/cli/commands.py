"""The commands, each imported when it is called: what is slow to start is slow every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

NAMES = (
    *("run", "slurm", "ps", "status", "logs", "attach", "stacks", "stop", "clean"),
    *("preflight", "topo", "config", "estimate", "checkpoint"),
    *("render", "nodes", "validate", "init", "schema"),
)
"""In the order of the help. Each is a function of the module that is named like it; or the module
holds `APP`, with commands of its own."""
Command = TyperCommand | TyperGroup


def functions() -> Iterator[tuple[str, Callable[..., None]]]:
    """The words of every command, and the function behind them."""
    for name in NAMES:
        module = import_module(f"dslaunch.cli.{name}")
        app = getattr(module, "APP", None)
        if app is None:
            yield name, getattr(module, name)
            continue
        for command in app.registered_commands:
            yield f"{name} {command.name or command.callback.__name__}", command.callback


@cache
def load(name: str) -> Command:
    """Import a command. Its module may hold `CONTEXT`, settings for the option parser."""
    module = import_module(f"dslaunch.cli.{name}")
    app = getattr(module, "APP", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = getattr(module, "CONTEXT", None)
        app.command(name, context_settings=settings)(getattr(module, name))
    command = typer.main.get_command(app)
    assert isinstance(command, Command)
    command.name = name
    return command


class Lazy(MutableMapping[str, Any]):
    """The commands by name, imported when they are looked up."""

    def __getitem__(self, name: str) -> Command:
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
