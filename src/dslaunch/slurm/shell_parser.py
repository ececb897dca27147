"""A parser of shell text for the lint: commands, words, quotes and expansions.

It parses the syntax of POSIX shells and bash (POSIX.1-2017, Shell Command Language, 2.2 to 2.10;
bash's arrays, `$'...'` and `<(...)`), tolerates incomplete text, and runs nothing.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from enum import Enum, auto
from itertools import chain, groupby

from msgspec import Struct, field

from dslaunch.slurm.shell_words import (
    ASSIGNED,
    HELD,
    Expansion,
    Literal,
    Piece,
    ShellCommand,
    ShellText,
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
BETWEEN_CASES = {";;", ";&", ";;&"}
ESCAPED_IN_QUOTES = '$`"\\\n'
UNQUOTED = re.compile(rf"[^\s\\'\"$`{HELD}|&;()<>#]*")
QUOTED = re.compile(rf"[^\\\"$`{HELD}]*")
"""Ordinary characters, outside and inside double quotes."""
PAIRS = {"(": ")", "{": "}"}
ELEMENT = re.compile(r"[A-Za-z_]\w*\[")
IN_JOB = re.compile(r"SLURM_(JOB_?ID|(JOB_)?NODELIST|NNODES|JOB_NUM_NODES|PROCID|NTASKS|JOB_NAME)")
"""Variables that are set in every batch job, and only there."""
DEEPEST = 20
"""The maximum depth of nested command substitutions; deeper ones are not parsed."""

DEEPEST_BRACES = 4
"""The same for `${A:-${B:-...}}`."""


class JobTest(Enum):
    """When a test of the variables of a job is true."""

    INSIDE = auto()
    """Only in a job."""
    OUTSIDE = auto()
    """Only outside a job."""


def read(text: ShellText, shell: int = 0) -> list[ShellCommand]:
    """Return the simple commands of a text in order, also those in functions, ifs and loops. Those
    within `$(...)` are in the `commands` of expansions."""
    return _ShellParser(text, shell).run()


def inner_commands(command: ShellCommand, depth: int = 0) -> Iterator[ShellCommand]:
    """Yield the commands in the expansions of a command's words."""
    if depth >= DEEPEST:
        return
    for expansion in command.expansions():
        for found in expansion_commands(expansion):
            yield found
            yield from inner_commands(found, depth + 1)


def expansion_commands(expansion: Expansion) -> list[ShellCommand]:
    """Return the commands of `$(...)` and similar expansions; none for others."""
    text = expansion.commands
    return [] if text is None else read(text, expansion.shell)


class _Draft(Struct):
    """A command that is being parsed."""

    words: list[Word] = field(default_factory=list)
    keyword: str = ""
    redirect: str = ""
    """The redirection whose target is the next word."""


class _Block(Struct):
    """A compound command that is being parsed: an if, a loop, a group, a subshell, a case."""

    opened: str
    """The word that opened it, or an opening parenthesis."""
    function: str
    """The function that contains it; empty for none."""
    around: bool
    """Whether it runs only outside a job."""
    outside: bool
    """The same for the branch that is being parsed."""
    conditions: list[ShellCommand] = field(default_factory=list)
    """The test of an `if`."""
    condition: bool = False
    """Whether the condition is being parsed."""
    pattern: bool = False
    """Whether a pattern of a `case` is being parsed."""


class _ShellParser:
    def __init__(self, text: ShellText, shell: int, nesting: int = 0) -> None:
        self.text = text
        self.chars = text.chars
        self.shell = shell
        self.nesting = nesting
        """The number of enclosing `${NAME:-...}`."""
        self.at = 0
        """The index of the next character to parse."""
        self.blocks: list[_Block] = []
        """The enclosing compound commands, the innermost last."""
        self.defines = ""
        """The function whose body is next."""
        self.before = ""
        """The operator before the command that is being parsed."""
        self.draft = _Draft()
        self.found: list[ShellCommand] = []
        self.drafts: list[_Draft] = []
        """Those of the commands in `found`."""
        self.documents: list[tuple[_Draft, str, bool]] = []
        """The here-documents that begin after this line: their commands, delimiters, and whether
        the delimiter is quoted."""
        self.bodies: dict[int, ShellText] = {}
        """The here-documents, by the `id` of their drafts."""
        self.in_array = False
        self.lines: dict[str, list[tuple[int, int]]] = {}
        """The places of lines, by their text without surrounding blanks; computed on demand."""

    def run(self) -> list[ShellCommand]:
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
        words = self.draft.words
        is_arithmetic = not words and self.chars.startswith("((", self.at)
        if is_arithmetic:  # (( sum ))
            self.at = self.closing(self.at)
            return
        self.at = match.end()
        in_test = bool(words) and words[0].bare == "[[" and words[-1].bare != "]]"
        if in_test:  # no operators in there
            return
        is_definition = operator == "(" and 1 <= len(words) <= 2 and words[-1].bare != ""
        if operator in REDIRECTS:
            self.draft.redirect = operator
        elif is_definition:  # NAME ( )
            self.at = self.chars.find(")", self.at) + 1 or len(self.chars)
            self.defines = words[-1].bare
            self.draft = _Draft()
        elif self.blocks and self.blocks[-1].pattern:
            self.blocks[-1].pattern = operator not in (")", *BETWEEN_CASES)
            self.draft = _Draft()
        else:
            self.finish(operator)
            self.nest(operator)

    def nest(self, operator: str) -> None:
        """Track subshells and the branches of a `case`."""
        if operator == "(":
            self.open("(")
        elif operator == ")":
            self.close("(")
        elif operator in BETWEEN_CASES and self.blocks and self.blocks[-1].opened == "case":
            self.blocks[-1].pattern = True

    def open(self, word: str) -> None:
        """Open a block."""
        outer = self.blocks[-1] if self.blocks else None
        function = self.defines or (outer.function if outer else "")
        around = self.outside()
        self.defines = ""
        self.blocks.append(_Block(word, function, around, around, condition=word == "if"))

    def close(self, opened: str) -> None:
        """Close a block, and unclosed blocks in it."""
        if any(block.opened == opened for block in self.blocks):
            while self.blocks.pop().opened != opened:
                pass

    def outside(self) -> bool:
        """Return whether the next command runs only outside a job: in such a branch, or after
        `[ -z "$SLURM_JOB_ID" ] &&`."""
        if self.blocks and self.blocks[-1].outside:
            return True
        if not self.found or self.before not in ("&&", "||"):
            return False
        wanted = JobTest.OUTSIDE if self.before == "&&" else JobTest.INSIDE
        return asks_for_job(self.found[-1]) is wanted

    def reserve(self, word: str) -> None:
        """Handle a reserved word: open a block, close it, or start its next branch."""
        if word in OPENS:
            self.open(word)
        elif word in CLOSES:
            pairs = {"fi": "if", "esac": "case", "done": "do", "}": "{"}
            self.close(pairs[word])
        elif word in ("then", "elif", "else") and self.blocks and self.blocks[-1].opened == "if":
            block = self.blocks[-1]
            asked = asks_for_job(block.conditions[0]) if len(block.conditions) == 1 else None
            wanted = JobTest.OUTSIDE if word == "then" else JobTest.INSIDE
            block.outside = block.around or asked is wanted
            block.condition = word == "elif"
            if word == "elif":
                block.conditions = []

    def take(self, word: Word) -> None:
        draft = self.draft
        if draft.redirect:
            if draft.redirect in ("<<", "<<-"):
                quoted = not word.bare
                self.documents.append((draft, word.value, quoted))
            draft.redirect = ""
        elif self.chars[self.at : self.at + 1] in ("<", ">") and word.bare.isdecimal():
            pass  # 2> and its like
        elif self.blocks and self.blocks[-1].pattern and word.bare != "esac":
            pass
        elif not draft.words and draft.keyword == "case":
            draft.words.append(word)
        elif draft.keyword == "case" and word.bare == "in":
            self.blocks[-1].pattern = True
            self.draft = _Draft()
        elif not draft.words and word.bare in RESERVED:
            self.reserve(word.bare)
            draft.keyword = word.bare
        elif self.is_function(word):
            self.defines = word.bare
            draft.words = []
        else:
            draft.words.append(word)

    def is_function(self, word: Word) -> bool:
        """Return whether a word is the name in `function NAME` without parentheses."""
        named = len(self.draft.words) == 1 and self.draft.words[0].bare == "function"
        brackets = re.compile(r"[ \t]*\(").match(self.chars, self.at)
        return named and bool(word.bare) and brackets is None

    def finish(self, operator: str) -> None:
        draft, self.draft = self.draft, _Draft()
        if draft.words:
            command = self.command(draft, operator)
            self.found.append(command)
            self.drafts.append(draft)
            if self.blocks and self.blocks[-1].condition:
                self.blocks[-1].conditions.append(command)
        else:
            self.draft.keyword = draft.keyword if operator == "\n" else ""
        if draft.words or operator not in ("\n", ";"):
            self.before = operator

    def command(self, draft: _Draft, operator: str) -> ShellCommand:
        assignments = []
        words = list(draft.words)
        while words and ((one := assignment(words[0])) or sets_element(words[0])):
            if one:
                assignments.append(one)
            del words[0]
        return ShellCommand(
            assignments=tuple(assignments),
            words=tuple(words),
            place=draft.words[0].place,
            end=draft.words[-1].end,
            operator=operator,
            before=self.before,
            keyword=draft.keyword,
            depth=len(self.blocks),
            shell=self.shell,
            outside=self.outside(),
            function=self.blocks[-1].function if self.blocks else "",
        )

    def read_documents(self) -> None:
        for draft, delimiter, quoted in self.documents:
            found = self.delimiter(delimiter, self.at)
            end = found[0] if found else len(self.chars)
            body = self.text.part(self.at, end)
            self.bodies[id(draft)] = body if quoted else self.expanded(self.at, end)
            self.at = min(len(self.chars), found[1] + 1) if found else len(self.chars)
        self.documents = []

    def delimiter(self, word: str, at: int) -> tuple[int, int] | None:
        """Return the first line from an index on that ends a here-document with this word."""
        if not self.lines:
            begin = 0
            for line in self.chars.split("\n"):
                extent = (begin, begin + len(line))
                self.lines.setdefault(line.lstrip("\t").rstrip(" \t"), []).append(extent)
                begin += len(line) + 1
        extents = self.lines.get(word, [])
        after = bisect.bisect_left(extents, (at, at))
        return extents[after] if after < len(extents) else None

    def expanded(self, start: int, end: int) -> ShellText:
        """Return a here-document as the program reads it, after the expansions of this shell."""
        here = _ShellParser(self.text.part(start, end), self.shell)
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
            opens = char == "(" and not self.in_array  # bash has no arrays of arrays
            if opens and ASSIGNED.fullmatch(self.chars[start : self.at]):
                array = tuple(self.array())
                break
            if char in " \t\r\n" or (OPERATOR.match(char) and not process):
                break
            pieces += self.piece()
        place = self.text.places
        return Word(tuple(_joined(pieces)), place[start], place[self.at], array)

    def array(self) -> Iterator[Word]:
        self.at += 1
        self.in_array = True
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
        self.in_array = False
        self.at = min(self.at + 1, len(self.chars))

    def piece(self) -> list[Piece]:
        """Parse the next piece, outside quotes."""
        char = self.chars[self.at]
        if char == "\\" and self.chars.startswith(HELD, self.at + 1):
            self.at += 1
            return []
        if char == "\\":
            self.at = min(self.at + 2, len(self.chars))
            newline = self.chars[self.at - 1 : self.at] == "\n"
            return [] if newline else [self.literal(self.at - 1, self.at, "\\")]
        if char == "'" or self.chars.startswith("$'", self.at):
            start = self.at + 1 + (char == "$")
            end = self.chars.find("'", start)
            end = len(self.chars) if end < 0 else end
            self.at = min(end + 1, len(self.chars))
            return [*self.text.part(start, end).pieces()] or [Literal("", (), "'")]
        if char == '"':
            self.at += 1
            return self.quoted(until='"') or [Literal("", (), '"')]
        return [self.expansion(quoted=False) or self.plain(UNQUOTED, "")]

    def quoted(self, until: str) -> list[Piece]:
        """Parse up to the closing double quote, with expansions."""
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
        """Parse a character, and the ordinary ones after it."""
        start = self.at
        match = ordinary.match(self.chars, start + 1)
        self.at = match.end() if match else start + 1
        return self.literal(start, self.at, quote)

    def literal(self, start: int, end: int, quote: str) -> Literal:
        return Literal(self.text.raw(start, end), tuple(self.text.places[start:end]), quote)

    # ------------------------------------------------------------ expansions

    def expansion(self, *, quoted: bool) -> Expansion | None:
        """Parse an expansion; None: there is none at this place."""
        start = self.at
        if self.chars[start] == HELD:
            self.at += 1
            return self.text.held[start]
        end, inside = self.extent(start)
        if end == start:
            return None
        self.at = end
        raw = self.text.raw(start, end)
        return Expansion(
            raw=raw,
            place=self.text.places[start],
            shell=self.shell,
            quoted=quoted,
            commands=self.text.part(*inside) if inside else None,
            within=self.within(start, end) if raw.startswith("${") else (),
        )

    def within(self, start: int, end: int) -> tuple[Expansion, ...]:
        """Return the expansions in the second half of `${NAME:-...}`."""
        second = self.chars.find("$", start + 1, end)
        if second < 0 or self.nesting >= DEEPEST_BRACES:
            return ()
        reader = _ShellParser(self.text.part(second, end - 1), self.shell, self.nesting + 1)
        pieces = reader.quoted(until="")
        return tuple(piece for piece in pieces if isinstance(piece, Expansion))

    def extent(self, start: int) -> tuple[int, tuple[int, int] | None]:
        """Return the end of an expansion, and the range of its commands."""
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
        """Return the index after the closing bracket of the one at an index; quotes are skipped."""
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
        """Return the index after a here-document, whose quotes and brackets are literal."""
        line = self.chars.find("\n", match.end())
        found = self.delimiter(match[1], line) if line >= 0 else None
        return found[1] if found else match.end()

    def behind_quote(self, at: int) -> int:
        quote, at = self.chars[at], at + 1
        while at < len(self.chars) and self.chars[at] != quote:
            at += 2 if quote == '"' and self.chars[at] == "\\" else 1
        return min(at + 1, len(self.chars))


def sets_element(word: Word) -> bool:
    """Return whether a word is `ARRAY[index]=value`."""
    first = word.pieces[0] if word.pieces else None
    plain = isinstance(first, Literal) and not first.quote
    return plain and bool(ELEMENT.match(word.value)) and "]=" in word.value


def asks_for_job(command: ShellCommand) -> JobTest | None:
    """Return when a test is true, such as `[ -z "$SLURM_JOB_ID" ]`; None for any other command."""
    if command.name not in ("[", "[[", "test"):
        return None
    words = [word for word in command.words[1:] if word.bare not in ("]", "]]")]
    negated = command.keyword == "!"
    if words and words[0].bare == "!":
        negated = not negated
        del words[0]
    expansions = [expansion for word in words for expansion in word.expansions]
    if len(expansions) != 1 or not IN_JOB.fullmatch(expansions[0].name):
        return None
    form = ["$" if word.expansions else word.value for word in words]
    if form in (["-z", "$"], ["$", "=", ""], ["$", "==", ""]):
        return JobTest.INSIDE if negated else JobTest.OUTSIDE
    if form in (["-n", "$"], ["$"], ["$", "!=", ""]):
        return JobTest.OUTSIDE if negated else JobTest.INSIDE
    return None


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Return pieces with adjacent literals of the same quotes merged."""
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
