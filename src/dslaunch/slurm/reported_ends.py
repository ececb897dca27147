"""Ends of tasks and ranks that the output of a job reports: lines of srun and of torch's agent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from dslaunch.cluster.nodeset import numbers
from dslaunch.run.events import Event
from dslaunch.slurm.nodes import node_names
from dslaunch.slurm.output import Layout

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
