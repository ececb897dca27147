"""Record what the nodes of a run use while it is running, in a file of bounded size."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.node import private
from dslaunch.run.run_directory import open_recorded, write_private
from dslaunch.run.usage import USAGE, NodeUsage, parse_usage, usage_line
from dslaunch.run.usage_monitor import UsageMonitor, UsageSample
from dslaunch.run.view import ignore

if TYPE_CHECKING:
    from dslaunch.run.session import Session

NODES_A_SECOND = 100
"""Nodes that are measured, at most: it takes this process some 0.5 ms for each."""
INTERVAL = 10.0
"""Seconds between two measurements while a run is recorded."""
LARGEST = 32 << 20
"""Bytes of the file; at 64 nodes with 8 GPUs it has 300 to 600 measurements of each."""

OnSample = Callable[[UsageSample], object]
OnUsage = Callable[[str, UsageSample], object]
"""Called with the name of the run and a sample of what its nodes use."""


class UsageFile:
    """The file `usage.jsonl` of a run directory. It never becomes larger than LARGEST by more than
    one round of measurements: then every second one of each node is removed, and from then on half
    as many are added. A full disk loses measurements, never the run."""

    def __init__(self, directory: Path, largest: int = LARGEST) -> None:
        self.path = directory / USAGE
        self._largest = largest
        self._rounds = 0
        self._every = 1
        """Of how many rounds one is added."""

    def add(self, usages: Iterable[NodeUsage]) -> None:
        """Add one round of measurements."""
        lines = [usage_line(usage) for usage in usages]
        if not lines:
            return
        wanted = self._rounds % self._every == 0
        self._rounds += 1
        if not wanted:
            return
        try:
            if self._append(b"".join(lines)) > self._largest:
                self._thin_out()
        except OSError:
            return

    def _append(self, data: bytes) -> int:
        """Append to the file; return its size. Raises OSError."""
        fd = private.open_file(str(self.path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            private.append_whole(fd, data)
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _thin_out(self) -> None:
        """Remove every second measurement of each node. Raises OSError."""
        seen: Counter[str] = Counter()
        kept = []
        with open_recorded(self.path) as file:
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            usage = parse_usage(line)
            if usage is None:
                continue
            if seen[usage.host] % 2 == 0:
                kept.append(line)
            seen[usage.host] += 1
        write_private(self.path, b"".join(kept).decode())
        self._every *= 2


class UsageRecorder:
    """Measures the nodes of a run every INTERVAL seconds; records and reports each sample."""

    def __init__(
        self,
        file: UsageFile,
        report: OnSample = ignore,
        interval: float = INTERVAL,
        formats: Sequence[str] = (),
    ) -> None:
        """`formats`: `Cluster.progress`."""
        self._file, self._report, self._interval = file, report, interval
        self._monitor = UsageMonitor(formats)
        self._began: float | None = None
        """When the latest round began, on the monotonic clock; before the first, when it is to be
        taken to have begun."""
        self._open = False
        """Whether a round has begun and not ended."""
        self._first = True
        """Whether the next round is the first: ranks that have just been started have entered no
        collective."""

    def look(
        self, sessions: Collection[Session], interval: float | None = None
    ) -> UsageSample | None:
        """End a round whose answers are there, and return its sample; begin one when it is time.

        `interval`: seconds between two rounds, if that is less than usual. Never waits.
        """
        seconds = self._interval if interval is None else min(self._interval, interval)
        least = len(sessions) // NODES_A_SECOND
        seconds = max(seconds, least)
        now = time.monotonic()
        if self._began is None:  # at the start of many ranks there is enough to do
            self._began = now - seconds + least
        due = now - self._began >= seconds
        sample = None
        if self._open and (due or self._monitor.complete):
            self._open = False
            sample = self._monitor.end()
            self._file.add(sample.nodes)
            self._report(sample)
        if due:
            self._began = now
            self._monitor.begin(sessions, collectives=not self._first)
            self._first = False
            self._open = True
        return sample
