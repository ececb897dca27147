"""How a rank ended, in words, and what to do about it. Pure."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dslaunch.protocol.messages import Evidence
from dslaunch.run.known_endings import KNOWN, Known

_LIKELY: dict[int, str] = {
    signal.SIGKILL: "likely out of memory: the kernel or the scheduler kills so",
    signal.SIGBUS: "likely /dev/shm is too small",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code gave up, its reason is above",
}
_EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]: ?)?((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Warning|Exit|"
    r"Group|Iteration))(?:: (.*))?$"
)
_RANK = re.compile(r"^\[rank\d+\]: ?")
_MILD = re.compile(
    r"^(?:\[rank\d{1,9}\]: ?)?\[?[IW]\d{0,4} |\[(?:INFO|WARNING|DEBUG)\]|NCCL INFO "
    r"|\w{0,60}Warning: |- (?:INFO|WARNING) -"
)
"""Lines below an error, by the level that torch (`[W socket.cpp:`), NCCL, Python's warnings and
logging give them: a program that runs well writes them too."""
_LONGEST = 160
_LOOKED_AT = 4096
"""Characters at each end of a line that known endings are looked for in."""
_SHM_SMALL = 64 << 20
FROM_THE_NODE = frozenset({"oom-killer", "disk-full", "shared-memory", "offload-memory"})
"""Codes of endings that are known from more than what the rank wrote."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of what happened, one of what to do."""

    what: str | None = None
    advice: str | None = None
    victim: bool = False
    """It died because of another rank."""
    waited: bool = False
    """It had waited for another rank until a time ran out."""
    code: str | None = None
    """Of the known ending, or of the node's evidence; None: an exception as it is, or nothing."""


def exit_code(code: int | None, number: int | None) -> int:
    """The shell's exit code for an ending: 128 + N for signal N."""
    if number is not None:
        return 128 + number
    return 1 if code is None else code


def signal_name(number: int) -> str:
    """The name of a signal, such as `SIGKILL`."""
    return signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"


def describe(code: int | None, number: int | None, *, oom: bool = False) -> str:
    """An ending in words, such as `killed by SIGKILL (137), likely out of memory`; with `oom` the
    kernel has said so."""
    if number is not None:
        name = signal_name(number)
        likely = "out of memory" if oom else _LIKELY.get(number)
        return f"killed by {name} ({128 + number})" + (f", {likely}" if likely else "")
    if code is None:
        return "ended, its exit code was not seen"
    if code > 128 and code - 128 in list(signal.Signals):
        return f"exit code {code}, as after {signal.Signals(code - 128).name}"
    return f"exit code {code}"


def diagnose(lines: Sequence[str], evidence: Evidence | None = None) -> Diagnosis:
    """Say why a rank ended, from what it wrote last and what its node found out.

    The node's evidence comes first, then a known ending, then the last exception.
    """
    found = evidence or Evidence()
    proof = _by_evidence(found)
    if proof is not None:
        return proof
    short = [_bounded(line) for line in lines]
    begin = _last_exception_at(short)
    exception = error_message(found.error_file or "") or last_exception(short)
    last = [exception] if exception else []
    last += short[begin:] if begin is not None else []
    # an exception of several lines says the special thing in a later one: all count as one text
    for block in (last, *([line] for line in reversed(short))):
        if told := _known(block):
            return told
    return Diagnosis(exception)


def _known(block: Sequence[str]) -> Diagnosis | None:
    """Return what the first of the known endings says that fits a line of the block."""
    usual = [line for line in block if not _MILD.search(line)]
    for known in KNOWN:
        for line in block if known.any_level else usual:
            if match := re.search(known.pattern, line):
                return _told(known, match)
    return None


def killed_while_offloading(found: Diagnosis, number: int | None) -> Diagnosis:
    """Return what to say of a rank whose config keeps states in the node's memory, and which
    nobody knows more of than that SIGKILL ended it.

    A page that is pinned for DeepSpeed's offload cannot be swapped out, so the kernel kills
    (DeepSpeed, runtime/zero/offload_config.py, `pin_memory`).
    """
    if number != signal.SIGKILL or found.code not in (None, "oom-killer"):
        return found
    return replace(
        found,
        what=found.what or "likely the node's memory: the DeepSpeed config offloads to the CPU",
        advice="the DeepSpeed config offloads to host memory: compare the node's memory with "
        "`dslaunch estimate`, use more nodes, set pin_memory: false, or offload less",
        code="offload-memory",
    )


def _bounded(line: str) -> str:
    """Return the ends of a line: a rank may write lines of any length."""
    short = len(line) <= 2 * _LOOKED_AT
    return line if short else f"{line[:_LOOKED_AT]} ... {line[-_LOOKED_AT:]}"


def _by_evidence(found: Evidence) -> Diagnosis | None:
    if found.oom:
        return Diagnosis(
            f"the kernel killed it for want of memory ({found.oom})",
            "load less at once, use fewer data loader workers, or turn CPU offload off",
            code="oom-killer",
        )
    if found.full:
        what = f"no space is left in {', '.join(found.full)}"
        return Diagnosis(what, "free space there", code="disk-full")
    shm_small = found.shm_free is not None and found.shm_free < _SHM_SMALL
    if found.signal == signal.SIGBUS and shm_small:
        advice = "make it larger, or use num_workers=0"
        return Diagnosis("/dev/shm is full", advice, code="shared-memory")
    return None


def _told(known: Known, match: re.Match[str]) -> Diagnosis:
    # of alternatives only one has matched; no pattern has more than two groups in one of them
    groups = [group for group in match.groups() if group is not None]
    words = [*groups, "", ""]
    return Diagnosis(
        known.what.format(*words).strip(),
        known.advice.format(*words).strip(),
        known.victim,
        known.waited,
        known.code,
    )


def last_exception(lines: Sequence[str]) -> str | None:
    """The last line that looks like the end of a Python traceback, shortened."""
    at = _last_exception_at(lines)
    if at is None:
        return None
    line = _bounded(lines[at]).strip()
    text = _RANK.sub("", line)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _last_exception_at(lines: Sequence[str]) -> int | None:
    for at in reversed(range(len(lines))):
        if _EXCEPTION.match(_bounded(lines[at]).strip()):
            return at
    return None


def error_message(text: str) -> str | None:
    """The exception in torch's error file, as `ValueError: bad batch`; None for anything else.

    torch 2.13, distributed/elastic/multiprocessing/errors/error_handler.py: `message` is a text or
    an object that holds one.
    """
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(message, dict):
        message = message.get("message")
    if not isinstance(message, str) or not message.strip():
        return None
    line = message.strip().splitlines()[-1]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
