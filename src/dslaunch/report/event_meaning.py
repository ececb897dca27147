"""What events say on a timeline, without their times, nodes and ranks. Pure.

A run of many nodes has hundreds of thousands of events and a few dozen meanings: texts and signs
are made once for each meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from operator import attrgetter

from msgspec import Struct

from dslaunch.report.straggler_text import straggler_rows
from dslaunch.run.events import Event
from dslaunch.run.exit_text import describe, signal_name
from dslaunch.run.hang_text import hang_text
from dslaunch.run.outcome import failed
from dslaunch.run.outcome_text import restart_text, stop_text


class Sign(StrEnum):
    """The kind of a mark."""

    CONNECTED = "connected"
    SHIPPED = "shipped"
    JOINED = "joined"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    """Ended because the run was stopped."""
    LOST = "lost"


class Meaning(Struct, frozen=True, eq=False):
    """What an event says. Equal events share one object, which is compared by its identity."""

    kind: str
    text: str
    """As it is listed, equal for equal events of several nodes."""
    error: str
    is_failure: bool
    """Whether it makes the run fail, and was no effect of a stop."""
    rank_sign: Sign | None
    """Its mark in the row of a rank; None: it has none."""
    rank_text: str
    """How a process ended."""

    @property
    def node_sign(self) -> Sign | None:
        """Return its mark in the row of a node; None: it has none."""
        if self.kind == "exit":
            return Sign.FAILED if self.is_failure else None
        return _SIGN_OF.get(self.kind)


_SIGN_OF: Mapping[str, Sign] = {
    "connected": Sign.CONNECTED,
    "shipped": Sign.SHIPPED,
    "joined": Sign.JOINED,
    "unstarted": Sign.FAILED,
    "lost": Sign.LOST,
}
_PARTS: Callable[[Event], tuple[object, ...]] = attrgetter(
    "kind", "code", "signal", "asked", "error", "process", "reason", "restart", "hang", "slower"
)
"""Returns all that the meaning of an event depends on, besides whether it is of a rank."""


def meanings(events: Iterable[Event]) -> Iterator[Meaning]:
    """Yield the meaning of each event."""
    of_ranks: dict[tuple[object, ...], Meaning] = {}
    of_nodes: dict[tuple[object, ...], Meaning] = {}
    for event in events:
        known = of_nodes if event.rank is None else of_ranks
        parts = _PARTS(event)
        found = known.get(parts)
        if found is None:
            found = known[parts] = _meaning(event)
        yield found


def _meaning(event: Event) -> Meaning:
    sign, ending = _of_rank(event)
    return Meaning(
        kind=event.kind,
        text=_text(event),
        error=event.error or "",
        is_failure=failed(event) and not event.asked,
        rank_sign=sign,
        rank_text=ending,
    )


def _of_rank(event: Event) -> tuple[Sign | None, str]:
    """Return the sign of an event of a rank and how a process ended; None: it has no mark."""
    if event.kind == "unstarted":
        return Sign.FAILED, event.error or ""
    if event.kind != "exit":
        return None, ""
    if not failed(event):
        return Sign.SUCCEEDED, ""
    sign = Sign.STOPPED if event.asked else Sign.FAILED
    return sign, describe(event.code, event.signal)


def _text(event: Event) -> str:
    if event.reason is not None:
        return f"{stop_text(event.reason)}; stopping"
    if event.restart is not None:
        return restart_text(event.restart)
    if event.kind == "exit":
        who = "launcher" if event.rank is None else "rank"
        while_stopping = ", after the stop" if event.asked else ""
        return f"{who} ended: {describe(event.code, event.signal)}{while_stopping}"
    if event.kind == "noticed":
        return f"{signal_name(event.signal or 0)} forwarded to all ranks"
    if event.hang is not None:
        return f"no collective completes: {hang_text(event.hang)}"
    if event.slower:
        return "; ".join(straggler_rows(event.slower))
    text = _TEXTS.get(event.kind, event.kind)
    return f"{text}: {event.error}" if event.error else text


_TEXTS: Mapping[str, str] = {
    "connected": "connected",
    "shipped": "files copied",
    "resent": "files sent by this machine, not by another node",
    "started": "process started",
    "unstarted": "could not start",
    "joined": "joined the process group",
    "away": "connection lost, reconnecting",
    "back": "reconnected",
    "continued": "collectives complete again",
    "lost": "node lost",
    "ending": "the node ends its part",
    "ended": "all processes of the node have exited",
}
