"""A reader of shell text, for looking at scripts: commands, words, quotes and expansions.

It takes apart what a POSIX shell or bash would (POSIX.1-2017, Shell Command Language, 2.2 to 2.10;
bash's arrays, `$'...'` and `<(...)`), forgives what is incomplete, and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby

from dslaunch.slurm.words import (
    ASSIGNED,
    HELD,
    Command,
    Expansion,
    Literal,
    Piece,
    Text,
    Word,
    assignment,
)

OPERATOR = re.compile(r"\|\||\|&|\||&&|&>>?|;;&?|;&|;|<<<|<<-?|[<>]&|<>|>>|>\||[<>&()]")
DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*['\"]?(\w+)['\"]?")
REDIRECTS = {"<", ">", ">>", ">|", "<>", "<&", ">&", "&>", "&>>", "<<<", "<<", "<<-"}
VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
OPENS = {"if", "case", "do", "{"}
CLOSES = {"fi", "esac", "done", "}"}
RESERVED = OPENS | CLOSES | {"then", "elif", "else", "while", "until", "!", "time"}
ESCAPED_IN_QUOTES = '$`"\\\n'
UNQUOTED = re.compile(rf"[^\s\\'\"$`{HELD}|&;()<>#]*")
QUOTED = re.compile(rf"[^\\\"$`{HELD}]*")
"""Characters that mean nothing special, outside and inside double quotes."""
PAIRS = {"(": ")", "{": "}"}


def read(text: Text, shell: int = 0) -> list[Command]:
    """The simple commands of a text, in order, those of functions, ifs and loops too; those
    within `$(...)` are read from the `commands` of expansions."""
    return _Reader(text, shell).run()


def inner_commands(command: Command) -> Iterator[Command]:
    """The commands that are run while a command's words are put together."""
    for word in command.all_words():
        for expansion in word.expansions:
            if expansion.commands is not None:
                for found in read(expansion.commands, expansion.shell):
                    yield found
                    yield from inner_commands(found)


@dataclass(slots=True)
class _Draft:
    """A command that is being read."""

    words: list[Word] = field(default_factory=list)
    keyword: str = ""
    redirect: str = ""
    """The redirection whose target comes next."""


class _Reader:
    def __init__(self, text: Text, shell: int) -> None:
        self.text, self.chars, self.shell = text, text.chars, shell
        self.at = 0
        self.depth = 0
        self.before = ""
        self.draft = _Draft()
        self.found: list[Command] = []
        self.documents: list[tuple[_Draft, str, bool]] = []
        self.bodies: dict[int, Text] = {}
        self.drafts: list[_Draft] = []

    def run(self) -> list[Command]:
        while self.at < len(self.chars):
            self.step()
        self.finish("")
        for command, draft in zip(self.found, self.drafts, strict=True):
            command.document = self.bodies.get(id(draft))
        return self.found

    def step(self) -> None:
        char = self.chars[self.at]
        if char in " \t\r":
            self.at += 1
        elif self.chars.startswith("\\\n", self.at):
            self.at += 2
        elif char == "#":
            end = self.chars.find("\n", self.at)
            self.at = len(self.chars) if end < 0 else end
        elif char == "\n":
            self.at += 1
            self.finish("\n")
            self.read_documents()
        elif self.chars.startswith(("<(", ">("), self.at):
            self.take(self.word())
        elif match := OPERATOR.match(self.chars, self.at):
            self.operator(match)
        else:
            self.take(self.word())

    # ------------------------------------------------------------ commands

    def operator(self, match: re.Match[str]) -> None:
        operator = match[0]
        self.at = match.end()
        if operator in REDIRECTS:
            self.draft.redirect = operator
        elif operator == "(" and len(self.draft.words) == 1:  # NAME ( ): a function
            self.at = self.chars.find(")", self.at) + 1 or len(self.chars)
            self.draft = _Draft()
        else:
            self.finish(operator)
            self.depth = max(0, self.depth + {"(": 1, ")": -1}.get(operator, 0))

    def take(self, word: Word) -> None:
        draft = self.draft
        if draft.redirect:
            if draft.redirect in ("<<", "<<-"):
                quoted = not word.bare
                self.documents.append((draft, word.value, quoted))
            draft.redirect = ""
        elif self.chars[self.at : self.at + 1] in ("<", ">") and word.bare.isdigit():
            pass  # 2> and its like
        elif not draft.words and word.bare in RESERVED:
            self.depth = max(0, self.depth + (word.bare in OPENS) - (word.bare in CLOSES))
            draft.keyword = word.bare
        else:
            draft.words.append(word)

    def finish(self, operator: str) -> None:
        draft, self.draft = self.draft, _Draft()
        if draft.words:
            self.found.append(self.command(draft, operator))
            self.drafts.append(draft)
        else:
            self.draft.keyword = draft.keyword if operator == "\n" else ""
        if draft.words or operator not in ("\n", ";"):
            self.before = operator

    def command(self, draft: _Draft, operator: str) -> Command:
        assignments = []
        words = list(draft.words)
        while words and (one := assignment(words[0])):
            assignments.append(one)
            del words[0]
        return Command(
            tuple(assignments),
            tuple(words),
            draft.words[0].place,
            draft.words[-1].end,
            operator,
            self.before,
            draft.keyword,
            self.depth,
            self.shell,
        )

    def read_documents(self) -> None:
        for draft, delimiter, quoted in self.documents:
            pattern = re.compile(rf"^\t*{re.escape(delimiter)}[ \t]*$", re.MULTILINE)
            match = pattern.search(self.chars, self.at)
            end = match.start() if match else len(self.chars)
            body = self.text.part(self.at, end)
            self.bodies[id(draft)] = body if quoted else self.expanded(self.at, end)
            self.at = min(len(self.chars), match.end() + 1) if match else len(self.chars)
        self.documents = []

    def expanded(self, start: int, end: int) -> Text:
        """A here-document as the program gets it: this shell's expansions are made."""
        here = _Reader(self.text.part(start, end), self.shell)
        pieces = here.quoted(until="")
        places = self.text.places
        return Word(tuple(pieces), places[start], places[end]).text()

    # ------------------------------------------------------------ words

    def word(self) -> Word:
        start = self.at
        pieces: list[Piece] = []
        array: tuple[Word, ...] | None = None
        while self.at < len(self.chars):
            char = self.chars[self.at]
            process = self.at == start and self.chars.startswith(("<(", ">("), self.at)
            if char == "(" and ASSIGNED.fullmatch(self.chars[start : self.at]):
                array = tuple(self.array())
                break
            if char in " \t\r\n" or (OPERATOR.match(char) and not process):
                break
            pieces += self.piece()
        place = self.text.places
        return Word(tuple(_joined(pieces)), place[start], place[self.at], array)

    def array(self) -> Iterator[Word]:
        self.at += 1
        while self.at < len(self.chars) and self.chars[self.at] != ")":
            char = self.chars[self.at]
            if self.chars.startswith("\\\n", self.at):
                self.at += 2
            elif char in " \t\r\n":
                self.at += 1
            elif char == "#":
                self.at = (self.chars.find("\n", self.at) + 1) or len(self.chars)
            elif OPERATOR.match(char):
                self.at += 1
            else:
                yield self.word()
        self.at = min(self.at + 1, len(self.chars))

    def piece(self) -> list[Piece]:
        """What begins here, outside quotes."""
        char = self.chars[self.at]
        if char == "\\":
            self.at = min(self.at + 2, len(self.chars))
            newline = self.chars[self.at - 1 : self.at] == "\n"
            return [] if newline else [self.literal(self.at - 1, self.at, "\\")]
        if char == "'" or self.chars.startswith("$'", self.at):
            start = self.at + 1 + (char == "$")
            end = self.chars.find("'", start)
            end = len(self.chars) if end < 0 else end
            self.at = min(end + 1, len(self.chars))
            return [self.literal(start, end, "'")]
        if char == '"':
            self.at += 1
            return self.quoted(until='"') or [Literal("", (), '"')]
        return [self.expansion(quoted=False) or self.plain(UNQUOTED, "")]

    def quoted(self, until: str) -> list[Piece]:
        """Up to the closing quote, with expansions."""
        pieces: list[Piece] = []
        while self.at < len(self.chars) and self.chars[self.at] != until:
            after = self.chars[self.at + 1 : self.at + 2]
            if self.chars[self.at] == "\\" and after and after in ESCAPED_IN_QUOTES:
                self.at += 2
                if after != "\n":
                    pieces.append(self.literal(self.at - 1, self.at, '"'))
            else:
                pieces.append(self.expansion(quoted=True) or self.plain(QUOTED, '"'))
        self.at = min(self.at + 1, len(self.chars))
        return _joined(pieces)

    def plain(self, ordinary: re.Pattern[str], quote: str) -> Literal:
        """One character, and the ordinary ones behind it."""
        start = self.at
        match = ordinary.match(self.chars, start + 1)
        self.at = match.end() if match else start + 1
        return self.literal(start, self.at, quote)

    def literal(self, start: int, end: int, quote: str) -> Literal:
        return Literal(self.text.raw(start, end), tuple(self.text.places[start:end]), quote)

    # ------------------------------------------------------------ expansions

    def expansion(self, *, quoted: bool) -> Expansion | None:
        """The expansion that begins here, if one does."""
        start = self.at
        if self.chars[start] == HELD:
            self.at += 1
            return self.text.held[start]
        end, inside = self.extent(start)
        if end == start:
            return None
        self.at = end
        raw = self.text.raw(start, end)
        commands = self.text.part(*inside) if inside else None
        return Expansion(raw, self.text.places[start], self.shell, quoted, commands)

    def extent(self, start: int) -> tuple[int, tuple[int, int] | None]:
        """Where it ends, and the range of the commands in it."""
        if self.chars.startswith("$((", start):
            return self.closing(start + 1), None
        if self.chars.startswith(("$(", "<(", ">("), start):
            end = self.closing(start + 1)
            return end, (start + 2, max(start + 2, end - 1))
        if self.chars[start] == "`":
            end = self.chars.find("`", start + 1)
            end = len(self.chars) if end < 0 else end
            return min(end + 1, len(self.chars)), (start + 1, end)
        if self.chars.startswith("${", start):
            return self.closing(start + 1), None
        match = VARIABLE.match(self.chars, start)
        return (match.end() if match else start), None

    def closing(self, at: int) -> int:
        """Behind the bracket that closes the one at an index; quotes inside are skipped."""
        opening, closing, depth = self.chars[at], PAIRS[self.chars[at]], 0
        while at < len(self.chars):
            char = self.chars[at]
            if char == "\\":
                at += 1
            elif char in "'\"":
                at = self.behind_quote(at)
                continue
            elif match := DOCUMENT.match(self.chars, at):
                at = self.behind_document(match)
                continue
            depth += (char == opening) - (char == closing)
            at += 1
            if depth == 0:
                return min(at, len(self.chars))
        return len(self.chars)

    def behind_document(self, match: re.Match[str]) -> int:
        """Behind a here-document, whose quotes and brackets stand for themselves."""
        end = re.compile(rf"^\t*{re.escape(match[1])}[ \t]*$", re.MULTILINE)
        line = self.chars.find("\n", match.end())
        found = end.search(self.chars, line) if line >= 0 else None
        return found.end() if found else match.end()

    def behind_quote(self, at: int) -> int:
        quote, at = self.chars[at], at + 1
        while at < len(self.chars) and self.chars[at] != quote:
            at += 2 if quote == '"' and self.chars[at] == "\\" else 1
        return min(at + 1, len(self.chars))


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring literals of one kind as one."""
    joined: list[Piece] = []
    for quote, group in groupby(pieces, lambda p: p.quote if isinstance(p, Literal) else None):
        same = list(group)
        literals = [piece for piece in same if isinstance(piece, Literal)]
        if quote is None or len(literals) == 1:
            joined += same
        else:
            text = "".join(piece.text for piece in literals)
            joined.append(Literal(text, tuple(chain(*(p.places for p in literals))), quote))
    return joined
