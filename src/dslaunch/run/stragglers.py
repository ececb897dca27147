"""Which rank the others wait for, by what all ranks and nodes use, and by who is late. Pure.

In synchronous training every step takes as long as in the slowest rank, so step times are equal
everywhere. What differs is what ranks do while they wait:

- On CPUs (gloo), a rank that waits sleeps. The slow one runs, or waits for a CPU that its node or a
  CPU limit does not give it.
- On GPUs (NCCL), a kernel that waits spins: those GPUs are busy all the time. The slow rank's GPU
  is idle in between if its input or its CPU is slow, has a lower clock if it is throttled, and
  draws more power if it has more to compute.

A rank is named only if it differs clearly from all others, in several measurements in a row, during
which the training has made steps: a rank that writes a checkpoint is waited for too, and is sound.

Where the ranks record their collectives, `late_ranks.py` also finds one that is slower by a little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.run.slower_rank import Evidence, Reason, SlowerRank
from dslaunch.run.usage import NodeUsage
from dslaunch.run.usage_monitor import RankSample, UsageSample

IN_A_ROW = 3
"""Measurements with the same evidence, at least; the training makes a step during each."""
STEPS = 3
"""Steps that the training must make meanwhile."""
IN_A_ROW_WITHOUT_STEPS = 10
"""Measurements where no rank prints its step."""
BUSY = 0.7
"""Share of the time for which a rank that all wait for runs or waits for a CPU, at least."""
OTHERS = 0.6
"""What all others do of that, at most."""
GPU_BUSY, GPU_GAP = 0.9, 0.25
"""Busy share of the GPUs of all others, at least; how much less that of the slow rank is."""
SLOW_CLOCK = 0.85
"""Clock of a throttled GPU, as a share of the median of the others, at most."""
MORE_POWER = 1.35
"""Power of the slow rank's GPU, as a multiple of the largest of the others, at least."""
LIMITED, WAITED, OTHERS_LOAD = 0.1, 0.2, 0.5
"""Evidence for a reason: share of periods in which a CPU limit was reached; share of the time for
which a rank waited for a CPU; CPUs that others on the node use."""
LATE_LIMITED, LATE_WAITED, LATE_CLOCK = 0.03, 0.05, 0.95
"""The same for a rank that is late in collectives, and may be slower by a little: share of periods;
share of the time beyond what the others wait; clock as a share of the median of the others."""
BUSY_DISK, MORE_DISK = 50e6, 4
"""Bytes per second of a disk that may be a reason, at least; and as a multiple of the busiest one
of the other nodes."""
HARMFUL = frozenset({"thermal", "power-brake", "hardware"})
"""Reasons of throttling that a sound GPU does not have; each reaches its power limit."""


def suspects(sample: UsageSample) -> tuple[SlowerRank, ...]:
    """Return the ranks that one measurement shows to be slow, by their number.

    Fewer than half of the ranks, or exactly half if these are all ranks of one node. A sample
    without some of the nodes shows nothing: the slow rank may be on them.
    """
    if sample.unanswered or len(sample.ranks) < 2:
        return ()
    nodes = {node.host: node for node in sample.nodes}
    for evidence, find in _RULES.items():
        slow = find(sample.ranks)
        if slow and _is_minority(slow, sample.ranks):
            return tuple(
                SlowerRank(each.rank, each.host, evidence, _reasons(each, nodes)) for each in slow
            )
    return ()


def _is_minority(slow: Sequence[RankSample], ranks: Sequence[RankSample]) -> bool:
    if 2 * len(slow) < len(ranks):
        return True
    return 2 * len(slow) == len(ranks) and len({each.host for each in slow}) == 1


# ---------------------------------------------------------------- rules: the slow ranks, or none

Ranks = Sequence[RankSample]


def _split(
    ranks: Ranks, is_slow: Callable[[RankSample], bool]
) -> tuple[list[RankSample], list[RankSample]]:
    slow = [each for each in ranks if is_slow(each)]
    return slow, [each for each in ranks if not is_slow(each)]


def _busy_cpu(ranks: Ranks) -> list[RankSample]:
    if any(each.usage.busy is None or each.gpu is not None for each in ranks):
        return []
    slow, others = _split(ranks, lambda each: (each.usage.busy or 0) >= BUSY)
    if not slow or not others:
        return []
    least = min(each.usage.busy or 0 for each in slow)
    most = max(each.usage.busy or 0 for each in others)
    return slow if most <= OTHERS * least else []


def _idle_gpu(ranks: Ranks) -> list[RankSample]:
    busy = {each.rank: each.gpu.busy for each in ranks if each.gpu and each.gpu.busy is not None}
    if len(busy) < len(ranks):
        return []
    slow, others = _split(ranks, lambda each: busy[each.rank] < GPU_BUSY)
    if not slow or not others:
        return []
    most = max(busy[each.rank] for each in slow)
    least = min(busy[each.rank] for each in others)
    return slow if least - most >= GPU_GAP else []


def _throttled_gpu(ranks: Ranks) -> list[RankSample]:
    clocks = {each.rank: each.gpu.clock for each in ranks if each.gpu and each.gpu.clock}
    if len(clocks) < len(ranks):
        return []
    slow, others = _split(ranks, _is_throttled)
    if not slow or not others:
        return []
    usual = median(clocks[each.rank] for each in others)
    return [each for each in slow if clocks[each.rank] <= SLOW_CLOCK * usual]


def _is_throttled(rank: RankSample) -> bool:
    return rank.gpu is not None and not HARMFUL.isdisjoint(rank.gpu.throttled)


def _powerful_gpu(ranks: Ranks) -> list[RankSample]:
    gpus = {each.rank: each.gpu for each in ranks if each.gpu and each.gpu.power}
    if len(gpus) < len(ranks) or any((gpu.busy or 0) < GPU_BUSY for gpu in gpus.values()):
        return []
    power = {rank: gpu.power or 0.0 for rank, gpu in gpus.items()}
    first, second = sorted(power.values(), reverse=True)[:2]
    if first < MORE_POWER * second:
        return []
    return [each for each in ranks if power[each.rank] == first]


_RULES: Mapping[Evidence, Callable[[Ranks], list[RankSample]]] = {
    Evidence.GPU_THROTTLED: _throttled_gpu,
    Evidence.GPU_IDLE: _idle_gpu,
    Evidence.GPU_POWER: _powerful_gpu,
    Evidence.CPU: _busy_cpu,
}


# ---------------------------------------------------------------- reasons


def _reasons(slow: RankSample, nodes: Mapping[str, NodeUsage]) -> tuple[Reason, ...]:
    node = nodes[slow.host]
    found = []
    waits = (slow.usage.cpu_wait or 0) >= WAITED
    if (node.cpu_throttled or 0) >= LIMITED:
        found.append(Reason.CPU_LIMIT)
    elif waits and _load_of_others(node) >= OTHERS_LOAD:
        found.append(Reason.OTHER_LOAD)
    if slow.gpu is not None:
        found += [Reason(why) for why in slow.gpu.throttled if why in HARMFUL]
    others = (each for host, each in nodes.items() if host != slow.host)
    if node.link_errors and not any(each.link_errors for each in others):
        found.append(Reason.LINK_ERRORS)
    return tuple(found)


def _load_of_others(node: NodeUsage) -> float:
    """Return how many CPUs of a node are busy for others than the ranks."""
    return node.cpu * (node.cpus or 0) - sum(rank.cpu for rank in node.ranks)


# ---------------------------------------------------------------- ranks that are late


def late_in(sample: UsageSample) -> tuple[SlowerRank, ...]:
    """Return the ranks that are late in collectives, by their number, with the reasons that this
    measurement shows."""
    late = sample.lateness.slow if sample.lateness is not None else ()
    slow_hosts = {each.host for each in late}
    numbers = {each.rank for each in late}
    of_host = {each.rank for each in sample.ranks if each.host in slow_hosts}
    is_node = len(slow_hosts) == 1 and len(numbers) > 1 and numbers == of_host
    found = []
    for each in late:
        reasons = _reasons_of_late(each.rank, sample)
        if is_node:
            reasons = (Reason.NODE, *reasons)
        found.append(SlowerRank(each.rank, each.host, Evidence.COLLECTIVES, reasons, each.cost))
    return tuple(found)


def _reasons_of_late(number: int, sample: UsageSample) -> tuple[Reason, ...]:
    late = sample.lateness.slow if sample.lateness is not None else ()
    numbers = {each.rank for each in late}
    own = [each for each in sample.ranks if each.rank == number]
    others = [each for each in sample.ranks if each.rank not in numbers]
    if not own or not others:
        return ()
    (slow,) = own
    nodes = {node.host: node for node in sample.nodes}
    node = nodes[slow.host]
    other_nodes = [each for host, each in nodes.items() if host not in {one.host for one in late}]
    found = list(_reasons(slow, nodes))
    usual_wait = median(each.usage.cpu_wait or 0 for each in others)
    waits = (slow.usage.cpu_wait or 0) - usual_wait >= LATE_WAITED
    if (node.cpu_throttled or 0) >= LATE_LIMITED:
        found.append(Reason.CPU_LIMIT)
    elif waits and _load_of_others(node) >= OTHERS_LOAD:
        found.append(Reason.OTHER_LOAD)
    clocks = [each.gpu.clock for each in others if each.gpu is not None and each.gpu.clock]
    clock = slow.gpu.clock if slow.gpu is not None else None
    if clock and clocks and clock <= LATE_CLOCK * median(clocks):
        found.append(Reason.CLOCK)
    busiest = max(map(_disk_rate, other_nodes), default=None)
    if busiest is not None and _disk_rate(node) >= max(BUSY_DISK, MORE_DISK * busiest):
        found.append(Reason.DISK)
    return tuple(dict.fromkeys(found))


def _disk_rate(node: NodeUsage) -> float:
    return (node.disk_read or 0) + (node.disk_written or 0)


# ---------------------------------------------------------------- in a row


class Streak(Struct, frozen=True):
    """For how long the same ranks were the slow ones."""

    latest: tuple[SlowerRank, ...] = ()
    """As the latest measurement shows them."""
    slower: tuple[SlowerRank, ...] = ()
    """With the reasons that the latest two measurements have: what limits a rank may begin during
    the first one, and one alone may have a reason by chance."""
    measurements: int = 0
    with_steps: int = 0
    """The first measurement, and those during which the training has made a step: a long pause of
    one rank, such as a checkpoint, begins in one measurement with steps and ends in another."""
    steps: int = 0
    """Of the training, since the first measurement."""
    step: int | None = None
    """The latest step of the training; None: no rank prints its step."""
    sample: UsageSample | None = None
    """The latest measurement."""
    late: tuple[SlowerRank, ...] = ()
    """The ranks that are late in collectives, with the reasons that the latest two measurements
    have."""

    @property
    def named(self) -> tuple[SlowerRank, ...]:
        """Return the slow ranks, once the evidence is sufficient."""
        if self.step is None and self.measurements >= IN_A_ROW_WITHOUT_STEPS:
            return self._with_late(self.slower)
        return self.established

    @property
    def established(self) -> tuple[SlowerRank, ...]:
        """Return the slow ranks, once the training is known to have made steps meanwhile.

        Without steps the others may also wait for a rank that prepares the data once.
        """
        enough = self.with_steps >= IN_A_ROW and self.steps >= STEPS
        return self._with_late(self.slower if enough else ())

    def _with_late(self, slower: tuple[SlowerRank, ...]) -> tuple[SlowerRank, ...]:
        """Return slow ranks by their number: also those that are late, whose cost is known."""
        late = {each.rank: each for each in self.late}
        found = dict(late)
        for each in slower:
            cost = late[each.rank].cost if each.rank in late else None
            found[each.rank] = each if cost is None else replace(each, cost=cost)
        return tuple(found[rank] for rank in sorted(found))

    def after(self, sample: UsageSample) -> Streak:
        """Return the streak after another measurement."""
        return replace(self._after(sample), sample=sample, late=self._late_after(sample))

    def _late_after(self, sample: UsageSample) -> tuple[SlowerRank, ...]:
        found = late_in(sample)
        if self.sample is None or not self.sample.ranks:  # the first one has no rates yet
            return found
        before = replace(self.sample, lateness=sample.lateness)
        return tuple(map(_with_common_reasons, late_in(before), found))

    def _after(self, sample: UsageSample) -> Streak:
        found = suspects(sample)
        step = sample.progress.step if sample.progress is not None else None
        if not found:
            return Streak()
        if _identities(found) != _identities(self.latest):
            return Streak(found, found, measurements=1, with_steps=1, step=step)
        made = _steps_between(self.step, step)
        return Streak(
            latest=found,
            slower=tuple(map(_with_common_reasons, self.latest, found)),
            measurements=self.measurements + 1,
            with_steps=self.with_steps + (made > 0),
            steps=self.steps + made,
            step=step,
        )


def _steps_between(before: int | None, now: int | None) -> int:
    """Return how many steps were made at least. A lower number begins an epoch: one step."""
    if before is None or now is None:
        return 0
    return now - before if now >= before else 1


def _identities(slower: Iterable[SlowerRank]) -> list[tuple[int, Evidence]]:
    return [(each.rank, each.evidence) for each in slower]


def _with_common_reasons(before: SlowerRank, now: SlowerRank) -> SlowerRank:
    return replace(now, reasons=tuple(why for why in before.reasons if why in now.reasons))
