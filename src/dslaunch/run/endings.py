"""Find why a rank ended, from its last output and the evidence of its node. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.protocol.messages import Evidence
from dslaunch.run.known_endings import KnownEnding, known_endings
from dslaunch.terminal import cut

_EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]: ?)?((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Warning|Exit|"
    r"Group|Iteration))(?::(?: (.*))?)?$"
)
_RANK = re.compile(r"^\[rank\d+\]: ?")
_FRAME = re.compile(r'^(?:\[rank\d+\]:)?\s{0,20}File "[^"]+", line \d+, in ')
"""A call in a Python traceback; the innermost one is the last before the exception."""
_TRACEBACK = "Traceback (most recent call last):"
_MOST_FRAMES = 20
"""Innermost calls of the last traceback in which known endings are searched."""
_MILD = re.compile(
    r"^(?:\[rank\d{1,9}\]: ?)?\[?[IW]\d{0,4} |\[(?:INFO|WARNING|DEBUG)\]|NCCL INFO "
    r"|\w{0,60}Warning: |- (?:INFO|WARNING) -"
)
"""Lines below an error, by the level that torch (`[W socket.cpp:`), NCCL, Python's warnings and
logging give them: a program that runs well writes them too."""
_TERMINATED = re.compile(
    r"^(?:\[rank\d{1,9}\]: ?)?(?:\s{0,8}what\(\): |terminate called without an active exception)"
)
"""What std::terminate writes of the C++ exception that ends the process, or that there is none.
With faulthandler, which every rank has, the end of the process itself comes after it
(`Fatal Python error: Aborted`)."""
_LONGEST = 160
_LOOKED_AT = 4096
"""Characters at each end of a line in which known endings are searched."""
_SHM_SMALL = 64 << 20
_NO_PATTERN = r"(?!)"
OOM_KILLER = KnownEnding(
    code="oom-killer",
    pattern=_NO_PATTERN,
    what="killed by the out-of-memory killer ({0})",
    advice="load less data at once, use fewer data loader workers, or disable CPU offload",
    source="Linux, mm/oom_kill.c",
)
NODE_DISK_FULL = KnownEnding(
    code="disk-full",
    pattern=_NO_PATTERN,
    what="no free disk space in {0}",
    advice="free space there, or move `storage` elsewhere",
    source="statvfs(3)",
)
NODE_SHM_FULL = KnownEnding(
    code="shared-memory",
    pattern=_NO_PATTERN,
    what="/dev/shm is full",
    advice="make it larger (`docker run --shm-size=16g` or `--ipc=host`), or use num_workers=0",
    source="signal(7), SIGBUS",
)
OFFLOAD_MEMORY = KnownEnding(
    code="offload-memory",
    pattern=_NO_PATTERN,
    what="probably out of memory: the DeepSpeed config offloads to the CPU",
    advice="compare the node's memory with `dslaunch estimate`, use more nodes, set "
    "pin_memory: false, or offload less",
    source="DeepSpeed, runtime/zero/offload_config.py, pin_memory",
)
BY_EVIDENCE = (OOM_KILLER, NODE_DISK_FULL, NODE_SHM_FULL, OFFLOAD_MEMORY)
"""Endings that are known from evidence beyond the output of the rank."""


class Diagnosis(Struct, frozen=True):
    """What happened and what to do, one line each."""

    what: str | None = None
    advice: str | None = None
    secondary: bool = False
    """It failed as a consequence of another rank."""
    waited: bool = False
    """It failed after a timeout waiting for another rank."""
    code: str | None = None
    """The code of the known ending or of the node's evidence; None: an exception, or nothing."""
    values: tuple[str, ...] = ()
    """The values of `{0}` and `{1}` in the texts of the known ending."""


def exit_code(code: int | None, number: int | None) -> int:
    """Return the shell's exit code for an ending: 128 + N for signal N."""
    if number is not None:
        return 128 + number
    return 1 if code is None else code


def diagnose(lines: Sequence[str], evidence: Evidence | None = None) -> Diagnosis:
    """Return why a rank ended, by its last output and the evidence of its node.

    The evidence comes first, then a known ending, then the last exception.
    """
    found = evidence or Evidence()
    proof = _by_evidence(found)
    if proof is not None:
        return proof
    # torch writes the rank before each line of an exception; patterns are about the line itself
    short = [_RANK.sub("", ends_of(line)) for line in lines]
    begin = _last_exception_at(short)
    found_exception = cut(found.exception, _LONGEST) if found.exception else None
    exception = found_exception or last_exception(short)
    last = [exception] if exception else []
    last += [*short[begin:], *_frames_above(short, begin)] if begin is not None else []
    # all lines of one exception count as one text: the specific line may be a later one
    terminated = [line for line in short if _TERMINATED.match(line)]
    own = [last, terminated]
    earlier = [[line] for line in reversed(short)]
    every = known_endings()
    specific = [each for each in every if not each.last_resort]
    last_resorts = [each for each in every if each.last_resort]
    for endings in (specific, last_resorts):
        anywhere = [each for each in endings if not each.last_exception]
        searched = [(block, endings) for block in own] + [(block, anywhere) for block in earlier]
        for block, possible in searched:
            known = _known(block, possible)
            if known is not None:
                return known
    return Diagnosis(exception)


def _known(block: Sequence[str], endings: Iterable[KnownEnding]) -> Diagnosis | None:
    """Return the diagnosis of the first of these endings that matches a line of the block."""
    errors = [line for line in block if not _MILD.search(line)]
    for known in endings:
        lines = block if known.any_level else errors
        for line in lines:
            match = re.search(known.pattern, line)
            if match is not None:
                # of alternatives only one has matched
                return _told(known, *(group for group in match.groups() if group is not None))
    return None


def killed_while_offloading(found: Diagnosis, number: int | None) -> Diagnosis:
    """Return the diagnosis of a rank whose config keeps states in the node's memory, if all that
    is known is that SIGKILL ended it.

    A page that is pinned for DeepSpeed's offload cannot be swapped out, so the kernel kills
    (DeepSpeed, runtime/zero/offload_config.py, `pin_memory`).
    """
    if number != signal.SIGKILL or found.code not in (None, "oom-killer"):
        return found
    told = _told(OFFLOAD_MEMORY)
    return replace(told, what=found.what or told.what)


def ends_of(line: str) -> str:
    """Return the ends of a line, in which known endings are searched: a rank may write lines of any
    length."""
    short = len(line) <= 2 * _LOOKED_AT
    return line if short else f"{line[:_LOOKED_AT]} ... {line[-_LOOKED_AT:]}"


def _by_evidence(found: Evidence) -> Diagnosis | None:
    if found.oom:
        return _told(OOM_KILLER, found.oom)
    if found.full:
        return _told(NODE_DISK_FULL, ", ".join(found.full))
    shm_small = found.shm_free is not None and found.shm_free < _SHM_SMALL
    if found.signal == signal.SIGBUS and shm_small:
        return _told(NODE_SHM_FULL)
    return None


def _told(known: KnownEnding, *values: str) -> Diagnosis:
    words = [*values, "", ""]  # no pattern has more than two groups
    return Diagnosis(
        what=known.what.format(*words).strip(),
        advice=known.advice.format(*words).strip(),
        secondary=known.secondary,
        waited=known.waited,
        code=known.code,
        values=values,
    )


def last_exception(lines: Sequence[str]) -> str | None:
    """Return the last line that looks like the end of a Python traceback, shortened. A message that
    begins on the next line is added to it."""
    at = _last_exception_at(lines)
    if at is None:
        return None
    line = _without_rank(lines[at])
    below = [text for each in lines[at + 1 :] if (text := _without_rank(each))]
    if line.endswith(":") and below:
        line = f"{line} {below[0]}"
    return cut(line, _LONGEST)


def _without_rank(line: str) -> str:
    return _RANK.sub("", ends_of(line).strip()).strip()


def _frames_above(lines: Sequence[str], at: int) -> list[str]:
    """Return the innermost calls of the traceback that ends with the exception in line `at`."""
    of_traceback = list(takewhile(lambda line: _TRACEBACK not in line, reversed(lines[:at])))
    return [line for line in of_traceback if _FRAME.match(line)][:_MOST_FRAMES]


def _last_exception_at(lines: Sequence[str]) -> int | None:
    for at in reversed(range(len(lines))):
        if _EXCEPTION.match(ends_of(lines[at]).strip()):
            return at
    return None
