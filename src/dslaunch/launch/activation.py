"""What an activate line uses: read to explain why it failed, never to decide whether it did."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

LONGEST = 4096
"""Characters of a line that are read."""
_SOURCES = ("source", ".")
_OPERATORS = frozenset(";&|\n(){}")
_REDIRECTED = re.compile(r"[0-9]?[<>]&[0-9-]|&>")
_PREFIXES = frozenset(
    ("{", "}", "(", ")", "!", "then", "do", "else", "if", "eval", "exec", "command")
)


@dataclass(frozen=True, slots=True)
class Used:
    """The commands of a shell line, by their names, and the files that it reads into the shell."""

    commands: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def used(line: str) -> Used:
    """Return what a shell line plainly names; words with `$`, `*` or quotes that do not end are
    left out, since only the shell knows what they mean."""
    commands, files = [], []
    for words in _commands(line[:LONGEST]):
        name, *rest = words
        if not _plain(name):
            continue
        if name in _SOURCES and rest:
            files += rest[:1] if _plain(rest[0]) else []
        else:
            commands.append(name)
    return Used(tuple(dict.fromkeys(commands)), tuple(dict.fromkeys(files)))


def _commands(line: str) -> list[list[str]]:
    """The words of each simple command."""
    text = _REDIRECTED.sub(" ", line).replace("\n", " ; ")
    reader = shlex.shlex(text, posix=True, punctuation_chars=";&|()")
    reader.whitespace_split = True
    found: list[list[str]] = [[]]
    try:
        for word in reader:
            if word and set(word) <= _OPERATORS:
                found.append([])
            elif found[-1] or not (word in _PREFIXES or _assignment(word)):
                found[-1].append(word)
    except ValueError:  # a quotation that does not end
        return []
    return [words for words in found if words]


def _assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _plain(word: str) -> bool:
    return bool(word) and not set("$`*?[<>") & set(word)
