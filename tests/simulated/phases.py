"""In which phase of a run the launcher spends its processor time. Pure, but for `CpuSampler`."""

from __future__ import annotations

import os
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dslaunch.run.events import Event

PHASES = ("connect", "check", "start", "run", "end")
"""Until all agents have greeted; until the first ranks start; until all have started; until the
first rank ends; until the launcher has exited."""
SAMPLE = 0.02
"""Seconds between two samples."""
_TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuSample:
    """What a process had used at one time."""

    time: float
    """Seconds since the epoch."""
    cpu: float
    """Seconds."""


@dataclass(slots=True)
class CpuSampler:
    """Samples the processor time of a process until it has exited, and its largest memory.

    The largest memory that wait4(2) reports also counts that of the process which has started it.
    """

    pid: int
    samples: list[CpuSample] = field(default_factory=list)
    peak: float = 0.0
    """MiB of memory, at most."""
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to sample."""
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def join(self) -> list[CpuSample]:
        """Wait for the end of the process; return the samples."""
        assert self._thread is not None
        self._thread.join()
        return self.samples

    def _sample(self) -> None:
        stat, status = Path(f"/proc/{self.pid}/stat"), Path(f"/proc/{self.pid}/status")
        while (cpu := _cpu_in(_text(stat))) is not None:
            self.samples.append(CpuSample(time.time(), cpu))
            self.peak = max(self.peak, _peak_in(_text(status)))
            time.sleep(SAMPLE)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has exited, and its status was collected
        return ""


def _cpu_in(stat: str) -> float | None:
    """Return the seconds in a line of /proc/PID/stat (proc(5)); None: the process has exited."""
    fields = stat.rpartition(")")[2].split()
    if not fields or fields[0] == "Z":
        return None
    return (int(fields[11]) + int(fields[12])) * _TICK


def _peak_in(status: str) -> float:
    """Return the MiB of memory in /proc/PID/status (proc(5)); 0.0: the process has exited."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


@dataclass(frozen=True, slots=True)
class Phase:
    """What the launcher needed for a phase, in seconds."""

    wall: float
    cpu: float


def phases_of(events: Sequence[Event], samples: Sequence[CpuSample]) -> Mapping[str, Phase]:
    """Return the phases of a run that has started its ranks."""
    times = {
        kind: [event.time for event in events if event.kind == kind]
        for kind in ("connected", "contained", "started", "exit")
    }
    began, ended = samples[0].time, samples[-1].time
    ends = (
        max(times["connected"]),
        min(times["contained"]),
        max(times["started"]),
        min(times["exit"]),
        ended,
    )
    found = {}
    for name, end in zip(PHASES, ends, strict=True):
        end = max(began, min(end, ended))
        found[name] = Phase(end - began, cpu_between(samples, began, end))
        began = end
    return found


def cpu_between(samples: Sequence[CpuSample], began: float, ended: float) -> float:
    """Return the processor seconds that were used between two times, in seconds since the epoch."""
    return _cpu_at(samples, ended) - _cpu_at(samples, began)


def _cpu_at(samples: Sequence[CpuSample], when: float) -> float:
    """Return what had been used by then, as of the first sample that is not earlier."""
    at = bisect_left(samples, when, key=lambda sample: sample.time)
    return samples[min(at, len(samples) - 1)].cpu
