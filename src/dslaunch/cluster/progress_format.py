"""Regular expressions of `progress:` in the cluster file, by which lines of ranks are read.

They are compared with every line of output, which a rank chooses. Python's engine backtracks, so
its time may grow exponentially with the line. The lines are cut (`LONGEST_LINE`), and `most_steps`
counts how many steps the engine can take for any such line; a pattern that may take more than
`MOST_STEPS` is refused.

The count follows a pattern from left to right, with how often the engine can reach each position
of the line there. A character class is assumed to match whatever it is compared with, apart from
one fact: two classes without a common character do not match the same one. Hence a repeat such as
`[0-9]+` before ` ` ends at one position, while `.*` before ` ` can end at each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from msgspec import Struct

from dslaunch.cluster.mistakes import Mistake, MistakeCode, mistake

GROUPS = ("step", "last_step", "epoch", "loss", "steps_per_second", "tokens_per_second")
"""The named groups: fields of `run.progress.Progress`."""
LONGEST = 300
"""Characters of a pattern."""
LONGEST_LINE = 400
"""Characters of a line that are compared with it."""
MOST_STEPS = 100_000_000
"""Steps of the engine for one line; they take less than a second."""

Item = tuple[Any, Any]
"""A part of a parsed pattern: an operation and its arguments."""
Characters = frozenset[str]
_REPEATS = (code.MAX_REPEAT, code.MIN_REPEAT, code.POSSESSIVE_REPEAT)
_ONE_CHARACTER = (code.LITERAL, code.NOT_LITERAL, code.ANY, code.IN)
_OTHERS = "é٣²—\u00a0ſ\u212aİı"
"""One character of each kind that is not ASCII: of words, digits, numbers, neither, spaces; and
those that are equal to an ASCII letter if case is ignored."""
_ALL = frozenset([*map(chr, range(128)), *_OTHERS])
"""Characters that stand for all."""
_CATEGORIES = {
    code.CATEGORY_DIGIT: r"\d",
    code.CATEGORY_NOT_DIGIT: r"\D",
    code.CATEGORY_SPACE: r"\s",
    code.CATEGORY_NOT_SPACE: r"\S",
    code.CATEGORY_WORD: r"\w",
    code.CATEGORY_NOT_WORD: r"\W",
}


class _Unbounded(Exception):
    """A construct whose steps are not counted, or more steps than are allowed."""


def fault(pattern: str) -> Mistake | None:
    """Return what is wrong with a pattern; None: nothing."""
    if len(pattern) > LONGEST:
        return mistake(MistakeCode.SLOW_PATTERN, found=f"{len(pattern)} characters")
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return mistake(MistakeCode.INVALID_PATTERN, error=str(error))
    unknown = [name for name in compiled.groupindex if name not in GROUPS]
    if unknown or not compiled.groupindex:
        return mistake(MistakeCode.PATTERN_GROUPS, known=GROUPS)
    if compiled.fullmatch("") is not None:
        return mistake(MistakeCode.SLOW_PATTERN, found="it matches every line")
    try:
        most_steps(pattern)
    except _Unbounded as error:
        return mistake(MistakeCode.SLOW_PATTERN, found=str(error))
    return None


def most_steps(pattern: str) -> int:
    """Return an upper bound of the engine's steps to search a line for a valid pattern.

    Raises _Unbounded if it is more than `MOST_STEPS`, or if a construct is not supported.
    """
    if re.compile(pattern).flags & re.ASCII or "(?a" in pattern:
        raise _Unbounded("the flag `a` is not supported")
    counter = _Counter()
    every_start = _Visits((1,) * (LONGEST_LINE + 1), peak=1, last=_ALL)
    counter.walk(tuple(parser.parse(pattern)), (), every_start)
    return counter.steps


# ---------------------------------------------------------------- the count


class _Visits(Struct, frozen=True):
    """How often the engine can reach a place of the pattern."""

    at: tuple[int, ...]
    """By position of the line. The real visits may be at later positions, but not at earlier ones,
    from which more of the line is left: up to each position there are no more than here."""
    peak: int
    """At one position, at most."""
    last: Characters
    """What the character before may be."""

    @property
    def total(self) -> int:
        return sum(self.at)


class _Counter:
    """Counts the steps of one search."""

    def __init__(self) -> None:
        self.steps = 0

    def walk(self, items: tuple[Item, ...], rest: tuple[Item, ...], visits: _Visits) -> _Visits:
        """Count the steps in a sequence before `rest`; return how often its end is reached."""
        for number, item in enumerate(items):
            visits = self._item(item, (*items[number + 1 :], *rest), visits)
        return visits

    def _item(self, item: Item, rest: tuple[Item, ...], visits: _Visits) -> _Visits:
        kind, value = item
        if kind in _ONE_CHARACTER:
            self._add(visits.total)
            return _Visits(_moved(visits.at, 1), visits.peak, _characters(item))
        if kind is code.AT:
            self._add(visits.total)
            return visits
        if kind is code.SUBPATTERN:
            return self.walk(tuple(value[-1]), rest, visits)
        if kind is code.BRANCH:
            self._add(visits.total)
            return _together([self.walk(tuple(each), rest, visits) for each in value[1]])
        if kind in _REPEATS:
            return self._repeat(item, rest, visits)
        raise _Unbounded(f"`{str(kind).lower()}` is not supported")

    def _repeat(self, item: Item, rest: tuple[Item, ...], visits: _Visits) -> _Visits:
        least, most, inside = item[1]
        inner = tuple(inside)
        self._add(visits.total)
        if most == 1:
            once = self.walk(inner, rest, visits)
            return _together([visits, once]) if least == 0 else once
        if len(inner) == 1 and inner[0][0] in _ONE_CHARACTER:
            return self._run(item, rest, visits)
        return self._general_repeat(item, rest, visits)

    def _run(self, item: Item, rest: tuple[Item, ...], visits: _Visits) -> _Visits:
        """Count a repeat of one character class."""
        least, most, inside = item[1]
        own = _characters(inside[0])
        lengths = min(most, LONGEST_LINE) + 1
        ends_once = item[0] is code.POSSESSIVE_REPEAT or not own & _first(rest)
        starts_once = not own & visits.last
        # characters without a common one before: of each run of the line, only the first is a start
        matched = sum(count * min(lengths, LONGEST_LINE - at) for at, count in enumerate(visits.at))
        if starts_once:
            matched = min(matched, visits.peak * LONGEST_LINE)
        self._add(matched * (1 + (_probes(rest)[0] if ends_once else 0)))
        last = own | visits.last if least == 0 else own
        if ends_once:
            peak = visits.peak if starts_once else visits.total
            empty = visits.peak if least == 0 else 0
            return _Visits(_moved(visits.at, least), peak + empty, last)
        ways = 1 if starts_once else lengths
        peak = visits.peak * (ways + (least == 0))
        before = accumulate(_moved(visits.at, least))
        at = tuple(min(count, peak) for count in before)
        return _Visits(at, max(at), last)

    def _general_repeat(self, item: Item, rest: tuple[Item, ...], visits: _Visits) -> _Visits:
        """Count a repeat of a sequence, as if it could be repeated without limit."""
        least, _, inside = item[1]
        inner = tuple(inside)
        if _probes(inner)[1]:
            raise _Unbounded("a repeat of what may be empty")
        once = _Counter()
        start = _Visits((1,) + (0,) * LONGEST_LINE, peak=1, last=_ALL)
        lengths = once.walk(inner, (*inner, *rest), start).at
        used = [(length, ways) for length, ways in enumerate(lengths) if ways]
        reached: list[int] = []
        for at, count in enumerate(visits.at):
            reached.append(
                count + sum(reached[at - length] * ways for length, ways in used if length <= at)
            )
            self._check(reached[-1])
        total = sum(reached)
        self._add(total * (1 + once.steps))
        if least:
            reached = [after - before for after, before in zip(reached, visits.at, strict=True)]
        return _Visits(tuple(reached), total, _ALL)

    def _add(self, steps: int) -> None:
        self.steps += steps
        self._check(self.steps)

    def _check(self, steps: int) -> None:
        if steps > MOST_STEPS:
            raise _Unbounded(f"more than {MOST_STEPS:,} steps for one line")


def _moved(at: tuple[int, ...], by: int) -> tuple[int, ...]:
    """Return the visits that many characters later."""
    return ((0,) * by + at)[: len(at)]


def _together(ways: Sequence[_Visits]) -> _Visits:
    """Return the visits of a place that is reached in several ways."""
    at = tuple(map(sum, zip(*(each.at for each in ways), strict=True)))
    last = frozenset[str]().union(*(each.last for each in ways))
    return _Visits(at, sum(each.peak for each in ways), last)


def _probes(items: tuple[Item, ...]) -> tuple[int, int]:
    """Return the steps in a sequence if its first character does not match, and in how many ways
    the sequence can be empty."""
    steps, ways = 0, 1
    for kind, value in items:
        if ways == 0:
            break
        if kind is code.SUBPATTERN:
            more, empty = _probes(tuple(value[-1]))
        elif kind is code.BRANCH:
            each = [_probes(tuple(branch)) for branch in value[1]]
            more, empty = 1 + sum(steps for steps, _ in each), sum(ways for _, ways in each)
        elif kind in _REPEATS:
            inner_steps, inner_ways = _probes(tuple(value[2]))
            more, empty = 1 + inner_steps, inner_ways + (value[0] == 0)
        else:
            more, empty = 1, int(kind not in _ONE_CHARACTER)
        steps += ways * more
        ways *= empty
    return steps, ways


# ---------------------------------------------------------------- characters


def _first(items: tuple[Item, ...]) -> Characters:
    """Return the characters that a sequence can begin with."""
    found: Characters = frozenset()
    for item in items:
        kind, value = item
        if kind in _ONE_CHARACTER:
            found |= _characters(item)
        elif kind is code.SUBPATTERN:
            found |= _first(tuple(value[-1]))
        elif kind is code.BRANCH:
            found = found.union(*(_first(tuple(branch)) for branch in value[1]))
        elif kind in _REPEATS:
            found |= _first(tuple(value[2]))
        if not _probes((item,))[1]:
            break
    return found


def _characters(item: Item) -> Characters:
    """Return all sample characters that a class may match, in any case."""
    kind, value = item
    if kind is code.ANY:
        return _ALL
    if kind is code.LITERAL:
        return _of_range(value, value)
    if kind is code.NOT_LITERAL:
        return _ALL - {chr(value)} if value < 128 else _ALL
    is_negated = value[0][0] is code.NEGATE
    return _not_in(value[1:]) if is_negated else frozenset().union(*map(_of_part, value))


def _of_part(part: Item) -> Characters:
    kind, value = part
    if kind is code.LITERAL:
        return _of_range(value, value)
    return _of_range(*value) if kind is code.RANGE else _of_category(value)


def _not_in(parts: Sequence[Item]) -> Characters:
    """Return what a negated class may match: of the parts, only what they match in any case."""
    excluded: set[str] = set()
    for kind, value in parts:
        if kind is code.CATEGORY:
            excluded |= _of_category(value)
        else:
            first, last = value if kind is code.RANGE else (value, value)
            excluded |= {chr(number) for number in range(first, min(last, 127) + 1)}
    return _ALL - excluded


def _of_range(first: int, last: int) -> Characters:
    """Return what a range may match; of characters that are not ASCII, all."""
    own = [c for c in _ALL if any(first <= ord(each) <= last for each in _cases(c))]
    return frozenset([*own, *(_OTHERS if last >= 128 else "")])


def _cases(character: str) -> set[str]:
    """Return a character in both cases; of several characters the first."""
    return {character, character.lower()[0], character.upper()[0], character.casefold()[0]}


@cache
def _of_category(category: Any) -> Characters:
    return frozenset(c for c in _ALL if re.fullmatch(_CATEGORIES[category], c))
