"""A parsed batch script: directives, commands, variables, shell settings."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from dslaunch.lint import Edit, Level, Remark
from dslaunch.slurm.directive_lines import DIRECTIVE, DirectiveLine, line_at
from dslaunch.slurm.grammar import Option
from dslaunch.slurm.shell_parser import expansion_commands, inner_commands, read
from dslaunch.slurm.shell_words import (
    Assignment,
    Expansion,
    Literal,
    Piece,
    ShellCommand,
    ShellText,
    Word,
)
from dslaunch.slurm.states import whole_number

BLOCK = re.compile(r"(?<!\$)\{%[^{}]*%\}")
INSERTED = re.compile(r"\{\{[^{}\n]*\}\}")
"""Jinja's control blocks and expressions."""
HETEROGENEOUS = ("hetjob", "packjob")
ALL_ELEMENTS = ("${%s[@]}", "${%s[*]}")
SHELLS = ("bash", "sh", "dash", "ksh", "zsh")
"""The interpreters whose language is parsed."""
DEEPEST = 8
"""The maximum depth of variables in values of variables, which may be circular."""
MOST_EXPANDED = 100_000
"""The maximum of characters and pieces of all expansions: a few lines can expand to billions.
Further variables are not expanded."""


@dataclass
class Script:
    """One script. `file` is its name in remarks."""

    text: str
    file: str
    directory_exists: Callable[[str], bool]
    """Returns whether a directory exists, relative to where the job is submitted."""
    begins: list[int] = field(init=False)
    lines: tuple[DirectiveLine, ...] = field(init=False)
    late: tuple[DirectiveLine, ...] = field(init=False)
    """Directives after the first command, which SLURM ignores."""
    commands: list[ShellCommand] = field(init=False)
    """The commands that may run in a job, in the order of the text."""
    functions: dict[str, list[ShellCommand]] = field(init=False)
    """The commands of each function that the shell of the batch script may call."""
    assigned: dict[str, list[Assignment]] = field(init=False)
    blanked: bool = field(init=False, default=False)
    """Whether control blocks of a template were removed."""
    left: int = field(init=False, default=MOST_EXPANDED)
    """What remains of MOST_EXPANDED."""

    def __post_init__(self) -> None:
        self.blanked = BLOCK.search(self.text) is not None
        self.text = _glued(self.text)
        self.begins = [0, *(match.end() for match in re.finditer("\n", self.text))]
        is_shell = self.interpreter in SHELLS  # a batch script may be Python
        every = read(ShellText.of_file(self.text)) if is_shell else []
        self._set_directives(every)
        self._set_commands(every)

    def _set_directives(self, commands: list[ShellCommand]) -> None:
        """Note the directives before and after the first command."""
        begins = [begin for begin in self.begins if DIRECTIVE.match(self.text, begin)]
        found = [line_at(self.text, begin) for begin in begins]
        first = min((command.place for command in commands), default=len(self.text))
        self.lines = tuple(line for line in found if line.place < first)
        behind = [line for line in found if line.place > first]
        words = [extent for command in commands for extent in _extents(command)]
        self.late = tuple(line for line in behind if not _is_within(line.place, words))

    def _set_commands(self, commands: list[ShellCommand]) -> None:
        """Note the commands that may run in the job, by function too, and their assignments."""
        sent = _sent_functions(commands)
        self.commands = [
            command for command in commands if not command.outside and command.function not in sent
        ]
        self.functions = {}
        self.assigned = {}
        for command in self.commands:
            if command.function:
                self.functions.setdefault(command.function, []).append(command)
            for one in command.all_assignments():
                self.assigned.setdefault(one.name, []).append(one)

    @property
    def is_template(self) -> bool:
        """Whether it is a template of a script."""
        return self.blanked or any("{{" in self.text[line.place : line.end] for line in self.lines)

    @property
    def interpreter(self) -> str:
        """The interpreter of its first line, without its directory; bash if there is none."""
        first = self.text.partition("\n")[0]
        words = [word.rpartition("/")[2] for word in first.removeprefix("#!").split()]
        programs = [word for word in words if word != "env" and word[:1] != "-"]
        return programs[0] if first.startswith("#!") and programs else "bash"

    # ------------------------------------------------------------ directives

    @cached_property
    def options(self) -> dict[str, Option]:
        """The options of the directives; of two equal ones, the last."""
        return {option.name: option for line in self.lines for option in line.options}

    @property
    def heterogeneous(self) -> bool:
        """Whether it is a heterogeneous job, with directives for each component."""
        return any(stray.value in HETEROGENEOUS for line in self.lines for stray in line.strays)

    def option_text(self, name: str) -> str:
        """Return the value of an option; empty if it is missing or has none."""
        return self.options[name].text if name in self.options else ""

    def number(self, name: str) -> int | None:
        """Return the value of an option, if it is a number."""
        return None if self.heterogeneous else whole_number(self.option_text(name))

    @property
    def several_nodes(self) -> bool:
        """Whether the job has more than one node, certainly or very likely."""
        nodes = self.option_text("nodes")
        if nodes or self.heterogeneous:
            return nodes != "1"
        tasks = self.number("ntasks")
        if tasks is not None:
            # SLURM fills a node before it allocates another
            return tasks > (self.number("ntasks-per-node") or 1)
        return re.search(r"SLURM_(NNODES|JOB_NUM_NODES|(JOB_)?NODELIST)", self.text) is not None

    # ------------------------------------------------------------ places

    def where(self, place: int) -> tuple[int, int]:
        """Return line and column of a place, from 1."""
        line = bisect.bisect_right(self.begins, place)
        return line, place - self.begins[line - 1] + 1

    def remark(
        self,
        rule: str,
        level: Level,
        place: int,
        message: str,
        *,
        fix: str | None = None,
        source: str | None = None,
        edits: tuple[Edit, ...] = (),
    ) -> Remark:
        """Return a finding about a place."""
        line, column = self.where(place)
        return Remark(
            rule=rule,
            level=level,
            file=self.file,
            line=line,
            column=column,
            path="",
            message=message,
            fix=fix,
            source=source,
            edits=edits,
        )

    # ------------------------------------------------------------ commands and variables

    @cached_property
    def every_command(self) -> tuple[ShellCommand, ...]:
        """The commands of the script, and those within `$(...)`."""
        own = ((command, *inner_commands(command)) for command in self.commands)
        return tuple(chain.from_iterable(own))

    def setting(self, letter: str, name: str, place: int) -> bool:
        """Return whether an option of `set` is on at a place, such as ("e", "errexit")."""
        shebang = self.text.partition("\n")[0].split()[1:]
        on = any(re.fullmatch(rf"-[a-z]*{letter}[a-z]*", word) for word in shebang if letter)
        for command in self.commands:
            if command.name == "set" and command.place < place:
                on = _set(command.arguments, letter, name, on=on)
        return on

    @cached_property
    def exports(self) -> frozenset[str]:
        """The variables that are exported by name."""
        commands = (c for c in self.commands if c.name in ("export", "declare"))
        named = {word for command in commands for word in command.arguments}
        every = (one for assignments in self.assigned.values() for one in assignments)
        return frozenset(named | {one.name for one in every if one.exported})

    def last(self, name: str, place: int) -> Assignment | None:
        """Return the last assignment of a variable before a place."""
        every = self.assigned.get(name, [])
        at = bisect.bisect_left(every, place, key=lambda one: one.place)
        return every[at - 1] if at else None

    def exported(self, name: str) -> bool:
        """Return whether a variable is exported, by name or by `set -a`."""
        return name in self.exports or self.setting("a", "allexport", len(self.text))

    @property
    def exhausted(self) -> bool:
        """Whether MOST_EXPANDED was reached, so that the rest is not expanded."""
        return self.left <= 0

    def constant(self, word: Word | None, depth: int = 0) -> str | None:
        """Return the constant value of a word, with variables that have a constant value; None:
        unknown."""
        if word is None or depth > DEEPEST:
            return None
        parts: list[str] = []
        for piece in word.pieces:
            text = self._constant_piece(piece, depth)
            if text is None:
                return None
            parts.append(text)
        return "".join(parts)

    def _constant_piece(self, piece: Piece, depth: int) -> str | None:
        if not self._spend(piece):
            return None
        if isinstance(piece, Literal):
            return piece.text
        given = None if piece.operation else self.last(piece.name, piece.place)
        if given is None or given.append or len(self.assigned[piece.name]) > 1:
            return None
        return self.constant(given.value, depth + 1)

    def expanded(self, words: tuple[Word, ...]) -> tuple[Word, ...]:
        """Return words with variables expanded, also exported ones on a node: unquoted ones are
        split at blanks, `"${ARRAY[@]}"` becomes a word per element."""
        return tuple(result for word in words for result in self._expanded(word, 0))

    def _expanded(self, word: Word, depth: int) -> Iterator[Word]:
        array = self._array(word)
        if array is not None and depth < DEEPEST and self.left > 0:
            for element in array:
                yield from self._expanded(element, depth + 1)
            return
        pieces = [result for piece in word.pieces for result in self._pieces(piece, depth)]
        yield from _split(pieces, word)

    def _array(self, word: Word) -> tuple[Word, ...] | None:
        """Return the elements of the array of which a word has all; None: it is another word."""
        piece = word.pieces[0] if len(word.pieces) == 1 else None
        if not isinstance(piece, Expansion) or not piece.name or piece.shell != 0:
            return None
        if piece.raw not in [form % piece.name for form in ALL_ELEMENTS]:
            return None
        given = self.last(piece.name, piece.place)
        if given is None or given.value.array is None:
            return None
        elements: list[Word] = []
        for one in self._since_set(piece.name, piece.place):
            self.left -= len(one.value.array or ())
            elements += one.value.array or ()
        return tuple(elements)

    def _since_set(self, name: str, place: int) -> list[Assignment]:
        """Return the assignments of a variable before a place: the last `=`, and every `+=` after
        it."""
        every = self.assigned.get(name, [])
        last = first = bisect.bisect_left(every, place, key=lambda one: one.place)
        while first and self.left > 0:
            first -= 1
            self.left -= 1
            if not every[first].append:
                break
        return every[first:last]

    def _spend(self, piece: Piece) -> bool:
        """Count a piece of an expansion; return False if MOST_EXPANDED is exceeded."""
        self.left -= 1 + (len(piece.text) if isinstance(piece, Literal) else 0)
        return self.left > 0

    def _pieces(self, piece: Piece, depth: int) -> Iterator[Piece]:
        """Yield what a piece becomes when variables are expanded; itself if that is unknown."""
        if not self._spend(piece) or not isinstance(piece, Expansion):
            yield piece
            return
        document = _document(piece)
        if document is not None:
            self.left -= len(document.chars)
            yield from document.pieces()
            return
        values = self._values(piece) if depth <= DEEPEST else ()
        if not values:
            yield piece
            return
        quote = '"' if piece.quoted else "split"
        inner = (inside for value in values for inside in value.pieces)
        for inside in inner:
            for result in self._pieces(inside, depth + 1):
                if isinstance(result, Literal):
                    yield Literal(result.text, result.places, quote)
                else:
                    yield result

    def _values(self, piece: Expansion) -> tuple[Word, ...]:
        """Return the words of which the value of a variable consists: those of its last `=`, and of
        a `+=` right after it. Empty: it is unknown, or an array."""
        if not piece.name or piece.operation:
            return ()
        is_seen = piece.shell == 0 or self.exported(piece.name)
        if not is_seen:
            return ()
        given = self.last(piece.name, piece.place)
        if given is None or given.value.array is not None:
            return ()
        before = self.last(given.name, given.place) if given.append else None
        return (given.value,) if before is None else (before.value, given.value)


def _document(expansion: Expansion) -> ShellText | None:
    """Return the here-document of `$(cat <<END ...)`, which is its whole output."""
    if "<<" not in expansion.raw:
        return None
    commands = expansion_commands(expansion)
    alone = len(commands) == 1 and commands[0].name == "cat" and not commands[0].arguments
    return commands[0].document if alone else None


def _glued(text: str) -> str:
    """Return the text of a template with every placeholder as one word, and without control blocks;
    all places stay the same."""
    text = BLOCK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return INSERTED.sub(lambda match: re.sub(r"\s", "_", match[0]), text)


def _sent_functions(commands: list[ShellCommand]) -> set[str]:
    """Return the functions that are passed to shells on the nodes, by `export -f` or `declare
    -f`."""
    defined = {command.function for command in commands}
    sent: set[str] = set()
    for command in commands:
        for one in (command, *inner_commands(command)):
            flags = one.arguments[:1]
            if one.name in ("export", "declare", "typeset") and flags and "f" in flags[0]:
                sent |= defined & set(one.arguments[1:])
    return sent


def _extents(command: ShellCommand) -> Iterator[tuple[int, int]]:
    """Return where the words and the here-document of a command are: a `#` there is not a
    comment."""
    yield command.place, command.end
    if command.document is not None:
        yield command.document.places[0], command.document.places[-1]


def _is_within(place: int, extents: list[tuple[int, int]]) -> bool:
    return any(begin <= place < end for begin, end in extents)


def _set(arguments: tuple[str, ...], letter: str, name: str, *, on: bool) -> bool:
    for option, value in zip(arguments, (*arguments[1:], ""), strict=True):
        if not re.fullmatch(r"[-+][a-zA-Z]+", option):
            continue
        named = "o" in option and value == name
        if named or (letter and letter in option[1:]):
            on = option[0] == "-"
    return on


def _split(pieces: list[Piece], word: Word) -> Iterator[Word]:
    """Split at blanks from unquoted variables."""
    current: list[Piece] = []
    for piece in pieces:
        if not (isinstance(piece, Literal) and piece.quote == "split"):
            current.append(piece)
            continue
        at = 0
        for match in re.finditer(r"\s+|$", piece.text):
            if match.start() > at:
                part = slice(at, match.start())
                current.append(Literal(piece.text[part], piece.places[part], ""))
            if match[0] and current:
                yield _word(current, word)
                current = []
            at = match.end()
    if current:
        yield _word(current, word)
    elif not pieces:
        yield word


def _word(pieces: list[Piece], word: Word) -> Word:
    first = pieces[0]
    if isinstance(first, Expansion):
        place = first.place
    else:
        place = first.places[0] if first.places else word.place
    return Word(tuple(pieces), place, word.end)
