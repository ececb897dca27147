"""The nodes of a SLURM allocation, by its variables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from dslaunch.cluster import schema, yamltext
from dslaunch.cluster.model import Cluster, ClusterSource, Node
from dslaunch.cluster.nodeset import expand, fold
from dslaunch.cluster.slurm_variables import gpus_per_node, node_lists, run_lengths
from dslaunch.errors import UsageError
from dslaunch.json_text import json_text
from dslaunch.slurm.scontrol import gpu_indexes
from dslaunch.slurm.states import whole_number

WITHOUT_FILE = "the SLURM allocation"
"""Where a cluster is from that no file describes."""


class AllocatedNode(Struct, frozen=True):
    """A node of an allocation."""

    host: str
    slots: tuple[int, ...] | None
    """The GPUs, or as many indexes as tasks; None: unknown."""
    gpus: int | None = None
    """The number of GPUs of the allocation on the node; None: unknown."""


def allocated_nodes(environ: Mapping[str, str], detail: str = "") -> tuple[AllocatedNode, ...]:
    """Return the nodes of the current allocation in SLURM's order; the first is the master.

    `detail` is the output of `scontrol --details show job`, by which the allocated GPUs of each
    node are known. Without it their number is known, from variables such as `8`, `a100:4` or the
    run lengths `2(x3),1`. Raises UsageError outside an allocation.
    """
    indexes = gpu_indexes(detail)
    found: list[AllocatedNode] = []
    for listed in node_lists(environ):
        hosts = _expanded(listed.folded)
        counts = _counts(environ, listed.suffix, len(hosts))
        for host, count in zip(hosts, counts, strict=True):
            known = indexes.get(host)
            numbered = tuple(range(count)) if count else None
            found.append(AllocatedNode(host, known or numbered, len(known) if known else None))
    return tuple(found)


def _counts(environ: Mapping[str, str], suffix: str, nodes: int) -> list[int | None]:
    """Return the slots per node: its GPUs, or its tasks if there are several."""
    gpus = gpus_per_node(environ, suffix)
    if gpus:
        return [gpus] * nodes
    tasks = run_lengths(environ.get(f"SLURM_TASKS_PER_NODE{suffix}", ""))
    if len(tasks) == nodes and max(tasks) > 1:
        return list(tasks)
    return [None] * nodes


def seen_by_steps(printed: str) -> dict[str, tuple[int, ...]]:
    """Return the GPUs of each node, by lines `NODE=CUDA_VISIBLE_DEVICES` of a step.

    Names such as `MIG-...` are numbered from 0.
    """
    found: dict[str, tuple[int, ...]] = {}
    for line in printed.splitlines():
        host, _, listed = line.partition("=")
        names = [name for name in listed.split(",") if name and name != "NoDevFiles"]
        indexes = [whole_number(name) for name in names]
        known = [index for index in indexes if index is not None]
        if names and len(known) == len(names):
            found[host] = tuple(sorted(known))
        elif names:
            found[host] = tuple(range(len(names)))
    return found


class GpuMismatch(Struct, frozen=True):
    """Nodes on which a step has another number of GPUs than the job."""

    hosts: tuple[str, ...]
    step: int
    job: int

    def __str__(self) -> str:
        return f"{fold(self.hosts)}: a step gets {self.step} of the {self.job} GPUs of the job"


def gpu_mismatches(
    nodes: Iterable[Node], seen: Mapping[str, tuple[int, ...]]
) -> tuple[GpuMismatch, ...]:
    """Return the nodes on which the steps of an allocation see another number of GPUs than the job
    has, grouped by both numbers.

    Nodes with an unknown number are ignored: SLURM sets no variable for GPUs that it does not
    bind.
    """
    wrong: dict[tuple[int, int], list[str]] = {}
    for node in nodes:
        found = len(seen.get(node.host, ()))
        if node.step_gpus is not None and found and found != node.step_gpus:
            wrong.setdefault((found, node.step_gpus), []).append(node.host)
    return tuple(
        GpuMismatch(tuple(hosts), step=found, job=count) for (found, count), hosts in wrong.items()
    )


def _expanded(folded: str) -> tuple[str, ...]:
    try:
        return expand(folded)
    except ValueError as error:
        raise UsageError(f"the node list of SLURM: {error}") from None


def in_allocation(cluster: Cluster, nodes: tuple[AllocatedNode, ...]) -> Cluster:
    """Return the cluster file with the allocated nodes instead of its own.

    A node of the file keeps its settings; any other has those of the first node, except name and
    address.
    """
    known = {node.host: node for node in cluster.nodes}
    like = replace(cluster.nodes[0], address=None, spare=False)

    def node(one: AllocatedNode) -> Node:
        base = known.get(one.host) or replace(like, host=one.host)
        slots = one.slots or base.slots
        return replace(base, slots=slots, spare=False, step_gpus=one.gpus)

    return replace(cluster, nodes=tuple(map(node, nodes)))


def bare_cluster(nodes: tuple[AllocatedNode, ...], name: str = "slurm") -> Cluster:
    """Return a cluster of an allocation without a file. Raises UsageError for unknown slots."""
    unknown = [one.host for one in nodes if one.slots is None]
    if unknown:
        raise UsageError(
            f"the number of ranks on {fold(unknown)} is unknown",
            hint="request --gres=gpu:N or --ntasks-per-node=N, or use a cluster file",
        )
    made = (Node(one.host, one.slots or (), step_gpus=one.gpus) for one in nodes)
    cluster = Cluster(name, tuple(made))
    return replace(cluster, source=ClusterSource(WITHOUT_FILE, file_of(cluster, "")))


def with_source(cluster: Cluster) -> Cluster:
    """Return the cluster with the text from which it can be read without the allocation."""
    if cluster.source is None:
        return cluster
    text = file_of(cluster, cluster.source.text)
    return replace(cluster, source=ClusterSource(cluster.source.file, text))


def file_of(cluster: Cluster, text: str) -> str:
    """Return the text of the cluster file with the allocated nodes instead of its own, to be used
    without the allocation. It is JSON, and so YAML. An empty text: there is no file."""
    data: dict[str, Any] = {"name": cluster.name}
    if text:
        data |= yamltext.parse(text, cluster.name, verbatim=schema.VERBATIM).data
    for name in ("python", "activate"):  # set per node below
        data.pop(name, None)
    data |= {"transport": cluster.transport, "nodes": [_entry(node) for node in cluster.nodes]}
    return json_text(data, indent=1) + "\n"


def _entry(node: Node) -> dict[str, Any]:
    """Return a node as an entry of the file."""
    pairs = {name: dict(getattr(node, name)) for name in ("env", "labels")}
    values = to_builtins(node) | pairs | {"slots": list(node.slots)}
    values.pop("step_gpus")  # a property of the allocation
    return {name: value for name, value in values.items() if value not in (None, {}, False)}
