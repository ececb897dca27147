"""`dslaunch help`: the help of a command."""

from __future__ import annotations

from typing import Annotated

import typer

from dslaunch.cli import ui
from dslaunch.cli.command_help import command_help, group_help, help_text, help_width, program_help
from dslaunch.cli.commands import NAMES, Group, load, unknown_command
from dslaunch.cli.main import app


def help(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Command of one or two words.", show_default=False),
    ] = None,
) -> None:
    """Show the help of a command.

    Without a command, shows the list of commands.

    Example: dslaunch help config lint
    """
    program = typer.main.get_command(app)
    name = " ".join(words or ())
    ui.result(find_help(program, name))


def find_help(program: object, name: str) -> str:
    """Return the help text of a command; empty is the program. Raises UsageError."""
    width = help_width()
    if not name:
        return help_text(program_help(program, "dslaunch"), width)
    if name in NAMES:
        found = load(name)
        describe = group_help if isinstance(found, Group) else command_help
        return help_text(describe(found, f"dslaunch {name}"), width)
    outer, _, inner = name.partition(" ")
    group = load(outer) if outer in NAMES else None
    if isinstance(group, Group):
        if inner in group.commands:
            return help_text(command_help(group.commands[inner], f"dslaunch {name}"), width)
        raise unknown_command(f"dslaunch {outer}", inner, group.commands)
    raise unknown_command("dslaunch", name, NAMES)
