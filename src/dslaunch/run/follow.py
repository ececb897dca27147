"""Follow a run that goes on, or read what one that is over has kept on its nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from heapq import merge
from operator import itemgetter
from pathlib import Path
from queue import Empty

from dslaunch.errors import DslaunchError, NodeError, NodeFailure
from dslaunch.node import frames
from dslaunch.protocol.messages import Incoming, NodeEvent, ProtocolError
from dslaunch.protocol.queries import JOURNAL
from dslaunch.run.outcome import Outcome
from dslaunch.run.reach import ReachedNodes, answer_of
from dslaunch.run.run_directory import is_held, read_output
from dslaunch.run.session import Arrival, Lost, Session
from dslaunch.run.watch import Watch, read_event

Kept = frames.Output | NodeEvent
PIECE = 1 << 20
MOST_KEPT = 4 << 30
"""Bytes of one node's journal. Agents keep half of it at most."""
LOOK = 0.2
QUIET = 0.5
"""Seconds without anything new after which a living node has told all that there is."""


class Follower:
    """Takes what the nodes of a run say, without holding it."""

    def __init__(self, reached: ReachedNodes, watch: Watch) -> None:
        self.reached, self.watch = reached, watch
        self.open = set(reached.sessions)
        self.lost: dict[str, str] = {}

    def follow(self, *, until: Callable[[], bool]) -> Outcome:
        """Watch until all nodes have ended, or `until` says that it is enough."""
        for session in self.reached.sessions.values():
            session.follow(hold=False)
        while self.open and not until():
            try:
                self._take(*self.reached.inbox.get(timeout=LOOK))
            except Empty:
                continue
        return self.watch.outcome()

    def catch_up(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Take what there is now, and no more; or less, if `until` says that it is enough."""
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
        elif isinstance(arrival, frames.Output):
            self.watch.output(session.host, arrival, session.offset)
        elif isinstance(arrival, NodeEvent):
            event = read_event(session.host, arrival, session.offset)
            self.watch.happened(event)
            if event.kind == "stopping" and event.reason:
                self.watch.history.interrupted = True
                self.watch.history.stopped_by = event.reason.by
            if event.kind == "ended":
                self.open.discard(session.host)


def read_kept(
    reached: ReachedNodes,
    run: str,
    watch: Watch,
    *,
    until: Callable[[], bool] = lambda: False,
    most: int = PIECE,
) -> None:
    """Read what a run has kept on nodes where its agent has left, in the order of time, or so much
    of it that `until` says that it is enough; at `most` so many bytes of a node at a time.

    Raises NodeError.
    """
    told = [_kept(session, run, most) for session in reached.sessions.values()]
    for _, session, frame in merge(*told, key=itemgetter(0)):
        if until():
            return
        if isinstance(frame, frames.Output):
            watch.output(session.host, frame, session.offset)
        else:
            watch.happened(read_event(session.host, frame, session.offset))


def _kept(session: Session, run: str, most: int) -> Iterator[tuple[float, Session, Kept]]:
    """What one node has kept, with the time by our clock; only a piece of it is in memory.

    Ends where a piece cannot be had. Raises NodeError where it is no journal of ours.
    """
    incoming, position, size = Incoming(session.ranks), 0, 1
    while position < size:
        wanted = {"run": run, "position": position, "most": most}
        piece = answer_of(session.host, session.ask({JOURNAL: wanted})).get(JOURNAL)
        if piece is None or piece.size > MOST_KEPT:
            return
        if len(piece.data) < min(most, piece.size - position):  # or it would go on for ever
            return
        position, size = position + len(piece.data), piece.size
        try:
            for arrived in incoming.feed(piece.data):
                if isinstance(arrived, frames.Output | NodeEvent):
                    yield arrived.time - session.offset, session, arrived
        except ProtocolError as error:
            why = f"its journal is damaged: {error}"
            raise NodeError((NodeFailure(session.host, "protocol", why),)) from None


def replay(directory: Path, watch: Watch, *, follow: bool) -> None:
    """Show what this machine has recorded, in the order of time; with `follow` in that of arrival,
    for as long as the launcher lives."""
    for host, output in recorded(directory, follow=follow):
        watch.output(host, output, 0.0)
    watch.flush_all()


def recorded(directory: Path, *, follow: bool) -> Iterator[tuple[str, frames.Output]]:
    """Yield what each node's ranks wrote, as `replay` shows it."""
    going = (lambda: is_held(directory)) if follow else None
    for host, rank, stream, when, data in read_output(directory, follow=going):
        number = frames.NO_RANK if rank is None else rank
        yield host, frames.Output(number, stream, when, data)


def nothing_reached(reached: ReachedNodes, run: str) -> DslaunchError:
    """Why nobody could be spoken to about a run."""
    gone = all(failure.kind == "no-agent" for failure in reached.failures.values())
    if gone:
        return DslaunchError(
            f"run {run} is not running on any node", hint="`dslaunch ps --all` shows what there is"
        )
    return NodeError(tuple(reached.failures.values()))
