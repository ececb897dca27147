"""Questions to one node, and its answers; see `node/survey.py`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from dslaunch import log
from dslaunch.cluster.model import Node
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.preflight.check import Question
from dslaunch.protocol import survey
from dslaunch.transport import program
from dslaunch.transport.base import Transport
from dslaunch.transport.wire import LostError, Value, Wire

MODULES = (
    "frames",
    "paths",
    "processes",
    "trial",
    "interfaces",
    "network",
    "accelerators",
    "questions",
    "survey",
)
"""What answers questions on a node; the last one has the `main`. A run's agent has these too."""
MOST_BYTES = 24 << 20
"""Of all that a node answers: it is kept until the end."""
PINGS = 3
GOOD_TRIP = 0.05
"""Seconds of a round trip that tell a clock well enough: it may be wrong by half of them."""
_log = log.Log(__name__)


@dataclass(slots=True)
class Conversation:
    """Asks one node, by a program of its own or by the agent of a run."""

    node: Node
    by_hand: str = "true"
    """What a person can try if it fails."""
    wire: Wire | None = None
    of_run: bool = False
    """Whether the wire is that of a run, which goes on with it."""
    hello: Mapping[str, Any] = field(default_factory=dict)
    answers: dict[str, survey.Answer] = field(default_factory=dict)
    clock: tuple[float, float] | None = None
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    given_up: Future[None] = field(default_factory=Future)
    """Done when nobody waits for answers any more."""

    def open(self, transport: Transport | None) -> None:
        """Connect, and start the program that answers. Raises LostError."""
        self.began = time.monotonic()
        if self.of_run:
            return
        assert transport is not None
        try:
            self._check_wanted()
            connection = transport.connect(self.node)
            self.wire = Wire(self.node, connection, most=MOST_BYTES)
            self._check_wanted()
            self.wire.start(program.text(MODULES, {}))
        except NodeError as error:
            raise LostError(error.failures[0]) from None

    def ask(self, questions: Iterable[Question], last: Iterable[Question] = ()) -> None:
        """Ask, and keep the answers; at first also give what is to be done at the end, however it
        comes. Raises LostError."""
        asked = {q.key: q for q in questions if q.key not in self.answers}
        if self.hello and not asked:
            return
        began = time.monotonic()
        _log.debug("asked", node=self.node.host, questions=list(asked))
        message = {"questions": _spelt(asked.values()), "last": _spelt(last)}
        assert self.wire is not None
        replied = self._result(self.wire.request("survey", survey.SURVEYED, **message))
        seconds = time.monotonic() - began
        _log.info("answered", node=self.node.host, questions=len(asked), seconds=seconds)
        self.hello = self.hello or replied.hello
        for key, question in asked.items():
            sent = replied.answers.get(key)
            self.answers[key] = survey.answer(question.kind, question.argument, sent)
        self.seconds = time.monotonic() - self.began

    def measure_clock(self) -> None:
        """Find out how far its clock is ahead: of some round trips the fastest counts, or one that
        is fast enough. Raises LostError."""
        assert self.wire is not None
        for _ in range(PINGS):
            measured = self._result(self.wire.measure_clock())
            if self.clock is None or measured.error < self.clock[1]:
                self.clock = (measured.offset, measured.error)
            if 2 * measured.error < GOOD_TRIP:
                break

    def noise(self) -> str:
        """Return what the login printed before the program."""
        return "" if self.wire is None else self.wire.login.noise().decode(errors="replace")

    def end(self) -> None:
        """Let its program leave nothing behind and end, and hang up."""
        self._give_up()
        if self.wire is not None and not self.of_run:
            self.wire.leave()

    def close(self) -> None:
        """Hang up; what waits for an answer gets none."""
        self._give_up()
        if self.wire is not None and not self.of_run:
            self.wire.hang_up()

    def _give_up(self) -> None:
        with suppress(InvalidStateError):
            self.given_up.set_result(None)

    def _check_wanted(self) -> None:
        """Raise LostError if it was closed meanwhile."""
        if self.given_up.done():
            self.close()
            raise self._lost()

    def _result(self, asked: Future[Value]) -> Value:
        """Wait for a reply, until it is given up. Raises LostError."""
        either: list[Future[Any]] = [asked, self.given_up]
        wait(either, return_when=FIRST_COMPLETED)
        if not asked.done():
            raise self._lost()
        try:
            return asked.result()
        except LostError as error:
            hint = error.failure.hint or f"try it by hand: `{self.by_hand}`"
            raise LostError(replace(error.failure, hint=hint)) from None

    def _lost(self) -> LostError:
        hint = f"try it by hand: `{self.by_hand}`"
        return LostError(NodeFailure(self.node.host, "lost", "given up", hint))


def _spelt(questions: Iterable[Question]) -> dict[str, dict[str, Any]]:
    """As `node/survey.py` takes them."""
    return {
        q.key: {"kind": q.kind, "argument": q.argument, "timeout": q.timeout, "text": q.text}
        for q in questions
    }
