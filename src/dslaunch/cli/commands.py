"""The commands, each imported when it is called: what is slow to start is slow every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from inspect import unwrap
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from dslaunch.cli.log_options import with_log_options
from dslaunch.errors import UsageError
from dslaunch.terminal import visible

NAMES = (
    "run",
    "slurm",
    "ps",
    "status",
    "logs",
    "attach",
    "stacks",
    "stop",
    "clean",
    "preflight",
    "topo",
    "config",
    "estimate",
    "checkpoint",
    "render",
    "nodes",
    "validate",
    "trust",
    "init",
    "schema",
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
            callback = unwrap(command.callback)
            yield f"{name} {command.name or callback.__name__}", callback


@cache
def load(name: str) -> Command:
    """Import a command. Its module may hold `CONTEXT`, settings for the option parser."""
    module = import_module(f"dslaunch.cli.{name}")
    app = getattr(module, "APP", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = getattr(module, "CONTEXT", None)
        app.command(name, cls=Careful, context_settings=settings)(getattr(module, name))
    for each in app.registered_commands:
        assert each.callback is not None
        each.callback = with_log_options(each.callback)
    command = typer.main.get_command(app)
    assert isinstance(command, Command)
    command.name = name
    return command


class Careful(TyperCommand):
    """A command that refuses empty values of options: `--workdir "$UNSET"` means no default."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises UsageError for an option whose value is an empty text."""
        empty = [
            parameter.opts[0]
            for parameter in self.params
            if parameter.opts[0].startswith("-")
            and _has_empty(ctx.params.get(str(parameter.name)))
            and ctx.get_parameter_source(str(parameter.name)).name == "COMMANDLINE"
        ]
        if empty:
            raise UsageError(
                f"{', '.join(empty)}: the value is empty",
                hint="check the variable that it comes from, or leave the option out",
            )
        return super().invoke(ctx)


def _has_empty(value: object) -> bool:
    texts = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(text, str) and not text.strip() for text in texts)


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

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Parse the command line; an error quotes it without control characters."""
        with _visible_errors():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of its command line quotes it without control characters."""
        with _visible_errors():
            return super().invoke(ctx)


@contextmanager
def _visible_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        quoted = getattr(error, "message", None)
        if isinstance(quoted, str):
            error.message = visible(quoted)  # type: ignore[attr-defined]
        raise
