"""One output of a job as it grows: lines for the screen, and what they tell of the last start."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dslaunch.node.frames import NO_RANK, Output
from dslaunch.run.events import Event
from dslaunch.run.outcome import Outcome
from dslaunch.run.watch import Watch
from dslaunch.slurm.output import Layout, OutputReader, OutputSource, RootCauses, Tail, task_ends
from dslaunch.slurm.output_evidence import SLURM, OutputEvidence, Starts


@dataclass(slots=True)
class Stream:
    """One output file: of a job, or of a task of an array."""

    tail: Tail
    reader: OutputReader
    watch: Watch
    starts: Starts
    causes: RootCauses = field(default_factory=RootCauses)
    far: OutputSource | None = None
    """Reads the file through the job where it is not on this machine."""
    errors: tuple[Tail, OutputReader] | None = None
    """The file of the standard error, where it is another one."""
    since: float | None = None
    """When the job's start was noticed, by the monotonic clock."""

    @classmethod
    def of(cls, path: str, layout: Layout, watch: Watch, error: str = "") -> Stream:
        """Return the stream of a file that may not be there yet, and of that of the standard error
        if it has its own."""
        stream = cls(Tail(Path(path)), OutputReader(layout), watch, Starts(layout))
        if error:
            stream.errors = Tail(Path(error)), OutputReader(layout)
        return stream

    @property
    def observed(self) -> OutputEvidence:
        """What the last start's lines say of the job."""
        return self.starts.last

    @property
    def root(self) -> Outcome | None:
        """The root cause among the ranks of the last start; None: no rank failed."""
        outcome = self.watch.outcome()
        return outcome if outcome.cause is not None else None

    def read(self) -> bool:
        """Take what is new; False: nothing is."""
        data = (self.far or self.tail).read()
        self._take(self.reader.feed(data))
        return self._read_errors() or bool(data)

    def _read_errors(self) -> bool:
        if self.errors is None:
            return False
        tail, reader = self.errors
        reader.hosts = self.reader.hosts
        data = tail.read()
        self._take(reader.feed(data))
        return bool(data)

    def replay(self, lines: Iterable[str]) -> None:
        """Take lines that were kept elsewhere, where the output itself is not here."""
        self._take(self.reader.read(line.encode()) for line in lines)

    def begin_again(self) -> None:
        """Forget what the start before has told: it is no reason for the end of the next."""
        self.watch.begin_again()
        self.causes = RootCauses()
        self.starts = Starts(self.starts.layout)

    def end(self) -> None:
        """Take what is left without a newline, and close the file."""
        self._take(self.reader.end())
        self.tail.close()
        if self.errors is not None:
            tail, reader = self.errors
            self._take(reader.end())
            tail.close()
        if self.far is not None:
            self.far.close()
        self.watch.flush_all()

    def _take(self, pieces: Iterable[tuple[str, int | None, bytes]]) -> None:
        now = time.time()
        for host, rank, text in pieces:
            line = text.decode(errors="replace").rstrip()
            if self.starts.begins(host, line):
                self.watch.begin_again()
                self.causes = RootCauses()
            self._know_hosts()
            self.starts.feed(host, rank, line)
            number = NO_RANK if rank is None else rank
            self.watch.output(host, Output(number, 1, now, text), 0.0)
            for event in self._ends(host, rank, line, now):
                self.watch.happened(event)

    def _know_hosts(self) -> None:
        """Take the nodes from the mark of the start: lines may come before SLURM is asked, and
        those of an earlier start are of other nodes. The mark of a heterogeneous job has the first
        component's nodes alone."""
        if len(self.starts.hosts) == sum(nodes for nodes, _ in self.reader.layout.groups):
            self.reader.hosts = self.starts.hosts

    def _ends(self, host: str, rank: int | None, line: str, now: float) -> Iterator[Event]:
        """The endings that a line tells; those after SLURM has ended the start are its doing."""
        if self.starts.over:
            return
        if host == SLURM:
            yield from task_ends(line, self.reader.layout, now)
        elif rank is None:
            yield from self.causes.feed(host, line)
