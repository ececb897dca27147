"""Questions to one node, and its answers; see `node/survey.py`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dslaunch import log
from dslaunch.cluster.model import Node
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.preflight.chained import DONE, then
from dslaunch.preflight.check import Question
from dslaunch.preflight.logins import Login
from dslaunch.preflight.recording import NodeRecording
from dslaunch.protocol import survey
from dslaunch.transport.future import Future
from dslaunch.transport.wire import LostError, Wire

MOST_BYTES = 24 << 20
"""Bytes of all answers of a node, at most: they are kept until the end."""
PINGS = 3
"""Round trips in which a clock is measured, at most."""
KNOWN_WELL = 0.25
"""Seconds by which a clock may be wrong that is not measured again: checks judge whole seconds."""
_log = log.Log(__name__)


class Conversation(Struct):
    """Asks one node, by its own program or by the agent of a run."""

    node: Node
    by_hand: str = "true"
    """The command to try by hand if it fails."""
    wire: Wire | None = None
    of_run: bool = False
    """Whether the wire belongs to a run, which continues to use it."""
    hello: survey.Identity | None = None
    """Who the node is; None before the first answer."""
    answers: dict[str, survey.Answer] = field(default_factory=dict)
    """By the keys of the questions; other nodes may have the same object."""
    known: survey.KnownAnswers = field(default_factory=survey.KnownAnswers)
    """The answers of all nodes that are asked the same."""
    clock: tuple[float, float] | None = None
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    given_up: Future[None] = field(default_factory=Future)
    """Done when the answers are not needed any more."""

    def open(self, login: Future[Login]) -> Future[None]:
        """Listen to the program that answers once it has been started; the future is done then, or
        raises LostError."""

        def listen(done: Login) -> Future[None]:
            self.wire = Wire(self.node, done.connection, most=MOST_BYTES)
            if self.given_up.done():
                self.close()
                raise LostError(NodeFailure(self.node.host, "lost", "given up", self._hint))
            self.began = done.started.began
            self.wire.listen_to(done.started)
            return DONE

        return then(login, listen, _lost)

    def ask(self, questions: Sequence[Question]) -> None:
        """Ask questions, and wait for the answers until they are given up. Raises LostError."""
        asked = self.begin_asking(questions)
        over = threading.Event()
        for either in (asked, self.given_up):
            either.add_done_callback(lambda done: over.set())
        over.wait()
        if not asked.done():
            raise LostError(NodeFailure(self.node.host, "lost", "given up", self._hint))
        asked.result()

    def begin_asking(
        self, questions: Sequence[Question], last: Sequence[Question] = ()
    ) -> Future[None]:
        """Ask questions; the future is done when the answers are kept, or raises LostError.

        `last`: questions that the node answers at the end, also when the connection breaks.
        """
        # most nodes are asked the same: their list is kept, and not one for each of them
        asked = [q for q in questions if q.key not in self.answers] if self.answers else questions
        if self.hello is not None and not asked:
            return DONE
        began = time.monotonic()
        _log.debug("asked", node=self.node.host, questions=[q.key for q in asked])

        def make() -> dict[str, Any]:
            return {"questions": self._spelt(asked), "last": self._spelt(last)}

        def keep(replied: survey.Surveyed) -> Future[None]:
            seconds = time.monotonic() - began
            _log.info("answered", node=self.node.host, questions=len(asked), seconds=seconds)
            self.hello = self.hello or replied.hello
            found = dict(self.answers)
            for question in asked:
                key, sent = question.key, replied.answers.get(question.key)
                found[key] = self.known.answer(key, question.kind, question.argument, sent)
            self.answers = self.known.of_node(found)
            self.seconds = time.monotonic() - self.began
            return DONE

        assert self.wire is not None
        replied = self.wire.request_made("survey", survey.SURVEYED, make)
        return then(replied, keep, self._explained)

    def measure_clock(self, trips: int = PINGS) -> Future[None]:
        """Keep how far the node's clock is ahead. If its answers have not measured that well, ask
        for its time, in at most `trips` round trips; the future raises LostError."""
        assert self.wire is not None
        known = self.wire.known_clock()
        if known is not None:
            self.clock = (known.offset, known.error)
        is_known_well = known is not None and known.error < KNOWN_WELL
        if is_known_well or trips == 0:
            return DONE
        measured = self.wire.measure_clock()
        return then(measured, lambda _: self.measure_clock(trips - 1), self._explained)

    def noise(self) -> str:
        """Return what the login printed before the program."""
        return "" if self.wire is None else self.wire.login.noise().decode(errors="replace")

    def recording(self) -> NodeRecording | None:
        """Return what the node has answered; None before the first answer."""
        if self.hello is None:
            return None
        return NodeRecording(
            hello=self.hello,
            answers=self.answers,
            clock=self.clock,
            seconds=round(self.seconds, 3),
            noise=self.noise(),
        )

    def end(self) -> None:
        """Let the program clean up and exit, and close the connection."""
        self._give_up()
        if self.wire is not None and not self.of_run:
            self.wire.leave()

    def close(self) -> None:
        """Close the connection; requests without an answer fail."""
        self._give_up()
        if self.wire is not None and not self.of_run:
            self.wire.hang_up()

    def _spelt(self, questions: Iterable[Question]) -> dict[str, dict[str, Any]]:
        return {question.key: question.spelt(self.node.host) for question in questions}

    def _give_up(self) -> None:
        self.given_up.set_result(None)

    @property
    def _hint(self) -> str:
        return f"try it by hand: `{self.by_hand}`"

    def _explained(self, error: BaseException) -> BaseException:
        """Return an error with a hint."""
        if not isinstance(error, LostError):
            return error
        return LostError(replace(error.failure, hint=error.failure.hint or self._hint))


def _lost(error: BaseException) -> BaseException:
    """Return an error of a login as that of a conversation."""
    return LostError(error.failures[0]) if isinstance(error, NodeError) else error
