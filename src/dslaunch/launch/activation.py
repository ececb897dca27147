"""Parse an activate line, to explain why it failed; the exit code decides whether it failed."""

from __future__ import annotations

import re
import shlex

from msgspec import Struct

LONGEST = 4096
"""Number of characters of a line that are parsed."""
_SOURCES = ("source", ".")
_OPERATORS = frozenset(";&|\n(){}")
_REDIRECTED = re.compile(r"[0-9]?[<>]&[0-9-]|&>")
_PREFIXES = frozenset(
    ("{", "}", "(", ")", "!", "then", "do", "else", "if", "eval", "exec", "command")
)


class Used(Struct, frozen=True):
    """The names of the commands of a shell line, and the files that it sources."""

    commands: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def used(line: str) -> Used:
    """Return the commands and files of a shell line. Words with `$`, `*` or unclosed quotes are
    excluded, because only a shell can expand them."""
    commands, files = [], []
    for words in _commands(line[:LONGEST]):
        name, *rest = words
        if not _plain(name):
            continue
        if name in _SOURCES and rest:
            if _plain(rest[0]):
                files += rest[:1]
        else:
            commands.append(name)
    return Used(tuple(dict.fromkeys(commands)), tuple(dict.fromkeys(files)))


def _commands(line: str) -> list[list[str]]:
    """Return the words of each simple command."""
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
    except ValueError:  # an unclosed quote
        return []
    return [words for words in found if words]


def _assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _plain(word: str) -> bool:
    return bool(word) and not set("$`*?[<>") & set(word)
