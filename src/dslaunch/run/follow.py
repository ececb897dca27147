"""Follow a running job, or read what a finished one has kept on its nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from queue import Empty

from dslaunch.errors import DslaunchError, NodeError, NodeFailure
from dslaunch.node import frames
from dslaunch.protocol.messages import Incoming, NodeEvent, ProtocolError
from dslaunch.protocol.queries import JOURNAL, Answers
from dslaunch.run.arrivals import Arrival, Lost
from dslaunch.run.events import Event
from dslaunch.run.interrupts import Interrupts, Until, never
from dslaunch.run.journal_tail import MOST_KEPT, PIECE, NoteFailure, largest_window, newest
from dslaunch.run.outcome import Outcome
from dslaunch.run.reach import ANSWER_TIMEOUT, ReachedNodes, answer_of
from dslaunch.run.session import Session
from dslaunch.run.status import gave_up
from dslaunch.run.watch import Watch, read_event
from dslaunch.transport.future import Future

Kept = frames.Output | NodeEvent
POLL = 0.2
"""Seconds between two checks whether to continue."""
QUIET = 0.5
"""Seconds without news of a node after which everything has been received of it."""


class Follower:
    """Receives events and output of a run; its end does not depend on this connection."""

    def __init__(
        self,
        reached: ReachedNodes,
        watch: Watch,
        known: Collection[Event] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`known`: events that were shown before, and are not shown again."""
        self.reached, self.watch, self._clock = reached, watch, clock
        self.known = set(map(_key, known))
        self.open = set(reached.sessions)
        self.lost: dict[str, str] = {}
        self._taken_at: dict[str, float] = {}
        """When something of each node was taken last."""
        for event in known:
            self._note(event)

    def follow(self, *, until: Until) -> Outcome:
        """Watch until all nodes have ended or `until` returns true."""
        for session in self.reached.sessions.values():
            session.follow(hold=False)
        while self.open and not until():
            try:
                self._take(*self.reached.inbox.get(timeout=POLL))
            except Empty:
                continue
        history = self.watch.history
        history.gave_up = gave_up(history.events)
        return self.watch.outcome()

    def catch_up(self, *, until: Until = never) -> None:
        """Receive what there is now; less, if `until` returns true before."""
        inbox, sessions = self.reached.inbox, self.reached.sessions
        self._taken_at = dict.fromkeys(sessions, self._clock())

        def is_complete() -> bool:
            late = [host for host in self.open if not sessions[host].has_caught_up()]
            quiet_since = self._clock() - QUIET
            are_quiet = all(self._taken_at[host] < quiet_since for host in late)
            return until() or not late or (are_quiet and inbox.empty())

        self.follow(until=is_complete)
        # what had arrived by then; ranks may write faster than it is shown
        for _ in range(inbox.qsize()):
            self._take(*inbox.get())

    def _take(self, session: Session, arrival: Arrival) -> None:
        self._taken_at[session.host] = self._clock()
        if isinstance(arrival, Lost):
            self.open.discard(session.host)
            self.lost[session.host] = arrival.failure.message
        elif isinstance(arrival, frames.Output | NodeEvent):
            self._arrived(session, arrival)

    def _arrived(self, session: Session, arrival: Kept) -> None:
        if isinstance(arrival, NodeEvent):
            event = read_event(session.host, arrival, session.offset)
            if _key(event) not in self.known:
                self.watch.happened(event)
            self._note(event)
        else:
            self.watch.take(session.host, arrival, session.offset)

    def _note(self, event: Event) -> None:
        if event.kind == "stopping" and event.reason is not None:
            self.watch.history.stop = event.reason
        if event.kind == "ended" and event.host is not None:
            self.open.discard(event.host)


def _key(event: Event) -> tuple[float, str, str | None, int | None]:
    return event.time, event.kind, event.host, event.rank


def read_kept(
    sessions: Sequence[Session],
    run: str,
    watch: Watch,
    *,
    note_failure: NoteFailure,
    until: Until = never,
    most: int | None = None,
) -> None:
    """Read what a detached run has kept on these nodes so far, in the order of time, until `until`
    returns true; at most `most` bytes of a node at a time. Each session continues behind what was
    read.

    A node whose journal cannot be read to its end is given to `note_failure`. Raises NodeError if
    that is so for all nodes, Interrupted.
    """
    if most is None:
        most = min(PIECE, largest_window(len(sessions)))
    journals = [_Journal(session, run, most, until) for session in sessions]
    # nodes that do not answer cost one timeout together
    Interrupts(until=until).wait([each.asked for each in journals], ANSWER_TIMEOUT)
    for _, session, frame in merge(*(each.frames() for each in journals), key=itemgetter(0)):
        if until():
            return
        watch.take(session.host, frame, session.offset)
    failures = tuple(each.failure for each in journals if each.failure is not None)
    if failures and len(failures) == len(sessions):
        raise NodeError(failures)
    for failure in failures:
        note_failure(failure)


class _Journal:
    """What one node has kept, read piece by piece: while one is shown, the next is sent."""

    def __init__(self, session: Session, run: str, most: int, until: Until) -> None:
        """Ask for the first piece."""
        self.session, self.run, self.most, self.until = session, run, most, until
        self.failure: NodeFailure | None = None
        """Why it could not be read to its end."""
        self.asked = self._ask(most, position=0)
        """The piece that is shown next."""

    def frames(self) -> Iterator[tuple[float, Session, Kept]]:
        """Yield the frames with the times of our clock. Raises Interrupted."""
        session, incoming = self.session, Incoming(self.session.ranks)
        try:
            for data in self._pieces():
                for arrived in incoming.feed(data):
                    if isinstance(arrived, frames.Output | NodeEvent):
                        yield arrived.time - session.offset, session, arrived
                session.skip(incoming.number)
        except ProtocolError as error:
            why = f"its journal is damaged: {error}"
            self._failed(NodeFailure(session.host, "protocol", why))
        except NodeError as error:
            self._failed(error.failures[0])

    def _pieces(self) -> Iterator[bytes]:
        """Yield what there was when it was asked first. Raises NodeError, Interrupted."""
        host, timeout = self.session.host, 0.0
        position, size = 0, None
        while size is None or position < size:
            piece = answer_of(host, self.asked, timeout=timeout, until=self.until).get(JOURNAL)
            if piece is None or piece.size > MOST_KEPT:
                return
            size, timeout = size or piece.size, ANSWER_TIMEOUT
            if len(piece.data) < min(self.most, size - position):
                return  # or the loop would not end
            position += len(piece.data)
            if position < size:
                self.asked = self._ask(min(self.most, size - position), position)
            yield piece.data

    def _ask(self, most: int, position: int) -> Future[Answers]:
        wanted = {"run": self.run, "position": position, "most": most}
        return self.session.ask({JOURNAL: wanted})

    def _failed(self, failure: NodeFailure) -> None:
        """Continue with what is new, since no frame can be found behind the damage."""
        self.session.skip(newest(self.session))
        self.failure = failure


def nothing_reached(reached: ReachedNodes, run: str) -> DslaunchError:
    """Return the error if no agent of a run could be reached."""
    gone = all(failure.kind == "no-agent" for failure in reached.failures.values())
    if gone:
        return DslaunchError(
            f"run {run} is not running on any node", hint="list all runs: dslaunch ps --all"
        )
    return NodeError(tuple(reached.failures.values()))
