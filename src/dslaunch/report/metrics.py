"""The metrics of a run in Prometheus' text format, version 0.0.4.

Source: Prometheus documentation, "Exposition formats" and "Metric and label naming" (base units,
the unit at the end of the name).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from dslaunch.run.progress import Progress
from dslaunch.run.slower_rank import SlowerRank
from dslaunch.run.usage import GpuUsage, NodeUsage
from dslaunch.run.usage_monitor import RankSample, UsageSample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "dslaunch_"
Labels = Mapping[str, str]
Value = tuple[Labels, float]


class Measured(Struct, frozen=True):
    """What metrics are made of."""

    run: str
    sample: UsageSample
    stragglers: tuple[SlowerRank, ...] = ()


class Metric(Struct, frozen=True):
    """One metric; all are gauges."""

    name: str
    help: str
    labels: tuple[str, ...]
    """Besides `run`, which all have."""
    values: Callable[[Measured], Iterator[Value]]


def _of_nodes(value: Callable[[NodeUsage], float | None]) -> Callable[[Measured], Iterator[Value]]:
    def values(measured: Measured) -> Iterator[Value]:
        for node in measured.sample.nodes:
            found = value(node)
            if found is not None:
                yield {"node": node.host}, found

    return values


def _of_gpus(value: Callable[[GpuUsage], float | None]) -> Callable[[Measured], Iterator[Value]]:
    def values(measured: Measured) -> Iterator[Value]:
        for node in measured.sample.nodes:
            for gpu in node.gpus:
                found = value(gpu)
                if found is not None:
                    yield {"node": node.host, "gpu": str(gpu.index)}, found

    return values


def _of_ranks(value: Callable[[RankSample], float | None]) -> Callable[[Measured], Iterator[Value]]:
    def values(measured: Measured) -> Iterator[Value]:
        for rank in measured.sample.ranks:
            found = value(rank)
            if found is not None:
                yield {"node": rank.host, "rank": str(rank.rank)}, found

    return values


def _of_progress(
    value: Callable[[Progress], float | None],
) -> Callable[[Measured], Iterator[Value]]:
    return _of_ranks(lambda rank: None if rank.progress is None else value(rank.progress))


def _throttled(measured: Measured) -> Iterator[Value]:
    for node in measured.sample.nodes:
        for gpu in node.gpus:
            for reason in gpu.throttled:
                yield {"node": node.host, "gpu": str(gpu.index), "reason": reason}, 1


def _stragglers(measured: Measured) -> Iterator[Value]:
    for each in measured.stragglers:
        labels = {"node": each.host, "rank": str(each.rank), "evidence": each.evidence.value}
        yield labels, 1


def _unanswered(measured: Measured) -> Iterator[Value]:
    yield {}, len(measured.sample.unanswered)


def _time(measured: Measured) -> Iterator[Value]:
    yield {}, measured.sample.time


def _hertz(gpu: GpuUsage) -> float | None:
    return None if gpu.clock is None else gpu.clock * 1_000_000


_NODE, _GPU, _RANK = ("node",), ("node", "gpu"), ("node", "rank")
METRICS = (
    Metric("measured_timestamp_seconds", "Time of the last measurement.", (), _time),
    Metric("unanswered_nodes", "Nodes that did not answer the last measurement.", (), _unanswered),
    Metric(
        "node_cpu_busy_ratio",
        "Share of all CPUs that were busy, from 0 to 1.",
        _NODE,
        _of_nodes(lambda node: node.cpu),
    ),
    Metric("node_cpus", "Number of CPUs.", _NODE, _of_nodes(lambda node: node.cpus)),
    Metric(
        "node_load1",
        "Processes that ran or waited for a CPU, average of one minute.",
        _NODE,
        _of_nodes(lambda node: node.load),
    ),
    Metric(
        "node_cpu_throttled_ratio",
        "Share of the time in which a CPU limit was reached, from 0 to 1.",
        _NODE,
        _of_nodes(lambda node: node.cpu_throttled),
    ),
    Metric(
        "node_memory_used_bytes", "Used memory.", _NODE, _of_nodes(lambda node: node.memory_used)
    ),
    Metric("node_memory_total_bytes", "Memory.", _NODE, _of_nodes(lambda node: node.memory_total)),
    Metric(
        "node_network_receive_bytes_per_second",
        "Received over all network interfaces but loopback.",
        _NODE,
        _of_nodes(lambda node: node.received),
    ),
    Metric(
        "node_network_transmit_bytes_per_second",
        "Sent over all network interfaces but loopback.",
        _NODE,
        _of_nodes(lambda node: node.sent),
    ),
    Metric(
        "node_fabric_receive_bytes_per_second",
        "Received over InfiniBand or RoCE.",
        _NODE,
        _of_nodes(lambda node: node.fabric_received),
    ),
    Metric(
        "node_fabric_transmit_bytes_per_second",
        "Sent over InfiniBand or RoCE.",
        _NODE,
        _of_nodes(lambda node: node.fabric_sent),
    ),
    Metric(
        "node_link_errors",
        "Errors of network and fabric links since the measurement before.",
        _NODE,
        _of_nodes(lambda node: node.link_errors),
    ),
    Metric(
        "node_disk_read_bytes_per_second",
        "Read from all disks.",
        _NODE,
        _of_nodes(lambda node: node.disk_read),
    ),
    Metric(
        "node_disk_written_bytes_per_second",
        "Written to all disks.",
        _NODE,
        _of_nodes(lambda node: node.disk_written),
    ),
    Metric(
        "gpu_busy_ratio",
        "Share of the time in which a kernel ran, from 0 to 1.",
        _GPU,
        _of_gpus(lambda gpu: gpu.busy),
    ),
    Metric(
        "gpu_memory_used_bytes", "Used GPU memory.", _GPU, _of_gpus(lambda gpu: gpu.memory_used)
    ),
    Metric("gpu_memory_total_bytes", "GPU memory.", _GPU, _of_gpus(lambda gpu: gpu.memory_total)),
    Metric("gpu_power_watts", "Power draw.", _GPU, _of_gpus(lambda gpu: gpu.power)),
    Metric(
        "gpu_temperature_celsius", "GPU temperature.", _GPU, _of_gpus(lambda gpu: gpu.temperature)
    ),
    Metric("gpu_sm_clock_hertz", "Clock of the streaming multiprocessors.", _GPU, _of_gpus(_hertz)),
    Metric(
        "gpu_throttled",
        "1 for each reason for which the clock is reduced.",
        (*_GPU, "reason"),
        _throttled,
    ),
    Metric(
        "rank_cpus_used",
        "CPUs that were busy for a rank and its child processes.",
        _RANK,
        _of_ranks(lambda rank: rank.usage.cpu),
    ),
    Metric(
        "rank_memory_bytes",
        "Resident memory of a rank and its child processes.",
        _RANK,
        _of_ranks(lambda rank: rank.usage.memory),
    ),
    Metric(
        "rank_busy_ratio",
        "Share of the time in which a rank's main thread ran or waited for a CPU, from 0 to 1.",
        _RANK,
        _of_ranks(lambda rank: rank.usage.busy),
    ),
    Metric(
        "rank_late_ratio",
        "By how much a rank enters collectives later than the median one, as a share of the step "
        "time; below 0: earlier.",
        _RANK,
        _of_ranks(lambda rank: rank.usage.late),
    ),
    Metric(
        "rank_step", "Last step that a rank printed.", _RANK, _of_progress(lambda said: said.step)
    ),
    Metric("rank_step_seconds", "Time per step.", _RANK, _of_ranks(lambda rank: rank.step_seconds)),
    Metric(
        "rank_loss", "Last loss that a rank printed.", _RANK, _of_progress(lambda said: said.loss)
    ),
    Metric(
        "rank_tokens_per_second",
        "Last throughput that a rank printed.",
        _RANK,
        _of_progress(lambda said: said.tokens_per_second),
    ),
    Metric(
        "rank_straggler",
        "1 for a rank that the others wait for.",
        (*_RANK, "evidence"),
        _stragglers,
    ),
)


def metrics_text(measured: Measured) -> str:
    """Return all metrics that have a value."""
    lines = []
    for metric in METRICS:
        values = list(metric.values(measured))
        if not values:
            continue
        name = PREFIX + metric.name
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} gauge"]
        lines += [
            f"{name}{_labels(measured.run, labels)} {_number(value)}" for labels, value in values
        ]
    return "".join(f"{line}\n" for line in lines)


_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


def _labels(run: str, labels: Labels) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in {"run": run, **labels}.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return re.sub(r'[\\"\n]', lambda match: _ESCAPED[match[0]], value)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
