"""Follow a run that goes on, or read what one that is over has kept on its nodes."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty

from dslaunch.errors import DslaunchError, NodeError
from dslaunch.node import frames
from dslaunch.run.outcome import Outcome
from dslaunch.run.reach import Reached
from dslaunch.run.record import is_held, read_output
from dslaunch.run.session import Arrival, Lost, Session
from dslaunch.run.watch import Watch, read_event

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
    """Read what a run has kept on nodes where its agent has left. Raises NodeError."""
    for host, session in reached.sessions.items():
        decoder, position, size = frames.Decoder(), 0, 1
        while position < size:
            wanted = {"run": run, "position": position, "most": PIECE}
            answer = session.ask(journal=wanted).result(60)["journal"]
            if "error" in answer:
                break
            data, size = base64.b64decode(answer["value"]["data"]), answer["value"]["size"]
            position += len(data)
            if not data:
                break
            for frame in decoder.feed(data):
                if isinstance(frame, frames.Output):
                    watch.output(host, frame, session.offset)
                elif isinstance(frame, dict):
                    watch.happened(read_event(host, frame, session.offset))


def replay(directory: Path, watch: Watch, *, follow: bool) -> None:
    """Show what this machine has recorded; with `follow` for as long as the launcher lives."""
    pieces = read_output(directory, follow=lambda: follow and is_held(directory))
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
