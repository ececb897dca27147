"""A rehearsal while it is running: the records of its ranks, and when it is over.

A rehearsal is an ordinary run whose ranks record what they do and are held after some optimizer
steps (`node/hook_rehearsal.py`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dslaunch.cluster.names import is_loopback
from dslaunch.protocol.rehearsal import (
    REHEARSAL,
    BuildBegun,
    BuildEnded,
    Ended,
    Held,
    JoinedRpc,
    NewRecords,
    ProcessGroup,
    Raised,
    Record,
    RendezvousBegun,
    Spawned,
    SpawnedJoins,
    Started,
    Step,
    StepsDone,
)
from dslaunch.run.asked import Asked
from dslaunch.run.hang_verdict import HangCode, HangVerdict
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.timeouts import REHEARSAL_STALL

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation
    from dslaunch.launch.facts import Facts
    from dslaunch.launch.plan import Plan
    from dslaunch.lint import Remark
    from dslaunch.run.hang_watch import Stall
    from dslaunch.run.outcome import Outcome
    from dslaunch.run.session import Session

INTERVAL = 0.5
"""Seconds between two questions for new records."""
RENDEZVOUS_WAIT = 2 * REHEARSAL_STALL
"""Seconds after which ranks that cannot meet are ended: they may write a line for each attempt, so
that they are never without progress."""
SETTLE = 30.0
"""Seconds after the last step for what follows it, such as a checkpoint, until the next step."""
MOST_BUILDING = 1800.0
"""Seconds of building kernels that do not count: a build that is stopped leaves its lock, for which
the next one waits forever."""
COLLECT_TIMEOUT = 10.0
"""Seconds to read the last records."""
MOST_OF_RANK = 10_000
"""Records of one rank that are kept."""
MOST_SIZE = 8 << 20
"""Characters of them as JSON; the hook writes a quarter of that at most."""


class RehearsalLimits(Struct, frozen=True):
    """When a rehearsal ends."""

    steps: int = 2
    """Optimizer steps of each rank."""
    time_limit: float = 600.0
    """Seconds after the start of the ranks, without those in which they build kernels."""
    full: Allocation | None = None
    """What the real run has, if the rehearsal has only some of its nodes."""

    def start_message(self) -> dict[str, int | None]:
        """Return what the message that starts the ranks says of a rehearsal."""
        world = None if self.full is None else self.full.world_size
        return {"steps": self.steps, "world": world}


class Rehearsed(Struct, frozen=True):
    """What a rehearsal has shown."""

    plan: Plan
    facts: Facts
    outcome: Outcome
    records: Mapping[int, tuple[Record, ...]]
    """By rank."""
    config_errors: tuple[Remark, ...]
    """Errors of the DeepSpeed config files that a run would refuse."""
    seconds: float
    """Of the ranks, from their start."""
    limits: RehearsalLimits = field(default_factory=RehearsalLimits)

    @property
    def full_ranks(self) -> int:
        """Return how many ranks the real run has."""
        full = self.limits.full
        return self.plan.world_size if full is None else full.world_size

    @property
    def full_nodes(self) -> int:
        """Return how many nodes the real run has."""
        full = self.limits.full
        return len(self.plan.nodes) if full is None else len(full.placements)

    @property
    def is_smaller(self) -> bool:
        """Return whether the real run has more ranks."""
        return self.full_ranks > self.plan.world_size


def lacks_ranks(begun: RendezvousBegun, ranks: int) -> bool:
    """Return whether a rendezvous waits for more ranks than there are."""
    return begun.world is not None and begun.world > ranks


def lacks_master(begun: RendezvousBegun, plan: Plan) -> bool:
    """Return whether a rank looks for the master on its own node, and the master has an address
    that other nodes reach. Emulated nodes have one loopback interface."""
    own = begun.address is not None and is_loopback(begun.address)
    return own and len(plan.nodes) > 1 and not is_loopback(plan.rendezvous.address)


def lacks_server(begun: RendezvousBegun) -> bool:
    """Return whether a rank looks for the master at a port at which none is."""
    return None not in (begun.port, begun.served) and begun.port != begun.served


def rendezvous_begun(records: Mapping[int, Iterable[Record]]) -> dict[int, RendezvousBegun]:
    """Return what each rank waits for, by rank: the last rendezvous that it has begun. `records`:
    of each rank."""
    begun = {}
    for rank, several in records.items():
        for record in several:
            if isinstance(record, RendezvousBegun):
                begun[rank] = record
    return begun


def with_equal_ranks(begun: Mapping[int, RendezvousBegun]) -> dict[int, list[int]]:
    """Return the ranks that join as the same rank, by this one. `begun`: by rank. A group of one
    rank has no other one to wait for."""
    joining: dict[int, list[int]] = defaultdict(list)
    for rank, each in begun.items():
        if each.rank is not None and each.world != 1:
            joining[each.rank].append(rank)
    return {number: ranks for number, ranks in joining.items() if len(ranks) > 1}


def ports_of(begun: Mapping[int, RendezvousBegun]) -> frozenset[int]:
    """Return the ports at which ranks look for the master; more than one: they do not meet."""
    return frozenset(each.port for each in begun.values() if each.port is not None)


class RehearsalMonitor:
    """Reads the records of the ranks again and again, and decides when the rehearsal is over."""

    def __init__(
        self,
        limits: RehearsalLimits,
        plan: Plan,
        hang_timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hang_timeout`: seconds without progress after which ranks are ended; None: never."""
        self._clock = clock
        self.limits = limits
        self._plan = plan
        self._hang_timeout = hang_timeout
        self.records: dict[int, list[Record]] = defaultdict(list)
        self._kinds: dict[int, set[type[Record]]] = defaultdict(set)
        """Of all records of a rank, also of those that are not kept: it is asked for at each line
        of output."""
        self._sizes: dict[int, int] = defaultdict(int)
        """Of each rank's records: a node may send any number of large ones."""
        self._builds: dict[int, int] = defaultdict(int)
        """Kernels that each rank is building."""
        self._building = 0.0
        """Seconds in which a rank was building one."""
        self._began = self._clock()
        self._looked_at = self._began
        self._asked_at: float | None = None
        self._asked: Asked[Mapping[str, NewRecords]] = Asked()
        self._positions: dict[int, int] = {}
        self._joining_since: float | None = None
        """Since when all ranks have waited for each other; None: some do not."""
        self._done_at: float | None = None
        """When all ranks had made their steps."""

    @property
    def seconds(self) -> float:
        """Return how long it has taken so far."""
        return self._clock() - self._began

    @property
    def held(self) -> frozenset[int]:
        """Return the ranks that are held before another step: these enter no collective."""
        return frozenset(rank for rank in self.records if self._has(rank, Held))

    def result(
        self, facts: Facts, outcome: Outcome, config_errors: tuple[Remark, ...]
    ) -> Rehearsed:
        """Return what the rehearsal has shown, when it has ended with this outcome."""
        return Rehearsed(
            plan=self._plan,
            facts=facts,
            outcome=outcome,
            records={rank: tuple(several) for rank, several in self.records.items()},
            config_errors=config_errors,
            seconds=self.seconds,
            limits=self.limits,
        )

    def look(self, sessions: Iterable[Session]) -> EndReason | None:
        """Read new records, and ask for more when it is time; return why it is over. Never waits.

        `sessions`: of the nodes whose ranks are running.
        """
        several = list(sessions)
        now = self._clock()
        if any(self._builds.values()):
            self._building += now - self._looked_at
        self._looked_at = now
        self._take_answers()
        if self._asked_at is None or now - self._asked_at >= INTERVAL:
            self._asked_at = now
            self._ask(several)
        return self._reason([rank for session in several for rank in session.ranks])

    def collect(self, sessions: Iterable[Session]) -> None:
        """Read all records that are left, when the ranks have ended."""
        deadline = self._clock() + COLLECT_TIMEOUT
        several = list(sessions)
        before: dict[int, int] | None = None
        while before != self._positions and self._clock() < deadline:
            before = dict(self._positions)
            self._wait(deadline)
            self._ask([session for session in several if not session.over])
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        self._asked.wait(deadline - self._clock())
        self._take_answers()

    def _ask(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            if session.host not in self._asked.hosts:
                after = {str(rank): self._positions.get(rank, 0) for rank in session.ranks}
                answer = session.request("rehearsal", REHEARSAL, after=after)
                self._asked.add(session, answer)

    def _take_answers(self) -> None:
        for session, found in self._asked.take():
            for rank, new in found.items():
                if int(rank) in session.ranks:
                    self._take(int(rank), new)

    def _take(self, rank: int, new: NewRecords) -> None:
        self._positions[rank] = new.position
        kept = self.records[rank]
        for record in new.records:
            if isinstance(record, Started):  # an elastic launcher has restarted it
                kept.clear()
                self._kinds[rank].clear()
                self._sizes[rank] = self._builds[rank] = 0
            self._kinds[rank].add(type(record))
            self._builds[rank] += isinstance(record, BuildBegun) - isinstance(record, BuildEnded)
            size = len(record.model_dump_json())
            if len(kept) < MOST_OF_RANK and self._sizes[rank] + size <= MOST_SIZE:
                kept.append(record)
                self._sizes[rank] += size

    def _reason(self, ranks: list[int]) -> EndReason | None:
        if not ranks:
            return None
        now, steps = self._clock(), self.limits.steps
        if self._done_at is None and all(self._has(rank, StepsDone) for rank in ranks):
            self._done_at = now
        held = [self._has(rank, Held) for rank in ranks]
        over = [self._is_over(rank) for rank in ranks]
        settled = self._done_at is not None and now - self._done_at > SETTLE
        # the exit of a rank that has raised an exception ends the run, as a failure
        is_failing = any(self._has(rank, Raised) for rank in ranks)
        if not is_failing and any(self._trains_in_spawned(rank) for rank in ranks):
            return EndReason(EndCode.REHEARSAL_SPAWNS)
        if not is_failing and (settled or (any(held) and all(over))):
            return EndReason(EndCode.REHEARSED, steps=steps)
        if not is_failing and self._never_meet(ranks, now):
            verdict = HangVerdict(HangCode.RENDEZVOUS, waiting=tuple(ranks))
            return EndReason(EndCode.HANG, seconds=RENDEZVOUS_WAIT, hang=verdict)
        if self.seconds - min(self._building, MOST_BUILDING) <= self.limits.time_limit:
            return None
        if self._done_at is not None:
            return EndReason(EndCode.REHEARSED, steps=steps)
        return EndReason(EndCode.REHEARSAL_LIMIT, seconds=self.limits.time_limit, steps=steps)

    def _is_over(self, rank: int) -> bool:
        """Return whether a rank makes no further step: it is held, or has ended, or makes none
        itself and calls functions of ranks that are held, which do not answer."""
        calls = self._has(rank, JoinedRpc) and not self._has(rank, Step)
        return calls or self._has(rank, Held) or self._has(rank, Ended)

    def _trains_in_spawned(self, rank: int) -> bool:
        """Return whether a rank waits for processes that it has started, and these train: the
        launcher has started as many ranks already."""
        if not self._has(rank, SpawnedJoins):
            return False
        if self._has(rank, ProcessGroup) or self._has(rank, Step):
            return False
        return any(each.waits for each in self.records[rank] if isinstance(each, Spawned))

    def _never_meet(self, ranks: list[int], now: float) -> bool:
        """Return whether the ranks have waited for each other, and for what is not there."""
        if not all(self._joins(rank) for rank in ranks):
            self._joining_since = None
            return False
        if self._joining_since is None:
            self._joining_since = now
        waited = now - self._joining_since > RENDEZVOUS_WAIT
        return waited and self._has_impossible_rendezvous()

    def _joins(self, rank: int) -> bool:
        """Return whether a rank waits to join the others."""
        has_joined = self._has(rank, ProcessGroup) or self._has(rank, JoinedRpc)
        return self._has(rank, RendezvousBegun) and not has_joined

    def _has(self, rank: int, kind: type[Record]) -> bool:
        return kind in self._kinds[rank]

    # ------------------------------------------------------------ ranks that make no progress

    def next_inspection(self, quiet: float = 0.0) -> float:
        """Return after how many seconds without progress the ranks are inspected, when there is
        none for `quiet` seconds."""
        later = quiet + REHEARSAL_STALL
        limit = self._hang_timeout
        return later if limit is None or limit <= quiet else min(later, limit)

    def reason_of_stall(self, stall: Stall) -> EndReason | None:
        """Return why a stall ends the rehearsal; None: it continues.

        If ranks wait in a collective for ranks that are held, these have begun another step
        without it: the steps were made. Else a hang ends it.
        """
        verdict, held = stall.verdict, self.held
        if verdict.waiting and any(rank in held for _, rank in verdict.ranks):
            return EndReason(EndCode.REHEARSED, steps=self.limits.steps, hang=verdict)
        if self._is_final(verdict) or self._has_lasted(stall):
            return stall.as_reason()
        return None

    def _is_final(self, verdict: HangVerdict) -> bool:
        """Return whether the ranks are blocked forever."""
        if verdict.code is HangCode.RENDEZVOUS:
            return self._has_impossible_rendezvous()
        return verdict.final is True

    def _has_lasted(self, stall: Stall) -> bool:
        """Return whether a stall is longer than the timeout of hangs. Held ranks that no other
        waits for are none."""
        if self._hang_timeout is None or stall.seconds <= self._hang_timeout:
            return False
        return bool(stall.verdict.waiting or not self.held)

    def _has_impossible_rendezvous(self) -> bool:
        """Return whether ranks wait for ranks or a master that the run lacks, or do not look for
        each other at one place."""
        begun = rendezvous_begun(self.records)
        lacking = any(self._is_impossible(each) for each in begun.values())
        return lacking or bool(with_equal_ranks(begun)) or len(ports_of(begun)) > 1

    def _is_impossible(self, begun: RendezvousBegun) -> bool:
        if lacks_ranks(begun, self._plan.world_size) or lacks_master(begun, self._plan):
            return True
        return begun.resolves is False or lacks_server(begun)
