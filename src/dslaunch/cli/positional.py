"""The positional arguments `[CLUSTER.yaml] [SCRIPT] [ARGS]...`, and the options of a job. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dslaunch.launch.job import Kind

FILE_ENDINGS = (".yaml", ".yml")
"""What the first word ends in if it is the cluster file."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options that say how the program is run."""

    module: bool = False
    no_python: bool = False
    launcher: str | None = None
    env: tuple[str, ...] = ()
    """`NAME=VALUE`, or `NAME` to copy the caller's value."""
    fallback: str | None = None
    """The script where neither the words nor the cluster file name one; None: one is needed."""
    command: str = "run"
    """The command that is called, for its hints."""

    @property
    def kind(self) -> Kind:
        """What the script is. Raises UsageError."""
        if self.module and self.no_python:
            raise UsageError("--module and --no-python exclude each other")
        if self.module:
            return "module"
        return "command" if self.no_python else "script"


class MoreOptions(Exception):
    """Options stand behind words of dslaunch's own: `dslaunch run c.yaml --nodes 2 train.py`.

    The option parser stops at the first word, since what follows a script is the script's. Those
    who catch this parse `rest` again and put `own` in front of the words that this gives.
    """

    def __init__(self, own: list[str], rest: list[str], unread: int) -> None:
        super().__init__(own, rest)
        self.own = own
        self.rest = rest
        self.unread = unread
        """How many words at the end of the command line were not yet parsed as options."""


def own_first(held: Sequence[str], words: Sequence[str], *, formats: int = 0) -> list[str]:
    """Put the words that were held back in front of `words`.

    `formats` words before the cluster file are dslaunch's own, too. Raises MoreOptions when an
    option follows the own words, but not twice for the same ones.
    """
    given = [*held, *words]
    own = min(formats, len(given))
    own += own < len(given) and given[own].endswith(FILE_ENDINGS)
    if len(held) < own < len(given) and given[own].startswith("-"):
        raise MoreOptions(given[:own], given[own:], len(words))
    return given


def split_words(words: Sequence[str]) -> tuple[Path | None, str | None, tuple[str, ...]]:
    """Split into cluster file, program and arguments; the file is known by its ending."""
    rest = list(words)
    file = Path(rest.pop(0)) if rest and rest[0].endswith(FILE_ENDINGS) else None
    program = rest.pop(0) if rest else None
    return file, program, tuple(rest)


def read_settings(settings: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Read `NAME=VALUE` words; a bare `NAME` copies the caller's. Raises UsageError for all."""
    found, wrong = {}, []
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            wrong.append(f"--env: {name!r} is no name of a variable")
        elif not equals and name not in environ:
            wrong.append(f"--env: {name} is not set in your environment")
        else:
            found[name] = value if equals else environ[name]
    if wrong:
        raise UsageError("\n".join(wrong), hint="write --env NAME=VALUE")
    return found
