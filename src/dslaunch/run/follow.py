"""Follow a run that goes on, or read what one that is over has kept on its nodes."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from heapq import merge
from operator import itemgetter
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING

from dslaunch.errors import DslaunchError, NodeError
from dslaunch.node import frames
from dslaunch.run.outcome import Outcome
from dslaunch.run.reach import Reached
from dslaunch.run.record import is_held, read_output
from dslaunch.run.session import Arrival, Lost, Session
from dslaunch.run.watch import Watch, read_event

if TYPE_CHECKING:
    from dslaunch.node.frames import Message

PIECE = 1 << 20
LOOK = 0.2
QUIET = 0.5
"""Seconds without anything new after which a living node has told all that there is."""


class Follower:
    """Takes what the nodes of a run say, without holding it."""

    def __init__(self, reached: Reached, watch: Watch) -> None:
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

    def catch_up(self) -> None:
        """Take what there is now, and no more."""
        last = time.monotonic()

        def quiet() -> bool:
            return time.monotonic() - last > QUIET and self.reached.inbox.empty()

        self.follow(until=quiet)

    def _take(self, session: Session, arrival: Arrival) -> None:
        if isinstance(arrival, Lost):
            self.open.discard(session.host)
            self.lost[session.host] = arrival.failure.message
        elif isinstance(arrival, frames.Output):
            self.watch.output(session.host, arrival, session.offset)
        elif isinstance(arrival, dict):
            event = read_event(session.host, arrival, session.offset)
            self.watch.happened(event)
            if event.kind == "stopping":
                self.watch.history.interrupted = True
                self.watch.history.stopped_by = event.text
            if event.kind == "ended":
                self.open.discard(session.host)


def read_kept(reached: Reached, run: str, watch: Watch) -> None:
    """Read what a run has kept on nodes where its agent has left, in the order of time.

    Raises NodeError.
    """
    told = [_kept(session, run) for session in reached.sessions.values()]
    for _, session, frame in merge(*told, key=itemgetter(0)):
        if isinstance(frame, frames.Output):
            watch.output(session.host, frame, session.offset)
        else:
            watch.happened(read_event(session.host, frame, session.offset))


def _kept(session: Session, run: str) -> Iterator[tuple[float, Session, frames.Output | Message]]:
    """What one node has kept, with the time by our clock; only a piece of it is in memory."""
    decoder, position, size = frames.Decoder(), 0, 1
    while position < size:
        wanted = {"run": run, "position": position, "most": PIECE}
        answer = session.ask(journal=wanted).result(60)["journal"]
        if "error" in answer or not answer["value"]["data"]:
            return
        data, size = base64.b64decode(answer["value"]["data"]), answer["value"]["size"]
        position += len(data)
        for frame in decoder.feed(data):
            if isinstance(frame, frames.Output):
                yield frame.time - session.offset, session, frame
            elif isinstance(frame, dict):
                yield frame["time"] - session.offset, session, frame


def replay(directory: Path, watch: Watch, *, follow: bool) -> None:
    """Show what this machine has recorded, in the order of time; with `follow` in that of arrival,
    for as long as the launcher lives."""
    going = (lambda: is_held(directory)) if follow else None
    pieces = read_output(directory, follow=going)
    for host, rank, stream, when, data in pieces:
        number = frames.NO_RANK if rank is None else rank
        watch.output(host, frames.Output(number, stream, when, data), 0.0)
    watch.flush_all()


def nothing_reached(reached: Reached, run: str) -> DslaunchError:
    """Why nobody could be spoken to about a run."""
    gone = all(failure.kind == "no-agent" for failure in reached.failures.values())
    if gone:
        return DslaunchError(
            f"run {run} is not running on any node", hint="`dslaunch ps --all` shows what there is"
        )
    return NodeError(tuple(reached.failures.values()))
