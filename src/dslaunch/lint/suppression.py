"""Ignored rules: for one call, for a file, or for one place in it.

A comment applies to its own line, or, alone on a line, to the next one:

    export MASTER_PORT=29500  # dslaunch: ignore[fixed-port]
    # dslaunch: ignore[fixed-port, shared-output]
    # dslaunch: ignore-file[no-srun]

Comments must name rules: one that ignores everything would hide later mistakes too.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from dslaunch.errors import ErrorCode, UsageError
from dslaunch.lint.remark import Remark, in_order
from dslaunch.texts import closest

UNKNOWN_RULE = "unknown-rule"
"""The rule that reports an unknown rule in a comment or key. It cannot be ignored."""
LONGEST = 100
"""The most characters of a rule's name that are compared or shown."""
_COMMENT = re.compile(r"(?:#|//)[ \t]*dslaunch:[ \t]*(ignore-file|ignore)\[([^\[\]\n]*)\]")
_NAME = re.compile(r"[^,\s]+")


class Suppression(Struct, frozen=True):
    """A rule to ignore, and where the text names it."""

    rule: str
    line: int
    column: int
    """Where the rule is named."""
    first: int = 0
    last: int = 0
    """The lines for which it is ignored; 0: all lines."""
    path: str | None = None
    """The place in the data at which it is ignored, as in `Remark.path`; None: everywhere."""


class Screened(Struct, frozen=True):
    """Findings without ignored ones."""

    kept: tuple[Remark, ...]
    ignored: int = 0
    """Number of ignored remarks."""


def suppressions(text: str) -> tuple[Suppression, ...]:
    """Return the rules that comments of a text ignore. `#` and `//` start a comment."""
    return tuple(_suppressions(text.split("\n"))) if "dslaunch:" in text else ()


def _suppressions(lines: list[str]) -> Iterator[Suppression]:
    extents = _extents(lines)
    for number, line in enumerate(lines, start=1):
        for comment in _COMMENT.finditer(line):
            whole_file = comment[1] == "ignore-file"
            first, last = (0, 0) if whole_file else extents[number - 1]
            for name in _NAME.finditer(comment[2]):
                column = comment.start(2) + name.start() + 1
                yield Suppression(name[0], number, column, first, last)


def _extents(lines: list[str]) -> list[tuple[int, int]]:
    """Return for each line the first and last line that a comment on it applies to.

    That is the line itself, or the next one for a comment alone on a line, with its continuation
    lines after a backslash.
    """
    found: list[tuple[int, int]] = []
    for number in range(len(lines), 0, -1):
        line = lines[number - 1]
        is_last = not found
        if not is_last and _is_alone(line):
            found.append(found[-1])
        elif not is_last and line.rstrip("\r").endswith("\\"):
            found.append((number, found[-1][1]))
        else:
            found.append((number, number))
    return found[::-1]


def _is_alone(line: str) -> bool:
    """Return whether a line has nothing but such a comment."""
    return _COMMENT.match(line.strip()) is not None


def screened(
    remarks: Iterable[Remark],
    *,
    file: str,
    known: Collection[str],
    ignore: Collection[str] = (),
    inside: Iterable[Suppression] = (),
) -> Screened:
    """Return the findings without the rules of `ignore` (the command) and `inside` (the file).

    A rule of `inside` that is not in `known` becomes a warning, because it ignores nothing.
    """
    every, within = tuple(remarks), tuple(inside)
    index = _Index(within)
    kept = [r for r in every if r.rule not in ignore and not index.covers(r)]
    misnamed = [_misnamed(each, file, known) for each in within if each.rule not in known]
    return Screened(in_order([*kept, *misnamed]), len(every) - len(kept))


class _Index:
    """Ignored rules by name and line; fast also for a comment on every line."""

    def __init__(self, suppressions: Iterable[Suppression]) -> None:
        self._whole_file: set[tuple[str, str | None]] = set()
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        for suppression in suppressions:
            if suppression.first == 0:
                self._whole_file.add((suppression.rule, suppression.path))
            else:
                lines = (suppression.first, suppression.last)
                self._ranges.setdefault(suppression.rule, []).append(lines)
        for ranges in self._ranges.values():
            ranges.sort()

    def covers(self, remark: Remark) -> bool:
        """Return whether a finding is ignored."""
        rule = remark.rule
        if (rule, None) in self._whole_file or (rule, remark.path) in self._whole_file:
            return True
        ranges = self._ranges.get(rule, [])
        after = bisect_right(ranges, remark.line, key=lambda lines: lines[0])
        # ranges end where their line ends, so of those that begin before, the last reaches furthest
        return after > 0 and remark.line <= ranges[after - 1][1]


def _misnamed(suppression: Suppression, file: str, known: Collection[str]) -> Remark:
    name = suppression.rule[:LONGEST]
    similar = closest(name, sorted(known))
    fix = f"write {similar}" if similar else "use the name in brackets at the end of a finding"
    message = f"unknown rule `{name}`, nothing is ignored"
    return Remark(
        rule=UNKNOWN_RULE,
        level="warning",
        file=file,
        line=suppression.line,
        column=suppression.column,
        path="",
        message=message,
        fix=fix,
    )


def check_rules(names: Collection[str], known: Collection[str]) -> None:
    """Raise UsageError for an unknown rule."""
    for name in names:
        if name not in known:
            similar = closest(name, sorted(known))
            raise UsageError.coded(ErrorCode.UNKNOWN_RULE, name=name, meant=similar)
