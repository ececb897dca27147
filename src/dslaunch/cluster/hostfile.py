"""DeepSpeed's hostfile, `host slots=N`, read strictly. Pure."""

from __future__ import annotations

import re

from dslaunch.cluster.model import MOST_SLOTS
from dslaunch.cluster.names import host_fault
from dslaunch.cluster.nodeset import shortened
from dslaunch.errors import ConfigError, Problem

_LINE_END = re.compile(r"\r\n|\r|\n")
_LINE = re.compile(r"(\S+)\s+slots=([0-9]{1,9})(.*)", re.ASCII)
_REST = re.compile(r"(?:\s+max_slots=([0-9]{1,9}))?\s*(?:\s#.*)?", re.ASCII)


def parse_hostfile(text: str, file: str) -> tuple[tuple[str, int], ...]:
    """Read host and slots of each line. Raises ConfigError with every bad line.

    What DeepSpeed (0.19.8, launcher/runner.py, `_parse_hostfile`) reads without a word as
    something else is an error here: text after the digits, of which it takes no notice, so that
    `a slots=4,b slots=2` is one host; `slots=0`, a node without a process; a byte order mark,
    which becomes a part of the first name; names that its include texts cannot carry.
    """
    found: dict[str, int] = {}
    problems = []
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        fault = _fault(line, found)
        if fault is not None:
            problems.append(Problem(file, number, 1, "", fault))
        elif match := _LINE.fullmatch(line):
            found[match[1]] = int(match[2])
    if not found and not problems:
        problems.append(Problem(file, 0, 0, "", "has no host, expected lines of `host slots=N`"))
    if problems:
        raise ConfigError(tuple(problems))
    return tuple(found.items())


def _fault(line: str, found: dict[str, int]) -> str | None:
    """Say what is wrong with a line, if anything is."""
    if line.startswith("\ufeff"):
        return "a byte order mark, which DeepSpeed takes for a part of the name; save it without"
    match = _LINE.fullmatch(line)
    if match is None:
        return f"expected `host slots=N`, got {shortened(line)}"
    host, slots, after = match[1], int(match[2]), match[3]
    rest = _REST.fullmatch(after)
    if rest is None:
        return f"{shortened(after.strip())} after `slots={slots}`, which DeepSpeed ignores"
    if host in found:
        return f"host {host!r} is there already"
    if slots == 0:
        return f"host {host!r} has no slots; leave it out"
    if slots > MOST_SLOTS:
        return f"host {host!r} has {slots} slots, at most {MOST_SLOTS} can be"
    if rest[1] is not None and int(rest[1]) < slots:
        return f"host {host!r} has more slots, {slots}, than max_slots, {rest[1]}"
    return host_fault(host)
