"""Nodes that SLURM gives or has: from the variables of an allocation, or of a partition. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from dslaunch.cluster.discover import Discovered, gpus_per_node, run_lengths
from dslaunch.cluster.model import MOST_SLOTS, Cluster, Node
from dslaunch.cluster.nodeset import expand, fold, numbers
from dslaunch.errors import UsageError

UNUSABLE = ("DOWN", "DRAIN", "FAIL", "MAINT", "NOT_RESPONDING", "UNKNOWN")
"""Parts of a node's state in which it gets no jobs (sinfo(1), "NODE STATE CODES"); one that is
powered down does, and is powered up for them."""
_INDEXES = re.compile(r"Nodes=(\S+) .*?GRES=\S*gpu\S*?\(IDX:([\d,-]+)\)")
_GRES = re.compile(r"gpu(?::([\w.-]+))?:(\d+)")
_FIELD = re.compile(r"(?:^|\s)([A-Za-z]\w*)=(\S*)")
_STATES = {"*": "NOT_RESPONDING", "$": "MAINT", "@": "REBOOT"}


@dataclass(frozen=True, slots=True)
class Given:
    """What an allocation gives on one node."""

    host: str
    slots: tuple[int, ...] | None
    """The GPUs, or as many numbers as tasks; None: SLURM does not say."""


def given(environ: Mapping[str, str], detail: str = "") -> tuple[Given, ...]:
    """The nodes of the allocation that we are in, in SLURM's order, so that the first is master.

    `detail` is what `scontrol --details show job` says, where there is an scontrol: which GPUs of
    each node are ours. Without it their number is known, of variables that may be `8`, `a100:4`
    or run lengths such as `2(x3),1`. Raises UsageError outside an allocation.
    """
    indexes = gpu_indexes(detail)
    found: list[Given] = []
    for group in _groups(environ):
        folded = environ.get(f"SLURM_JOB_NODELIST{group}") or environ.get(f"SLURM_NODELIST{group}")
        if not folded:
            raise UsageError(
                f"SLURM_JOB_NODELIST{group} is not set: this is no allocation of SLURM",
                hint="call it inside salloc or a job",
            )
        hosts = _expanded(folded)
        counts = _counts(environ, group, len(hosts))
        for host, count in zip(hosts, counts, strict=True):
            known = indexes.get(host)
            found.append(Given(host, known or (tuple(range(count)) if count else None)))
    return tuple(found)


def _groups(environ: Mapping[str, str]) -> list[str]:
    """The endings of the variables of a heterogeneous job's components."""
    size = environ.get("SLURM_HET_SIZE", "")
    return [f"_HET_GROUP_{i}" for i in range(int(size))] if size.isdecimal() else [""]


def _counts(environ: Mapping[str, str], group: str, nodes: int) -> list[int | None]:
    """Slots per node: its GPUs, else its tasks where there are several."""
    gpus = gpus_per_node(environ, group)
    if gpus:
        return [gpus] * nodes
    tasks = run_lengths(environ.get(f"SLURM_TASKS_PER_NODE{group}", ""))
    if len(tasks) == nodes and max(tasks) > 1:
        return list(tasks)
    return [None] * nodes


def gpu_indexes(detail: str) -> dict[str, tuple[int, ...]]:
    """Which GPUs of each node a job has, by `scontrol --details show job`: `gpu:2(IDX:0-1)`."""
    found: dict[str, tuple[int, ...]] = {}
    for folded, indexes in _INDEXES.findall(detail):
        ids = tuple(n for part in indexes.split(",") for n in _span(part))
        found |= dict.fromkeys(_expanded(folded), ids)
    return found


def seen_by_steps(said: str) -> dict[str, tuple[int, ...]]:
    """Which GPUs each node has, by lines `NODE=CUDA_VISIBLE_DEVICES` of the nodes' steps.

    Names such as `MIG-...` count as many numbers from 0 on.
    """
    found: dict[str, tuple[int, ...]] = {}
    for line in said.splitlines():
        host, _, listed = line.partition("=")
        names = [name for name in listed.split(",") if name and name != "NoDevFiles"]
        if names and all(name.isdecimal() for name in names):
            found[host] = tuple(sorted(map(int, names)))
        elif names:
            found[host] = tuple(range(len(names)))
    return found


def _span(text: str) -> tuple[int, ...]:
    try:
        return numbers(text)
    except ValueError:
        return ()


def _expanded(folded: str) -> tuple[str, ...]:
    try:
        return expand(folded)
    except ValueError as error:
        raise UsageError(f"SLURM's list of nodes: {error}") from None


def in_allocation(cluster: Cluster, nodes: tuple[Given, ...]) -> Cluster:
    """The cluster file with the nodes that SLURM gave in the place of its own.

    A node that the file names keeps what the file says of it; another is like the first, but for
    its name and address, since the file says what the site's nodes are like.
    """
    known = {node.host: node for node in cluster.nodes}
    like = replace(cluster.nodes[0], address=None, spare=False)

    def node(one: Given) -> Node:
        base = known.get(one.host) or replace(like, host=one.host)
        return replace(base, slots=one.slots or base.slots, spare=False)

    return replace(cluster, nodes=tuple(map(node, nodes)))


def bare_cluster(nodes: tuple[Given, ...], name: str = "slurm") -> Cluster:
    """A cluster of an allocation, where there is no file. Raises UsageError without slots."""
    unknown = [one.host for one in nodes if one.slots is None]
    if unknown:
        raise UsageError(
            f"SLURM does not say how many ranks {fold(unknown)} can have",
            hint="ask for --gres=gpu:N or --ntasks-per-node=N, or name a cluster file",
        )
    return Cluster(name, tuple(Node(one.host, one.slots or ()) for one in nodes))


def file_of(cluster: Cluster, text: str) -> str:
    """The cluster file's text with the nodes that SLURM gave in the place of its own, so that it
    can be read without the allocation. YAML that is JSON. An empty text: there is no file."""
    from dslaunch.cluster import schema, yamltext

    data: dict[str, Any] = {"name": cluster.name}
    if text:
        data |= yamltext.parse(text, cluster.name, verbatim=schema.VERBATIM).data
    for name in ("python", "activate"):  # each node has its own
        data.pop(name, None)
    data |= {"transport": cluster.transport, "nodes": [_entry(node) for node in cluster.nodes]}
    return json.dumps(data, indent=1) + "\n"


def _entry(node: Node) -> dict[str, Any]:
    """A node as the file has it."""
    pairs = {name: dict(getattr(node, name)) for name in ("env", "labels")}
    values = asdict(node) | pairs | {"slots": list(node.slots)}
    return {name: value for name, value in values.items() if value not in (None, {}, False)}


# ---------------------------------------------------------------- a partition


def from_partition(text: str, partition: str, slots: int | None = None) -> Discovered:
    """The nodes of a partition by `scontrol show node`, in one or many lines each.

    Left out, with a note, are those that get no jobs. Raises UsageError.
    """
    records = re.split(r"(?m)^(?=NodeName=)", text)
    fields = [dict(_FIELD.findall(record)) for record in records if "NodeName=" in record]
    rows = [
        (f["NodeName"], f.get("Gres", ""), f.get("State", ""))
        for f in fields
        if partition in f.get("Partitions", "").split(",")
    ]
    return _discovered(rows, partition, slots)


def from_sinfo(text: str, partition: str, slots: int | None = None) -> Discovered:
    """Likewise by `sinfo --Node --noheader --partition=P --format='%N|%G|%T'`."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 3 and cells[0]:
            rows.append((cells[0], cells[1], cells[2]))
    return _discovered(rows, partition, slots)


def _discovered(rows: list[tuple[str, str, str]], partition: str, slots: int | None) -> Discovered:
    # a node of several lines is one node
    unique = {name: (gres, state) for name, gres, state in rows}
    good = {name: gres for name, (gres, state) in unique.items() if usable(state)}
    bad = [name for name in unique if name not in good]
    if not good:
        why = f"all of its nodes are down or drained: {fold(bad)}" if bad else "it has no nodes"
        raise UsageError(f"partition {partition}: {why}", hint="`sinfo -s` lists the partitions")
    counts = {name: slots or gpus_of(gres) for name, gres in good.items()}
    notes = [f"left out, since they get no jobs now: {fold(bad)}"] if bad else []
    types = sorted({kind for gres in good.values() for kind in _kinds(gres)})
    notes += [f"GPUs by name: {', '.join(types)}"] if types else []
    return Discovered(
        f"SLURM's partition {partition}",
        tuple((name, min(count or 1, MOST_SLOTS)) for name, count in counts.items()),
        guessed_slots=not all(counts.values()),
        notes=tuple(notes),
    )


def usable(state: str) -> bool:
    """Whether a node of this state gets jobs: `IDLE+DRAIN` and `down*` do not."""
    whole = state.upper() + "".join(f"+{word}" for mark, word in _STATES.items() if mark in state)
    return not any(part.startswith(bad) for part in re.split(r"\W+", whole) for bad in UNUSABLE)


def gpus_of(gres: str) -> int:
    """How many GPUs `gpu:a100:4(S:0-1),gpu:h100:2` are; 0: none."""
    return sum(int(count) for _, count in _GRES.findall(gres))


def _kinds(gres: str) -> Iterator[str]:
    return (kind for kind, _ in _GRES.findall(gres) if kind)


def partition_file(found: Discovered, partition: str) -> str:
    """A cluster file for a partition's nodes, with what `dslaunch slurm` needs."""
    from dslaunch.render.cluster_file import cluster_yaml

    return f"{cluster_yaml(found)}\nslurm:\n  partition: {partition}\n  # time: 2:00:00\n"
