"""A run from its start to nothing left: starts all nodes, watches them, ends what must end."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from dataclasses import asdict, dataclass, replace
from queue import Empty
from typing import Any, Literal, Protocol

from dslaunch.errors import NodeFailure
from dslaunch.launch.plan import NodePlan, Plan
from dslaunch.node.frames import NO_RANK, Message, Output
from dslaunch.run.events import Event, Line
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.lines import Lines, Redactor, printable
from dslaunch.run.outcome import History, Outcome, failed, judge
from dslaunch.run.record import Record
from dslaunch.run.session import Arrival, Away, Back, Inbox, Lost, Session

LOOK = 0.1
PING = 5.0
CONFIRM = 10.0
KEPT_LINES = 20


class Screen(Protocol):
    """Where a person, or a program, sees the run."""

    def line(self, line: Line) -> None:
        """A line of output."""

    def event(self, event: Event) -> None:
        """Something happened."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds."""

    grace: float = 10.0
    """Between asking a process to end and making it."""
    exit_timeout: float = 300.0
    """Between the first rank's good end and the last's."""
    silence: float = 15.0
    """Without a sign of a node, or of the launcher, until the connection counts as broken."""
    reconnect: float = 20.0
    """In which a broken connection may be made anew before the node, or the run, is given up."""
    hang_timeout: float | None = None
    """Without output or computation of any rank until the run is ended; None: for ever."""


Source = tuple[str, int | None]


class Supervisor:
    """Watches one run."""

    def __init__(
        self,
        plan: Plan,
        sessions: list[Session],
        inbox: Inbox,
        record: Record,
        screen: Screen,
        interrupts: Interrupts,
        patience: Patience,
    ) -> None:
        self.plan, self.inbox, self.record, self.screen = plan, inbox, record, screen
        self.interrupts, self.patience = interrupts, patience
        self.sessions = sessions
        self.running = {session.host: session for session in sessions}
        self.history = History()
        self.secrets: dict[str, str] = {}
        self.left: list[str] = []
        self.unconfirmed: list[str] = []
        self.stop_deadline: float | None = None
        self.insisted = False
        self.first_good_end: float | None = None
        self.lines: dict[tuple[Source, int], Lines] = defaultdict(Lines)
        self.redactors: dict[tuple[Source, int], Redactor] = {}
        self.last: dict[Source, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT_LINES))

    def run(self, secrets: dict[str, str]) -> Outcome:
        """Start the plan on all nodes and stay until it has ended everywhere."""
        self.secrets = secrets
        over = threading.Event()
        threading.Thread(target=self._ping, args=(over,), daemon=True).start()
        try:
            for session, node in zip(self.sessions, self.plan.nodes, strict=True):
                session.follow(hold=True)
                session.send(**start_message(self.plan, node, secrets, self.plan.rendezvous.port))
            while self.running:
                self._step()
        finally:
            over.set()
        kept = {source: list(lines) for source, lines in self.last.items()}
        outcome = judge(self.history, last_lines=kept)
        return replace(outcome, unconfirmed=tuple(self.unconfirmed), left=tuple(self.left))

    def _ping(self, over: threading.Event) -> None:
        while not over.wait(PING):
            for session in list(self.running.values()):
                session.ping()

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
            self._output(session, arrival)
        elif isinstance(arrival, Lost):
            self._lost(session, arrival.failure)
        elif isinstance(arrival, Away):
            self._happened(Event(time.time(), "away", session.host, text=arrival.failure.message))
        elif isinstance(arrival, Back):
            self._back(session, arrival)
        elif arrival["event"] == "done":
            self._done(session, arrival)
        else:
            self._happened(read_event(session, arrival))
            if arrival["event"] == "stopping":
                self._stopped_by(arrival["by"] or "somebody")

    def _back(self, session: Session, arrival: Back) -> None:
        """Say it, and say again what may not have arrived."""
        self._happened(Event(time.time(), "back", session.host, text=f"{arrival.after:.0f} s"))
        if self.stop_deadline is not None:
            grace = max(0.0, self.stop_deadline - time.monotonic())
            session.send(op="stop", grace=grace)

    def _stopped_by(self, who: str) -> None:
        if not self.history.interrupted:
            self.history.interrupted, self.history.stopped_by = True, who
            self._stop(self.patience.grace, f"stopped by {who}")

    def _happened(self, event: Event) -> None:
        if event.kind == "exit":
            self._flush((event.host or "", event.rank))
            if self.first_good_end is None and not failed(event):
                self.first_good_end = time.monotonic()
        self.history.events.append(event)
        self.record.event(event)
        self.screen.event(event)
        if failed(event) and self.stop_deadline is None:
            self._stop(self.patience.grace, "a rank failed", at=event.time)

    def _output(self, session: Session, output: Output) -> None:
        source = (session.host, None if output.rank == NO_RANK else output.rank)
        key = (source, output.stream)
        if key not in self.redactors:
            self.redactors[key] = Redactor(tuple(self.secrets.values()))
        self._write(source, output.stream, self.redactors[key].feed(output.data))

    def _write(self, source: Source, stream: int, data: bytes) -> None:
        self.record.output(*source, data)
        for line in self.lines[source, stream].feed(data, time.monotonic()):
            self._line(source, stream, line)

    def _line(self, source: Source, stream: int, line: bytes) -> None:
        text = printable(line)
        self.last[source].append(text)
        name: Literal["stdout", "stderr"] = "stdout" if stream == 1 else "stderr"
        self.screen.line(Line(time.time(), *source, name, text))

    def _flush(self, source: Source) -> None:
        """Give what is left of a rank's streams when it has ended."""
        for stream in (1, 2):
            if (source, stream) in self.redactors:
                self._write(source, stream, self.redactors[source, stream].rest())
            for line in self.lines[source, stream].rest():
                self._line(source, stream, line)

    def _done(self, session: Session, message: Message) -> None:
        self.left += [f"{session.host}: {pid}" for pid in message["left"]]
        for source in [s for s in self.last if s[0] == session.host]:
            self._flush(source)
        del self.running[session.host]
        self._happened(Event(message["time"] - session.offset, "ended", session.host))

    def _lost(self, session: Session, failure: NodeFailure) -> None:
        if self.running.pop(session.host, None) is None:
            return
        self.unconfirmed.append(session.host)
        self._happened(Event(time.time(), "lost", session.host, text=failure.message))

    # ------------------------------------------------------------ what must be looked at

    def _look(self) -> None:
        self._look_at_the_user()
        now = time.monotonic()
        waited = now - (self.first_good_end or now)
        if self.stop_deadline is None and waited > self.patience.exit_timeout:
            why = f"still there {self.patience.exit_timeout:g} s after others had ended well"
            self.history.timed_out = f"{self._still_there()}: {why}"
            self._stop(self.patience.grace, why)
        for session in list(self.running.values()):
            if session.silent() > self.patience.silence:
                session.interrupt()
            if self.stop_deadline is not None and now > self.stop_deadline + self._confirmation:
                why = "it did not confirm its end"
                self._lost(session, NodeFailure(session.host, "lost", why))
        self._look_for_a_hang()

    @property
    def _confirmation(self) -> float:
        """Seconds beyond the grace in which a node must say that nothing is left."""
        return CONFIRM + self.patience.reconnect

    def _look_for_a_hang(self) -> None:
        limit = self.patience.hang_timeout
        if limit is None or self.stop_deadline is not None or not self.running:
            return
        idle = min(session.idle for session in self.running.values())
        if idle > limit:
            why = f"hang: no rank printed or computed for {idle:.0f} s"
            self.history.timed_out = why
            self._stop(self.patience.grace, why)

    def _look_at_the_user(self) -> None:
        if self.interrupts.count and not self.history.interrupted:
            self.history.interrupted = True
            self._stop(self.patience.grace, "interrupted")
        if self.interrupts.count > 1 and not self.insisted:
            self.insisted = True
            self._stop(0, "interrupted twice")

    def _still_there(self) -> str:
        gone = {(e.host, e.rank) for e in self.history.events if e.kind == "exit"}
        started = {(e.host, e.rank) for e in self.history.events if e.kind == "started"}
        names = sorted(f"rank {r} on {h}" for h, r in started - gone if r is not None)
        return ", ".join(names) or "processes that ranks left behind"

    def _stop(self, grace: float, why: str, *, at: float | None = None) -> None:
        self.stop_deadline = time.monotonic() + grace
        if self.history.stopped_at is None:
            self.history.stopped_at = at if at is not None else time.time()
        for session in self.running.values():
            session.send(op="stop", grace=grace)
        self._happened(Event(time.time(), "stopping", text=why))


def read_event(session: Session, message: Message) -> Event:
    """What an agent says, by the launcher's clock."""
    rank = None if message["rank"] == NO_RANK else message["rank"]
    known = {name: message.get(name) for name in ("code", "signal", "pid", "asked")}
    at = message["time"] - session.offset
    text = message.get("error") or message.get("by")
    return Event(at, message["event"], session.host, rank, **known, text=text)


def start_message(plan: Plan, node: NodePlan, secrets: dict[str, str], port: int) -> dict[str, Any]:
    """What tells an agent to start its node's processes. The only place where secrets go."""
    return {
        "op": "start",
        "processes": [
            {"argv": _words(p.command.argv), "env": dict(p.env), "rank": p.rank}
            for p in node.processes
        ],
        "env": dict(node.env) | secrets,
        "cwd": node.cwd,
        "files": [asdict(file) for file in node.files],
        "rank_files": asdict(node.rank_files) if node.rank_files else None,
        "slots": len(node.slots),
        "first_rank": node.first_rank,
        "master_port": port,
        "about": about(plan, node),
    }


def about(plan: Plan, node: NodePlan) -> dict[str, Any]:
    """What a node keeps of a run, for those who ask it later."""
    return {
        "cluster": plan.cluster,
        "launcher": plan.launcher,
        "hosts": [each.host for each in plan.nodes],
        "world_size": plan.world_size,
        "ranks": list(range(node.first_rank, node.first_rank + len(node.slots))),
        "started": time.time(),
    }


def _words(argv: tuple[Any, ...]) -> list[Any]:
    """Words as JSON: text, or a list of texts and `{"name": variable}`."""
    return [
        w if isinstance(w, str) else [p if isinstance(p, str) else {"name": p.name} for p in w]
        for w in argv
    ]
