"""Shell text as values: what a word says, what a shell replaces in it, and where it stands.

A text that one shell hands to another (`bash -c "..."`) is put together from what the first
shell makes of it; every character keeps its place in the file, and what the first shell has
replaced already stays one piece, so that nobody takes it for the second one's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

HELD = "\ue000"
"""Stands in a `Text` for one expansion that an outer shell has made."""
NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")


@dataclass(frozen=True, slots=True)
class ShellText:
    """Characters of shell text, and the place of each in the file."""

    chars: str
    places: Sequence[int]
    """One more than characters: the last is the end."""
    held: Mapping[int, Expansion] = field(default_factory=dict)
    """The expansions that `HELD` characters stand for, by index."""

    @classmethod
    def of_file(cls, text: str) -> ShellText:
        """A whole file; of its DOS line ends, only what a shell would want to see."""
        text = text.replace(HELD, "?")
        if "\r\n" not in text:
            return cls(text, range(len(text) + 1))
        kept = [at for at in range(len(text)) if not text.startswith("\r\n", at)]
        return cls("".join(text[at] for at in kept), (*kept, len(text)))

    def part(self, start: int, end: int) -> ShellText:
        """From one index to another."""
        few = range(start, end) if end - start < len(self.held) else self.held
        held = {at - start: self.held[at] for at in few if start <= at < end and at in self.held}
        return ShellText(self.chars[start:end], self.places[start : end + 1], held)

    def pieces(self) -> Iterator[Piece]:
        """As pieces of a word in single quotes, with what is held in between."""
        at = 0
        for end in (*sorted(self.held), len(self.chars)):
            if end > at:
                yield Literal(self.chars[at:end], tuple(self.places[at:end]), "'")
            if end in self.held:
                yield self.held[end]
            at = end + 1

    def raw(self, start: int, end: int) -> str:
        """As a person would write it."""
        parts = (self.held[i].raw if i in self.held else self.chars[i] for i in range(start, end))
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a shell replaces: `$NAME`, `${NAME:-word}`, `$(command)`, `$((sum))`, backquotes."""

    raw: str
    place: int
    shell: int
    """Which shell does it: 0 is the batch script's own, 1 one that it starts, and so on."""
    quoted: bool
    """Whether in double quotes, where the result stays one word."""
    commands: ShellText | None = None
    """What is run, in `$(...)`, backquotes and `<(...)`."""
    within: tuple[Expansion, ...] = ()
    """What is replaced in the second half of `${NAME:-...}`."""

    @property
    def name(self) -> str:
        """The variable's; empty for commands and sums."""
        if self.commands is not None or self.raw.startswith("$(("):
            return ""
        found = NAME.search(self.raw[1:].lstrip("{!#"))
        return found[0] if found and self.raw[1:].lstrip("{!#").startswith(found[0]) else ""

    @property
    def operation(self) -> str:
        """What follows the name in braces, such as `:-localhost`."""
        if not self.name or not self.raw.startswith("${"):
            return ""
        return self.raw[self.raw.index(self.name) + len(self.name) : -1]

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable that it takes, within sums and commands too."""
        sums = NAME.findall(self.raw) if self.raw.startswith("$((") else []
        return tuple(dict.fromkeys([*sums, *re.findall(r"\$\{?([A-Za-z_]\w*)", self.raw)]))


@dataclass(frozen=True, slots=True)
class Literal:
    """Characters that stand for themselves."""

    text: str
    places: tuple[int, ...]
    quote: str
    """The quotes around them; a backslash for one character; empty for none."""


Piece = Literal | Expansion


@dataclass(frozen=True)
class Word:
    """One word of a command line."""

    pieces: tuple[Piece, ...]
    place: int
    end: int
    """The place behind its last character."""
    array: tuple[Word, ...] | None = None
    """The elements in `NAME=(...)`."""

    @cached_property
    def value(self) -> str:
        """What it says, with quotes removed and expansions as they are written."""
        return "".join(p.text if isinstance(p, Literal) else p.raw for p in self.pieces)

    @cached_property
    def expansions(self) -> tuple[Expansion, ...]:
        """What shells replace in it, within `${NAME:-...}` too."""
        own = (piece for piece in self.pieces if isinstance(piece, Expansion))
        return tuple(found for piece in own for found in (piece, *piece.within))

    @cached_property
    def constant(self) -> str | None:
        """Its value, if no shell replaces anything."""
        return None if self.expansions else self.value

    @property
    def bare(self) -> str:
        """Its value if nothing in it is quoted or replaced: what may be a keyword."""
        plain = all(isinstance(piece, Literal) and not piece.quote for piece in self.pieces)
        return self.value if plain else ""

    def behind(self, count: int) -> Word:
        """Without the first `count` characters of its literal beginning."""
        pieces: list[Piece] = []
        for piece in self.pieces:
            if count and isinstance(piece, Literal):
                cut = min(count, len(piece.text))
                count -= cut
                if cut < len(piece.text):
                    rest = piece.text[cut:], piece.places[cut:]
                    pieces.append(Literal(*rest, piece.quote))
            else:
                pieces.append(piece)
        place = next((at for piece in pieces for at in _places(piece)), self.end)
        return Word(tuple(pieces), place, self.end, self.array)

    def text(self) -> ShellText:
        """As text for another shell."""
        chars: list[str] = []
        places: list[int] = []
        held: dict[int, Expansion] = {}
        for piece in self.pieces:
            if isinstance(piece, Literal):
                chars += piece.text
                places += piece.places
            else:
                held[len(places)] = piece
                chars.append(HELD)
                places.append(piece.place)
        return ShellText("".join(chars), (*places, self.end), held)


def _places(piece: Piece) -> tuple[int, ...]:
    return piece.places[:1] if isinstance(piece, Literal) else (piece.place,)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`NAME=value`, before a command, alone, or behind `export` and its like."""

    name: str
    value: Word
    append: bool
    exported: bool
    place: int


def assignment(word: Word, *, exported: bool = False) -> Assignment | None:
    """The assignment that a word is, if it is one."""
    first = word.pieces[0] if word.pieces else None
    if not isinstance(first, Literal) or first.quote:
        return None
    match = ASSIGNED.match(first.text)
    if match is None:
        return None
    value = word.behind(match.end())
    return Assignment(match[1], value, bool(match[2]), exported, word.place)


@dataclass(slots=True)
class ShellCommand:
    """A simple command: assignments, words, and what it is part of."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    place: int
    end: int
    operator: str = ""
    """What follows: `|`, `&&`, `||`, `&`, `;`, a line's end, a closing parenthesis."""
    before: str = ""
    """The operator in front of it."""
    keyword: str = ""
    """The reserved word in front of it: if, while, until, then, do, !..."""
    depth: int = 0
    """In how many ifs, loops, groups and functions it is."""
    shell: int = 0
    document: ShellText | None = None
    """Its here-document."""
    outside: bool = False
    """Whether it runs only outside of a job, as behind `[ -z "$SLURM_JOB_ID" ] &&`."""
    function: str = ""
    """The function whose body it is in."""

    @property
    def name(self) -> str:
        """The program's name, without its directory; empty when it is not known."""
        first = self.words[0].constant if self.words else None
        return first.rpartition("/")[2] if first else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """What follows the program's name."""
        return tuple(word.value for word in self.words[1:])

    @property
    def tested(self) -> bool:
        """Whether the script itself looks at its exit code."""
        is_condition = self.keyword in ("if", "elif", "while", "until", "!")
        return is_condition or self.operator in ("&&", "||")

    def all_assignments(self) -> Iterator[Assignment]:
        """Also those that `export`, `declare` and their like make."""
        yield from self.assignments
        if self.name in ("export", "declare", "local", "readonly", "typeset"):
            exported = self.name == "export" or "-x" in self.arguments
            found = (assignment(word, exported=exported) for word in self.words[1:])
            yield from (one for one in found if one)

    def expansions(self) -> Iterator[Expansion]:
        """What shells replace in all of its words."""
        for word in self.all_words():
            yield from word.expansions

    def all_words(self) -> Iterable[Word]:
        """Words, and the values of assignments and of arrays."""
        for one in self.assignments:
            yield one.value
            yield from one.value.array or ()
        for word in self.words:
            yield word
            yield from word.array or ()
