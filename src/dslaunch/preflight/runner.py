"""Ask all nodes: one connection and one program on each, every question with its own timeout."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue

from dslaunch import log
from dslaunch.cluster.model import Node
from dslaunch.errors import NodeFailure
from dslaunch.preflight.alike import AnswersByHost
from dslaunch.preflight.chained import DONE, then
from dslaunch.preflight.check import (
    NOT_ASKED_OF_NODES,
    Asked,
    Check,
    NodeAnswers,
    Question,
    Round,
    Scope,
)
from dslaunch.preflight.conversation import Conversation
from dslaunch.preflight.flow import RunningCheck
from dslaunch.preflight.logins import Logins, log_in
from dslaunch.preflight.measurement import Measurement, OnMeasurement
from dslaunch.preflight.recording import NodeRecording, SharedAnswers
from dslaunch.protocol.survey import Answer, KnownAnswers
from dslaunch.transport.base import Channel
from dslaunch.transport.classify import from_error
from dslaunch.transport.fulfill import fulfill
from dslaunch.transport.future import Future, done_with, wait_for
from dslaunch.transport.loop import paced
from dslaunch.transport.process import ProcessChannel
from dslaunch.transport.wire import LostError

AT_ONCE = 16
"""Questions that a node answers at a time: that of `node/survey.py`, which is not imported here."""
GRACE = 10.0
"""Seconds for a node to start and to answer, in addition to the timeouts of its questions."""
FAREWELL = 5.0
"""Seconds for all connections to end."""
_log = log.Log(__name__)
_NOTHING: Asked = {}
Tell = Callable[[str, str], None]
"""Called with a host and its stage: `connected`, `asked`, `answered`, `failed`."""


class Here:
    """The connection to this machine, which needs none."""

    def start(self, line: str, text: Sequence[bytes] = ()) -> Channel:
        """Run a shell line."""
        return ProcessChannel(["/bin/sh", "-c", line], text=text)

    def close(self) -> None:
        """Do nothing: there is no connection."""


class Survey:
    """Asks all nodes at once, round by round; a node that does not answer does not delay the
    others."""

    def __init__(
        self,
        scope: Scope,
        checks: Mapping[str, Check],
        tell: Tell,
        logins: Logins | None = None,
        talks: Mapping[str, Conversation] | None = None,
        on_measurement: OnMeasurement = lambda measurement: None,
    ) -> None:
        """`logins`: of all nodes, which the caller closes after the survey; or `talks`:
        conversations over connections of others."""
        self.scope, self.checks, self.tell = scope, checks, tell
        self.on_measurement = on_measurement
        self.logins = logins
        if talks is None:
            known = KnownAnswers()
            talks = {
                node.host: Conversation(node, scope.by_hand(node), known=known)
                for node in scope.nodes
            }
        self.talks = dict(talks)
        self.failures: dict[str, NodeFailure] = {}
        self.own = Conversation(Node("localhost", (0,), python=sys.executable))
        self.here: dict[str, Answer] = {}
        """The answers of this machine."""
        self.faults: list[str] = []
        """Types of the exceptions that checks raised while they judged answers."""

    def run(self) -> dict[str, NodeRecording]:
        """Ask everything; those that failed are in `failures`. Raise what a check raises before its
        first questions."""
        running = [RunningCheck(name, check, self.scope) for name, check in self.checks.items()]
        first = [check.pending for check in running if check.pending is not None]
        questions_here = [
            question
            for each in first
            for question in each.here.values()
            if question.kind not in NOT_ASKED_OF_NODES
        ]
        own = self._begin_here(questions_here)
        self._first_round(first)
        self._go_on(running)
        self._further(running)
        self._round(lambda talk: talk.measure_clock(), longest=0.0)
        wait_for([own], _longest(questions_here) + GRACE)
        shared = SharedAnswers()
        # nodes with equal answers have one object
        for answers in {id(talk.answers): talk.answers for talk in self.talks.values()}.values():
            shared.share(answers)
        recorded = {host: talk.recording() for host, talk in self.talks.items()}
        return {host: node for host, node in recorded.items() if node is not None}

    def close(self) -> None:
        """Let every node clean up, and hang up."""
        talks = [self.own, *(talk for talk in self.talks.values() if not talk.of_run)]
        closer = ThreadPoolExecutor(max_workers=len(talks))
        wait([closer.submit(talk.end) for talk in talks], FAREWELL)
        closer.shutdown(wait=False)

    def _begin_here(self, asked: Sequence[Question]) -> Future[None]:
        """Ask this machine in the background; the future is done when its answers are kept."""
        if not asked:
            return DONE
        done: Future[None] = Future()
        work = partial(fulfill, done, partial(self._ask_here, asked))
        threading.Thread(target=work, daemon=True).start()
        return done

    def _ask_here(self, asked: Sequence[Question]) -> None:
        """Ask this machine what checks ask of it, by a program as on the nodes."""
        login = done_with(log_in(self.own.node, Here()))
        try:
            self.own.open(login).result()
            self.own.ask(asked)
        except LostError as error:
            self.here = {q.key: {"error": str(error)} for q in asked}
        else:
            self.here = self.own.answers

    def _first_round(self, rounds: Sequence[Round]) -> None:
        """Connect to every node, and ask it the first questions of all checks."""
        asked = _of_hosts(self.talks, [each.asked for each in rounds])
        last = _of_hosts(self.talks, [each.last for each in rounds])
        longest = max((_longest(questions) for questions in asked.values()), default=0.0)

        def begin(talk: Conversation) -> Future[None]:
            return self._begin(talk, asked[talk.node.host], last[talk.node.host])

        self._round(begin, longest)

    def _begin(
        self, talk: Conversation, asked: list[Question], last: list[Question]
    ) -> Future[None]:
        """Ask a node as soon as its program has been started."""

        def ask(opened: None) -> Future[None]:
            self.tell(talk.node.host, "connected")
            return talk.begin_asking(asked, last)

        def end(answered: None) -> Future[None]:
            self.tell(talk.node.host, "asked")
            return DONE

        opened = DONE
        if self.logins is not None:
            opened = talk.open(self.logins.take(talk.node.host))
        return then(then(opened, ask), end)

    def _further(self, running: Sequence[RunningCheck]) -> None:
        """What depends on earlier answers: the flows in step, then those that measure by turns."""
        while together := [c for c in running if c.pending and not c.pending.alone]:
            self._ask_round(together)
        by_turns = [check for check in running if check.pending is not None]
        for place, check in enumerate(by_turns, 1):
            self._measure(check, by_turns[place:])
        for host in self.talks:
            self.tell(host, "answered")

    def _measure(self, check: RunningCheck, later: Sequence[RunningCheck]) -> None:
        """Ask the rounds of a check that measures, and report each when it begins."""
        number = 0
        while check.pending is not None:
            nodes = self._asked_by(check.pending)
            if nodes:
                number += 1
                longest = max(_longest(list(asked.values())) for asked in nodes.values())
                rounds_left = 1 + check.pending.further
                self.on_measurement(
                    Measurement(
                        check=check.name,
                        round=number,
                        rounds=number + check.pending.further,
                        seconds=rounds_left * longest,
                        more_checks=sum(bool(self._asked_by(each.pending)) for each in later),
                    )
                )
            self._ask_round([check])

    def _asked_by(self, pending: Round | None) -> dict[str, Asked]:
        """Return what a round asks of the nodes that are there."""
        if pending is None:
            return {}
        return {
            host: asked for host, asked in pending.asked.items() if asked and host in self.talks
        }

    def _ask_round(self, running: Sequence[RunningCheck]) -> None:
        """Ask every node what some checks ask next, and let them continue."""
        rounds = [check.pending.asked for check in running if check.pending is not None]
        asked = _of_hosts(self.talks, rounds)
        longest = _longest([q for questions in asked.values() for q in questions])
        if any(asked.values()):
            self._round(lambda talk: talk.begin_asking(asked[talk.node.host]), longest)
        self._go_on(running)

    def _go_on(self, running: Sequence[RunningCheck]) -> None:
        """Give checks all that the nodes have answered so far."""
        answers = self.answers()
        for check in running:
            with self._noted():
                check.answered(answers)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Record exceptions of a check: they must not fail others. The judge reports them."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self.faults.append(type(error).__name__)

    def answers(self) -> AnswersByHost:
        """Return what the nodes have answered so far."""
        answers = {
            host: NodeAnswers(
                talk.node,
                self.scope,
                asked={},
                recorded=talk.answers,
                hello=talk.hello,
                clock=talk.clock,
            )
            for host, talk in self.talks.items()
            if talk.hello is not None
        }
        return AnswersByHost(answers, complete=False)

    def _round(self, begin: Callable[[Conversation], Future[None]], longest: float) -> None:
        """Begin work for every node, and drop those that fail or exceed the timeout, which counts
        from the last answer: to take those of thousands of nodes may need longer."""
        limit = longest + GRACE + self.scope.cluster.ssh.connect_timeout
        ended: SimpleQueue[tuple[str, Future[None]]] = SimpleQueue()

        def note(host: str, work: Future[None]) -> None:
            ended.put((host, work))

        for host, talk in paced(self.talks.items()):
            begin(talk).add_done_callback(partial(note, host))
        deadline = time.monotonic() + limit
        waiting = set(self.talks)
        while waiting:
            try:
                host, work = ended.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                break
            waiting.remove(host)
            self._check(host, work)
            deadline = time.monotonic() + limit
        for host in waiting:
            why = f"no answer within {longest + GRACE:.0f} s"
            hint = "check for a hung file system or driver on the node"
            self._drop(host, NodeFailure(host, "timeout", why, hint))

    def _check(self, host: str, work: Future[None]) -> None:
        """Drop a node whose work has failed."""
        error = work.exception()
        if isinstance(error, LostError):
            self._drop(host, error.failure)
        elif isinstance(error, Exception):
            self._drop(host, from_error(self.talks[host].node, error))
        elif error is not None:
            raise error

    def _drop(self, host: str, failure: NodeFailure) -> None:
        self.failures[host] = failure
        _log.info("failed", node=host, kind=failure.kind, text=failure.message)
        self.tell(host, "failed")
        talk = self.talks.pop(host)
        threading.Thread(target=talk.close, daemon=True).start()


def _of_hosts(
    hosts: Iterable[str], rounds: Sequence[Mapping[str, Asked]]
) -> dict[str, list[Question]]:
    """Return the questions of several checks to each node, equal ones once; nodes that are asked
    the same have one list."""
    lists: dict[tuple[int, ...], list[Question]] = {}
    found = {}
    for host in hosts:
        own = [asked.get(host, _NOTHING) for asked in rounds]
        key = tuple(map(id, own))
        if key not in lists:
            by_key = {question.key: question for asked in own for question in asked.values()}
            lists[key] = list(by_key.values())
        found[host] = lists[key]
    return found


def _longest(questions: Sequence[Question]) -> float:
    """Return the seconds that a node may need: `AT_ONCE` questions at a time."""
    times = sorted((q.timeout for q in questions), reverse=True)
    return sum(times[::AT_ONCE])
