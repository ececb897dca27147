"""Read the output of a job, and tell the host and rank of each line."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Protocol

from msgspec import Struct

from dslaunch.cluster.nodeset import numbers
from dslaunch.run.events import Event
from dslaunch.run.lines import LONGEST
from dslaunch.slurm.nodes import node_names

PIECE = 1 << 20
SRUN_PIECE = 1024
"""Bytes after which `srun --label` ends a line that has not ended, such as a progress bar that
redraws itself (measured with SLURM 22.05)."""
_LABEL = re.compile(rb" {0,20}(\d{1,9}): ?(.*)", re.S)
_TORCH = re.compile(rb"\[[a-z_A-Z0-9-]{0,60}?(\d{1,9})\]:(.*)", re.S)
_PREFIX = re.compile("([A-Za-z0-9._-]{1,255})(?::([0-9]{1,9}))?│".encode())
_TASKS = re.compile(
    r"srun: error: (?P<nodes>\S+): tasks? (?P<tasks>[0-9,-]+): "
    r"(?:Exited with exit code (?P<code>[0-9]{1,9})"
    r"|(?P<word>[A-Z][A-Za-z ]+?)(?: \(core dumped\))?)$"
)
_SIGNALS = {
    "Hangup": 1,
    "Interrupt": 2,
    "Aborted": 6,
    "Bus error": 7,
    "Floating point exception": 8,
    "Killed": 9,
    "User defined signal 1": 10,
    "Segmentation fault": 11,
    "User defined signal 2": 12,
    "Terminated": 15,
}


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


def task_ends(line: str, layout: Layout, now: float) -> Iterator[Event]:
    """Yield the exits of failed tasks that srun reports."""
    match = _TASKS.match(line)
    if match is None:
        return
    number = _SIGNALS.get(match["word"])
    code = int(match["code"] or 1) if number is None else None
    hosts = node_names(match["nodes"])
    try:
        tasks = numbers(match["tasks"])
    except ValueError:
        return  # truncated, or not a line of srun
    if not hosts:
        return
    for task in tasks:
        node, rank = layout.place(task)
        host = hosts[0] if len(hosts) == 1 else f"node {node}"
        yield Event(
            time=now,
            kind="exit",
            host=host,
            rank=rank if layout.direct else None,
            code=code,
            signal=number,
        )


_ROOT = "Root Cause (first observed failure):"
_ENTRY = re.compile(r"\s*(time|rank|exitcode)\s*: (\S{1,40})")


class RootCauses:
    """The rank that failed first on a node, by the summary of torch's agent (torch 2.13,
    distributed/elastic/multiprocessing/errors/__init__.py, `ChildFailedError`)."""

    def __init__(self) -> None:
        self.open: dict[str, dict[str, str]] = {}

    def feed(self, host: str, line: str) -> Iterator[Event]:
        """Parse a line of a node's launcher; yield the exit when the summary is complete."""
        if line.strip() == _ROOT:
            self.open[host] = {}
        entry = _ENTRY.match(line)
        if host not in self.open or entry is None:
            return
        self.open[host][entry[1]] = entry[2]
        if entry[1] == "exitcode":
            yield from _torch_end(host, self.open.pop(host))


def _torch_end(host: str, summary: Mapping[str, str]) -> Iterator[Event]:
    try:
        when = datetime.strptime(summary["time"], "%Y-%m-%d_%H:%M:%S").timestamp()
        rank, code = int(summary["rank"]), int(summary["exitcode"])
    except (KeyError, ValueError):
        return
    was_killed = code < 0
    yield Event(
        time=when,
        kind="exit",
        host=host,
        rank=rank,
        code=None if was_killed else code,
        signal=-code if was_killed else None,
    )


# ---------------------------------------------------------------- sources


class OutputSource(Protocol):
    """A source of growing output."""

    def read(self) -> bytes:
        """Return new output; empty if there is none."""

    def close(self) -> None:
        """Close it."""


class Tail(Struct):
    """A growing file, which may not exist yet, and may be truncated."""

    path: Path
    file: IO[bytes] | None = None

    def read(self) -> bytes:
        """Return new output; empty if there is none."""
        try:
            if self.file is None:
                self.file = _opened(self.path)
            elif self.file.tell() > self.path.stat().st_size:
                self.file.seek(0)
            return self.file.read(PIECE) or b""
        except OSError:
            return b""

    def begin_at(self, find: Callable[[int], int]) -> None:
        """Begin to read at the position that `find` returns for the open file, in bytes; at the
        start of a file that cannot be read yet."""
        try:
            file = _opened(self.path)
            file.seek(find(file.fileno()))
        except OSError:
            return
        self.file = file

    @property
    def seen(self) -> bool:
        """Whether the file could be opened here."""
        return self.file is not None

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def _opened(path: Path) -> IO[bytes]:
    """Open a file, without blocking if another user has replaced it by a pipe."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return os.fdopen(fd, "rb", buffering=0)


class FarTail:
    """A file on the job's first node that this machine does not see, read by a step of the job.

    `--overlap` shares the resources of the job (srun(1), SLURM 20.11); the step ends with it.
    """

    def __init__(self, number: str, host: str, path: str, environ: Mapping[str, str]) -> None:
        step = ["srun", f"--jobid={number}", "--overlap", "--quiet", "--nodes=1", "--ntasks=1"]
        tail = ["tail", "--bytes=+1", "--follow=name", path]
        self.process = subprocess.Popen(
            [*step, f"--nodelist={host}", *tail],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.pipe = self.process.stdout.fileno()
        os.set_blocking(self.pipe, False)

    def read(self) -> bytes:
        """Return new output; empty if there is none."""
        try:
            return os.read(self.pipe, PIECE)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """End the step, if the job is still running."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate()
