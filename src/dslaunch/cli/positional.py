"""The positional arguments `[CLUSTER.yaml] [SCRIPT] [ARGS]...`, and values of `--env`. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE_ENDINGS = (".yaml", ".yml")
"""What the first word ends in if it is the cluster file."""


class MoreOptions(Exception):
    """Options follow dslaunch's own words: `dslaunch run c.yaml --nodes 2 train.py`.

    The option parser stops at the first word, because everything after the script belongs to the
    script. The caller parses `rest` again and puts `own` before the words that this gives.
    """

    def __init__(self, own: list[str], rest: list[str], unread: int) -> None:
        super().__init__(own, rest)
        self.own = own
        self.rest = rest
        self.unread = unread
        """Number of words at the end of the command line that were not parsed as options."""


def own_first(held: Sequence[str], words: Sequence[str], *, formats: int = 0) -> list[str]:
    """Return the words that were held back, then `words`.

    `formats` words before the cluster file are dslaunch's own, too. Raises MoreOptions when an
    option follows the own words, once for the same words.
    """
    given = [*held, *words]
    own = min(formats, len(given))
    own += own < len(given) and given[own].endswith(FILE_ENDINGS)
    if len(held) < own < len(given) and given[own].startswith("-"):
        raise MoreOptions(given[:own], given[own:], len(words))
    return given


def split_words(
    words: Sequence[str], file: Path | None = None
) -> tuple[Path | None, str | None, tuple[str, ...]]:
    """Split into cluster file, program and arguments; the file is recognized by its ending.

    `file` is that of `--cluster`. Raises UsageError for two files.
    """
    rest = list(words)
    if rest and rest[0].endswith(FILE_ENDINGS):
        first = Path(rest.pop(0))
        if file is not None:
            raise two_files(first, file)
        file = first
    program = rest.pop(0) if rest else None
    return file, program, tuple(rest)


def two_files(first: Path, second: Path) -> UsageError:
    """Return the error for a cluster file that is an argument and one of `--cluster`."""
    return UsageError(
        f"two cluster files: {first} and --cluster {second}", hint="remove one of them"
    )


def read_settings(settings: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Parse `NAME=VALUE` words; a bare `NAME` copies the caller's. Raises UsageError for all."""
    found, wrong = {}, []
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            wrong.append(f"--env {setting}: {name!r} is not a valid variable name")
        elif not equals and name not in environ:
            wrong.append(f"--env {name}: not set in your environment")
        else:
            found[name] = value if equals else environ[name]
    if wrong:
        raise UsageError("\n".join(wrong), hint="use --env NAME=VALUE")
    return found
