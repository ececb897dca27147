"""Samples of what nodes and ranks use, and of what nodes answer, for tests."""

from __future__ import annotations

from typing import Any

from dslaunch.protocol.usage import COUNTERS, NodeCounters
from dslaunch.protocol.values import parse
from dslaunch.run.progress import Progress
from dslaunch.run.usage import GpuUsage, NodeUsage, RankUsage
from dslaunch.run.usage_monitor import RankSample, UsageSample
from dslaunch.transport.clock import Clock
from dslaunch.transport.future import Future

RANK = {"rank": 0, "pid": 9, "cpu": 5.0, "memory": 4096, "busiest": 9, "ran": 4.0, "waited": 1.0}
COUNTED: dict[str, Any] = {
    "monotonic": 100.0,
    "cpus": 4,
    "cpu_busy": 50.0,
    "cpu_total": 400.0,
    "load": 1.5,
    "memory_total": 1000,
    "memory_free": 400,
    "network": {"eth0": [1000, 2000, 0]},
    "fabric": {},
    "disks": {"sda": [10, 20]},
    "limits": {"/sys/fs/cgroup/a": [100, 10], "/sys/fs/cgroup": [100, 90]},
    "ranks": [RANK],
}


def node(host: str, **fields: Any) -> NodeUsage:
    """A node without load."""
    known = {"cpu": 0.1, "load": 0.5, "memory_used": 1 << 30, "memory_total": 64 << 30, "cpus": 8}
    return NodeUsage(time=1e9, host=host, **{**known, **fields})


def rank(number: int, host: str = "", *, gpu: GpuUsage | None = None, **fields: Any) -> RankSample:
    """A rank, by default alone on its node."""
    known = {"cpu": 1.0, "memory": 1 << 30, "busy": 0.5, "cpu_wait": 0.0}
    usage = RankUsage(rank=number, **{**known, **fields})
    return RankSample(number, host or f"node{number}", usage, gpu)


def gpu(index: int = 0, **fields: Any) -> GpuUsage:
    """A busy GPU."""
    known = {"busy": 1.0, "power": 400.0, "temperature": 55.0, "clock": 1980}
    memory = {"memory_used": 40 << 30, "memory_total": 80 << 30}
    return GpuUsage(index=index, **{**known, **memory, **fields})


def sample(*ranks: RankSample, step: int | None = None, **nodes: dict[str, Any]) -> UsageSample:
    """A sample of these ranks; `nodes`: fields of their nodes, by name."""
    hosts = dict.fromkeys(each.host for each in ranks)
    found = []
    for host in hosts:
        own = [each for each in ranks if each.host == host]
        gpus = tuple(each.gpu for each in own if each.gpu is not None)
        usages = tuple(each.usage for each in own)
        found.append(node(host, ranks=usages, gpus=gpus, **nodes.get(host, {})))
    progress = Progress(step=step) if step is not None else None
    return UsageSample(1e9, tuple(found), ranks, (), progress)


class Answering:
    """The session of a node that answers with these counters, when told to."""

    def __init__(self, host: str, ranks: range = range(2)) -> None:
        self.host, self.ranks = host, ranks
        self.asked: list[Future[NodeCounters]] = []
        self.operations: list[str] = []

    def request(self, operation: str, answer: object, **message: object) -> Future[NodeCounters]:
        self.operations.append(operation)
        if operation != "usage":
            return Future()
        self.asked.append(Future())
        return self.asked[-1]

    def measure_clock(self) -> Future[Clock]:
        return Future()

    def answer(self, **fields: Any) -> None:
        self.asked[-1].set_result(parse(COUNTERS, COUNTED | fields))
