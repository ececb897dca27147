"""A run from its start to nothing left: starts all nodes, watches them, ends what must end."""

from __future__ import annotations

import time
from concurrent.futures import wait
from dataclasses import asdict, replace
from queue import Empty
from typing import TYPE_CHECKING, Any

from dslaunch.errors import NodeFailure
from dslaunch.launch.plan import NodePlan, Plan
from dslaunch.node.frames import Output
from dslaunch.protocol.messages import Gone, NodeEvent
from dslaunch.protocol.queries import STACKS
from dslaunch.run.events import Event
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.outcome import Outcome, failed, fatal, reason_of
from dslaunch.run.outcome_text import stop_text
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.session import Arrival, Away, Back, Inbox, Lost, Session
from dslaunch.run.timeouts import Timeouts
from dslaunch.run.watch import Watch, read_event

if TYPE_CHECKING:
    from dslaunch.run.secret import Secret

LOOK = 0.1
CONFIRM = 10.0


class Supervisor:
    """Watches one run."""

    def __init__(
        self,
        sessions: list[Session],
        inbox: Inbox,
        watch: Watch,
        interrupts: Interrupts,
        timeouts: Timeouts,
    ) -> None:
        self.inbox, self.watch = inbox, watch
        self.interrupts, self.timeouts = interrupts, timeouts
        self.sessions = sessions
        self.running = {session.host: session for session in sessions}
        self.history = watch.history
        self.unconfirmed: list[str] = []
        self.stacks: dict[str, Any] = {}
        self.stop_deadline: float | None = None
        self.insisted = False
        self.notices = 0
        """How many notices the ranks were given."""
        self.first_good_end: float | None = None

    def run(self, plan: Plan, secrets: dict[str, Secret]) -> Outcome:
        """Start the plan on all nodes and stay until it has ended everywhere."""
        for session, node in zip(self.sessions, plan.nodes, strict=True):
            session.expect(ranks_of(node))
            session.follow(hold=True)
            session.send(**start_message(plan, node, secrets), notice=self.interrupts.notice)
        while self.running:
            self._step()
        return replace(
            self.watch.outcome(),
            unconfirmed=tuple(self.unconfirmed),
            left=tuple(self.watch.left),
            stacks=self.stacks,
        )

    # ------------------------------------------------------------ what arrives

    def _step(self) -> None:
        try:
            session, arrival = self.inbox.get(timeout=LOOK)
        except Empty:
            pass
        else:
            self._take(session, arrival)
        self._look()

    def _take(self, session: Session, arrival: Arrival) -> None:
        if isinstance(arrival, Output):
            self.watch.output(session.host, arrival, session.offset)
        elif isinstance(arrival, Lost):
            self._lost(session, arrival.failure, arrival.gone)
        elif isinstance(arrival, Away):
            self._away(session, arrival.failure)
        elif isinstance(arrival, Back):
            self._back(session, arrival)
        else:
            self._said(session, arrival)

    def _said(self, session: Session, event: NodeEvent) -> None:
        if event.event == "done":
            self.watch.left += [f"{session.host}: {pid}" for pid in event.left]
            self.running.pop(session.host, None)
        self._happened(read_event(session.host, event, session.offset))
        if event.event == "stopping":
            self._stopped_by(event.by or "somebody")
        elif event.event == "ending" and event.process is None and self.stop_deadline is None:
            self._give_up(EndReason(EndCode.NODE_ENDED, session.host, error=event.error))

    def _happened(self, event: Event) -> None:
        self.watch.happened(event)
        if event.kind == "exit" and self.first_good_end is None and not failed(event):
            self.first_good_end = time.monotonic()
        if self._must_end(event) and self.stop_deadline is None:
            self._stop(self.timeouts.grace, reason_of(event), at=event.time)

    def _must_end(self, event: Event) -> bool:
        """Whether this event ends the run. After a notice each rank saves and ends by itself, with
        whatever code: the others are not ended before they have saved."""
        saved = self.notices > 0 and event.kind == "exit"
        return fatal(event, self.history) and not saved

    def _away(self, session: Session, failure: NodeFailure) -> None:
        kind, why = failure.kind, failure.message
        self._happened(Event(time.time(), "away", session.host, failure=kind, error=why))

    def _back(self, session: Session, arrival: Back) -> None:
        """Say it, and say again what may not have arrived."""
        self._happened(Event(time.time(), "back", session.host, seconds=arrival.after))
        if self.stop_deadline is not None:
            session.send(op="stop", grace=max(0.0, self.stop_deadline - time.monotonic()))

    def _stopped_by(self, who: str) -> None:
        if not self.history.interrupted:
            self.history.interrupted, self.history.stopped_by = True, who
            self._stop(self.timeouts.grace, EndReason(EndCode.STOPPED, by=who))

    def _lost(self, session: Session, failure: NodeFailure, gone: Gone | None = None) -> None:
        if self.running.pop(session.host, None) is None:
            return
        if gone is None or not gone.over:
            self.unconfirmed.append(session.host)
        event = Event(
            time.time(), "lost", session.host, failure=failure.kind, error=failure.message
        )
        if gone is not None:
            event = replace(
                event,
                process="agent",
                signal=gone.signal,
                error=gone.error or failure.message,
                trace=gone.trace,
            )
        self._happened(event)

    # ------------------------------------------------------------ what must be looked at

    def _look(self) -> None:
        self._look_at_the_user()
        self._look_for_a_notice()
        now = time.monotonic()
        waited = now - (self.first_good_end or now)
        limit = self.timeouts.exit_timeout
        if self.stop_deadline is None and waited > limit:
            self._give_up(
                EndReason(EndCode.EXIT_TIMEOUT, seconds=limit, ranks=self.history.still_there())
            )
        for session in list(self.running.values()):
            if session.silent() > self.timeouts.heartbeat:
                session.interrupt()
            if self.stop_deadline is not None and now > self.stop_deadline + self._confirmation:
                why = "it did not confirm its end"
                self._lost(session, NodeFailure(session.host, "lost", why))
        self._look_for_a_hang()

    @property
    def _confirmation(self) -> float:
        """Seconds beyond the grace in which a node must say that nothing is left."""
        return CONFIRM + self.timeouts.reconnect

    def _look_for_a_hang(self) -> None:
        limit = self.timeouts.hang_timeout
        if limit is None or self.stop_deadline is not None or not self.running:
            return
        idle = min(session.idle for session in self.running.values())
        if idle > limit:
            self.stacks = gather_stacks(list(self.running.values()))
            self._give_up(EndReason(EndCode.HANG, seconds=idle))

    def _give_up(self, reason: EndReason) -> None:
        self.history.gave_up = reason
        self._stop(self.timeouts.grace, reason)

    def _look_for_a_notice(self) -> None:
        number = self.interrupts.notice
        if number is None or self.interrupts.notices == self.notices:
            return
        self.notices = self.interrupts.notices
        for session in self.running.values():
            session.send(op="notice", number=int(number))
        self._happened(Event(time.time(), "noticed", signal=int(number)))

    def _look_at_the_user(self) -> None:
        if self.interrupts.count and not self.history.interrupted:
            self.history.interrupted = True
            self._stop(self.timeouts.grace, EndReason(EndCode.INTERRUPTED))
        if self.interrupts.count > 1 and not self.insisted:
            self.insisted = True
            self._stop(0, EndReason(EndCode.INTERRUPTED_TWICE))

    def _stop(self, grace: float, reason: EndReason, *, at: float | None = None) -> None:
        self.stop_deadline = time.monotonic() + grace
        if self.history.stopped_at is None:
            self.history.stopped_at = at if at is not None else time.time()
        for session in self.running.values():
            session.send(op="stop", grace=grace, why=stop_text(reason))
        self._happened(Event(time.time(), "stopping", reason=reason))


def gather_stacks(sessions: list[Session], timeout: float = 15.0) -> dict[str, Any]:
    """What every rank is doing: host -> rank -> stacks; nodes that do not answer are left out."""
    asked = {
        session.host: session.request("stacks", STACKS, timeout=timeout * 2 / 3)
        for session in sessions
    }
    wait(asked.values(), timeout)
    own = {session.host: session.ranks for session in sessions}
    return {
        host: {rank: each for rank, each in future.result().items() if int(rank) in own[host]}
        for host, future in asked.items()
        if future.done() and future.exception() is None
    }


def ranks_of(node: NodePlan) -> range:
    """The ranks that a node may report of."""
    return range(node.first_rank, node.first_rank + len(node.slots))


def start_message(plan: Plan, node: NodePlan, secrets: dict[str, Secret]) -> dict[str, Any]:
    """What tells an agent to start its node's processes. The only place where secrets go."""
    return {
        "op": "start",
        "processes": [
            {"argv": p.command.words(), "env": dict(p.env), "rank": p.rank} for p in node.processes
        ],
        "env": dict(node.env) | {name: secret.reveal() for name, secret in secrets.items()},
        "secret": list(secrets),
        "cwd": node.cwd,
        "files": [asdict(file) for file in node.files],
        "slots": len(node.slots),
        "first_rank": node.first_rank,
        "master_port": plan.rendezvous.port,
        "about": about(plan, node),
    }


def about(plan: Plan, node: NodePlan) -> dict[str, Any]:
    """What a node keeps of a run, for those who ask it later."""
    return {
        "cluster": plan.cluster,
        "launcher": plan.launcher,
        "hosts": [each.host for each in plan.nodes],
        "world_size": plan.world_size,
        "ranks": list(ranks_of(node)),
        "started": time.time(),
    }
