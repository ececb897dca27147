"""A growing output of a job: its lines for the view, and evidence about the last start."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dslaunch.node.frames import NO_RANK, Output
from dslaunch.run.events import Event
from dslaunch.run.outcome import Outcome
from dslaunch.run.watch import Watch
from dslaunch.slurm.output import Layout, OutputReader
from dslaunch.slurm.output_evidence import SLURM, OutputEvidence, Starts
from dslaunch.slurm.output_sources import OutputSource, Tail
from dslaunch.slurm.output_tail import start_of_last_lines
from dslaunch.slurm.reported_ends import RootCauses, task_ends

if TYPE_CHECKING:
    from dslaunch.run.log_selection import LogSelection


class Stream(Struct):
    """The output file of a job, or of a task of an array."""

    tail: Tail
    reader: OutputReader
    watch: Watch
    starts: Starts
    causes: RootCauses = field(default_factory=RootCauses)
    far: OutputSource | None = None
    """Reads the file by a step of the job if it is not on this machine."""
    errors: tuple[Tail, OutputReader] | None = None
    """The file of the standard error, if it is separate."""
    since: float | None = None
    """When the start of the job was noticed, by the monotonic clock."""

    @classmethod
    def of(cls, path: str, layout: Layout, watch: Watch, error: str = "") -> Stream:
        """Return the stream of a file, which may not exist yet, and of a separate standard
        error."""
        stream = cls(Tail(Path(path)), OutputReader(layout), watch, Starts(layout))
        if error:
            stream.errors = Tail(Path(error)), OutputReader(layout)
        return stream

    @property
    def observed(self) -> OutputEvidence:
        """The evidence about the last start."""
        return self.starts.last

    @property
    def root(self) -> Outcome | None:
        """The root cause among the ranks of the last start; None: no rank failed."""
        outcome = self.watch.outcome()
        return outcome if outcome.cause is not None else None

    def skip_to_last(self, selection: LogSelection) -> None:
        """Begin to read at the last lines that the selection has. What is before them is no
        evidence: this is not for a job whose end is to be explained."""
        self._learn_hosts()
        both = [(self.tail, self.reader), *([self.errors] if self.errors else [])]
        for tail, reader in both:
            reader.hosts = self.reader.hosts
            find = partial(start_of_last_lines, reader=reader, selection=selection)
            tail.begin_at(find)

    def _learn_hosts(self) -> None:
        """Take the nodes from the first lines, which name them if SLURM does not know them any
        more."""
        if self.reader.hosts:
            return
        head = Tail(self.tail.path)
        for line in head.read().splitlines():
            host, _, text = self.reader.read(line)
            self.starts.begins(host, text.decode(errors="replace").rstrip())
        head.close()
        self._know_hosts()

    def read(self) -> bool:
        """Read new output; return whether there was any."""
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
        """Take lines that were saved elsewhere, if the output itself is not here."""
        self._take(self.reader.read(line.encode()) for line in lines)

    def begin_again(self) -> None:
        """Discard the evidence about the last start, which does not explain the end of the next."""
        self.watch.begin_again()
        self.causes = RootCauses()
        self.starts = Starts(self.starts.layout)

    def end(self) -> None:
        """Take the rest without a newline, and close the files."""
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
            # both streams are in one file: a bar must not be continued by another line
            stream = 2 if b"\r" in text else 1
            self.watch.output(host, Output(number, stream, now, text), 0.0)
            for event in self._ends(host, rank, line, now):
                self.watch.happened(event)

    def _know_hosts(self) -> None:
        """Take the nodes from the mark of the start, since lines may be read before a query to
        SLURM, and an earlier start had other nodes. The mark of a heterogeneous job has only the
        nodes of the first component."""
        if len(self.starts.hosts) == sum(nodes for nodes, _ in self.reader.layout.groups):
            self.reader.hosts = self.starts.hosts

    def _ends(self, host: str, rank: int | None, line: str, now: float) -> Iterator[Event]:
        """Yield the exits that a line reports; those after SLURM has ended the start are
        consequences."""
        if self.starts.over:
            return
        if host == SLURM:
            yield from task_ends(line, self.reader.layout, now)
        elif rank is None:
            yield from self.causes.feed(host, line)
