"""Supervise a run: watch all nodes, and stop everything when the run must end."""

from __future__ import annotations

import time
from queue import Empty
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dslaunch import log
from dslaunch.errors import NodeFailure
from dslaunch.node.frames import Output
from dslaunch.protocol.messages import Gone, NodeEvent
from dslaunch.run.arrivals import Arrival, Away, Back, Lost
from dslaunch.run.collectives import with_collectives
from dslaunch.run.events import Event
from dslaunch.run.hang_watch import Continued, HangWatch, Stall
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.outcome import Outcome, failed, fatal, reason_of
from dslaunch.run.outcome_text import stop_text
from dslaunch.run.rank_signals import Delivery
from dslaunch.run.rank_stacks import gather_stacks
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.session import Session
from dslaunch.run.slow_ranks import SlowRanks
from dslaunch.run.timeouts import Timeouts
from dslaunch.run.watch import UNKNOWN_USER, Watch
from dslaunch.transport import loop

if TYPE_CHECKING:
    from dslaunch.run.inbox import Inbox
    from dslaunch.run.rehearsal import RehearsalMonitor
    from dslaunch.run.usage_recorder import UsageRecorder

POLL = 0.1
"""Seconds between two looks at the time and at the user."""
CONFIRM_TIMEOUT = 10.0
"""Seconds beyond the grace period in which a node must confirm the cleanup."""
LONGEST_ERROR = 500
"""Characters of an unexpected error that are logged."""
_log = log.Log(__name__)


class Supervisor:
    """Watches one attempt of a run."""

    def __init__(
        self,
        sessions: list[Session],
        inbox: Inbox,
        watch: Watch,
        interrupts: Interrupts,
        timeouts: Timeouts,
        usage: UsageRecorder | None = None,
        rehearsal: RehearsalMonitor | None = None,
    ) -> None:
        """`usage`: records what the nodes use, unless None. `rehearsal`: ends the run once it has
        shown enough; None: the run is no rehearsal."""
        self.inbox = inbox
        self.watch = watch
        self.interrupts = interrupts
        self.timeouts = timeouts
        self.usage = usage
        self.rehearsal = rehearsal
        self.slow_ranks = SlowRanks()
        self.hangs: HangWatch | None = None
        """From the start of the ranks on."""
        self.sessions = sessions
        self.running = {session.host: session for session in sessions}
        """The nodes that have neither ended their part nor been lost."""
        self.history = watch.history
        self.unconfirmed: list[str] = []
        """The nodes that were lost before they confirmed the cleanup."""
        self.stacks: dict[str, Any] = {}
        """Host -> rank -> processes, as of `node.stacks.collect`; once a hang has been found."""
        self.stop_deadline: float | None = None
        """When ranks that were asked to end are killed, on the monotonic clock; None: none were."""
        self.insisted = False
        """Whether the user has interrupted the run twice."""
        self.notices = 0
        """Notices that were forwarded to the ranks."""
        self.deliveries: list[Delivery] = []
        """Forwarded signals that nodes have not confirmed yet."""
        self.first_success: float | None = None
        """When the first rank exited successfully, on the monotonic clock."""
        self._heartbeats_checked = 0.0
        """When, on the monotonic clock."""

    def run(self, *, near: str) -> Outcome:
        """Stay until what was started has ended on all nodes. `near`: the master's address."""
        limit = self.timeouts.hang_timeout
        if self.rehearsal is not None:
            limit = self.rehearsal.next_inspection()
        self.hangs = HangWatch(limit, near=near)
        while self.running:
            self._take_arrivals()
            self._look()
        if self.rehearsal is not None:
            self.rehearsal.collect(self.sessions)
        return replace(
            self.watch.outcome(),
            unconfirmed=tuple(self.unconfirmed),
            left=tuple(self.watch.left),
            stacks=self.stacks,
        )

    # ------------------------------------------------------------ what arrives

    def _take_arrivals(self) -> None:
        """Take what arrives until the next look, which asks about every node."""
        look_at = time.monotonic() + POLL
        while self.running and (left := look_at - time.monotonic()) > 0:
            try:
                session, arrival = self.inbox.get(timeout=left)
            except Empty:
                return
            self._take(session, arrival)

    def _take(self, session: Session, arrival: Arrival) -> None:
        if isinstance(arrival, Output):
            self.watch.take(session.host, arrival, session.offset)
            if self.hangs is not None:
                self.hangs.heard()
        elif isinstance(arrival, NodeEvent):
            self._take_event(session, arrival)
        elif isinstance(arrival, Lost):
            self._lost(session, arrival.failure, arrival.gone)
        elif isinstance(arrival, Away):
            self._away(session, arrival.failure)
        else:
            self._back(session, arrival)

    def _take_event(self, session: Session, sent: NodeEvent) -> None:
        if sent.event == "done":
            self.watch.left += [f"{session.host}: {pid}" for pid in sent.left]
            self.running.pop(session.host, None)
        event = self.watch.take(session.host, sent, session.offset)
        assert event is not None
        self._react(event)
        if sent.event == "stopping":
            self._stop_as_asked(EndReason(EndCode.STOPPED, by=sent.by or UNKNOWN_USER))
        elif sent.event == "ending" and sent.process is None and self.stop_deadline is None:
            self._give_up(EndReason(EndCode.NODE_ENDED, session.host, error=sent.error))

    def _happened(self, event: Event) -> None:
        self.watch.happened(event)
        self._react(event)

    def _react(self, event: Event) -> None:
        """Stop the run if this event ends it."""
        if event.kind == "exit" and self.first_success is None and not failed(event):
            self.first_success = time.monotonic()
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
        """Note it, and send again what may not have arrived."""
        self._happened(Event(time.time(), "back", session.host, seconds=arrival.after))
        if self.stop_deadline is not None:
            session.send(op="stop", grace=max(0.0, self.stop_deadline - time.monotonic()))

    def _stop_as_asked(self, reason: EndReason) -> None:
        """Stop the run, unless it was asked to stop before."""
        if self.history.stop is None:
            self.history.stop = reason
            self._stop(self.timeouts.grace, reason)

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

    # ------------------------------------------------------------ timeouts and the user

    def _look(self) -> None:
        self._check_interrupts()
        self._forward_signals()
        self._check_exit_timeout()
        self._check_heartbeats()
        self._check_confirmations()
        self._check_for_hang()
        self._check_rehearsal()
        self._measure()

    def _measure(self) -> None:
        """Measure, record and export the usage, and name slow ranks.

        What fails there ends the measuring, not the run: what nodes say of themselves is much, and
        none of it is needed to train.
        """
        if self.usage is None:
            return
        try:
            sample = self.usage.look(self.running.values(), self.slow_ranks.interval)
            found = self.slow_ranks.take(sample) if sample is not None else ()
        except Exception as error:  # noqa: BLE001 - see above
            self.usage = None
            _log.info("measuring-ended", error=repr(error)[:LONGEST_ERROR])
            return
        if self.stop_deadline is None:
            for event in found:
                self._happened(event)

    def _check_exit_timeout(self) -> None:
        limit = self.timeouts.exit_timeout
        if self.stop_deadline is not None or self.first_success is None:
            return
        if time.monotonic() - self.first_success > limit:
            ranks = self.history.still_running()
            self._give_up(EndReason(EndCode.EXIT_TIMEOUT, seconds=limit, ranks=ranks))

    def _check_heartbeats(self) -> None:
        """Give up connections to nodes that were unheard for too long; ten times in that time is
        enough."""
        now = time.monotonic()
        if now - self._heartbeats_checked < min(1.0, self.timeouts.heartbeat / 10):
            return
        self._heartbeats_checked = now
        sessions = tuple(self.running.values())
        since = now - self.timeouts.heartbeat

        def look() -> None:
            for session in sessions:
                session.end_if_silent(since)

        loop.shared().call_when_handled(look)

    def _check_confirmations(self) -> None:
        """Give up nodes that do not confirm the cleanup in time."""
        if self.stop_deadline is None:
            return
        deadline = self.stop_deadline + CONFIRM_TIMEOUT + self.timeouts.reconnect
        if time.monotonic() <= deadline:
            return
        for session in list(self.running.values()):
            why = "it did not confirm the cleanup in time"
            self._lost(session, NodeFailure(session.host, "lost", why))

    def _check_for_hang(self) -> None:
        if self.hangs is None or self.stop_deadline is not None or not self.running:
            return
        found = self.hangs.look(list(self.running.values()), self.history.ended)
        if found is None:
            return
        if isinstance(found, Continued):
            self._happened(Event(time.time(), "continued", seconds=found.seconds))
        elif not found.over:
            self._happened(Event(time.time(), "stalled", seconds=found.seconds, hang=found.verdict))
        elif self.rehearsal is not None:
            self.hangs.limit = self.rehearsal.next_inspection(found.seconds)
            reason = self.rehearsal.reason_of_stall(found)
            if reason is not None:
                self._end_stalled(found, reason)
        else:
            self._end_stalled(found, found.as_reason())

    def _end_stalled(self, stall: Stall, reason: EndReason) -> None:
        """End the run, with the stacks of the ranks if a hang is the reason."""
        if reason.code is EndCode.HANG:
            self.stacks = with_collectives(stall.stacks, stall.collectives)
        self._give_up(reason)

    def _check_rehearsal(self) -> None:
        if self.rehearsal is None or self.stop_deadline is not None or not self.running:
            return
        reason = self.rehearsal.look(self.running.values())
        if reason is None:
            return
        if reason.code is EndCode.REHEARSAL_LIMIT:
            self.stacks = gather_stacks(list(self.running.values()))
        self._give_up(reason)

    def _give_up(self, reason: EndReason) -> None:
        self.history.gave_up = reason
        self._stop(self.timeouts.grace, reason)

    def _forward_signals(self) -> None:
        """Send the ranks the signals that this process received, and report which got them."""
        while self.interrupts.received:
            number = self.interrupts.received.popleft()
            self.notices += number == self.interrupts.notice
            self.deliveries.append(Delivery.begin(number, list(self.running.values())))
        for delivery in [each for each in self.deliveries if each.over]:
            self.deliveries.remove(delivery)
            self._happened(delivery.event())

    def _check_interrupts(self) -> None:
        if self.interrupts.count:
            closed = self.watch.output_closed()
            code = EndCode.OUTPUT_CLOSED if closed else EndCode.INTERRUPTED
            self._stop_as_asked(EndReason(code))
        if self.interrupts.count > 1 and not self.insisted:
            self.insisted = True
            self._stop(0, EndReason(EndCode.INTERRUPTED_TWICE))

    def _stop(self, grace: float, reason: EndReason, *, at: float | None = None) -> None:
        self.stop_deadline = time.monotonic() + grace
        if self.history.stopped_at is None:
            self.history.stopped_at = at if at is not None else time.time()
        for session in self.running.values():
            session.send(op="stop", grace=grace, why=stop_text(reason))
        running = self.history.still_running()
        self._happened(
            Event(
                time.time(),
                "stopping",
                reason=reason,
                seconds=grace,
                ranks=len(running),
                nodes=len({host for host, _ in running}),
            )
        )
