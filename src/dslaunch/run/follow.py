"""Follow a running job, or read what a finished one has kept on its nodes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from heapq import merge
from operator import itemgetter
from queue import Empty

from dslaunch.errors import DslaunchError, NodeError, NodeFailure
from dslaunch.node import frames
from dslaunch.protocol.messages import Incoming, NodeEvent, ProtocolError
from dslaunch.protocol.queries import JOURNAL
from dslaunch.run.events import Event
from dslaunch.run.interrupts import Until, never
from dslaunch.run.journal_tail import MOST_KEPT, PIECE
from dslaunch.run.outcome import Outcome
from dslaunch.run.reach import ReachedNodes, answer_of
from dslaunch.run.reasons import EndCode
from dslaunch.run.session import Arrival, Lost, Session
from dslaunch.run.watch import Watch, read_event

Kept = frames.Output | NodeEvent
POLL = 0.2
"""Seconds between two checks whether to continue."""
QUIET = 0.5
"""Seconds without news after which everything has been received."""


class Follower:
    """Receives events and output of a run; its end does not depend on this connection."""

    def __init__(self, reached: ReachedNodes, watch: Watch, known: Collection[Event] = ()) -> None:
        """`known`: events that were shown before, and are not shown again."""
        self.reached, self.watch = reached, watch
        self.known = set(map(_key, known))
        self.open = set(reached.sessions)
        self.lost: dict[str, str] = {}
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
        return self.watch.outcome()

    def catch_up(self, *, until: Until = never) -> None:
        """Receive what there is now; less, if `until` returns true before."""
        began = time.monotonic()
        inbox, sessions = self.reached.inbox, self.reached.sessions

        def complete() -> bool:
            quiet = time.monotonic() - began > QUIET and inbox.empty()
            return until() or quiet or all(sessions[host].has_caught_up() for host in self.open)

        self.follow(until=complete)
        # what had arrived by then; ranks may write faster than it is shown
        for _ in range(inbox.qsize()):
            self._take(*inbox.get())

    def _take(self, session: Session, arrival: Arrival) -> None:
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
            self.watch.history.interrupted = True
            self.watch.history.stopped_by = event.reason.by
            self.watch.history.output_closed = event.reason.code is EndCode.OUTPUT_CLOSED
        if event.kind == "ended" and event.host is not None:
            self.open.discard(event.host)


def _key(event: Event) -> tuple[float, str, str | None, int | None]:
    return event.time, event.kind, event.host, event.rank


def read_kept(
    reached: ReachedNodes,
    run: str,
    watch: Watch,
    *,
    until: Until = never,
    most: int = PIECE,
) -> None:
    """Read what a run has kept on nodes where its agent has exited, in the order of time, until
    `until` returns true; at most `most` bytes of a node at a time.

    Raises NodeError, Interrupted.
    """
    told = [_kept(session, run, most, until) for session in reached.sessions.values()]
    for _, session, frame in merge(*told, key=itemgetter(0)):
        if until():
            return
        watch.take(session.host, frame, session.offset)


def _kept(
    session: Session, run: str, most: int, until: Until
) -> Iterator[tuple[float, Session, Kept]]:
    """Yield what one node has kept, with the time of our clock; only a piece of it is in memory.

    Ends where a piece cannot be read. Raises NodeError if it is no journal of ours.
    """
    incoming, position, size = Incoming(session.ranks), 0, 1
    while position < size:
        wanted = {"run": run, "position": position, "most": most}
        answers = answer_of(session.host, session.ask({JOURNAL: wanted}), until=until)
        piece = answers.get(JOURNAL)
        if piece is None or piece.size > MOST_KEPT:
            return
        if len(piece.data) < min(most, piece.size - position):  # or the loop would not end
            return
        position, size = position + len(piece.data), piece.size
        try:
            for arrived in incoming.feed(piece.data):
                if isinstance(arrived, frames.Output | NodeEvent):
                    yield arrived.time - session.offset, session, arrived
        except ProtocolError as error:
            why = f"its journal is damaged: {error}"
            raise NodeError((NodeFailure(session.host, "protocol", why),)) from None


def nothing_reached(reached: ReachedNodes, run: str) -> DslaunchError:
    """Return the error if no agent of a run could be reached."""
    gone = all(failure.kind == "no-agent" for failure in reached.failures.values())
    if gone:
        return DslaunchError(
            f"run {run} is not running on any node", hint="list all runs: dslaunch ps --all"
        )
    return NodeError(tuple(reached.failures.values()))
