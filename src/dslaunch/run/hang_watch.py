"""Notice that the ranks of a run make no progress, and find out why.

The numbers of the ranks' last collectives are asked for every few seconds (`run.collectives`). They
are the progress of a run, with its output and the work of ranks that ends without the others
(`node/own_work.py`): a rank that waits in a loop uses the CPU (NCCL, and `while True`). Only where
no rank tells such numbers, the use of the CPU is what counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dslaunch import log
from dslaunch.node.cpu_waits import CpuWaits
from dslaunch.node.own_work import OwnWork, RankWork
from dslaunch.run.asked import Asked
from dslaunch.run.collectives import (
    AskedRecords,
    Question,
    RankRecord,
    RankState,
    arrived_collectives,
    ask_for_collectives,
)
from dslaunch.run.gpu_errors import with_gpu_errors
from dslaunch.run.hang import judge
from dslaunch.run.hang_evidence import HangEvidence, ask_for_evidence, evidence_of
from dslaunch.run.hang_network import may_be_network, with_unreachable
from dslaunch.run.hang_verdict import HangCode, HangVerdict
from dslaunch.run.nccl_ras import ranks_waited_for
from dslaunch.run.node_pairs import NodePairs
from dslaunch.run.rank_stacks import arrived_stacks, ask_for_stacks
from dslaunch.run.rank_views import rank_views
from dslaunch.run.reasons import EndCode, EndReason, RankSource
from dslaunch.run.session import Session

LOOK = 5.0
"""Seconds between two looks at the numbers, at most."""
NODES_A_SECOND = 200
"""Nodes that are asked for the numbers, at most: it takes this process some 0.2 ms for each."""
LOOKS = 4
"""Looks within a timeout, at least."""
LEAST = 0.5
"""Seconds between two looks, at least."""
STALL_NOTICE = 60.0
"""Seconds without a completed collective, while ranks wait in one, after which that is shown."""
LONGEST_ERROR = 500
"""Characters of an unexpected error that are logged."""
ANSWER = 18.0
"""Seconds for the nodes to answer what their ranks do, and what they know of GPUs and NCCL."""
FOR_STACKS, FOR_RECORDS = 10.0, 4.0
"""Seconds of these that a node has to ask its ranks; a stopped one does not answer at all."""

_log = log.Log(__name__)

Ended = Mapping[RankSource, tuple[int | None, int | None]]
"""Exit code and signal of the ranks that have ended."""


class Stall(Struct, frozen=True):
    """No rank makes progress."""

    verdict: HangVerdict
    seconds: float
    """Since when."""
    over: bool
    """Whether the timeout is over, so that the run must end; else it is only to be shown."""
    stacks: Mapping[str, Any]
    """Host -> rank -> processes."""
    collectives: Mapping[int, RankRecord]

    def as_reason(self) -> EndReason:
        """Return the stall as the reason of a run's end."""
        return EndReason(EndCode.HANG, seconds=self.seconds, hang=self.verdict)


class Continued(Struct, frozen=True):
    """Collectives complete again after a stall that was shown."""

    seconds: float
    """For which none did."""


def judged(
    stacks: Mapping[str, Any],
    records: Mapping[int, RankRecord],
    ended: Ended,
    now: float | None,
    evidence: HangEvidence,
) -> HangVerdict:
    """Return the verdict, also if the judge fails: the run must end after its timeout, and not
    because of what nodes say of their ranks."""
    try:
        seen = rank_views(stacks, records, ended)
        verdict = judge(seen, now, behind=ranks_waited_for(evidence.nccl_reports, seen))
        return with_gpu_errors(verdict, evidence.gpu_errors, seen)
    except Exception as error:  # noqa: BLE001 - see above
        _log.info("hang-judge-failed", error=repr(error)[:LONGEST_ERROR])
        return HangVerdict(HangCode.UNKNOWN)


class Numbers:
    """The numbers of the ranks' collectives, and when they last changed or a rank has worked on its
    own. Pure."""

    def __init__(self, now: float) -> None:
        self.moved = now
        """When a number last changed, or a rank has worked, on the clock of `take`."""
        self.waiting = False
        """Whether a rank was in a collective at the last look."""
        self._known: dict[int, tuple[object, ...]] = {}
        self._own_work = OwnWork()

    @property
    def are_known(self) -> bool:
        """Return whether any rank has entered a collective or transfer that was counted."""
        return bool(self._known)

    def take(self, found: Mapping[int, RankRecord], now: float) -> None:
        """Compare with what is known. A rank that has not answered keeps its numbers."""
        works = {
            rank: RankWork(record.transferred, record.compiled) for rank, record in found.items()
        }
        if self._own_work.take(works, now):
            self.moved = now
        waiting = False
        for rank, record in found.items():
            if record.state is not RankState.ANSWERED:
                continue
            groups = [group for group in record.groups if group.enqueued is not None]
            if not groups and not record.transfers:
                continue
            numbers = (
                record.pid,
                record.transfers,
                *((each.id, each.enqueued, each.started, each.completed) for each in groups),
            )
            if self._known.get(rank) != numbers:
                self._known[rank] = numbers
                self.moved = now
            waiting = waiting or any(g.enqueued != (g.completed or 0) for g in groups)
        self.waiting = waiting


class HangWatch:
    """Watches one attempt of a run."""

    def __init__(
        self,
        limit: float | None,
        notice: float = STALL_NOTICE,
        near: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit`: `Timeouts.hang_timeout`; `near`: an address in the network of the ranks."""
        self.limit, self.notice = limit, notice
        self._shortest = notice if limit is None else min(limit, notice)
        self.interval = max(min(LOOK, self._shortest / LOOKS), LEAST)
        self._clock = clock
        now = clock()
        self._started = now
        self._numbers = Numbers(now)
        self._cpu = CpuWaits()
        self._heard = now
        """When a rank last printed."""
        self._looked = now
        """When the nodes were last asked for the numbers."""
        self._compared = now
        """When numbers last arrived and were compared."""
        self._near = near
        self._asked: AskedRecords = Asked()
        self._inquiry: _Inquiry | None = None
        self._shown_at: float | None = None
        """`moved` of the stall that was shown; None: none."""
        self._again = now
        """When an inquiry for a notice may begin."""

    def heard(self) -> None:
        """Note that a rank has printed."""
        self._heard = self._clock()

    def look(self, sessions: Sequence[Session], ended: Ended) -> Stall | Continued | None:
        """Ask the nodes when it is time, and return what is new. Never waits."""
        now = self._clock()
        self._look_at_numbers(sessions, now)
        continued = self._continued()
        if continued is not None:
            return continued
        if self._inquiry is not None:
            return self._conclude(self._inquiry, ended, now)
        quiet = self._quiet(sessions, now)
        over = self._is_over(quiet)
        if sessions and (over or self._is_to_be_shown(now, quiet)):
            self._inquiry = _Inquiry(
                sessions, now, over=over, near=self._near, started=self._started
            )
        return None

    def _continued(self) -> Continued | None:
        """Return that collectives complete again, once, after a stall that was shown."""
        stalled_at = self._shown_at
        if stalled_at is None or stalled_at == self._numbers.moved:
            return None
        self._shown_at = None
        return Continued(self._numbers.moved - stalled_at)

    def _is_over(self, quiet: float) -> bool:
        """Return whether a run must end that has made no progress for so many seconds."""
        return self.limit is not None and self._cpu.own(quiet) > self.limit

    def _is_to_be_shown(self, now: float, quiet: float) -> bool:
        """Return whether ranks wait in a collective for so long that it may be a stall to show."""
        if self._shown_at is not None or now < self._again:
            return False
        is_waiting = self._numbers.are_known and self._numbers.waiting
        return is_waiting and self._is_stalled(now, quiet)

    def _is_stalled(self, now: float, quiet: float) -> bool:
        """Return whether there is no progress for long. A run that does not end after its timeout,
        since ranks wait for a CPU, is shown then: it may be a rank that computes forever."""
        is_late = self.limit is not None and quiet > self.limit
        return is_late or now - self._numbers.moved > self.notice

    def _quiet(self, sessions: Sequence[Session], now: float) -> float:
        """Return for how many seconds no rank has made progress."""
        if self._numbers.are_known:
            return now - max(self._numbers.moved, self._heard)
        return min((session.idle for session in sessions), default=0.0)

    def _look_at_numbers(self, sessions: Sequence[Session], now: float) -> None:
        due = now - self._looked >= max(self.interval, len(sessions) / NODES_A_SECOND)
        if self._asked and (due or self._asked.complete):
            found = arrived_collectives(self._asked)
            self._numbers.take(found, now)
            progress = max(self._numbers.moved, self._heard) > self._compared
            waited = {rank: record.waited for rank, record in found.items()}
            self._cpu.take(waited, progress=progress)
            self._compared = now
            self._asked = Asked()
        if due:
            self._looked = now
            self._asked = ask_for_collectives(sessions, Question.STATUS, self.interval / 2)

    def _conclude(self, inquiry: _Inquiry, ended: Ended, now: float) -> Stall | None:
        """Return the verdict once the nodes have answered, unless there was progress meanwhile."""
        unmoved = now - self._numbers.moved
        quiet = self._quiet(inquiry.sessions, now)
        # while the nodes answered there may have been progress
        over = self._is_over(quiet)
        if not over and (inquiry.over or not self._is_stalled(now, quiet)):
            self._inquiry = None
            return None
        stall = inquiry.result(ended, now)
        if stall is None:
            return None
        self._inquiry = None
        stall = replace(stall, seconds=quiet if over else unmoved, over=over)
        if over:
            return stall
        self._again = now + self.notice
        since = stall.verdict.since
        if not stall.verdict.waiting or since is None or since < self._shortest:
            return None  # ranks do not wait for each other, or not for so long
        self._shown_at = self._numbers.moved
        return stall


class _Inquiry:
    """Asks all nodes what their ranks do."""

    def __init__(
        self,
        sessions: Sequence[Session],
        now: float,
        *,
        over: bool,
        near: str | None,
        started: float,
    ) -> None:
        self.began, self.over, self.sessions = now, over, list(sessions)
        self._records = ask_for_collectives(sessions, Question.FULL, FOR_RECORDS)
        self._stacks = ask_for_stacks(sessions, FOR_STACKS)
        self._evidence, self._started = ask_for_evidence(sessions), started
        self._near = near
        self._pairs: NodePairs | None = None

    def result(self, ended: Ended, now: float) -> Stall | None:
        """Return the verdict; None: not all nodes have answered, and there is time."""
        asked = (self._records, self._stacks, self._evidence)
        complete = all(each.complete for each in asked)
        if not complete and now - self.began < ANSWER:
            return None
        found = arrived_collectives(self._records)
        stacks = arrived_stacks(self._stacks)
        answers = {session.host: each for session, each in self._evidence.arrived()}
        told = evidence_of(answers, seconds=now - self._started)
        verdict = judged(stacks, found, ended, now=time.time(), evidence=told)
        if may_be_network(verdict) and len(self.sessions) > 1:
            if self._pairs is None:
                self._pairs = NodePairs(self.sessions, self._near)
            unreachable = self._pairs.result()
            if unreachable is None:
                return None
            verdict = with_unreachable(verdict, unreachable)
        return Stall(verdict=verdict, seconds=0.0, over=self.over, stacks=stacks, collectives=found)
