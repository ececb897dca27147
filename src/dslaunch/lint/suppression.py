"""Rules that a user has ignored: for one call, for a file, or at one place of it.

A comment names rules for its own line, or, alone on a line, for the next one:

    export MASTER_PORT=29500  # dslaunch: ignore[fixed-port]
    # dslaunch: ignore[fixed-port, shared-output]
    # dslaunch: ignore-file[no-srun]

Rules are always named: a comment that ignores everything would hide the next mistake too.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from dslaunch.errors import UsageError
from dslaunch.lint.remark import Remark, in_order

UNKNOWN_RULE = "unknown-rule"
"""The rule for a comment or key that ignores a rule which does not exist. It cannot be ignored."""
LONGEST = 100
"""Characters of a rule's name that are compared with others, or shown."""
_COMMENT = re.compile(r"(?:#|//)[ \t]*dslaunch:[ \t]*(ignore-file|ignore)\[([^\[\]\n]*)\]")
_NAME = re.compile(r"[^,\s]+")


@dataclass(frozen=True, slots=True)
class Mention:
    """One rule that a text says to ignore, and where."""

    rule: str
    line: int
    column: int
    """Where the rule is named."""
    first: int = 0
    last: int = 0
    """The lines for which it is ignored; 0: all lines."""
    path: str | None = None
    """The place in the data at which it is ignored, as in `Remark.path`; None: everywhere."""


@dataclass(frozen=True, slots=True)
class Screened:
    """Remarks without those that the user ignores."""

    kept: tuple[Remark, ...]
    ignored: int = 0
    """How many were left out."""


def mentions(text: str) -> tuple[Mention, ...]:
    """Return what the comments of a text say to ignore. `#` and `//` begin a comment."""
    return tuple(_mentions(text.split("\n"))) if "dslaunch:" in text else ()


def _mentions(lines: list[str]) -> Iterator[Mention]:
    extents = _extents(lines)
    for number, line in enumerate(lines, start=1):
        for comment in _COMMENT.finditer(line):
            whole_file = comment[1] == "ignore-file"
            first, last = (0, 0) if whole_file else extents[number - 1]
            for name in _NAME.finditer(comment[2]):
                column = comment.start(2) + name.start() + 1
                yield Mention(name[0], number, column, first, last)


def _extents(lines: list[str]) -> list[tuple[int, int]]:
    """For each line, the first and last line that a comment on it is about.

    That is the line itself; for a comment alone on a line the next one; with the lines that
    continue it behind a backslash.
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
    """Whether a line has nothing but such a comment."""
    return _COMMENT.match(line.strip()) is not None


def screened(
    remarks: Iterable[Remark],
    *,
    file: str,
    known: Collection[str],
    ignore: Collection[str] = (),
    said: Iterable[Mention] = (),
) -> Screened:
    """Leave out the remarks that `ignore` (for the call) or `said` (in the file) names.

    A rule of `said` that is not in `known` becomes a warning: a misspelt name ignores nothing.
    """
    every, said = tuple(remarks), tuple(said)
    index = _Index(said)
    kept = [r for r in every if r.rule not in ignore and not index.covers(r)]
    misnamed = [_misnamed(mention, file, known) for mention in said if mention.rule not in known]
    return Screened(in_order([*kept, *misnamed]), len(every) - len(kept))


class _Index:
    """What is ignored, found by rule and line: a hostile file may have a comment on every line."""

    def __init__(self, said: Iterable[Mention]) -> None:
        self._whole_file: set[tuple[str, str | None]] = set()
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        for mention in said:
            if mention.first == 0:
                self._whole_file.add((mention.rule, mention.path))
            else:
                lines = (mention.first, mention.last)
                self._ranges.setdefault(mention.rule, []).append(lines)
        for ranges in self._ranges.values():
            ranges.sort()

    def covers(self, remark: Remark) -> bool:
        """Whether a remark is ignored."""
        rule = remark.rule
        if (rule, None) in self._whole_file or (rule, remark.path) in self._whole_file:
            return True
        ranges = self._ranges.get(rule, [])
        after = bisect_right(ranges, remark.line, key=lambda lines: lines[0])
        # ranges end where their line ends, so of those that begin before, the last reaches furthest
        return after > 0 and remark.line <= ranges[after - 1][1]


def _misnamed(mention: Mention, file: str, known: Collection[str]) -> Remark:
    name = mention.rule[:LONGEST]
    similar = closest_rule(name, known)
    fix = f"write {similar}" if similar else "name a rule as it stands in brackets behind a remark"
    message = f"`{name}` is not a rule, so nothing is ignored"
    return Remark(
        rule=UNKNOWN_RULE,
        level="warning",
        file=file,
        line=mention.line,
        column=mention.column,
        path="",
        message=message,
        fix=fix,
    )


def check_rules(names: Collection[str], known: Collection[str]) -> None:
    """Raise UsageError for a rule to ignore that does not exist."""
    for name in names:
        if name not in known:
            similar = closest_rule(name, known)
            hint = f"did you mean `{similar}`?" if similar else "a remark ends with its rule"
            raise UsageError(f"--ignore: no rule is named `{name}`", hint=hint)


def closest_rule(name: str, known: Collection[str]) -> str | None:
    """Return the rule whose name is most like this one, if any is."""
    found = difflib.get_close_matches(name[:LONGEST], sorted(known), 1)
    return found[0] if found else None
