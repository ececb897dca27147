"""Strict parser of hostfiles: DeepSpeed's `host slots=N`, MPI's `host:N`, and bare names. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

from dslaunch.cluster.mistakes import Mistake, MistakeCode, mistake
from dslaunch.cluster.model import MOST_SLOTS
from dslaunch.cluster.names import host_fault
from dslaunch.errors import ConfigError

_LINE_END = re.compile(r"\r\n|\r|\n")
_LINE = re.compile(r"(\S+)\s+slots=([0-9]{1,9})(.*)", re.ASCII)
_REST = re.compile(r"(?:\s+max[-_]slots=([0-9]{1,9}))?\s*(?:\s#.*)?", re.ASCII)
_COUNTED = re.compile(r"([^\s:]+):([0-9]{1,9})(?:\s#.*)?", re.ASCII)
_BARE = re.compile(r"([^\s:=,\[\]]+)(?:\s#.*)?", re.ASCII)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}")
HINT = "write `host slots=N` or `host:N`, or `host` and use `--slots N`; `user@host` is accepted"


class HostLine(Struct, frozen=True):
    """One host of a hostfile."""

    host: str
    slots: int
    user: str | None = None


def parse_hostfile(text: str, file: str, slots: int | None = None) -> tuple[HostLine, ...]:
    """Parse the host and the slots of each line; `slots` is for lines without slots.

    Raises ConfigError with every invalid line. A line is DeepSpeed's `host slots=N`, optionally
    followed by `max_slots=M` or Open MPI's `max-slots=M`; MPICH's `host:N`; or a name alone.

    Lines that DeepSpeed silently misreads are errors here (0.19.8, launcher/runner.py,
    `_parse_hostfile`): text after the digits, which it ignores, so that `a slots=4,b slots=2` is
    one host; `slots=0`, a node without a process; a byte order mark, which becomes part of the
    first name; names with characters that its include filter cannot contain.
    """
    found: dict[str, HostLine] = {}
    problems = []
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        read = _read(line, slots)
        if isinstance(read, HostLine):
            read = _fault(read, found) or read
        if isinstance(read, HostLine):
            found[read.host] = read
        else:
            problems.append(read.at(file, (number, 1), source=line))
    if not found and not problems:
        problems.append(mistake(MistakeCode.NO_HOST).at(file))
    if problems:
        raise ConfigError(tuple(problems), hint=HINT)
    return tuple(found.values())


def _read(line: str, slots: int | None) -> HostLine | Mistake:
    """Return the host of a line, or the mistake in it."""
    if line.startswith("\ufeff"):
        return mistake(MistakeCode.BYTE_ORDER_MARK)
    if match := _LINE.fullmatch(line):
        return _with_slots(match)
    if match := _COUNTED.fullmatch(line):
        return _line(match[1], int(match[2]))
    match = _BARE.fullmatch(line)
    if match is None:
        return mistake(MistakeCode.INVALID_LINE, written=line)
    if slots is None:
        return mistake(MistakeCode.NO_SLOTS_GIVEN, written=line)
    return _line(match[1], slots)


def _with_slots(match: re.Match[str]) -> HostLine | Mistake:
    host, count, after = match[1], int(match[2]), match[3]
    rest = _REST.fullmatch(after)
    if rest is None:
        return mistake(MistakeCode.IGNORED_TEXT, text=after.strip(), slots=count)
    if rest[1] is not None and int(rest[1]) < count:
        return mistake(MistakeCode.ABOVE_MAX_SLOTS, name=host, slots=count, limit=int(rest[1]))
    return _line(host, count)


def _line(name: str, slots: int) -> HostLine:
    user, at, host = name.rpartition("@")
    return HostLine(host, slots, user) if at and _USER.fullmatch(user) else HostLine(name, slots)


def _fault(line: HostLine, found: dict[str, HostLine]) -> Mistake | None:
    """Return the mistake in a host; None: valid."""
    host, slots = line.host, line.slots
    if host in found:
        return mistake(MistakeCode.REPEATED_HOST, name=host)
    if slots == 0:
        return mistake(MistakeCode.ZERO_SLOTS, name=host)
    if slots > MOST_SLOTS:
        return mistake(MistakeCode.TOO_MANY_SLOTS, name=host, slots=slots, limit=MOST_SLOTS)
    return host_fault(host)
