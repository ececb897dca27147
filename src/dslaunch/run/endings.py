"""How a rank ended, in words, and what to do about it. Pure."""

from __future__ import annotations

import re
import signal

_LIKELY = {
    signal.SIGKILL: "likely out of memory: the kernel or the scheduler kills so",
    signal.SIGBUS: "likely /dev/shm is too small",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code gave up, its reason is above",
}
_HINTS = (
    (r"ModuleNotFoundError: No module named '([^']+)'",
     "install {0} for that node's interpreter, or set `python:` or `activate:`"),
    (r"CUDA out of memory|OutOfMemoryError",
     "use a smaller micro batch, a higher ZeRO stage or offload"),
    (r"Address already in use|EADDRINUSE",
     "another program took the port since it was checked; start again"),
    (r"No space left on device", "free space on that node, or move `storage` elsewhere"),
    (r"Permission denied: '?([^'\n]+)'?", "let the job's user use {0}"),
    (r"No such file or directory: '([^']+)'",
     "{0} is not there on that node; paths are relative to the working directory"),
)  # fmt: skip


def exit_code(code: int | None, number: int | None) -> int:
    """The shell's exit code for an ending: 128 + N for signal N."""
    if number is not None:
        return 128 + number
    return 1 if code is None else code


def describe(code: int | None, number: int | None) -> str:
    """An ending in words, such as `killed by SIGKILL (137), likely out of memory`."""
    if number is not None:
        name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
        likely = _LIKELY.get(signal.Signals(number)) if name.startswith("SIG") else None
        return f"killed by {name} ({128 + number})" + (f", {likely}" if likely else "")
    if code is None:
        return "ended, its exit code was not seen"
    if code > 128 and code - 128 in list(signal.Signals):
        return f"exit code {code}, as after {signal.Signals(code - 128).name}"
    return f"exit code {code}"


def hint(last_lines: list[str]) -> str | None:
    """What to do about a known ending; the last line that is known decides."""
    for line in reversed(last_lines):
        for pattern, advice in _HINTS:
            if found := re.search(pattern, line):
                return advice.format(*found.groups())
    return None
