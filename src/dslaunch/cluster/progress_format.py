"""Regular expressions of `progress:` in the cluster file, by which lines of ranks are read.

They are compared with every line of output, which a rank chooses. Python's engine takes time that
grows with a power of the line's length, and exponentially with nested repeats and with choices. So
the lines are cut (`LONGEST_LINE`), and a pattern is refused if it has constructs whose time cannot
be bounded, more than two repeats that can end at several places of one text, or more choices than
fit beside these repeats (`MOST_CHOICES`). What is left takes less than a second for any line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from dslaunch.cluster.mistakes import Mistake, MistakeCode, mistake

GROUPS = ("step", "last_step", "epoch", "loss", "steps_per_second", "tokens_per_second")
"""The named groups: fields of `run.progress.Progress`."""
LONGEST = 300
"""Characters of a pattern."""
LONGEST_LINE = 400
"""Characters of a line that are compared with it."""
MOST_OPEN = 2
"""Repeats that can end at several places, as `.*` before `loss`."""
MOST_CHOICES = (8, 6, 1)
"""Optional parts and alternatives of a pattern, by the number of its open repeats. Each choice can
double the time, each open repeat can multiply it by the length of the line."""
_REPEATS = (code.MAX_REPEAT, code.MIN_REPEAT, code.POSSESSIVE_REPEAT)
_ONE_CHARACTER = (code.LITERAL, code.NOT_LITERAL, code.ANY, code.IN)
_SAMPLE = [*map(chr, range(128)), "é"]
"""Characters that stand for all."""


class _Unbounded(Exception):
    """A construct whose time cannot be bounded."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One character class of a pattern."""

    characters: frozenset[str]
    repeated: bool
    optional: bool


def fault(pattern: str) -> Mistake | None:
    """Return what is wrong with a pattern; None: nothing."""
    if len(pattern) > LONGEST:
        return mistake(MistakeCode.SLOW_PATTERN, found=f"{len(pattern)} characters")
    try:
        compiled = re.compile(pattern)
        parsed = parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return mistake(MistakeCode.INVALID_PATTERN, error=str(error))
    unknown = [name for name in compiled.groupindex if name not in GROUPS]
    if unknown or not compiled.groupindex:
        return mistake(MistakeCode.PATTERN_GROUPS, known=GROUPS)
    if compiled.fullmatch("") is not None:
        return mistake(MistakeCode.SLOW_PATTERN, found="it matches every line")
    try:
        parts = list(_parts(parsed))
        choices = _choices(parsed)
    except _Unbounded as error:
        return mistake(MistakeCode.SLOW_PATTERN, found=str(error))
    opened = sum(_is_open(parts, at) for at in range(len(parts)))
    if opened > MOST_OPEN:
        found = f"more than {MOST_OPEN} repeats that also match what follows them, such as `.*`"
        return mistake(MistakeCode.SLOW_PATTERN, found=found)
    if choices > MOST_CHOICES[opened]:
        found = f"more than {MOST_CHOICES[opened]} optional parts and alternatives"
        return mistake(MistakeCode.SLOW_PATTERN, found=found)
    return None


def _is_open(parts: list[_Part], at: int) -> bool:
    """Return whether a repeat can end at several places of one text."""
    if not parts[at].repeated:
        return False
    following: set[str] = set()
    for part in parts[at + 1 :]:
        following |= part.characters
        if not part.optional:
            break
    return bool(parts[at].characters & following)


def _parts(sequence: Any, *, optional: bool = False) -> Iterator[_Part]:
    """Yield the character classes of a parsed pattern in order. Raises _Unbounded."""
    for kind, value in sequence:
        if kind in _ONE_CHARACTER:
            yield _Part(_characters(kind, value), repeated=False, optional=optional)
        elif kind is code.SUBPATTERN:
            yield from _parts(value[-1], optional=optional)
        elif kind in _REPEATS:
            yield from _repeat(*value, optional=optional)
        elif kind is code.BRANCH:
            for branch in value[1]:
                inner = list(_parts(branch, optional=True))
                if any(part.repeated for part in inner):
                    raise _Unbounded("a repeat within alternatives")
                yield from inner
        elif kind is not code.AT:
            raise _Unbounded(f"`{str(kind).lower()}` is not supported")


def _choices(sequence: Any) -> int:
    """Count the optional parts and alternatives of a parsed pattern. Raises _Unbounded."""
    count = 0
    for kind, value in sequence:
        if kind is code.SUBPATTERN:
            count += _choices(value[-1])
        elif kind is code.BRANCH:
            branches = value[1]
            count += len(branches) - 1 + sum(_choices(branch) for branch in branches)
        elif kind in _REPEATS:
            least, most, inside = value
            within = _choices(inside)
            if most > 1 and within:
                raise _Unbounded("alternatives within a repeat")
            count += within + (least == 0 and most == 1)
    return count


def _repeat(least: int, most: int, inside: Any, *, optional: bool) -> Iterator[_Part]:
    inner = list(_parts(inside, optional=optional or least == 0))
    if most == 1:
        yield from inner
        return
    if len(inner) != 1 or inner[0].repeated:
        raise _Unbounded("a repeat of more than one character class, such as `(?:a+)+`")
    yield _Part(inner[0].characters, repeated=True, optional=optional or least == 0)


def _characters(kind: Any, value: Any) -> frozenset[str]:
    """Return the sample characters that a class matches, in any case."""
    if kind is code.ANY:
        return frozenset(_SAMPLE)
    items = value if kind is code.IN else [(code.LITERAL, value)]
    negated = kind is code.NOT_LITERAL or items[0][0] is code.NEGATE
    own = frozenset(c for c in _SAMPLE if any(_holds(c, item) for item in items))
    return frozenset(_SAMPLE) - own if negated else own


def _holds(character: str, item: tuple[Any, Any]) -> bool:
    kind, value = item
    if kind is code.LITERAL:
        wanted = chr(value) if value < 128 else "é"
        return character.lower() == wanted.lower()
    if kind is code.RANGE:
        first, last = value
        return any(first <= ord(c) <= last for c in (character.lower(), character.upper()))
    if kind is not code.CATEGORY:
        return False
    name = str(value).rpartition("_")[2]
    inside = {
        "DIGIT": character.isdigit(),
        "SPACE": character.isspace(),
        "WORD": character.isalnum() or character == "_",
    }[name]
    return inside != ("NOT" in str(value))
