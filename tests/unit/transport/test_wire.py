"""The loss of a node: everybody who waits for it hears of it once, whatever else goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from tests.unit.transport.fake import Answer, FakeChannel, FakeTransport

from dslaunch.cluster.model import Node
from dslaunch.errors import NodeFailure
from dslaunch.node import frames
from dslaunch.protocol.messages import Reply
from dslaunch.run.agent_program import AgentStart
from dslaunch.run.inbox import Inbox
from dslaunch.run.session import Lost, Session
from dslaunch.transport import login_shell, wire
from dslaunch.transport.wire import LostError, Wire

NODE = Node("n1", (0,))
GONE = NodeFailure("n1", "lost", "it is gone")


def fake(said: bytes = b"") -> FakeTransport:
    return FakeTransport({("*", "command -v"): Answer(stdout=frames.GREETING + said)})


def test_a_loss_is_reported_by_one_of_two_threads_that_find_it() -> None:
    lost = Wire(NODE, fake().connect(NODE))

    class Raced(Future[Any]):
        """Another thread is faster, between the question whether it is done and its end."""

        def done(self) -> bool:
            done = super().done()
            if not done and threading.current_thread() is threading.main_thread():
                other = threading.Thread(target=lost._abandon, args=[GONE])
                other.start()
                other.join()
            return done

    asked = [Raced() for _ in range(3)]
    for number, future in enumerate(asked):
        lost._waiting[number] = wire._Request(future, lambda reply: None, 0.0)
    lost._abandon(GONE)
    for future in asked:
        assert isinstance(future.exception(300), LostError)
    assert not lost.busy


def test_a_session_whose_loss_goes_wrong_is_lost_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inbox = Inbox()
    way = fake()
    session = Session(NODE, way.connect(NODE), AgentStart("run", "n1"), inbox, way)

    def interrupt() -> None:
        raise RuntimeError("no more threads")

    monkeypatch.setattr(session, "interrupt", interrupt)
    with pytest.raises(RuntimeError):
        session._lose(GONE)
    assert inbox.get(timeout=300) == (session, Lost(GONE))
    assert isinstance(session.hello.exception(300), LostError)


def test_an_answer_that_breaks_its_reader_is_a_failure_of_its_node() -> None:
    said = frames.pack_message({"reply": 1, "time": 0.0, "value": None})
    asking = Wire(NODE, fake(said).connect(NODE))

    def parsed(reply: Reply) -> None:
        raise RecursionError("too deep")

    id, answer = asking._expect(parsed)
    assert id == 1
    asking.start(())
    error = answer.exception(300)
    assert isinstance(error, LostError)
    assert error.failure.kind == "protocol"


class Silent(FakeChannel):
    """A login behind a relay whose shell starts nothing."""

    def __init__(self) -> None:
        super().__init__(Answer())
        self.began = 0.0
        self.closed = threading.Event()

    def others_began(self) -> float:
        return self.began

    def read_on(self) -> None:
        """Nothing comes."""

    def close(self) -> None:
        self.closed.set()


class OneLogin:
    """A connection for one program."""

    def __init__(self, channel: FakeChannel) -> None:
        self._channel = channel

    def start(self, line: str, text: Sequence[bytes] = ()) -> FakeChannel:
        return self._channel

    def close(self) -> None:
        """Nothing is held."""


def test_a_login_is_given_up_long_after_the_last_one_behind_its_relay_has_begun() -> None:
    channel = Silent()
    waiting = Wire(NODE, OneLogin(channel))
    waiting.start(())
    channel.began = time.monotonic() + 3600
    waiting._too_late(channel)
    assert not channel.closed.is_set()
    channel.began = time.monotonic() - login_shell.TIMEOUT
    waiting._too_late(channel)
    assert channel.closed.is_set()
