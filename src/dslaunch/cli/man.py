"""The man pages, one for each command, from the same values as `--help`.

`python -m dslaunch.cli.man DIRECTORY` writes them. The markup is that of man(7).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer

from dslaunch import __version__
from dslaunch.cli import ui
from dslaunch.cli.command_help import CommandHelp, ParameterHelp, every_help, paragraphs
from dslaunch.cli.main import app

SECTION = 1
EXIT_CODES: Mapping[int, str] = {
    0: "Success.",
    1: "An error without its own code.",
    2: "The command line is wrong.",
    3: "A file or a selection is wrong, or they do not fit together.",
    4: "A check failed.",
    5: "Nodes were unreachable, or were lost during the run.",
    6: "A required program is not installed, or a plugin is broken.",
    130: "Interrupted by Ctrl-C.",
    141: "The reader of the output exited.",
}
"""The exit codes of all commands; `run` and `slurm` also exit with the code of a rank or job."""


def pages() -> dict[str, str]:
    """Return the text of every page by its file name, such as `dslaunch-config-lint.1`."""
    found = tuple(every_help(typer.main.get_command(app)))
    return {f"{page_name(each)}.{SECTION}": page(each, found) for each in found}


def page_name(command: CommandHelp) -> str:
    """Return the name of a command's page: its words with dashes, as git's pages have it."""
    return command.words.replace(" ", "-")


def page(command: CommandHelp, others: tuple[CommandHelp, ...]) -> str:
    """Return the page of a command; `others` are those that it may refer to."""
    name = page_name(command)
    lines = [
        f'.TH {_quoted(name.upper())} {SECTION} "{_date()}" "dslaunch {__version__}"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(command.summary)}",
        ".SH SYNOPSIS",
        *_synopsis(command),
        ".SH DESCRIPTION",
        _text(f"{command.summary}."),
    ]
    for text in paragraphs(command.details):
        lines += [".PP", _text(text)]
    for title, commands in command.groups:
        lines += [f".SH {_quoted(title.upper())}"]
        for word, summary in commands:
            lines += [".TP", f"\\fB{_text(word)}\\fR", _text(f"{summary}.")]
    lines += _parameters("ARGUMENTS", command.arguments)
    lines += _parameters("OPTIONS", command.options)
    lines += [".SH EXIT STATUS", *_exit_status()]
    if command.example:
        lines += [".SH EXAMPLE", ".nf", f".B {_text(command.example)}", ".fi"]
    lines += [".SH SEE ALSO", ",\n".join(_related(command, others))]
    return "\n".join(lines) + "\n"


def _synopsis(command: CommandHelp) -> Iterator[str]:
    rest = command.usage.removeprefix(command.words).strip()
    yield f".B {_text(command.words)}"
    if rest:
        yield _text(rest)


def _parameters(title: str, parameters: tuple[ParameterHelp, ...]) -> Iterator[str]:
    if parameters:
        yield f".SH {title}"
    for each in parameters:
        names = ", ".join(f"\\fB{_text(name)}\\fR" for name in each.names)
        metavar = f"\\fI{_text(each.metavar)}\\fR" if each.metavar else ""
        yield from (".TP", " ".join(filter(None, (names, metavar))), _text(each.description))


def _exit_status() -> Iterator[str]:
    for code, meaning in EXIT_CODES.items():
        yield from (".TP", f"\\fB{code}\\fR", _text(meaning))


def _related(command: CommandHelp, others: tuple[CommandHelp, ...]) -> Iterator[str]:
    """Yield the pages of the commands above, beside and below a command."""
    outer = command.words.rpartition(" ")[0]
    for each in others:
        above = each.words == outer
        below = each.words.rpartition(" ")[0] == command.words
        beside = outer not in ("", "dslaunch") and each.words.rpartition(" ")[0] == outer
        if each is not command and (above or below or beside):
            yield f"\\fB{_text(page_name(each))}\\fR({SECTION})"
    if command.words == "dslaunch":
        yield "\\fBssh\\fR(1)"


def _text(text: str) -> str:
    """Return text without effective markup: no escape, no request, hyphens that can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _quoted(text: str) -> str:
    """Return text as one argument of a request."""
    return '"' + _text(text).replace('"', '""') + '"'


def _date() -> str:
    """Return the day of the release: that of `SOURCE_DATE_EPOCH`, so that builds are the same."""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def write(directory: Path) -> None:
    """Write all pages into a directory, which is created."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text, "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    ui.say(f"wrote {sys.argv[1]}")
