"""The help of the commands as values, and as text for a terminal.

The reference page and the man pages are made from the same values.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cli import ui
from dslaunch.cli.commands import ENTRIES, CommandKind, Group, leaves

PROGRAM = "dslaunch"
EXAMPLE = "Example: "
"""What the last line of a command's docstring starts with."""
USUAL_WIDTH, WIDEST = 80, 100
"""Columns of the help outside a terminal, and on a wide one."""
MOST_INDENT = 32
"""Columns before an option's description; a longer option gets its own line."""


class ParameterHelp(Struct, frozen=True):
    """An option or an argument."""

    names: tuple[str, ...]
    """The spellings of an option, the short one first; empty: an argument."""
    metavar: str
    """The placeholder of its value; empty: a flag."""
    text: str
    default: str = ""
    """Empty: none."""
    required: bool = False
    repeatable: bool = False

    @property
    def spelling(self) -> str:
        """Return for example `-N, --nodes N`."""
        return " ".join(filter(None, (", ".join(self.names), self.metavar)))

    @property
    def description(self) -> str:
        """Return the text, with the default and whether the option can be repeated."""
        notes = ["repeatable"] if self.repeatable else []
        if self.default:
            notes.append(f"default: {self.default}")
        return f"{self.text.removesuffix('.')} ({', '.join(notes)})." if notes else self.text


class CommandHelp(Struct, frozen=True):
    """The help of a command."""

    words: str
    """Such as `dslaunch config lint`."""
    summary: str
    """One line without a full stop."""
    details: str = ""
    """Paragraphs, separated by empty lines."""
    example: str = ""
    arguments: tuple[ParameterHelp, ...] = ()
    options: tuple[ParameterHelp, ...] = ()
    groups: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    """For a command with commands: a title and (name, summary) of each."""

    @property
    def usage(self) -> str:
        """Return for example `dslaunch nodes [OPTIONS] [CLUSTER.yaml]`."""
        if self.groups:
            return f"{self.words} [OPTIONS] COMMAND [ARGS]..."
        given = [_usage(argument) for argument in self.arguments]
        required = [
            f"{option.names[-1]} {option.metavar}" for option in self.options if option.required
        ]
        return " ".join([self.words, "[OPTIONS]", *required, *given])


def _usage(argument: ParameterHelp) -> str:
    if argument.required or argument.metavar.startswith(("[", "FORMAT")):
        return argument.metavar
    return f"[{argument.metavar}]"


# ---------------------------------------------------------------- from the commands


def command_help(command: Any, words: str) -> CommandHelp:
    """Return the help of a command; `words` is how it is called."""
    summary, details, example = _divided(inspect.cleandoc(command.help or ""))
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name != "argument"]
    return CommandHelp(
        words=words,
        summary=summary,
        details=details,
        example=example,
        arguments=tuple(map(_parameter, arguments)),
        options=(*map(_parameter, options), HELP_OPTION),
    )


def group_help(group: Any, words: str) -> CommandHelp:
    """Return the help of a command with subcommands."""
    listed = tuple(
        (name, _divided(inspect.cleandoc(inner.help or ""))[0])
        for name, inner in group.commands.items()
    )
    return replace(command_help(group, words), groups=(("Commands", listed),))


def program_help(program: Any, words: str) -> CommandHelp:
    """Return the help of the program: its commands in groups. Imports no command."""
    groups = tuple(
        (kind.value, tuple((each.name, each.summary) for each in ENTRIES if each.kind is kind))
        for kind in CommandKind
    )
    return replace(command_help(program, words), groups=groups)


def every_help(program: Any) -> Iterator[CommandHelp]:
    """Yield the help of the program, of its groups and of every command."""
    from dslaunch.cli.commands import NAMES, load

    yield program_help(program, PROGRAM)
    for name in NAMES:
        found = load(name)
        if isinstance(found, Group):
            yield group_help(found, f"{PROGRAM} {name}")
    for words, command in leaves():
        yield command_help(command, f"{PROGRAM} {words}")


HELP_OPTION = ParameterHelp(names=("-h", "--help"), metavar="", text="Show this help and exit.")


def _divided(text: str) -> tuple[str, str, str]:
    """Return the summary, the details and the example of a docstring."""
    about, _, example = text.partition(EXAMPLE)
    summary, _, details = about.strip().partition("\n\n")
    return " ".join(summary.split()).removesuffix("."), details.strip(), example.strip()


def _parameter(parameter: Any) -> ParameterHelp:
    if parameter.param_type_name == "argument":
        return ParameterHelp(
            names=(),
            metavar=parameter.metavar or parameter.name.upper(),
            text=parameter.help or "",
            default=_default(parameter),
            required=parameter.required,
        )
    flag = parameter.is_flag or parameter.count
    return ParameterHelp(
        names=tuple(sorted((*parameter.opts, *parameter.secondary_opts), key=_short_first)),
        metavar="" if flag else parameter.metavar or "",
        text=parameter.help or "",
        default="" if flag else _default(parameter),
        required=parameter.required,
        repeatable=bool(parameter.multiple),
    )


def _short_first(name: str) -> bool:
    return name.startswith("--")


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value == "" or callable(value) or not parameter.show_default:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------- as text


def help_width() -> int:
    """Return the columns for the help: those of the terminal, at most 100."""
    return min(ui.width() or USUAL_WIDTH, WIDEST)


def help_text(found: CommandHelp, width: int) -> str:
    """Return the help for a terminal of `width` columns."""
    parts = [
        textwrap.fill(f"Usage: {found.usage}", width, subsequent_indent=" " * 7),
        textwrap.fill(f"{found.summary}.", width),
        *(textwrap.fill(text, width) for text in paragraphs(found.details)),
    ]
    for title, commands in found.groups:
        parts.append(_section(title, commands, width))
    if found.arguments:
        rows = [(each.spelling, each.description) for each in found.arguments]
        parts.append(_section("Arguments", rows, width))
    rows = [(_indented(each), each.description) for each in found.options]
    parts.append(_section("Options", rows, width))
    if found.example:
        parts.append(f"{EXAMPLE}{found.example}")
    if found.groups:
        parts.append(f"Run `{found.words} COMMAND -h` for the options of a command.")
    return "\n\n".join(parts) + "\n"


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, each as one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _indented(option: ParameterHelp) -> str:
    """Return an option's spelling, with long names aligned."""
    return option.spelling if not option.names[0].startswith("--") else f"    {option.spelling}"


def _section(title: str, rows: Sequence[tuple[str, str]], width: int) -> str:
    """Return a title and two columns."""
    column = min(max(len(name) for name, _ in rows) + 4, MOST_INDENT)
    lines = [f"{title}:"]
    for name, text in rows:
        first = f"  {name}"
        wrapped = textwrap.wrap(
            text,
            max(width, column + 20),
            initial_indent=" " * column,
            subsequent_indent=" " * column,
            break_on_hyphens=False,
        )
        if len(first) + 2 <= column and wrapped:
            wrapped[0] = first.ljust(column) + wrapped[0][column:]
        else:
            lines.append(first)
        lines += wrapped
    return "\n".join(lines)
