"""Shell text as values: words, their expansions, and their places in the file.

The text that one shell passes to another (`bash -c "..."`) is the result of the expansions of the
first shell. Every character keeps its place in the file, and an expansion of the first shell stays
one piece, so it is not parsed as text of the second one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct, field

HELD = "\ue000"
"""The placeholder in a `Text` for an expansion of an outer shell."""
NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")


class ShellText(Struct, frozen=True):
    """Shell text with the place of each character in the file."""

    chars: str
    places: Sequence[int]
    """One more than characters: the last is the end."""
    held: Mapping[int, Expansion] = field(default_factory=dict)
    """The expansions of the `HELD` characters, by index."""

    @classmethod
    def of_file(cls, text: str) -> ShellText:
        """Return the text of a file, with Unix line endings."""
        text = text.replace(HELD, "?")
        if "\r\n" not in text:
            return cls(text, range(len(text) + 1))
        kept = [at for at in range(len(text)) if not text.startswith("\r\n", at)]
        return cls("".join(text[at] for at in kept), (*kept, len(text)))

    def part(self, start: int, end: int) -> ShellText:
        """Return the part from one index to another."""
        few = range(start, end) if end - start < len(self.held) else self.held
        held = {at - start: self.held[at] for at in few if start <= at < end and at in self.held}
        return ShellText(self.chars[start:end], self.places[start : end + 1], held)

    def pieces(self) -> Iterator[Piece]:
        """Return the text as pieces of a word in single quotes, with held expansions between
        them."""
        at = 0
        for end in (*sorted(self.held), len(self.chars)):
            if end > at:
                yield Literal(self.chars[at:end], tuple(self.places[at:end]), "'")
            if end in self.held:
                yield self.held[end]
            at = end + 1

    def raw(self, start: int, end: int) -> str:
        """The text with the expansions as written."""
        parts = (self.held[i].raw if i in self.held else self.chars[i] for i in range(start, end))
        return "".join(parts)


class Expansion(Struct, frozen=True):
    """An expansion: `$NAME`, `${NAME:-word}`, `$(command)`, `$((sum))`, backquotes."""

    raw: str
    place: int
    shell: int
    """The shell that expands it: 0 is that of the batch script, 1 one that it starts, and so on."""
    quoted: bool
    """Whether it is in double quotes, so that the result is not split."""
    commands: ShellText | None = None
    """The commands in `$(...)`, backquotes and `<(...)`."""
    within: tuple[Expansion, ...] = ()
    """The expansions in the second half of `${NAME:-...}`."""

    @property
    def name(self) -> str:
        """The name of the variable; empty for commands and arithmetic."""
        if self.commands is not None or self.raw.startswith("$(("):
            return ""
        found = NAME.search(self.raw[1:].lstrip("{!#"))
        return found[0] if found and self.raw[1:].lstrip("{!#").startswith(found[0]) else ""

    @property
    def operation(self) -> str:
        """The text after the name in braces, such as `:-localhost`."""
        if not self.name or not self.raw.startswith("${"):
            return ""
        return self.raw[self.raw.index(self.name) + len(self.name) : -1]

    @property
    def names(self) -> tuple[str, ...]:
        """All variables in it, also within arithmetic and commands."""
        sums = NAME.findall(self.raw) if self.raw.startswith("$((") else []
        return tuple(dict.fromkeys([*sums, *re.findall(r"\$\{?([A-Za-z_]\w*)", self.raw)]))


class Literal(Struct, frozen=True):
    """Literal characters."""

    text: str
    places: tuple[int, ...]
    quote: str
    """The quotes around them; a backslash for one character; empty for none."""


Piece = Literal | Expansion


class Word(Struct, frozen=True, dict=True):
    """One word of a command line."""

    pieces: tuple[Piece, ...]
    place: int
    end: int
    """The place after its last character."""
    array: tuple[Word, ...] | None = None
    """The elements in `NAME=(...)`."""

    @cached_property
    def value(self) -> str:
        """The value without quotes, with expansions as written."""
        return "".join(p.text if isinstance(p, Literal) else p.raw for p in self.pieces)

    @cached_property
    def expansions(self) -> tuple[Expansion, ...]:
        """The expansions in it, also within `${NAME:-...}`."""
        own = (piece for piece in self.pieces if isinstance(piece, Expansion))
        return tuple(found for piece in own for found in (piece, *piece.within))

    @cached_property
    def constant(self) -> str | None:
        """Its value, if it has no expansions."""
        return None if self.expansions else self.value

    @property
    def bare(self) -> str:
        """Its value, if nothing in it is quoted or expanded: it may be a keyword."""
        plain = all(isinstance(piece, Literal) and not piece.quote for piece in self.pieces)
        return self.value if plain else ""

    def behind(self, count: int) -> Word:
        """Return the word without the first `count` characters of its literal beginning."""
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
        """Return the word as text for another shell."""
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


class Assignment(Struct, frozen=True):
    """`NAME=value`, before a command, alone, or after `export` and similar commands."""

    name: str
    value: Word
    append: bool
    exported: bool
    place: int


def assignment(word: Word, *, exported: bool = False) -> Assignment | None:
    """Return the assignment in a word; None: it is not one."""
    first = word.pieces[0] if word.pieces else None
    if not isinstance(first, Literal) or first.quote:
        return None
    match = ASSIGNED.match(first.text)
    if match is None:
        return None
    value = word.behind(match.end())
    return Assignment(match[1], value, bool(match[2]), exported, word.place)


class ShellCommand(Struct):
    """A simple command: assignments, words, and its context."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    place: int
    end: int
    operator: str = ""
    """The operator after it: `|`, `&&`, `||`, `&`, `;`, a newline, a closing parenthesis."""
    before: str = ""
    """The operator before it."""
    keyword: str = ""
    """The reserved word before it: if, while, until, then, do, !..."""
    depth: int = 0
    """The number of enclosing ifs, loops, groups and functions."""
    shell: int = 0
    document: ShellText | None = None
    """Its here-document."""
    outside: bool = False
    """Whether it runs only outside a job, as after `[ -z "$SLURM_JOB_ID" ] &&`."""
    function: str = ""
    """The function that contains it."""

    @property
    def name(self) -> str:
        """The name of the program, without its directory; empty: unknown."""
        first = self.words[0].constant if self.words else None
        return first.rpartition("/")[2] if first else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words after the name of the program."""
        return tuple(word.value for word in self.words[1:])

    @property
    def tested(self) -> bool:
        """Whether the script tests its exit code."""
        is_condition = self.keyword in ("if", "elif", "while", "until", "!")
        return is_condition or self.operator in ("&&", "||")

    def all_assignments(self) -> Iterator[Assignment]:
        """Return its assignments, also those of `export`, `declare` and similar commands."""
        yield from self.assignments
        if self.name in ("export", "declare", "local", "readonly", "typeset"):
            exported = self.name == "export" or "-x" in self.arguments
            found = (assignment(word, exported=exported) for word in self.words[1:])
            yield from (one for one in found if one)

    def expansions(self) -> Iterator[Expansion]:
        """Yield the expansions in all its words."""
        for word in self.all_words():
            yield from word.expansions

    def all_words(self) -> Iterable[Word]:
        """Yield its words, and the values of assignments and arrays."""
        for one in self.assignments:
            yield one.value
            yield from one.value.array or ()
        for word in self.words:
            yield word
            yield from word.array or ()
