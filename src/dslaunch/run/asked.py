"""One question to several nodes, and what those that have answered told."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Generic, TypeVar

from msgspec import Struct, field

from dslaunch.run.session import Session
from dslaunch.transport.future import Future, wait_for
from dslaunch.transport.wire import LostError

Value = TypeVar("Value")


class _Pending(Struct, Generic[Value], frozen=True):
    session: Session
    answer: Future[Value]
    since: float = field(default_factory=time.monotonic)


class Asked(Generic[Value]):
    """The nodes that were asked, and their answers."""

    def __init__(self, questions: Iterable[tuple[Session, Future[Value]]] = ()) -> None:
        self._pending: dict[str, _Pending[Value]] = {}
        for session, answer in questions:
            self.add(session, answer)

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, session: Session, answer: Future[Value]) -> None:
        """Note that a node was asked now. An earlier answer of it is not waited for any more."""
        self._pending[session.host] = _Pending(session, answer)

    def forget(self, host: str) -> None:
        """Drop a node that has left the run."""
        self._pending.pop(host, None)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the nodes that were asked and whose answers have not been taken."""
        return tuple(self._pending)

    @property
    def answers(self) -> list[Future[Value]]:
        """Return the answers that have not been taken, to wait for them."""
        return [each.answer for each in self._pending.values()]

    @property
    def complete(self) -> bool:
        """Return whether every node has answered, or is lost."""
        return all(answer.done() for answer in self.answers)

    def waits_for(self, host: str, at_most: float) -> bool:
        """Return whether a node was asked less than so many seconds ago, and its answer has not
        been taken."""
        pending = self._pending.get(host)
        return pending is not None and time.monotonic() - pending.since < at_most

    def wait(self, seconds: float) -> None:
        """Wait until all have answered, at most so many seconds."""
        wait_for(self.answers, max(seconds, 0))

    def arrived(self) -> list[tuple[Session, Value]]:
        """Return the answers so far, without nodes that are lost or have sent something invalid."""
        found = []
        for each in self._pending.values():
            if each.answer.done():
                try:
                    found.append((each.session, each.answer.result(0)))
                except LostError:  # also of an answer that is invalid
                    continue
        return found

    def take(self) -> list[tuple[Session, Value]]:
        """Return the answers so far, and drop them and those of nodes that are lost."""
        found = self.arrived()
        for host in [host for host, each in self._pending.items() if each.answer.done()]:
            del self._pending[host]
        return found
