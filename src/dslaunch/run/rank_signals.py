"""Send signals to the ranks of a run, and collect which ranks got them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from dslaunch.cluster.nodeset import fold_numbers
from dslaunch.errors import DslaunchError, UsageError
from dslaunch.node.rank_signals import SIGNALS
from dslaunch.plural import counted
from dslaunch.protocol.queries import SIGNALED, SignaledRanks
from dslaunch.run.events import Event
from dslaunch.texts import closest
from dslaunch.transport.future import Future, wait_for

if TYPE_CHECKING:
    from dslaunch.errors import NodeFailure
    from dslaunch.run.session import Session

CONFIRM_TIMEOUT = 10.0
"""Seconds for a node to confirm a signal."""


class Signaled(Struct, frozen=True):
    """The ranks that got a signal."""

    signal: str
    """Its name, such as `USR1`."""
    ranks: tuple[int, ...]
    unresponsive: tuple[str, ...] = ()
    """Nodes that did not confirm it."""
    failures: tuple[NodeFailure, ...] = ()
    """Of nodes that could not be reached."""


def signal_names() -> tuple[str, ...]:
    """Return the signals that are sent to ranks."""
    return tuple(SIGNALS)


def signal_number(name: str) -> int:
    """Return the number of `USR1` or `SIGUSR1`. Raises UsageError for one that is not sent."""
    plain = name.upper().removeprefix("SIG")
    if plain not in SIGNALS:
        near = closest(plain, SIGNALS)
        known = ", ".join(SIGNALS)
        hint = f"did you mean {near}?" if near else f"signals: {known}; `dslaunch stop` ends a run"
        raise UsageError(f"signal {name!r} is not sent to ranks", hint=hint)
    return SIGNALS[plain]


def check_delivery(what: Order, checked: Sequence[SignaledRanks]) -> None:
    """Raise DslaunchError if a chosen rank is not running, or would be ended by the signal."""
    name = what.name
    unhandled = sorted(rank for each in checked for rank in each.unhandled)
    found = {rank for each in checked for rank in each.sent} | set(unhandled)
    missing = sorted(set(what.ranks or ()) - found)
    if missing:
        raise _not_sent(name, f"not running: rank {fold_numbers(missing)}")
    if not found:
        raise _not_sent(name, "no rank is running")
    if unhandled and not what.force:
        raise DslaunchError(
            f"SIG{name} was not sent: it would end {counted(len(unhandled), 'rank')} without a "
            f"handler for it: {fold_numbers(unhandled)}",
            hint="wait until the script has set its handler, choose other ranks with --ranks, or "
            "add --force",
        )


def _not_sent(name: str, why: str) -> DslaunchError:
    hint = "`dslaunch status` shows the state of the run"
    return DslaunchError(f"SIG{name} was not sent: {why}", hint=hint)


Requests = Sequence[tuple[str, Future[SignaledRanks]]]
"""What nodes will answer, each with the name of its node."""
Ask = Callable[["Session", "Order"], Future[SignaledRanks]]
"""Asks one node to carry out an order."""


class Order(Struct, frozen=True):
    """A signal to send."""

    number: int
    ranks: tuple[int, ...] | None = None
    """None: all."""
    force: bool = False
    """Whether ranks that it would end get it too."""
    check: bool = False
    """Whether nothing is sent, and only said which ranks would get it."""

    @property
    def name(self) -> str:
        """Return the name of the signal, such as `USR1`."""
        return next(name for name, number in SIGNALS.items() if number == self.number)

    def fits(self, answer: SignaledRanks) -> bool:
        """Return whether a node's answer is about ranks in this order only."""
        named = {*answer.sent, *answer.unhandled}
        return min(named, default=0) >= 0 and (self.ranks is None or named <= set(self.ranks))


def order(name: str, ranks: Collection[int] | None, *, force: bool) -> Order:
    """Return the order for a signal by its name. Raises UsageError."""
    number = signal_number(name)
    return Order(number, None if ranks is None else tuple(sorted(ranks)), force)


def ask_agent(session: Session, what: Order) -> Future[SignaledRanks]:
    """Ask the agent of a run."""
    return session.request("signal", SIGNALED, **to_builtins(what))


def send_signal(sessions: Sequence[Session], what: Order, ask: Ask = ask_agent) -> Signaled:
    """Send a signal to ranks on these nodes.

    Raises DslaunchError as `check_delivery`, before any rank gets it.
    """
    trial = replace(what, check=True)
    checked = answers(trial, [(session.host, ask(session, trial)) for session in sessions])
    check_delivery(what, [answer for _, answer in checked])
    told = answers(what, [(session.host, ask(session, what)) for session in sessions])
    confirmed = {host for host, _ in told}
    return Signaled(
        signal=what.name,
        ranks=tuple(sorted(rank for _, answer in told for rank in answer.sent)),
        unresponsive=tuple(s.host for s in sessions if s.host not in confirmed),
    )


def answers(what: Order, requests: Requests) -> list[tuple[str, SignaledRanks]]:
    """Wait for nodes, and return the answers of those that confirmed the order."""
    wait_for([future for _, future in requests], CONFIRM_TIMEOUT)
    done = [(host, f) for host, f in requests if f.done() and f.exception() is None]
    return [(host, f.result()) for host, f in done if what.fits(f.result())]


class Delivery(Struct, frozen=True):
    """A signal that the launcher has received and forwards to the ranks."""

    number: int
    requests: Requests
    deadline: float
    """By the monotonic clock."""

    @classmethod
    def begin(cls, number: int, sessions: Iterable[Session]) -> Delivery:
        """Forward a signal to the ranks that have a handler for it."""
        requests = [(session.host, ask_agent(session, Order(number))) for session in sessions]
        return cls(number, requests, time.monotonic() + CONFIRM_TIMEOUT)

    @property
    def over(self) -> bool:
        """Whether all nodes have answered or had time to."""
        answered = all(future.done() for _, future in self.requests)
        return answered or time.monotonic() > self.deadline

    def event(self) -> Event:
        """Return the event, once it is over."""
        done = [(host, future) for host, future in self.requests if future.done()]
        answered = answers(Order(self.number), done)
        unhandled = sorted(rank for _, answer in answered for rank in answer.unhandled)
        return Event(
            time.time(),
            "noticed",
            signal=self.number,
            sent=sum(len(answer.sent) for _, answer in answered),
            unhandled=tuple(unhandled) or None,
        )
