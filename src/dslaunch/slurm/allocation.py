"""Nodes that SLURM gives, by the variables of an allocation. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from dslaunch.cluster import schema, yamltext
from dslaunch.cluster.discover import gpus_per_node, run_lengths
from dslaunch.cluster.model import MOST_SLOTS, Cluster, Node
from dslaunch.cluster.nodeset import expand, fold, numbers
from dslaunch.errors import UsageError
from dslaunch.slurm.nodes import node_names
from dslaunch.slurm.states import whole_number

_INDEXES = re.compile(r"(?:^|,)gpu(?::[\w.-]{1,64})?:[0-9]{1,9}\(IDX:([0-9,-]+)\)")
"""GPUs of one type, in a list of all generic resources that a job has on a node."""


@dataclass(frozen=True, slots=True)
class AllocatedNode:
    """What an allocation gives on one node."""

    host: str
    slots: tuple[int, ...] | None
    """The GPUs, or as many numbers as tasks; None: SLURM does not say."""
    gpus: int | None = None
    """How many GPUs the allocation has there; None: SLURM does not say."""


def allocated_nodes(environ: Mapping[str, str], detail: str = "") -> tuple[AllocatedNode, ...]:
    """The nodes of the allocation that we are in, in SLURM's order, so that the first is master.

    `detail` is what `scontrol --details show job` says, where there is an scontrol: which GPUs of
    each node are ours. Without it their number is known, of variables that may be `8`, `a100:4`
    or run lengths such as `2(x3),1`. Raises UsageError outside an allocation.
    """
    indexes = gpu_indexes(detail)
    found: list[AllocatedNode] = []
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
            numbered = tuple(range(count)) if count else None
            found.append(AllocatedNode(host, known or numbered, len(known) if known else None))
    return tuple(found)


def _groups(environ: Mapping[str, str]) -> list[str]:
    """The endings of the variables of a heterogeneous job's components."""
    size = whole_number(environ.get("SLURM_HET_SIZE", ""))
    if size is None:
        return [""]
    return [f"_HET_GROUP_{i}" for i in range(min(size, MOST_SLOTS))]


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
    """Which GPUs of each node a job has, by `scontrol --details show job`: `gpu:2(IDX:0-1)`.

    A node may have GPUs of several types, each with its own entry.
    """
    found: dict[str, tuple[int, ...]] = {}
    folded = ""
    for name, _, value in (word.partition("=") for word in detail.split()):
        if name == "Nodes":
            folded = value
        if name != "GRES" or not folded:
            continue
        parts = [part for listed in _INDEXES.findall(value) for part in listed.split(",")]
        ids = tuple(sorted({number for part in parts for number in _span(part)}))
        if ids:
            found |= dict.fromkeys(node_names(folded), ids)
    return found


def seen_by_steps(said: str) -> dict[str, tuple[int, ...]]:
    """Which GPUs each node has, by lines `NODE=CUDA_VISIBLE_DEVICES` of the nodes' steps.

    Names such as `MIG-...` count as many numbers from 0 on.
    """
    found: dict[str, tuple[int, ...]] = {}
    for line in said.splitlines():
        host, _, listed = line.partition("=")
        names = [name for name in listed.split(",") if name and name != "NoDevFiles"]
        indexes = [whole_number(name) for name in names]
        known = [index for index in indexes if index is not None]
        if names and len(known) == len(names):
            found[host] = tuple(sorted(known))
        elif names:
            found[host] = tuple(range(len(names)))
    return found


def fewer_gpus(nodes: Iterable[Node], seen: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """What is wrong where the steps of an allocation see other GPUs than the job has: a line for
    each pair of numbers, with its nodes.

    Nodes of which either is unknown are left out: SLURM sets no variable for GPUs that it does not
    bind.
    """
    wrong: dict[tuple[int, int], list[str]] = {}
    for node in nodes:
        found = len(seen.get(node.host, ()))
        if node.step_gpus is not None and found and found != node.step_gpus:
            wrong.setdefault((found, node.step_gpus), []).append(node.host)
    return tuple(
        f"{fold(hosts)}: a step gets {found} of the {count} GPUs that the job has there"
        for (found, count), hosts in wrong.items()
    )


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


def in_allocation(cluster: Cluster, nodes: tuple[AllocatedNode, ...]) -> Cluster:
    """The cluster file with the nodes that SLURM gave in the place of its own.

    A node that the file names keeps what the file says of it; another is like the first, but for
    its name and address, since the file says what the site's nodes are like.
    """
    known = {node.host: node for node in cluster.nodes}
    like = replace(cluster.nodes[0], address=None, spare=False)

    def node(one: AllocatedNode) -> Node:
        base = known.get(one.host) or replace(like, host=one.host)
        slots = one.slots or base.slots
        return replace(base, slots=slots, spare=False, step_gpus=one.gpus)

    return replace(cluster, nodes=tuple(map(node, nodes)))


def bare_cluster(nodes: tuple[AllocatedNode, ...], name: str = "slurm") -> Cluster:
    """A cluster of an allocation, where there is no file. Raises UsageError without slots."""
    unknown = [one.host for one in nodes if one.slots is None]
    if unknown:
        raise UsageError(
            f"SLURM does not say how many ranks {fold(unknown)} can have",
            hint="ask for --gres=gpu:N or --ntasks-per-node=N, or name a cluster file",
        )
    made = (Node(one.host, one.slots or (), step_gpus=one.gpus) for one in nodes)
    return Cluster(name, tuple(made))


def file_of(cluster: Cluster, text: str) -> str:
    """The cluster file's text with the nodes that SLURM gave in the place of its own, so that it
    can be read without the allocation. YAML that is JSON. An empty text: there is no file."""
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
    values.pop("step_gpus")  # of this allocation, not of the file
    return {name: value for name, value in values.items() if value not in (None, {}, False)}
