"""Find the mistake that made a YAML parser stop, and the line of the mistake. Pure.

Parsers report where they cannot continue, often many lines after the mistake, in terms of YAML's
grammar.
"""

from __future__ import annotations

import re
from enum import Enum

from msgspec import Struct

from dslaunch.cluster.mistakes import Mistake, MistakeCode, mistake

Place = tuple[int, int]
"""Line and column, both from 1."""
PlacedMistake = tuple[Place, Mistake]
_NO_SPACE = re.compile(r"\s*(?:- +)*([A-Za-z_][A-Za-z0-9_-]*):([^\s:/].*)")
_BARE_WORD = re.compile(r"\s*(?:- +)*([A-Za-z_][A-Za-z0-9_-]*)\s*")
_CONFLICT = re.compile(r"(?:<{7}|>{7}) .*|={7}")
_TEMPLATE = re.compile(r"\{%|\{\{")
_NO_BREAK_SPACE = re.compile(r"[ \t]*\u00a0")
_NO_SPACE_AFTER_DASH = re.compile(r"\s*-([A-Za-z_][A-Za-z0-9_-]*):(?:\s.*)?")


class ParserFault(Enum):
    """The reason why a parser stopped."""

    ESCAPE = "escape"
    TOKEN = "token"
    """A character that cannot begin a token."""
    VALUE = "value"
    """A `:` where no value is allowed."""
    QUOTED = "quoted"
    FLOW_MAPPING = "flow-mapping"
    FLOW = "flow"
    """Another collection in brackets."""
    KEY = "key"
    """A key without its `:`."""
    BLOCK = "block"
    OTHER = "other"


_BY_PROBLEM = {
    "escape": ParserFault.ESCAPE,
    "cannot start any token": ParserFault.TOKEN,
    "mapping values": ParserFault.VALUE,
}
_BY_CONTEXT = {
    "quoted scalar": ParserFault.QUOTED,
    "flow mapping": ParserFault.FLOW_MAPPING,
    "flow": ParserFault.FLOW,
    "simple key": ParserFault.KEY,
    "block": ParserFault.BLOCK,
}


def fault_of(problem: str, context: str) -> ParserFault:
    """Return the fault of an exception of PyYAML (6.0), which has a text but no code.

    Handles the texts of both parsers, libyaml's and the one in Python.
    """
    for words, fault in _BY_PROBLEM.items():
        if words in problem:
            return fault
    for words, fault in _BY_CONTEXT.items():
        if words in context:
            return fault
    return ParserFault.OTHER


class ParserError(Struct, frozen=True):
    """The error that the parser reported."""

    fault: ParserFault
    place: Place
    began: Place | None = None
    """Start of the part that it was parsing."""
    message: str = ""
    """The parser's message, for a fault without a code."""


def explained(error: ParserError, text: str) -> PlacedMistake:
    """Return the mistake with its position."""
    lines = text.split("\n")
    for explain in _EXPLAINERS:
        found = explain(error, lines)
        if found is not None:
            return found
    return error.place, mistake(MistakeCode.INVALID_YAML, error=error.message or "unreadable")


def _line(lines: list[str], number: int) -> str:
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _before(lines: list[str], number: int) -> int:
    """Return the number of the last line with content before `number`; 0: none."""
    number -= 1
    while number > 0 and (not _line(lines, number).strip() or _is_comment(_line(lines, number))):
        number -= 1
    return number


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _conflict(_: ParserError, lines: list[str]) -> PlacedMistake | None:
    marks = (number for number, line in enumerate(lines, 1) if _CONFLICT.fullmatch(line))
    first = next(marks, None)
    return ((first, 1), mistake(MistakeCode.MERGE_CONFLICT)) if first is not None else None


def _template(error: ParserError, lines: list[str]) -> PlacedMistake | None:
    """Find a mark of a template language such as Jinja."""
    line, _ = error.place
    found = _TEMPLATE.search(_line(lines, line))
    if found is None:
        return None
    return (line, found.start() + 1), mistake(MistakeCode.TEMPLATE, mark=found[0])


def _no_break_space(error: ParserError, lines: list[str]) -> PlacedMistake | None:
    for number in range(1, min(error.place[0], len(lines)) + 1):
        found = _NO_BREAK_SPACE.match(_line(lines, number))
        if found is not None:
            return (number, found.end()), mistake(MistakeCode.NO_BREAK_SPACE)
    return None


def _variable(error: ParserError, lines: list[str]) -> PlacedMistake | None:
    """Find `${NAME}` within a mapping in braces: its brace opens another mapping there."""
    line, column = error.place
    start = _line(lines, line)[: column - 1]
    if error.fault is ParserFault.FLOW_MAPPING and start.endswith("$"):
        return (line, column - 1), mistake(MistakeCode.VARIABLE)
    return None


def _tab(error: ParserError, lines: list[str]) -> PlacedMistake | None:
    line, column = error.place
    start = _line(lines, line)[:column]
    if "\t" in start and not start.strip():
        return error.place, mistake(MistakeCode.TAB)
    return None


def _quote(error: ParserError, lines: list[str]) -> PlacedMistake | None:
    if error.fault is ParserFault.ESCAPE:
        return error.place, mistake(MistakeCode.ESCAPE)
    if error.fault is not ParserFault.QUOTED or error.began is None:
        return None
    mark = _line(lines, error.began[0])[error.began[1] - 1 : error.began[1]] or '"'
    return error.began, mistake(MistakeCode.UNCLOSED_QUOTE, quote=mark)


def _bracket(error: ParserError, lines: list[str]) -> PlacedMistake | None:
    found = _line(lines, error.place[0])[error.place[1] - 1 : error.place[1]]
    if error.fault not in (ParserFault.FLOW, ParserFault.FLOW_MAPPING) or error.began is None:
        if found in ("}", "]"):
            return error.place, mistake(MistakeCode.EXTRA_BRACKET, bracket=found)
        return None
    if found == "[" and error.fault is ParserFault.FLOW_MAPPING:
        return error.place, mistake(MistakeCode.UNQUOTED_BRACKETS)
    opening = _line(lines, error.began[0])[error.began[1] - 1 : error.began[1]]
    if opening not in ("{", "["):
        return _unclosed(lines, error.place[0])
    if error.place[0] == error.began[0]:
        return error.place, mistake(MistakeCode.MISSING_COMMA, bracket=opening)
    return error.began, mistake(MistakeCode.UNCLOSED_BRACKET, bracket=opening)


def _unclosed(lines: list[str], until: int) -> PlacedMistake | None:
    """Find the last line, up to `until`, that opens more brackets than it closes."""
    for number in range(min(until, len(lines)), 0, -1):
        line = _line(lines, number)
        for opening, closing in ("{}", "[]"):
            if line.count(opening) > line.count(closing):
                place = (number, line.rindex(opening) + 1)
                return place, mistake(MistakeCode.UNCLOSED_BRACKET, bracket=opening)
    return None


def _missing_space(error: ParserError, lines: list[str]) -> PlacedMistake | None:
    """Inspect the lines that the parser joined into one text, up to the error."""
    suspects = [error.place[0], _before(lines, error.place[0])]
    if error.began is not None and error.fault is ParserFault.KEY:
        suspects.insert(0, error.began[0])
    for number in suspects:
        line = _line(lines, number)
        if match := _NO_SPACE_AFTER_DASH.fullmatch(line):
            return (number, line.index("-") + 1), mistake(MistakeCode.MISSING_SPACE, text="-")
        if match := _NO_SPACE.fullmatch(line):
            place = (number, match.start(2) + 1)
            return place, mistake(MistakeCode.MISSING_SPACE, text=f"{match[1]}:")
    above = _before(lines, error.place[0])
    deeper = _indent(_line(lines, error.place[0])) > _indent(_line(lines, above))
    if deeper and (match := _BARE_WORD.fullmatch(_line(lines, above))):
        place = (above, match.end(1) + 1)
        return place, mistake(MistakeCode.MISSING_COLON, key=match[1])
    return None


def _token(error: ParserError, lines: list[str]) -> PlacedMistake | None:
    line, column = error.place
    if error.fault is ParserFault.TOKEN:
        found = _line(lines, line)[column - 1 : column]
        return error.place, mistake(MistakeCode.UNQUOTED_TEXT, character=found)
    if error.fault is ParserFault.KEY:
        return error.began or error.place, mistake(MistakeCode.KEY_ALONE)
    if error.fault is ParserFault.VALUE and _has_two_keys(_line(lines, line)):
        return error.place, mistake(MistakeCode.SECOND_KEY)
    return None


def _has_two_keys(line: str) -> bool:
    """Return whether a line has two keys, like `host: a slots: 8`."""
    _, _, value = line.partition(": ")
    plain = value.lstrip()[:1] not in ("", "'", '"', "{", "[", "#")
    return plain and ": " in value.partition("#")[0]


def _indentation(error: ParserError, lines: list[str]) -> PlacedMistake | None:
    above = _before(lines, error.place[0])
    if error.fault not in (ParserFault.VALUE, ParserFault.BLOCK) or not above:
        return None
    line, other = _line(lines, error.place[0]), _line(lines, above)
    here, there = _indent(line), _indent(other)
    place = (error.place[0], here + 1)
    if other.lstrip().startswith("- ") and not line.lstrip().startswith("- "):
        there += 2 + _indent(other.lstrip()[2:])
    if here == there:
        return None
    return place, mistake(MistakeCode.INDENTATION, spaces=here, line=above, line_spaces=there)


_EXPLAINERS = (
    _conflict,
    _template,
    _tab,
    _no_break_space,
    _variable,
    _quote,
    _bracket,
    _missing_space,
    _token,
    _indentation,
)
"""What comes first is the more certain explanation."""
