"""Ask all nodes: one connection and one small program on each, every question with its own time."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from dslaunch import log, transport
from dslaunch.cluster.model import Node
from dslaunch.errors import NodeFailure
from dslaunch.preflight.check import Check, NodeAnswers, Nodes, Question, Round, Scope
from dslaunch.preflight.conversation import Conversation, Silent
from dslaunch.preflight.flow import RunningFlow
from dslaunch.preflight.recording import NodeRecording
from dslaunch.protocol.survey import Answer
from dslaunch.transport.base import Channel, Transport
from dslaunch.transport.classify import from_error
from dslaunch.transport.process import ProcessChannel

GRACE = 10.0
"""Seconds for a node to start and to answer, beside what its questions may take."""
FAREWELL = 5.0
"""Seconds for all connections to end."""
_log = log.Log(__name__)
FlowProgress = RunningFlow[Round, Nodes]
Tell = Callable[[str, str], None]
"""Called with a host and how far it is: `connected`, `asked`, `answered`, `failed`."""


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
        self,
        scope: Scope,
        checks: Mapping[str, Check],
        tell: Tell,
        way: Transport | None = None,
        talks: Mapping[str, Conversation] | None = None,
    ) -> None:
        """`way`: by default the cluster's transport. `talks`: conversations that need none."""
        self.scope, self.checks, self.tell = scope, checks, tell
        self.way = way
        if talks is None:
            self.way = way or transport.get(scope.cluster.transport, scope.cluster)
            mark = f"\x02dslaunch-{secrets.token_hex(6)} ".encode()
            talks = {
                node.host: Conversation(node, mark, scope.by_hand(node)) for node in scope.nodes
            }
        self.talks = dict(talks)
        self.failures: dict[str, NodeFailure] = {}
        self.own = Conversation(Node("localhost", (0,), python=sys.executable), b"\x02here ")
        self.here: dict[str, Answer] = {}
        """What this machine answered itself."""
        self.faults: list[str] = []
        """Types of the exceptions that checks raised while they judged the answers."""
        self.gate = threading.Semaphore(scope.cluster.ssh.fanout)

    def run(self) -> dict[str, NodeRecording]:
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
        if self.way is not None:
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
        """What depends on earlier answers: the flows in step, then those that measure by turns."""
        flows = [flow for check in self.checks.values() if (flow := self._begun(check)) is not None]
        while together := [(c, p) for c, p in flows if p.pending and not p.pending.alone]:
            self._ask_round(pool, together)
        for check, progress in flows:
            while progress.pending is not None:
                self._ask_round(pool, [(check, progress)])
        for host in self.talks:
            self.tell(host, "answered")

    def _begun(self, check: Check) -> tuple[Check, FlowProgress] | None:
        with self._noted():
            if check.flow is not None:
                return check, RunningFlow(check.flow(self.answers(check)))
        return None

    def _ask_round(
        self, pool: ThreadPoolExecutor, flows: Sequence[tuple[Check, FlowProgress]]
    ) -> None:
        """Ask every node what some flows want to know of it, and let them go on."""
        asked: dict[str, list[Question]] = {host: [] for host in self.talks}
        for _, progress in flows:
            assert progress.pending is not None
            for host, questions in progress.pending.asked.items():
                asked[host] += questions.values()
        longest = _longest([q for questions in asked.values() for q in questions])
        if any(asked.values()):
            self._round(pool, lambda talk: talk.ask(asked[talk.node.host]), longest)
        for check, progress in flows:
            with self._noted():
                progress.answered(self.answers(check))

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """No check may take the others with it; the judge says that it could not be judged."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self.faults.append(type(error).__name__)

    def answers(self, check: Check) -> dict[str, NodeAnswers]:
        """What the nodes have answered so far."""
        asked = check.ask(self.scope)
        return {
            host: NodeAnswers(talk.node, self.scope, asked, talk.answers, talk.hello, talk.clock)
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
                elif isinstance(error, Exception):
                    self._drop(futures[future], from_error(self.talks[futures[future]].node, error))
                elif error is not None:
                    raise error
        for future in waiting:
            why = f"no answer within {longest + GRACE:.0f} s"
            hint = "look for a hung file system or driver there"
            self._drop(futures[future], NodeFailure(futures[future], "timeout", why, hint))

    def _drop(self, host: str, failure: NodeFailure) -> None:
        self.failures[host] = failure
        _log.info("failed", node=host, kind=failure.kind, text=failure.message)
        self.tell(host, "failed")
        talk = self.talks.pop(host)
        threading.Thread(target=talk.close, daemon=True).start()


def _longest(questions: Sequence[Question]) -> float:
    """Seconds that the node may need: as many at a time as `survey.AT_ONCE` says."""
    times = sorted((q.timeout for q in questions), reverse=True)
    return sum(times[::16]) if times else 0.0


def _facts(talk: Conversation) -> NodeRecording:
    noise = talk.lines.noise.decode(errors="replace")
    return NodeRecording(talk.hello, talk.answers, talk.clock, round(talk.seconds, 3), noise)
