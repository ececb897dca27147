"""Nodes and limits of a partition, parsed from sinfo's output, and a cluster file for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from msgspec import Struct

from dslaunch.cluster.discover import Discovered
from dslaunch.cluster.model import MOST_SLOTS
from dslaunch.cluster.names import host_fault
from dslaunch.cluster.nodeset import fold
from dslaunch.errors import UsageError
from dslaunch.notes import Note, NoteCode, note
from dslaunch.render.cluster_file import cluster_yaml, yaml_text
from dslaunch.slurm.nodes import is_usable, node_states

FORMAT = "%N|%G|%T|%a|%l|%L|%h|%s"
"""The columns of sinfo: name, GRES and state of a node; state, maximum and default time limit,
sharing and job sizes of the partition (sinfo(1), --format). None of them is free text, unlike a
node's Reason and Comment in `scontrol show node`, which could pass for another field."""
GPU_LABEL = "gpu"
_GRES = re.compile(r"gpu(?::([\w.-]{1,64}))?:([0-9]{1,9})", re.ASCII)
_TIME = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,2}):)?([0-9]{1,2}):([0-9]{2})", re.ASCII)
_SIZES = re.compile(r"(?:[0-9]{1,9}-)?([0-9]{1,9})", re.ASCII)


class PartitionNode(Struct, frozen=True):
    """A node of a partition."""

    host: str
    gpus: tuple[tuple[str, int], ...]
    """Types and the number of each; the type is empty if SLURM has no name for it."""
    usable: bool
    """Whether SLURM starts jobs on it."""

    @property
    def count(self) -> int:
        """The number of its GPUs."""
        return sum(count for _, count in self.gpus)

    @property
    def kind(self) -> str | None:
        """The type of its GPUs; None: the type has no name, or there are several."""
        kinds = {kind for kind, _ in self.gpus}
        return (kinds.pop() or None) if len(kinds) == 1 else None


class Partition(Struct, frozen=True):
    """The nodes and limits of a partition."""

    name: str
    nodes: tuple[PartitionNode, ...]
    open: bool = True
    """Whether SLURM starts its jobs; otherwise they stay pending."""
    default_time: timedelta | None = None
    """The time limit of a job that requests none; None: the maximum applies."""
    max_time: timedelta | None = None
    """None: no limit."""
    exclusive: bool = False
    """Whether SLURM allocates whole nodes only (OverSubscribe=EXCLUSIVE)."""
    max_nodes: int | None = None
    """The maximum number of nodes of a job; None: no limit."""
    accounts: tuple[str, ...] = ()
    """The accounts that may use it; empty: all."""


def parse_partition(text: str, name: str, accounts: tuple[str, ...] = ()) -> Partition:
    """Parse the output of `sinfo --Node --noheader --partition=NAME --format=FORMAT`.

    Lines of another form are ignored. Raises UsageError without any node.
    """
    rows = [row for line in text.splitlines() if (row := _row(line))]
    if not rows:
        raise UsageError(
            f"partition {name} does not exist or has no nodes",
            hint="`sinfo -s` lists the partitions",
        )
    # sinfo may print a node in several lines
    nodes = {row[0]: _node(row[0], gres=row[1], state=row[2]) for row in rows}
    _, _, _, state, maximum, default, sharing, sizes = rows[0]
    return Partition(
        name=name,
        nodes=tuple(nodes.values()),
        open=state.lower() == "up",
        default_time=_duration(default),
        max_time=_duration(maximum),
        exclusive=sharing.upper() == "EXCLUSIVE",
        max_nodes=_largest(sizes),
        accounts=accounts,
    )


def _row(line: str) -> tuple[str, ...] | None:
    cells = tuple(cell.strip() for cell in line.split("|"))
    fits = len(cells) == FORMAT.count("|") + 1 and host_fault(cells[0]) is None
    return cells if fits else None


def _node(host: str, gres: str, state: str) -> PartitionNode:
    return PartitionNode(host, tuple(_gpus(gres)), usable=is_usable(node_states(state)))


def _gpus(gres: str) -> Iterator[tuple[str, int]]:
    """Return the GPUs of `gpu:a100:4(S:0-1),gpu:h100:2`, by type."""
    counts: dict[str, int] = {}
    for kind, count in _GRES.findall(gres):
        counts[kind] = counts.get(kind, 0) + int(count)
    return ((kind, count) for kind, count in counts.items() if count)


def _duration(text: str) -> timedelta | None:
    """Parse `2-00:00:00`, `4:00:00` or `30:00`; None for `infinite` and `n/a`."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return whole or None


def _largest(sizes: str) -> int | None:
    """Return the larger number of `1-16`; None for `1-infinite`."""
    found = _SIZES.fullmatch(sizes)
    return int(found[1]) or None if found else None


# ---------------------------------------------------------------- a cluster file


def discovered(partition: Partition, slots: int | None = None) -> Discovered:
    """Return the nodes on which SLURM starts jobs, equal ones together; `slots` is that of all.

    Excluded, with a note, are nodes in which SLURM starts no jobs, and those without GPUs if
    others have GPUs. Raises UsageError if no node is left.
    """
    usable = [node for node in partition.nodes if node.usable]
    unusable = [node.host for node in partition.nodes if not node.usable]
    if not usable:
        raise UsageError(
            f"partition {partition.name}: all nodes are down or drained: {fold(unusable)}",
            hint="`sinfo -s` lists the partitions",
        )
    counts_gpus = any(node.gpus for node in usable)
    chosen = [node for node in usable if node.gpus or not counts_gpus]
    without_gpus = [node.host for node in usable if node not in chosen]
    kinds = list(dict.fromkeys((node.count, node.kind) for node in chosen))
    chosen.sort(key=lambda node: kinds.index((node.count, node.kind)))
    several_types = [node.host for node in chosen if len(node.gpus) > 1]
    notes = [] if partition.open else [note(PartitionNote.CLOSED, partition=partition.name)]
    notes += _about_nodes(PartitionNote.UNUSABLE, unusable)
    notes += _about_nodes(PartitionNote.WITHOUT_GPUS, without_gpus)
    notes += _about_nodes(PartitionNote.SEVERAL_TYPES, several_types)
    return Discovered(
        f"SLURM partition {partition.name}",
        tuple((node.host, min(slots or node.count or 1, MOST_SLOTS)) for node in chosen),
        guessed_slots=slots is None and not counts_gpus,
        notes=tuple(notes),
        counts_gpus=counts_gpus,
        gpu_types=tuple((node.host, node.kind) for node in chosen if node.kind),
    )


class PartitionNote(NoteCode):
    """What to know about a partition and its settings in a cluster file."""

    CLOSED = "closed", "partition {partition} is down or inactive: its jobs stay pending"
    UNUSABLE = "unusable", "excluded, since SLURM starts no jobs on them: {nodes}"
    WITHOUT_GPUS = "without-gpus", "excluded, since they have no GPUs: {nodes}"
    SEVERAL_TYPES = (
        "several-types",
        "nodes with GPUs of several types, of which SLURM chooses: {nodes}",
    )

    # comments on settings
    ONLY_ACCOUNT = "only-account", "the only account that may use the partition"
    ACCOUNTS = "accounts", "one of: {accounts}"
    NO_GRES = "no-gres", "SLURM has no GPUs (GRES) configured on these nodes"
    GPU_LABEL = "gpu-label", "the label with SLURM's type of the GPUs"
    MAX_NODES = "max-nodes", "a job in this partition may have up to {count} nodes"
    WHOLE_NODES = "whole-nodes", "SLURM allocates whole nodes in this partition"
    DEFAULT_TIME = "default-time", "the partition's default time limit; the maximum is {maximum}"
    DEFAULT_TIME_ONLY = (
        "default-time-only",
        "the partition's default time limit; there is no maximum",
    )
    MAX_TIME = "max-time", "the maximum; SLURM may start shorter jobs sooner"
    NO_TIME_LIMIT = "no-time-limit", "the partition has no time limit"


def _about_nodes(code: PartitionNote, hosts: list[str]) -> list[Note]:
    """Return a note with nodes; none without nodes."""
    return [note(code, nodes=fold(hosts))] if hosts else []


def partition_file(partition: Partition, slots: int | None = None) -> str:
    """Return a cluster file for a partition's nodes, with the settings for `dslaunch slurm`.

    Raises UsageError if SLURM starts jobs on no node.
    """
    found = discovered(partition, slots)
    lines = [setting.line for setting in suggested_settings(partition, found)]
    return "\n".join([cluster_yaml(found), "slurm:", *lines, ""])


class SuggestedSetting(Struct, frozen=True):
    """A line below `slurm:` in a cluster file."""

    text: str
    comment: Note | None = None

    @property
    def line(self) -> str:
        """The line, indented, with its comment."""
        return f"  {self.text:<24}# {self.comment}" if self.comment else f"  {self.text}"


def suggested_settings(partition: Partition, found: Discovered) -> Iterator[SuggestedSetting]:
    """Yield the settings of `slurm:` that a job in this partition needs."""
    yield SuggestedSetting(f"partition: {yaml_text(partition.name)}")
    accounts = partition.accounts
    if len(accounts) == 1:
        account = f"account: {yaml_text(accounts[0])}"
        yield SuggestedSetting(account, note(PartitionNote.ONLY_ACCOUNT))
    elif accounts:
        one_of = note(PartitionNote.ACCOUNTS, accounts=accounts)
        yield SuggestedSetting("# account: NAME", one_of)
    if not found.counts_gpus:
        # SLURM refuses `--gres=gpu:N` there: "Requested node configuration is not available"
        yield SuggestedSetting("gpus: none", note(PartitionNote.NO_GRES))
    if found.gpu_types:
        yield SuggestedSetting(f"gpu_label: {GPU_LABEL}", note(PartitionNote.GPU_LABEL))
    if partition.max_nodes is not None and partition.max_nodes < len(found.nodes):
        yield _nodes_setting(partition.max_nodes, found)
    if partition.exclusive:
        yield SuggestedSetting("# exclusive: true", note(PartitionNote.WHOLE_NODES))
    yield _time_setting(partition)


def _nodes_setting(maximum: int, found: Discovered) -> SuggestedSetting:
    """Request the maximum number of nodes. `nodes` cannot be set for nodes of several kinds."""
    types = dict(found.gpu_types)
    alike = len({(slots, types.get(host)) for host, slots in found.nodes}) == 1
    setting = f"nodes: {maximum}" if alike else "# --nodes or --include"
    return SuggestedSetting(setting, note(PartitionNote.MAX_NODES, count=maximum))


def _time_setting(partition: Partition) -> SuggestedSetting:
    maximum, default = partition.max_time, partition.default_time
    if default is not None:
        comment = note(PartitionNote.DEFAULT_TIME_ONLY)
        if maximum is not None:
            comment = note(PartitionNote.DEFAULT_TIME, maximum=written(maximum))
        return SuggestedSetting(f'time: "{written(default)}"', comment)
    if maximum is not None:
        return SuggestedSetting(f'time: "{written(maximum)}"', note(PartitionNote.MAX_TIME))
    return SuggestedSetting("# time: 2:00:00", note(PartitionNote.NO_TIME_LIMIT))


def written(time: timedelta) -> str:
    """Return a time limit in sbatch's form: `2-12:00:00`, `4:00:00`."""
    minutes, seconds = divmod(time.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if time.days:
        return f"{time.days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}"
