"""A partition's nodes and limits, as `sinfo` prints them, and a cluster file of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from dslaunch.cluster.discover import Discovered
from dslaunch.cluster.model import MOST_SLOTS
from dslaunch.cluster.names import host_fault
from dslaunch.cluster.nodeset import fold
from dslaunch.errors import UsageError
from dslaunch.render.cluster_file import cluster_yaml, yaml_text

FORMAT = "%N|%G|%T|%a|%l|%L|%h|%s"
"""What sinfo is asked: name, GRES and state of a node; state, longest and default time, sharing
and sizes of the partition (sinfo(1), --format). None of it is free text, as a node's Reason and
Comment are in `scontrol show node`, where they could pass for another field."""
GPU_LABEL = "gpu"
UNUSABLE = (
    "DOWN",
    "DRAIN",
    "FAIL",
    "MAINT",
    "NOT_RESPONDING",
    "UNKNOWN",
    "INVAL",
    "FUTURE",
)
"""Parts of a node's state in which it gets no jobs (sinfo(1), "NODE STATE CODES"); one that is
powered down does, and is powered up for them."""
_STATES = {"*": "NOT_RESPONDING", "$": "MAINT", "@": "REBOOT"}
_GRES = re.compile(r"gpu(?::([\w.-]{1,64}))?:([0-9]{1,9})", re.ASCII)
_TIME = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,2}):)?([0-9]{1,2}):([0-9]{2})", re.ASCII)
_SIZES = re.compile(r"(?:[0-9]{1,9}-)?([0-9]{1,9})", re.ASCII)
_ACCOUNT = re.compile(r"[\w.@+-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartitionNode:
    """A node of a partition."""

    host: str
    gpus: tuple[tuple[str, int], ...]
    """Types and how many of each; the type is empty where SLURM has no name for it."""
    usable: bool
    """Whether it gets jobs now."""

    @property
    def count(self) -> int:
        """How many GPUs it has."""
        return sum(count for _, count in self.gpus)

    @property
    def kind(self) -> str | None:
        """The type of its GPUs; None: none has a name, or they differ."""
        kinds = {kind for kind, _ in self.gpus}
        return (kinds.pop() or None) if len(kinds) == 1 else None


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as a job meets it."""

    name: str
    nodes: tuple[PartitionNode, ...]
    open: bool = True
    """Whether its jobs are started; they wait else."""
    default_time: timedelta | None = None
    """The limit of a job that names none; None: the longest time holds."""
    longest_time: timedelta | None = None
    """None: there is no limit."""
    exclusive: bool = False
    """Whether jobs get whole nodes only (OverSubscribe=EXCLUSIVE)."""
    most_nodes: int | None = None
    """The most nodes of a job; None: there is no limit."""
    accounts: tuple[str, ...] = ()
    """The only accounts that may use it; empty: all may."""


def parse_partition(text: str, name: str, accounts: tuple[str, ...] = ()) -> Partition:
    """Read what `sinfo --Node --noheader --partition=NAME --format=FORMAT` prints.

    Lines of another form are left out. Raises UsageError without any node.
    """
    rows = [row for line in text.splitlines() if (row := _row(line))]
    if not rows:
        raise UsageError(
            f"partition {name}: there is no such partition, or it has no nodes",
            hint="`sinfo -s` lists the partitions",
        )
    # a node of several lines is one node
    nodes = {row[0]: PartitionNode(row[0], tuple(_gpus(row[1])), usable(row[2])) for row in rows}
    _, _, _, state, longest, default, sharing, sizes = rows[0]
    return Partition(
        name,
        tuple(nodes.values()),
        open=state.lower() == "up",
        default_time=_duration(default),
        longest_time=_duration(longest),
        exclusive=sharing.upper() == "EXCLUSIVE",
        most_nodes=_most(sizes),
        accounts=accounts,
    )


def _row(line: str) -> tuple[str, ...] | None:
    cells = tuple(cell.strip() for cell in line.split("|"))
    fits = len(cells) == FORMAT.count("|") + 1 and host_fault(cells[0]) is None
    return cells if fits else None


def _gpus(gres: str) -> Iterator[tuple[str, int]]:
    """The GPUs of `gpu:a100:4(S:0-1),gpu:h100:2`, by type."""
    counts: dict[str, int] = {}
    for kind, count in _GRES.findall(gres):
        counts[kind] = counts.get(kind, 0) + int(count)
    return ((kind, count) for kind, count in counts.items() if count)


def usable(state: str) -> bool:
    """Whether a node of this state gets jobs: `IDLE+DRAIN` and `down*` do not."""
    whole = state.upper() + "".join(f"+{word}" for mark, word in _STATES.items() if mark in state)
    return not any(part.startswith(bad) for part in re.split(r"\W+", whole) for bad in UNUSABLE)


def _duration(text: str) -> timedelta | None:
    """`2-00:00:00`, `4:00:00` or `30:00`; None for `infinite` and `n/a`."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return whole or None


def _most(sizes: str) -> int | None:
    """The larger number of `1-16`; None for `1-infinite`."""
    found = _SIZES.fullmatch(sizes)
    return int(found[1]) or None if found else None


def allowed_accounts(text: str) -> tuple[str, ...]:
    """The accounts that `scontrol --oneliner show partition` names; empty: all are allowed.

    The record has no free text: only administrators write its values.
    """
    found = re.search(r"(?:^|\s)AllowAccounts=(\S+)", text)
    names = found[1].split(",") if found else ["ALL"]
    valid = [name for name in names if _ACCOUNT.fullmatch(name)]
    return () if "ALL" in valid else tuple(valid)


# ---------------------------------------------------------------- a cluster file


def discovered(partition: Partition, slots: int | None = None) -> Discovered:
    """The nodes that get jobs, those of a kind beside each other; `slots` is said of all.

    Left out, with a note, are those that get no jobs, and those without GPUs where others have
    some. Raises UsageError when none is left.
    """
    idle = [node for node in partition.nodes if node.usable]
    bad = [node.host for node in partition.nodes if not node.usable]
    if not idle:
        raise UsageError(
            f"partition {partition.name}: all of its nodes are down or drained: {fold(bad)}",
            hint="`sinfo -s` lists the partitions",
        )
    counts_gpus = any(node.gpus for node in idle)
    good = [node for node in idle if node.gpus or not counts_gpus]
    bare = [node.host for node in idle if node not in good]
    kinds = list(dict.fromkeys((node.count, node.kind) for node in good))
    good.sort(key=lambda node: kinds.index((node.count, node.kind)))
    return Discovered(
        f"SLURM's partition {partition.name}",
        tuple((node.host, min(slots or node.count or 1, MOST_SLOTS)) for node in good),
        guessed_slots=slots is None and not counts_gpus,
        notes=tuple(_notes(partition, good, bad, bare)),
        counts_gpus=counts_gpus,
        gpu_types=tuple((node.host, node.kind) for node in good if node.kind),
    )


def _notes(
    partition: Partition, good: list[PartitionNode], bad: list[str], bare: list[str]
) -> Iterator[str]:
    if not partition.open:
        yield f"partition {partition.name} is closed: its jobs wait"
    if bad:
        yield f"left out, since they get no jobs now: {fold(bad)}"
    if bare:
        yield f"left out, since they have no GPUs: {fold(bare)}"
    several = [node.host for node in good if len(node.gpus) > 1]
    if several:
        yield f"GPUs of several types in one node, of which SLURM chooses: {fold(several)}"


def partition_file(partition: Partition, slots: int | None = None) -> str:
    """A cluster file for a partition's nodes, with what `dslaunch slurm` needs.

    Raises UsageError when no node gets jobs.
    """
    found = discovered(partition, slots)
    settings = [_line(*setting) for setting in _settings(partition, found)]
    return "\n".join([cluster_yaml(found), "slurm:", *settings, ""])


def _line(setting: str, comment: str = "") -> str:
    return f"  {setting:<24}# {comment}" if comment else f"  {setting}"


def _settings(partition: Partition, found: Discovered) -> Iterator[tuple[str, ...]]:
    """The lines below `slurm:`, each with a comment where one is needed."""
    yield (f"partition: {yaml_text(partition.name)}",)
    if len(partition.accounts) == 1:
        yield (
            f"account: {yaml_text(partition.accounts[0])}",
            "the only one that may use the partition",
        )
    elif partition.accounts:
        yield "# account: NAME", f"one of: {', '.join(partition.accounts)}"
    if not found.counts_gpus:
        # `--gres=gpu:N` is refused there: "Requested node configuration is not available"
        yield "gpus: none", "SLURM has no GPUs (GRES) configured on these nodes"
    if found.gpu_types:
        yield f"gpu_label: {GPU_LABEL}", "the label of nodes that is the GPUs' type for SLURM"
    if partition.most_nodes is not None and partition.most_nodes < len(found.nodes):
        yield from _fewer(partition.most_nodes, found)
    if partition.exclusive:
        yield "# exclusive: true", "the partition gives whole nodes only"
    yield _time(partition)


def _fewer(most: int, found: Discovered) -> Iterator[tuple[str, ...]]:
    """Ask for as many nodes as a job may have, which cannot be said of several kinds."""
    types = dict(found.gpu_types)
    alike = len({(slots, types.get(host)) for host, slots in found.nodes}) == 1
    setting = f"nodes: {most}" if alike else "# --nodes or --include"
    yield setting, f"a job of this partition has at most {most} nodes"


def _time(partition: Partition) -> tuple[str, ...]:
    longest, default = partition.longest_time, partition.default_time
    if default is not None:
        end = f"at most {written(longest)}" if longest else "there is no longest"
        return f'time: "{written(default)}"', f"the partition's default; {end}"
    if longest is not None:
        return f'time: "{written(longest)}"', "the longest; jobs of less may start sooner"
    return "# time: 2:00:00", "the partition has no limit"


def written(time: timedelta) -> str:
    """A time as sbatch reads it: `2-12:00:00`, `4:00:00`."""
    minutes, seconds = divmod(time.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if time.days:
        return f"{time.days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}"
