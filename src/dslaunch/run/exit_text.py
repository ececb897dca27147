"""How processes ended, as text: in messages about runs, hangs and jobs of SLURM. Pure."""

from __future__ import annotations

import signal
from functools import cache

_OOM_KILLER = "by the out-of-memory killer"
_PROBABLE_CAUSES: dict[int, str] = {
    signal.SIGKILL: f"probably {_OOM_KILLER}",
    signal.SIGBUS: "probably because /dev/shm is too small",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code aborted; the last output says why",
}


@cache
def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@cache
def describe(code: int | None, number: int | None, *, oom: bool = False) -> str:
    """Return how a process ended: `killed by SIGKILL (exit code 137), probably by ...`.

    With `oom` the kernel has reported that it killed the process.
    """
    if number is not None:
        cause = _OOM_KILLER if oom else _PROBABLE_CAUSES.get(number)
        killed = f"killed by {signal_name(number)} (exit code {128 + number})"
        return f"{killed}, {cause}" if cause else killed
    if code is None:
        return "exited with an unknown exit code"
    if code > 128 and code - 128 in list(signal.Signals):
        return f"exit code {code} ({signal.Signals(code - 128).name})"
    return f"exit code {code}"
