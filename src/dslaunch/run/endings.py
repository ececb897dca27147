"""How a rank ended, in words, and what to do about it. Pure."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
_LONGEST = 160
_SHM_SMALL = 64 << 20


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of what happened, one of what to do."""

    what: str | None = None
    advice: str | None = None
    victim: bool = False
    """It died because of another rank."""
    waited: bool = False
    """It had waited for another rank in vain."""


def exit_code(code: int | None, number: int | None) -> int:
    """The shell's exit code for an ending: 128 + N for signal N."""
    if number is not None:
        return 128 + number
    return 1 if code is None else code


def describe(code: int | None, number: int | None, *, oom: bool = False) -> str:
    """An ending in words, such as `killed by SIGKILL (137), likely out of memory`; with `oom` the
    kernel has said so."""
    if number is not None:
        name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
        likely = "out of memory" if oom else _LIKELY.get(number)
        return f"killed by {name} ({128 + number})" + (f", {likely}" if likely else "")
    if code is None:
        return "ended, its exit code was not seen"
    if code > 128 and code - 128 in list(signal.Signals):
        return f"exit code {code}, as after {signal.Signals(code - 128).name}"
    return f"exit code {code}"


def diagnose(lines: Sequence[str], evidence: Mapping[str, Any] | None = None) -> Diagnosis:
    """Say why a rank ended, from what it wrote last and what its node found out.

    The node's evidence comes first, then a known ending, then the last exception.
    """
    found = dict(evidence or {})
    proof = _by_evidence(found)
    if proof is not None:
        return proof
    exception = error_message(found.get("error_file") or "") or last_exception(lines)
    for line in (*([exception] if exception else ()), *reversed(lines)):
        for known in KNOWN:
            if match := re.search(known.pattern, line):
                return _told(known, match)
    return Diagnosis(exception)


def _by_evidence(found: Mapping[str, Any]) -> Diagnosis | None:
    if found.get("oom"):
        return Diagnosis(
            f"the kernel killed it for want of memory ({found['oom']})",
            "load less at once, use fewer data loader workers, or turn CPU offload off",
        )
    if found.get("full"):
        return Diagnosis(f"no space is left in {', '.join(found['full'])}", "free space there")
    if found.get("signal") == signal.SIGBUS and found.get("shm_free", _SHM_SMALL) < _SHM_SMALL:
        return Diagnosis("/dev/shm is full", "make it larger, or use num_workers=0")
    return None


def _told(known: Known, match: re.Match[str]) -> Diagnosis:
    groups = [group or "" for group in match.groups()]
    what = known.what.format(*groups) if groups else known.what
    advice = known.advice.format(*groups) if groups else known.advice
    return Diagnosis(what, advice, known.victim, known.waited)


def last_exception(lines: Sequence[str]) -> str | None:
    """The last line that looks like the end of a Python traceback, shortened."""
    for line in reversed(lines):
        if match := _EXCEPTION.match(line.strip()):
            text = match[0].partition("]: ")[2] or match[0]
            return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return None


def error_message(text: str) -> str | None:
    """The exception in torch's error file, as `ValueError: bad batch`; None for anything else.

    torch 2.13, distributed/elastic/multiprocessing/errors/error_handler.py: `message` is a text or
    an object that holds one.
    """
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        return None
    if isinstance(message, dict):
        message = message.get("message")
    if not isinstance(message, str) or not message.strip():
        return None
    line = message.strip().splitlines()[-1]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
