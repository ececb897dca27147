"""Ask all nodes: one connection and one small program on each, every question with its own time."""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from dslaunch import transport
from dslaunch.cluster.model import Node
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.preflight.check import Answers, Check, Further, Question, Scope
from dslaunch.preflight.facts import NodeFacts
from dslaunch.transport import program
from dslaunch.transport.base import Channel, Connection, Transport
from dslaunch.transport.process import ProcessChannel

MODULES = ("jsontext", "paths", "interfaces", "network", "questions", "survey")
PINGS = 3
GOOD_TRIP = 0.05
"""Seconds of a round trip that tell a clock well enough: it may be wrong by half of them."""
GRACE = 10.0
"""Seconds for a node to start and to answer, beside what its questions may take."""
PATIENCE = 3.0
"""Seconds for a node's program to clean up."""
FAREWELL = 5.0
"""Seconds for all connections to end."""
Tell = Callable[[str, str], None]
"""Called with a host and how far it is: `connected`, `asked`, `answered`, `failed`."""


class Silent(Exception):
    """A node did not answer; carries the failure."""

    def __init__(self, failure: NodeFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(slots=True)
class Conversation:
    """With one node: a line there, a line back; see `node/survey.py`."""

    node: Node
    mark: bytes
    by_hand: str = "true"
    """What a person can try if it fails."""
    connection: Connection | None = None
    channel: Channel | None = None
    rest: bytes = b""
    noise: bytes = b""
    hello: Mapping[str, Any] = field(default_factory=dict)
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    clock: tuple[float, float] | None = None
    waiting: bool = False
    """A request of ours has no answer yet."""
    closed: bool = False
    began: float = 0.0
    seconds: float = 0.0

    def open(self, way: Transport) -> None:
        """Connect, and start the program that answers. Raises Silent."""
        self.began = time.monotonic()
        try:
            self._go_on()
            self.connection = way.connect(self.node)
            self._go_on()
            self.channel = self.connection.start(program.line(self.node))
            self.channel.write(program.text(MODULES, {"mark": self.mark.decode()}))
        except NodeError as error:
            raise Silent(error.failures[0]) from None
        except OSError as error:
            raise Silent(self._lost(str(error))) from None

    def _go_on(self) -> None:
        """Raise Silent if it was closed meanwhile."""
        if self.closed:
            self.close()
            raise Silent(self._lost("given up"))

    def ask(self, questions: Iterable[Question], last: Iterable[Question] = ()) -> None:
        """Ask, and keep the answers; at first also give what is to be done at the end, however it
        comes. Raises Silent."""
        asked = _spelt(q for q in questions if q.key not in self.answers)
        if not self.hello:
            self._send({"questions": asked, "last": _spelt(last)})
            self.hello, self.waiting = self._receive()["hello"], True
        elif asked:
            self._send({"questions": asked})
        else:
            return
        self.answers.update(self._receive()["answers"])
        self.seconds = time.monotonic() - self.began

    def measure_clock(self) -> None:
        """Find out how far its clock is ahead: of some round trips the fastest counts, or one that
        is fast enough."""
        for _ in range(PINGS):
            asked, began = time.time(), time.monotonic()
            self._send({"clock": True})
            there = self._receive()["clock"]
            trip = time.monotonic() - began
            if self.clock is None or trip / 2 < self.clock[1]:
                self.clock = (there - asked - trip / 2, trip / 2)
            if trip < GOOD_TRIP:
                break

    def end(self) -> None:
        """Let its program leave nothing behind and end, and hang up. One that is busy does so when
        it finds out that nobody is there; it is neither waited for nor ended by us."""
        self.closed = True
        if self.channel is not None:
            self.channel.close_input()
            if not self.waiting and self.channel.wait(PATIENCE) is not None:
                self.channel.close()
        if self.connection is not None:
            self.connection.close()

    def close(self) -> None:
        """Hang up; what waits for an answer gets none."""
        self.closed = True
        if self.channel is not None:
            self.channel.close()
        if self.connection is not None:
            self.connection.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.channel is not None
        self.waiting = True
        try:
            self.channel.write(ascii(message).encode() + b"\n")
        except OSError as error:
            raise Silent(self._lost(str(error))) from None

    def _receive(self) -> dict[str, Any]:
        """The next line that is marked as ours; what comes before it is noise."""
        assert self.channel is not None
        while b"\n" not in self.rest.partition(self.mark)[2]:
            piece = self.channel.read()
            if not piece:
                raise Silent(self._ended())
            self.rest += piece
        noise, _, rest = self.rest.partition(self.mark)
        line, _, self.rest = rest.partition(b"\n")
        self.noise += noise
        self.waiting = False
        message: dict[str, Any] = json.loads(line)
        return message

    def _ended(self) -> NodeFailure:
        assert self.channel is not None
        code = self.channel.wait(2)
        words = self.channel.stderr().strip()
        if code == program.NO_PYTHON and "no python3" in words:
            hint = "install Python 3.8 or newer, or correct `python:`"
            return NodeFailure(self.node.host, "no-python", "there is no Python", hint)
        last = words.splitlines()[-1] if words else self.rest.decode(errors="replace").strip()
        ended = "the connection ended" if code is None else f"the login ended with {code}"
        return self._lost(f"{ended}{': ' + last[:200] if last else ''}")

    def _lost(self, why: str) -> NodeFailure:
        return NodeFailure(self.node.host, "lost", why, f"try it by hand: `{self.by_hand}`")


class Here:
    """This machine as a node, without a connection."""

    def connect(self, node: Node) -> Here:
        """Nothing is to be opened."""
        return self

    def start(self, line: str) -> Channel:
        """Run a shell line."""
        return ProcessChannel(["/bin/sh", "-c", line])

    def close(self) -> None:
        """Nothing is held."""


class Survey:
    """Asks all nodes at once, round by round; a node that does not answer holds nobody up."""

    def __init__(
        self, scope: Scope, checks: Mapping[str, Check], tell: Tell, way: Transport | None = None
    ) -> None:
        self.scope, self.checks, self.tell = scope, checks, tell
        self.way = way or transport.get(scope.cluster.transport, scope.cluster)
        mark = f"\x02dslaunch-{secrets.token_hex(6)} ".encode()
        self.talks = {
            node.host: Conversation(node, mark, scope.by_hand(node)) for node in scope.nodes
        }
        self.failures: dict[str, NodeFailure] = {}
        self.own = Conversation(Node("localhost", (0,), python=sys.executable), b"\x02here ")
        self.here: dict[str, Mapping[str, Any]] = {}
        """What this machine answered itself."""
        self.gate = threading.Semaphore(scope.cluster.ssh.fanout)

    def run(self) -> dict[str, NodeFacts]:
        """Ask everything; those that failed are in `failures`."""
        first = [q for check in self.checks.values() for q in check.ask(self.scope).values()]
        pool = ThreadPoolExecutor(max_workers=len(self.talks) + 1)
        own = pool.submit(self._ask_here)
        try:
            self._round(pool, lambda talk: self._begin(talk, first), _longest(first))
            self._further(pool)
            wait([own], _longest(self._own_questions()) + GRACE)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return {host: _facts(talk) for host, talk in self.talks.items()}

    def close(self) -> None:
        """Let every node clean up, and hang up."""
        # a pool of its own: the workers of the other may all be waiting to connect
        closer = ThreadPoolExecutor(max_workers=len(self.talks) + 1)
        wait([closer.submit(talk.end) for talk in (*self.talks.values(), self.own)], FAREWELL)
        closer.shutdown(wait=False)
        self.way.close()

    def _ask_here(self) -> None:
        """Ask this machine what a check wants to know from it, by a program as on the nodes."""
        asked = self._own_questions()
        if not asked:
            return
        try:
            self.own.open(Here())
            self.own.ask(asked)
        except Silent as error:
            self.here = {q.key: {"error": str(error)} for q in asked}
        else:
            self.here = self.own.answers

    def _own_questions(self) -> list[Question]:
        return [q for c in self.checks.values() if c.here for q in c.here(self.scope).values()]

    def _begin(self, talk: Conversation, first: Sequence[Question]) -> None:
        with self.gate:
            talk.open(self.way)
            self.tell(talk.node.host, "connected")
        lasts = [check.last for check in self.checks.values() if check.last is not None]
        host = talk.node.host
        talk.ask(first, (q for last in lasts for q in last(self.scope, host).values()))
        talk.measure_clock()
        self.tell(host, "asked")

    def _further(self, pool: ThreadPoolExecutor) -> None:
        """What depends on earlier answers."""
        checks = self.checks.values()
        self._ask_each(pool, [(check, check.then) for check in checks if check.then])
        self._ask_each(pool, [(check, check.after) for check in checks if check.after])
        for alone in [(check, further) for check in checks for further in check.measure]:
            self._ask_each(pool, [alone])
        for host in self.talks:
            self.tell(host, "answered")

    def _ask_each(self, pool: ThreadPoolExecutor, more: list[tuple[Check, Further]]) -> None:
        """Ask every node what follows for it from all nodes' answers."""
        asked: dict[str, list[Question]] = {host: [] for host in self.talks}
        for check, further in more:
            for host, questions in further(self.answers(check)).items():
                asked[host] += questions.values()
        longest = _longest([q for questions in asked.values() for q in questions])
        self._round(pool, lambda talk: talk.ask(asked[talk.node.host]), longest)

    def answers(self, check: Check) -> dict[str, Answers]:
        """What the nodes have answered so far."""
        asked = check.ask(self.scope)
        return {
            host: Answers(talk.node, self.scope, asked, talk.answers, talk.hello, talk.clock)
            for host, talk in self.talks.items()
        }

    def _round(
        self, pool: ThreadPoolExecutor, work: Callable[[Conversation], None], longest: float
    ) -> None:
        """Have something done for every node, and drop those that fail or are late."""
        futures = {pool.submit(work, talk): host for host, talk in self.talks.items()}
        deadline = time.monotonic() + longest + GRACE + self.scope.cluster.ssh.connect_timeout
        waiting: set[Future[None]] = set(futures)
        while waiting and time.monotonic() < deadline:
            done, waiting = wait(waiting, deadline - time.monotonic(), FIRST_COMPLETED)
            for future in done:
                error = future.exception()
                if isinstance(error, Silent):
                    self._drop(futures[future], error.failure)
                elif error is not None:
                    raise error
        for future in waiting:
            why = f"no answer within {longest + GRACE:.0f} s"
            hint = "look for a hung file system or driver there"
            self._drop(futures[future], NodeFailure(futures[future], "timeout", why, hint))

    def _drop(self, host: str, failure: NodeFailure) -> None:
        self.failures[host] = failure
        self.tell(host, "failed")
        talk = self.talks.pop(host)
        threading.Thread(target=talk.close, daemon=True).start()


def _spelt(questions: Iterable[Question]) -> dict[str, dict[str, Any]]:
    """As `node/survey.py` takes them."""
    return {
        q.key: {"kind": q.kind, "argument": q.argument, "timeout": q.timeout, "text": q.text}
        for q in questions
    }


def _longest(questions: Sequence[Question]) -> float:
    """Seconds that the node may need: as many at a time as `survey.AT_ONCE` says."""
    times = sorted((q.timeout for q in questions), reverse=True)
    return sum(times[::16]) if times else 0.0


def _facts(talk: Conversation) -> NodeFacts:
    noise = talk.noise.decode(errors="replace")
    return NodeFacts(talk.hello, talk.answers, talk.clock, round(talk.seconds, 3), noise)
