"""Ask the ranks of a run when they entered their collectives, round by round."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.protocol.collectives import COLLECTIVES, RankAnswer, SentTimes
from dslaunch.run.asked import Asked
from dslaunch.run.collective_steps import EnteredCollective, GroupHistory
from dslaunch.run.collectives import Question
from dslaunch.run.late_ranks import Lateness, lateness_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.run.session import Session
    from dslaunch.transport.clock import Clock
    from dslaunch.transport.future import Future

    Answer = Mapping[str, RankAnswer]

STEPS_BETWEEN = 16
"""Steps of training between two rounds."""
SHORTEST, LONGEST = 2.0, 30.0
"""Seconds between two rounds."""
EARLY = 0.1
"""Share of these seconds by which a round may begin early: the nodes are measured in rounds of the
same length, and what comes a moment too soon would wait for the next one."""
SHARE_OF_RANK, SHARE_OF_LAUNCHER = 0.005, 0.02
"""Share of one CPU that the rounds take, at most: in a rank, which cannot train meanwhile, and
here."""
MOST_CLOSE = 30
"""Rounds in a row that may be close because a rank may be slow."""
RANK_TIMEOUT = 2.0
"""Seconds in which a rank must answer its node."""
ASK_AGAIN = 30.0
"""Seconds after which a node that has not answered is asked again."""
MOST_TRIPS, TRIPS_OF_ROUND = 8, 256
"""Round trips in which the clock of a node is measured in a round, at most; and those of all nodes,
since each takes time here. On a busy node most of them wait for a CPU, and the fastest counts."""
EXACT = 0.005
"""Share of a step that the clock of a node may be off; the delays that count are 8 times as
large."""
MOST_GROUPS = 16
"""Process groups that are compared, the largest first."""
MOST_TIMES, MOST_COLLECTIVES = 400_000, 8192
"""What is kept of a group: times of all its ranks, and collectives."""
BY_ENTRY = "gloo"
"""The backend whose collectives run when they are called. A GPU runs them later, so for all others
their duration is needed: the last rank has the shortest (NCCL: TORCH_NCCL_ENABLE_TIMING=1)."""
ALL_WAIT = ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "barrier")
"""Parts of the names of operations that complete in no rank before all have entered."""
ALL_TO_ALL = ("all_to_all", "alltoall")


class _Call(Struct, frozen=True):
    """One rank in one collective."""

    kind: str
    entered: float
    """By the launcher's clock."""
    took: float | None
    """Seconds, where it is to be compared by its duration."""


class _GroupTimes:
    """The collectives of one process group."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.complete: list[EnteredCollective] = []
        self._open: defaultdict[int, dict[int, _Call]] = defaultdict(dict)
        """Those that some ranks have not entered yet, or not told of: by number and rank."""
        self._most = max(1, min(MOST_COLLECTIVES, MOST_TIMES // len(ranks)))

    def add(self, rank: int, number: int, call: _Call) -> None:
        """Add a call; what is known already is left as it is."""
        if not self.complete or number > self.complete[-1].number:
            self._open[number][rank] = call

    def finish(self) -> None:
        """Move the collectives that all ranks have entered to those that are compared."""
        for number in sorted(self._open):
            calls = self._open[number]
            if len(calls) == len(self.ranks):
                made = _collective(number, [calls[rank] for rank in self.ranks])
                if made is not None:
                    self.complete.append(made)
        if self.complete:
            last = self.complete[-1].number
            for number in [each for each in self._open if each <= last]:
                del self._open[number]
        for number in sorted(self._open)[: -self._most]:
            del self._open[number]
        del self.complete[: -self._most]


def _collective(number: int, calls: Sequence[_Call]) -> EnteredCollective | None:
    """Return a collective of all ranks; None if they do not agree which it is, or if some have no
    duration."""
    kind = calls[0].kind
    if any(call.kind != kind for call in calls):
        return None
    entered = [call.entered for call in calls]
    if not kind.startswith(BY_ENTRY):
        took = [call.took for call in calls if call.took is not None]
        if len(took) < len(calls):
            return None
        end = median(entered) + max(took)
        entered = [end - each for each in took]
    operation = kind.lower().partition(" ")[0]
    all_wait = any(name in operation for name in (*ALL_WAIT, *ALL_TO_ALL))
    return EnteredCollective(number, kind, tuple(entered), all_wait)


class CollectiveTimes:
    """Collects the collectives of all ranks, and compares them."""

    def __init__(self) -> None:
        self.asked: Asked[Answer] = Asked()
        self._due = 0.0
        """When the next round begins, on the monotonic clock."""
        self._close = 0
        """Rounds in a row that were close because a rank may be slow."""
        self._since: dict[str, float] = {}
        """Up to when all ranks of a node have told, by its clock."""
        self._ranks: set[int] = set()
        """All ranks of the run."""
        self._pids: dict[int, int] = {}
        self._hosts: dict[int, str] = {}
        self._groups: dict[str, _GroupTimes] = {}
        self._clock_errors: dict[str, float] = {}
        self._spent_in_rank = self._spent_asking = self._spent_here = 0.0
        """Seconds of CPU time in the last round: of one rank, and of this process to
        ask and to judge."""
        self._latest: Lateness | None = None

    @property
    def interval(self) -> float:
        """Return the seconds between two rounds."""
        found = self._latest
        if found is not None and found.suspected and self._close < MOST_CLOSE:
            return SHORTEST
        steps = STEPS_BETWEEN * found.step_seconds if found is not None else SHORTEST
        here = self._spent_asking + self._spent_here
        affordable = max(self._spent_in_rank / SHARE_OF_RANK, here / SHARE_OF_LAUNCHER)
        return min(LONGEST, max(SHORTEST, steps, affordable))

    def begin(self, sessions: Iterable[Session]) -> None:
        """Ask the nodes if it is time; one that has not answered is not asked again for a while."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (1 - EARLY) * self.interval
        began = time.thread_time()
        several = list(sessions)
        self._ranks.update(rank for session in several for rank in session.ranks)
        trips = max(1, min(MOST_TRIPS, TRIPS_OF_ROUND // max(1, len(several))))
        for session in several:
            if self.asked.waits_for(session.host, at_most=ASK_AGAIN):
                continue
            self._measure_clock(session, trips)
            answer = session.request(
                "collectives",
                COLLECTIVES,
                what=Question.TIMES.value,
                timeout=RANK_TIMEOUT,
                since=self._since.get(session.host, 0.0),
            )
            self.asked.add(session, answer)
        self._spent_asking = time.thread_time() - began

    def _measure_clock(self, session: Session, trips: int) -> None:
        """Measure the clock of a node, and again while that is not exact enough for the steps."""

        def measure_again(measured: Future[Clock]) -> None:
            step_seconds = self._latest.step_seconds if self._latest is not None else 0.0
            failed = measured.exception() is not None
            if trips > 1 and not failed and session.clock_error > EXACT * step_seconds:
                self._measure_clock(session, trips - 1)

        session.measure_clock().add_done_callback(measure_again)

    def end(self) -> Lateness | None:
        """Return what is known with the answers that have arrived; None: nothing yet."""
        began = time.thread_time()
        arrived = self.asked.take()
        for session, answer in arrived:
            self._take(session, answer)
        if arrived:
            for group in self._groups.values():
                group.finish()
            self._latest = self._compared()
            suspected = self._latest is not None and self._latest.suspected
            self._close = self._close + 1 if suspected else 0
            self._spent_here = time.thread_time() - began
        return self._latest

    def forget(self, host: str) -> None:
        """Drop a node that has left the run."""
        self.asked.forget(host)

    def _take(self, session: Session, answers: Answer) -> None:
        own = {int(key): each for key, each in answers.items() if int(key) in session.ranks}
        self._clock_errors[session.host] = session.clock_error
        self._begin_again_if_restarted(own)
        latest, spent = [], 0.0
        for rank, answer in own.items():
            if answer.told is None:
                continue
            spent = max(spent, answer.told.spent)
            self._hosts[rank] = session.host
            for times in answer.told.times:
                self._add(rank, times, session.offset)
            entered = [call[2] for times in answer.told.times for call in times.calls]
            if entered:
                latest.append(max(entered))
        self._spent_in_rank = max(spent, self._spent_in_rank / 2)
        if latest:
            self._since[session.host] = min(latest)

    def _begin_again_if_restarted(self, answers: Mapping[int, RankAnswer]) -> None:
        """Forget everything if a rank has another process than before: torchrun has started all
        ranks again, and their groups count from 1."""
        pids = {rank: each.pid for rank, each in answers.items() if each.state == "answered"}
        if any(self._pids.get(rank, pid) != pid for rank, pid in pids.items()):
            self._groups.clear()
            self._since.clear()
            self._pids.clear()
            self._latest = None
        self._pids.update(pids)

    def _add(self, rank: int, times: SentTimes, offset: float) -> None:
        ranks = tuple(sorted(set(times.ranks)))
        if len(ranks) < 2 or rank not in ranks or not self._ranks.issuperset(ranks):
            return
        group = self._groups.get(times.group)
        if group is None:
            group = self._groups[times.group] = _GroupTimes(ranks)
            self._drop_small_groups()
        if group.ranks != ranks:  # not the same group, whatever its name
            return
        # once: a text for each of thousands of calls would fill the memory
        kinds = [f"{times.backend}:{kind}" for kind in times.kinds]
        for number, index, entered, took in times.calls:
            group.add(rank, number, _Call(kinds[index], entered - offset, took))

    def _drop_small_groups(self) -> None:
        if len(self._groups) > MOST_GROUPS:
            largest_first = sorted(
                self._groups, key=lambda name: (-len(self._groups[name].ranks), name)
            )
            del self._groups[largest_first[-1]]

    def _compared(self) -> Lateness | None:
        groups = [
            GroupHistory(
                ranks=group.ranks,
                hosts=tuple(self._hosts[rank] for rank in group.ranks),
                collectives=group.complete,
                clock_errors=self._clock_errors,
            )
            for group in self._groups.values()
            if group.complete
        ]
        return lateness_of(groups)
