"""A YAML parser's complaint in words that lead to the mistake, at the line where it was made. Pure.

Parsers complain where they cannot go on, often a line or many after the mistake, and in words of
YAML's grammar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

Place = tuple[int, int]
"""Line and column, both from 1."""
_NO_SPACE = re.compile(r"\s*(?:- +)*([A-Za-z_][A-Za-z0-9_-]*):([^\s:/].*)")
_BARE_WORD = re.compile(r"\s*(?:- +)*([A-Za-z_][A-Za-z0-9_-]*)\s*")
_NO_SPACE_AFTER_DASH = re.compile(r"\s*-([A-Za-z_][A-Za-z0-9_-]*):(?:\s.*)?")


class Fault(Enum):
    """What a parser cannot go on with."""

    ESCAPE = "escape"
    TOKEN = "token"
    """A character that begins nothing."""
    VALUE = "value"
    """A `:` where no value can be."""
    QUOTED = "quoted"
    FLOW_MAPPING = "flow-mapping"
    FLOW = "flow"
    """Another collection in brackets."""
    KEY = "key"
    """A key without its `:`."""
    BLOCK = "block"
    OTHER = "other"


_BY_PROBLEM = {
    "escape": Fault.ESCAPE,
    "cannot start any token": Fault.TOKEN,
    "mapping values": Fault.VALUE,
}
_BY_CONTEXT = {
    "quoted scalar": Fault.QUOTED,
    "flow mapping": Fault.FLOW_MAPPING,
    "flow": Fault.FLOW,
    "simple key": Fault.KEY,
    "block": Fault.BLOCK,
}


def fault_of(problem: str, context: str) -> Fault:
    """Read the words of an exception of PyYAML (6.0), which has no code: here, and nowhere else.

    Both of its parsers are understood: libyaml's and the one in Python.
    """
    for words, fault in _BY_PROBLEM.items():
        if words in problem:
            return fault
    for words, fault in _BY_CONTEXT.items():
        if words in context:
            return fault
    return Fault.OTHER


@dataclass(frozen=True, slots=True)
class Complaint:
    """What the parser said."""

    fault: Fault
    place: Place
    began: Place | None = None
    """Where what it was reading began."""
    said: str = ""
    """Its own words, for a fault that is none of the others."""


def explained(complaint: Complaint, text: str) -> tuple[Place, str]:
    """Return where the mistake is, and what it is."""
    lines = text.split("\n")
    for look in (_tab, _quote, _bracket, _missing_space, _token, _indentation):
        found = look(complaint, lines)
        if found is not None:
            return found
    return complaint.place, f"not valid YAML: {complaint.said or 'unreadable'}"


def _line(lines: list[str], number: int) -> str:
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _before(lines: list[str], number: int) -> int:
    """Return the number of the last line before `number` with something in it; 0: none."""
    number -= 1
    while number > 0 and (not _line(lines, number).strip() or _is_comment(_line(lines, number))):
        number -= 1
    return number


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _tab(c: Complaint, lines: list[str]) -> tuple[Place, str] | None:
    line, column = c.place
    start = _line(lines, line)[:column]
    if "\t" in start and not start.strip():
        return c.place, "not valid YAML: a tab; indent with spaces"
    return None


def _quote(c: Complaint, lines: list[str]) -> tuple[Place, str] | None:
    if c.fault is Fault.ESCAPE:
        words = "in double quotes `\\` begins an escape; use single quotes, or write `\\\\`"
        return c.place, f"not valid YAML: {words}"
    if c.fault is not Fault.QUOTED or c.began is None:
        return None
    mark = _line(lines, c.began[0])[c.began[1] - 1 : c.began[1]] or '"'
    return c.began, f"not valid YAML: the quote {mark} that opens here is not closed"


def _bracket(c: Complaint, lines: list[str]) -> tuple[Place, str] | None:
    found = _line(lines, c.place[0])[c.place[1] - 1 : c.place[1]]
    if c.fault not in (Fault.FLOW, Fault.FLOW_MAPPING) or c.began is None:
        if found in ("}", "]"):
            return c.place, f"not valid YAML: `{found}` closes nothing; is it one too many?"
        return None
    if found == "[" and c.fault is Fault.FLOW_MAPPING:
        words = "between `{` and `}`, quote a name that has brackets: 'node[01-04]'"
        return c.place, f"not valid YAML: {words}"
    opening = _line(lines, c.began[0])[c.began[1] - 1 : c.began[1]]
    if opening not in ("{", "["):
        return _unclosed(lines, c.place[0])
    if c.place[0] == c.began[0]:
        return (
            c.place,
            f"not valid YAML: a comma is missing before this, or `{opening}` is not closed",
        )
    return c.began, f"not valid YAML: `{opening}` is not closed, or a comma is missing after it"


def _unclosed(lines: list[str], until: int) -> tuple[Place, str] | None:
    """Find the last line up to one that opens more brackets than it closes."""
    for number in range(min(until, len(lines)), 0, -1):
        line = _line(lines, number)
        for opening, closing in ("{}", "[]"):
            if line.count(opening) > line.count(closing):
                place = (number, line.rindex(opening) + 1)
                return place, f"not valid YAML: `{opening}` is not closed"
    return None


def _missing_space(c: Complaint, lines: list[str]) -> tuple[Place, str] | None:
    """Look at the lines that the parser read as one text: those up to its complaint."""
    suspects = [c.place[0], _before(lines, c.place[0])]
    if c.began is not None and c.fault is Fault.KEY:
        suspects.insert(0, c.began[0])
    for number in suspects:
        line = _line(lines, number)
        if match := _NO_SPACE_AFTER_DASH.fullmatch(line):
            return (number, line.index("-") + 1), "not valid YAML: a space is missing after `-`"
        if match := _NO_SPACE.fullmatch(line):
            place = (number, match.start(2) + 1)
            return place, f"not valid YAML: a space is missing after `{match[1]}:`"
    above = _before(lines, c.place[0])
    deeper = _indent(_line(lines, c.place[0])) > _indent(_line(lines, above))
    if deeper and (match := _BARE_WORD.fullmatch(_line(lines, above))):
        place = (above, match.end(1) + 1)
        return place, f"not valid YAML: a colon is missing after `{match[1]}`"
    return None


def _token(c: Complaint, lines: list[str]) -> tuple[Place, str] | None:
    line, column = c.place
    if c.fault is Fault.TOKEN:
        found = _line(lines, line)[column - 1 : column]
        return c.place, f"not valid YAML: quote text that begins with `{found}`"
    if c.fault is Fault.KEY:
        place = c.began or c.place
        return place, "not valid YAML: a colon and a space are missing after a key"
    if c.fault is Fault.VALUE and _has_two_keys(_line(lines, line)):
        words = "a second `: ` in one line; write each key on its own line, or quote the value"
        return c.place, f"not valid YAML: {words}"
    return None


def _has_two_keys(line: str) -> bool:
    """Whether a line is like `host: a slots: 8`."""
    _, _, value = line.partition(": ")
    plain = value.lstrip()[:1] not in ("", "'", '"', "{", "[", "#")
    return plain and ": " in value.partition("#")[0]


def _indentation(c: Complaint, lines: list[str]) -> tuple[Place, str] | None:
    above = _before(lines, c.place[0])
    if c.fault not in (Fault.VALUE, Fault.BLOCK) or not above:
        return None
    line, other = _line(lines, c.place[0]), _line(lines, above)
    here, there = _indent(line), _indent(other)
    place = (c.place[0], here + 1)
    if other.lstrip().startswith("- ") and not line.lstrip().startswith("- "):
        there += 2 + _indent(other.lstrip()[2:])
    if here == there:
        return None
    deeper = "more" if here > there else "less"
    words = (
        f"indented by {here} spaces, {deeper} than line {above} ({there}); keys of one mapping "
        "begin in the same column"
    )
    return place, f"not valid YAML: {words}"
