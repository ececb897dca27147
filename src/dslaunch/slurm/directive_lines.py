"""The `#SBATCH` lines of a batch script, parsed by SLURM's rules."""

from __future__ import annotations

import re

from msgspec import Struct

from dslaunch.slurm.grammar import SBATCH, Option, options_of
from dslaunch.slurm.shell_words import Literal, Word

DIRECTIVE = re.compile(r"#SBATCH(?=\s|$)")


class DirectiveLine(Struct, frozen=True):
    """One `#SBATCH` line."""

    place: int
    end: int
    options: tuple[Option, ...]
    strays: tuple[Word, ...]
    """Words that are not options."""
    cut: int
    """The place of a `#` that starts a comment inside a word; -1 for none."""


def directive_line(directive: str) -> tuple[str, DirectiveLine]:
    """Parse the text after one `#SBATCH`; places are those in the returned text."""
    text = f"#SBATCH {directive}"
    return text, line_at(text, 0)


def line_at(text: str, begin: int) -> DirectiveLine:
    """Parse the directive that begins at a place of a text."""
    end = text.find("\n", begin)
    end = len(text) if end < 0 else end
    words, cut = _words(text, begin + len("#SBATCH"), end)
    options: list[Option] = []
    strays: list[Word] = []
    while words:
        found, used = options_of(words, SBATCH)
        options += found
        strays += words[used : used + 1]
        words = words[used + 1 :]
    return DirectiveLine(begin, end, tuple(options), tuple(strays), cut)


def _words(text: str, at: int, end: int) -> tuple[list[Word], int]:
    """Return the words of a directive by SLURM's rules, in which `#` starts a comment anywhere
    (src/sbatch/opt.c, _get_argument), and the place of a `#` right behind a word; -1 for none."""
    words: list[Word] = []
    while at < end and text[at] != "#":
        if text[at].isspace():
            at += 1
        else:
            words.append(_word(text, at, end))
            at = words[-1].end
    is_glued = at < end and not text[at - 1].isspace()
    return words, at if is_glued else -1


def _word(text: str, start: int, end: int) -> Word:
    """Return the word that begins at a place: with quotes and backslashes as in a shell, without
    expansions."""
    at = start
    quote = ""
    places: list[int] = []
    while at < end:
        char = text[at]
        if not quote and (char.isspace() or char == "#"):
            break
        if char == quote:
            quote = ""
        elif char in "'\"" and not quote:
            quote = char
        else:
            if char == "\\" and quote != "'" and at + 1 < end:
                at += 1  # the character after it stands for itself
            places.append(at)
        at += 1
    value = "".join(text[place] for place in places)
    return Word((Literal(value, tuple(places), ""),), start, at)
