"""The output of a job: where it is read, and whose line is which."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Protocol

from dslaunch.cluster.nodeset import numbers
from dslaunch.run.events import Event
from dslaunch.run.lines import LONGEST
from dslaunch.slurm.nodes import node_names

PIECE = 1 << 20
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


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tasks of the step, whose numbers srun puts before their lines, become ranks."""

    groups: tuple[tuple[int, int], ...]
    """Nodes and ranks of each, in rank order."""
    direct: bool
    """Every task is a rank; else it is the launcher of a node."""
    elastic: bool = False
    """Lines say their global rank, which does not follow from the node."""
    supervised: bool = False
    """Lines are those of `dslaunch run` in the job: each says its host and rank."""

    def place(self, task: int) -> tuple[int, int]:
        """The node of a task, counted from 0, and the first rank of that node, or its own."""
        node, first = 0, 0
        for nodes, slots in self.groups:
            per_node = slots if self.direct else 1
            if task < nodes * per_node:
                mine = node + task // per_node
                return mine, first + (task if self.direct else task * slots)
            task -= nodes * per_node
            node, first = node + nodes, first + nodes * slots
        return node, first


@dataclass(slots=True)
class OutputReader:
    """Turns the job's output into pieces with a host and a rank."""

    layout: Layout
    hosts: tuple[str, ...] = ()
    rest: bytes = b""

    def feed(self, data: bytes) -> Iterator[tuple[str, int | None, bytes]]:
        """Give each whole line of what has come: host, rank, text with its newline."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            yield self.read(line)
        if len(self.rest) > LONGEST:  # no job can fill the memory by a line that never ends
            yield self.read(self.rest)
            self.rest = b""

    def end(self) -> Iterator[tuple[str, int | None, bytes]]:
        """Give what is left without a newline."""
        if self.rest:
            yield self.read(self.rest)
        self.rest = b""

    def read(self, line: bytes) -> tuple[str, int | None, bytes]:
        """Tell whose line it is: srun labels a task's, torch's `--tee` a rank's."""
        if self.layout.supervised:
            return _prefixed(line)
        labelled = _LABEL.fullmatch(line)
        if labelled is None:
            return "slurm", None, line + b"\n"
        task, text = int(labelled[1]), labelled[2]
        node, rank = self.layout.place(task)
        host = self.hosts[node] if node < len(self.hosts) else f"node {node}"
        if self.layout.direct:
            return host, rank, text + b"\n"
        local = _TORCH.fullmatch(text)
        if local is None:
            return host, None, text + b"\n"
        known = int(local[1]) + (0 if self.layout.elastic else rank)
        return host, known, local[2] + b"\n"


def _prefixed(line: bytes) -> tuple[str, int | None, bytes]:
    """A line of `dslaunch run`, as its screen puts host and rank before it (`report.live.prefix`);
    what has no prefix is of that program itself, or of SLURM."""
    found = _PREFIX.match(line)
    if found is None:
        return "slurm", None, line + b"\n"
    rank = int(found[2]) if found[2] else None
    return found[1].decode("ascii"), rank, line[found.end() :] + b"\n"


def task_ends(line: str, layout: Layout, now: float) -> Iterator[Event]:
    """What srun says of tasks that ended badly, as events."""
    match = _TASKS.match(line)
    if match is None:
        return
    number = _SIGNALS.get(match["word"])
    code = int(match["code"] or 1) if number is None else None
    hosts = node_names(match["nodes"])
    try:
        tasks = numbers(match["tasks"])
    except ValueError:
        return  # cut, or no line of srun's
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
    """The rank that failed first on a node, as torch's agent there sums it up at its end
    (torch 2.13, distributed/elastic/multiprocessing/errors/__init__.py, `ChildFailedError`)."""

    def __init__(self) -> None:
        self.open: dict[str, dict[str, str]] = {}

    def feed(self, host: str, line: str) -> Iterator[Event]:
        """Take a line of a node's launcher; give the ending when it is told whole."""
        if line.strip() == _ROOT:
            self.open[host] = {}
        entry = _ENTRY.match(line)
        if host not in self.open or entry is None:
            return
        self.open[host][entry[1]] = entry[2]
        if entry[1] == "exitcode":
            yield from _torch_end(host, self.open.pop(host))


def _torch_end(host: str, told: Mapping[str, str]) -> Iterator[Event]:
    try:
        when = datetime.strptime(told["time"], "%Y-%m-%d_%H:%M:%S").timestamp()
        rank, code = int(told["rank"]), int(told["exitcode"])
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


# ---------------------------------------------------------------- where it is


class OutputSource(Protocol):
    """Something that output is read from as it grows."""

    def read(self) -> bytes:
        """What is new; nothing when nothing is."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(slots=True)
class Tail:
    """A file that grows, may not be there yet, and may be written anew."""

    path: Path
    file: IO[bytes] | None = None

    def read(self) -> bytes:
        """What is new; nothing when nothing is."""
        try:
            if self.file is None:
                self.file = _opened(self.path)
            elif self.file.tell() > self.path.stat().st_size:
                self.file.seek(0)
            return self.file.read(PIECE) or b""
        except OSError:
            return b""

    @property
    def seen(self) -> bool:
        """Whether the file could be opened here."""
        return self.file is not None

    def close(self) -> None:
        """Let go of the file."""
        if self.file is not None:
            self.file.close()


def _opened(path: Path) -> IO[bytes]:
    """Open a file; where others have put a pipe in its place, without waiting for a writer."""
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
        """What is new; nothing when nothing is."""
        try:
            return os.read(self.pipe, PIECE)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """End the step, if the job has not."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate()
