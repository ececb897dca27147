"""With one node: a line there, a line back; see `node/survey.py`. What a node sends becomes typed
values here, or the node's failure."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dslaunch import log
from dslaunch.cluster.model import Node
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.preflight.check import Question
from dslaunch.protocol import survey
from dslaunch.protocol.text import MarkedLines, json_value
from dslaunch.protocol.values import InvalidAnswer
from dslaunch.terminal import printable
from dslaunch.transport import login, program
from dslaunch.transport.base import Channel, Connection, Transport

MODULES = (
    *("paths", "processes", "trial", "interfaces", "network", "accelerators"),
    *("questions", "survey"),
)
PINGS = 3
GOOD_TRIP = 0.05
"""Seconds of a round trip that tell a clock well enough: it may be wrong by half of them."""
PATIENCE = 3.0
"""Seconds for a node's program to clean up."""
_log = log.Log(__name__)


class Silent(Exception):
    """A node did not answer; carries the failure."""

    def __init__(self, failure: NodeFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(slots=True)
class Conversation:
    """Questions to one node, and its answers."""

    node: Node
    mark: bytes
    by_hand: str = "true"
    """What a person can try if it fails."""
    connection: Connection | None = None
    channel: Channel | None = None
    unsent: bytes = b""
    """The program, until it is sent together with the first questions."""
    hello: Mapping[str, Any] = field(default_factory=dict)
    answers: dict[str, survey.Answer] = field(default_factory=dict)
    clock: tuple[float, float] | None = None
    waiting: bool = False
    """A request of ours has no answer yet."""
    closed: bool = False
    began: float = 0.0
    seconds: float = 0.0
    lines: MarkedLines = field(init=False)

    def __post_init__(self) -> None:
        self.lines = MarkedLines(self.mark)

    def open(self, way: Transport | None) -> None:
        """Connect, and start the program that answers. Raises Silent."""
        assert way is not None
        self.began = time.monotonic()
        try:
            self._go_on()
            self.connection = way.connect(self.node)
            self._go_on()
            self.channel = self.connection.start(program.line(self.node))
        except NodeError as error:
            raise Silent(error.failures[0]) from None
        except OSError as error:
            raise Silent(self._lost(str(error))) from None
        self.unsent = program.text(MODULES, {"mark": self.mark.decode()})

    def _go_on(self) -> None:
        """Raise Silent if it was closed meanwhile."""
        if self.closed:
            self.close()
            raise Silent(self._lost("given up"))

    def ask(self, questions: Iterable[Question], last: Iterable[Question] = ()) -> None:
        """Ask, and keep the answers; at first also give what is to be done at the end, however it
        comes. Raises Silent."""
        asked = {q.key: q for q in questions if q.key not in self.answers}
        began = time.monotonic()
        _log.debug("asked", node=self.node.host, questions=list(asked))
        if not self.hello:
            self._send({"questions": _spelt(asked.values()), "last": _spelt(last)})
            self.hello, self.waiting = self._greeting(), True
        elif asked:
            self._send({"questions": _spelt(asked.values())})
        else:
            return
        sent = self._receive("answers")
        seconds = time.monotonic() - began
        _log.info("answered", node=self.node.host, questions=len(asked), seconds=seconds)
        if not isinstance(sent, dict):
            raise Silent(self._broken("answers: not an object"))
        for key, question in asked.items():
            self.answers[key] = survey.answer(question.kind, question.argument, sent.get(key))
        self.seconds = time.monotonic() - self.began

    def measure_clock(self) -> None:
        """Find out how far its clock is ahead: of some round trips the fastest counts, or one that
        is fast enough. Raises Silent."""
        for _ in range(PINGS):
            asked, began = time.time(), time.monotonic()
            self._send({"clock": True})
            try:
                there = survey.seconds(self._receive("clock"))
            except InvalidAnswer as error:
                raise Silent(self._broken(f"clock: {error}")) from None
            trip = time.monotonic() - began
            if self.clock is None or trip / 2 < self.clock[1]:
                self.clock = (there - asked - trip / 2, trip / 2)
            if trip < GOOD_TRIP:
                break

    def end(self) -> None:
        """Let its program leave nothing behind and end, and hang up. One that is busy does so when
        it finds out that the launcher is gone; it is neither waited for nor ended by us."""
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
        line = json.dumps(message).encode() + b"\n"
        if self.unsent:
            self._send_beside(self.unsent, line)
            self.unsent = b""
            return
        try:
            self.channel.write(line)
        except OSError as error:
            raise Silent(self._lost(str(error))) from None

    def _send_beside(self, *pieces: bytes) -> None:
        """Send from another thread, so that this one can read meanwhile: a login whose start-up
        files print more than a pipe holds takes no input before its output is read."""
        channel = self.channel
        assert channel is not None

        def send() -> None:
            with contextlib.suppress(OSError):  # the reader finds out how the connection ended
                for piece in pieces:
                    channel.write(piece)

        threading.Thread(target=send, daemon=True).start()

    def _greeting(self) -> Mapping[str, Any]:
        try:
            return survey.hello(self._receive("hello"))
        except InvalidAnswer as error:
            raise Silent(self._broken(f"greeting: {error}")) from None

    def _receive(self, what: str) -> Any:
        """Return the part of the next line of ours that was asked for. Raises Silent."""
        assert self.channel is not None
        try:
            while (line := self.lines.next()) is None:
                piece = self.channel.read()
                if not piece:
                    raise Silent(self._ended())
                self.lines.add(piece)
            message = json_value(line)
        except InvalidAnswer as error:
            raise Silent(self._broken(str(error))) from None
        self.waiting = False
        if not isinstance(message, dict) or what not in message:
            raise Silent(self._broken(f"{what}: missing"))
        return message[what]

    def _ended(self) -> NodeFailure:
        assert self.channel is not None
        code = self.channel.wait(2)
        words = self.channel.stderr().strip()
        printed = self.lines.unread().encode(errors="replace")
        not_run = program.why_not_run(self.node.host, code, printed, words)
        if not_run is not None:
            return not_run
        last = login.last_line(words) or login.first_line(printed)
        ended = "the connection ended" if code is None else f"the login ended with {code}"
        return self._lost(f"{ended}{': ' + last if last else ''}")

    def _lost(self, why: str) -> NodeFailure:
        return NodeFailure(self.node.host, "lost", why, f"try it by hand: `{self.by_hand}`")

    def _broken(self, why: str) -> NodeFailure:
        """What it sent cannot come from our program."""
        hint = f"find out what answers there instead of dslaunch's program: `{self.by_hand}`"
        message = f"its answer is invalid: {printable(why)}"
        return NodeFailure(self.node.host, "protocol", message, hint)


def _spelt(questions: Iterable[Question]) -> dict[str, dict[str, Any]]:
    """As `node/survey.py` takes them."""
    return {
        q.key: {"kind": q.kind, "argument": q.argument, "timeout": q.timeout, "text": q.text}
        for q in questions
    }
