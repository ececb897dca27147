"""Lines of the output of a job, each with its host and rank. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from dslaunch.run.lines import LONGEST

SRUN_PIECE = 1024
"""Bytes after which `srun --label` ends a line that has not ended, such as a progress bar that
redraws itself (measured with SLURM 22.05)."""
_LABEL = re.compile(rb" {0,20}(\d{1,9}): ?(.*)", re.S)
_TORCH = re.compile(rb"\[[a-z_A-Z0-9-]{0,60}?(\d{1,9})\]:(.*)", re.S)
_PREFIX = re.compile("([A-Za-z0-9._-]{1,255})(?::([0-9]{1,9}))?│".encode())


class Layout(Struct, frozen=True):
    """How tasks, whose numbers srun prefixes to their lines, map to ranks."""

    groups: tuple[tuple[int, int], ...]
    """Number of nodes, and of ranks per node, in rank order."""
    direct: bool
    """Every task is a rank; otherwise the launcher of a node."""
    elastic: bool = False
    """Lines have their global rank, which does not depend on the node."""
    supervised: bool = False
    """Lines are those of `dslaunch run` in the job, with host and rank."""

    def place(self, task: int) -> tuple[int, int]:
        """Return the node of a task, counted from 0, and its rank, or the first rank of that
        node."""
        node, first = 0, 0
        for nodes, slots in self.groups:
            per_node = slots if self.direct else 1
            if task < nodes * per_node:
                mine = node + task // per_node
                return mine, first + (task if self.direct else task * slots)
            task -= nodes * per_node
            node, first = node + nodes, first + nodes * slots
        return node, first


class OutputReader(Struct):
    """Splits the output of a job into lines with host and rank."""

    layout: Layout
    hosts: tuple[str, ...] = ()
    rest: bytes = b""

    def feed(self, data: bytes) -> Iterator[tuple[str, int | None, bytes]]:
        """Yield each complete line: host, rank, text with its newline, as of `read`."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            yield self.read(line)
        if len(self.rest) > LONGEST:  # a line without an end must not fill the memory
            yield self.read(self.rest)
            self.rest = b""

    def end(self) -> Iterator[tuple[str, int | None, bytes]]:
        """Yield the rest without a newline."""
        if self.rest:
            yield self.read(self.rest)
        self.rest = b""

    def read(self, line: bytes) -> tuple[str, int | None, bytes]:
        """Return host, rank and text of a line: srun labels tasks, torch's `--tee` ranks. The text
        of a progress bar that continues has no newline."""
        if self.layout.supervised:
            return _prefixed(line)
        labeled = _LABEL.fullmatch(line)
        if labeled is None:
            return "slurm", None, line + b"\n"
        task, text = int(labeled[1]), labeled[2]
        node, rank = self.layout.place(task)
        host = self.hosts[node] if node < len(self.hosts) else f"node {node}"
        end = b"" if _continues(text) else b"\n"
        if self.layout.direct:
            return host, rank, text + end
        local = _TORCH.fullmatch(text)
        if local is None:
            return host, None, text + end
        known = int(local[1]) + (0 if self.layout.elastic else rank)
        return host, known, local[2] + b"\n"


def _continues(text: bytes) -> bool:
    """Return whether a labeled line is a piece of a progress bar, which the next one continues."""
    return len(text) == SRUN_PIECE and b"\r" in text


def _prefixed(line: bytes) -> tuple[str, int | None, bytes]:
    """Return host and rank of a line of `dslaunch run` by its prefix (`report.line_prefix`); lines
    without a prefix are those of dslaunch itself, or of SLURM."""
    found = _PREFIX.match(line)
    if found is None:
        return "slurm", None, line + b"\n"
    rank = int(found[2]) if found[2] else None
    return found[1].decode("ascii"), rank, line[found.end() :] + b"\n"
