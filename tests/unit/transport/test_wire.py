"""The loss of a node: everybody who waits for it hears of it once, whatever else goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from pydantic import TypeAdapter
from tests.unit.transport.fake import Answer, FakeChannel, FakeTransport

from dslaunch.cluster.model import Node
from dslaunch.errors import NodeFailure
from dslaunch.node import frames, questions
from dslaunch.protocol.messages import Reply
from dslaunch.run.agent_program import AgentStart
from dslaunch.run.arrivals import Away, Back, Lost
from dslaunch.run.inbox import Inbox
from dslaunch.run.session import Session
from dslaunch.transport import login_shell, wire
from dslaunch.transport.base import End
from dslaunch.transport.future import Future
from dslaunch.transport.wire import LostError, Wire

NODE = Node("n1", (0,))
GONE = NodeFailure("n1", "lost", "it is gone")


def fake(said: bytes = b"") -> FakeTransport:
    return FakeTransport({("*", "command -v"): Answer(stdout=frames.GREETING + said)})


class Spoken(FakeChannel):
    """A program that sends what a test gives it."""

    unread = False

    def __init__(self) -> None:
        super().__init__(Answer())
        self.closed = threading.Event()
        self._said: SimpleQueue[bytes] = SimpleQueue()

    def say(self, data: bytes) -> None:
        """Send something, once the program is listened to."""
        self._said.put(data)
        self.loop.call(self.read_on)

    def read_on(self) -> None:
        """Deliver what was said."""
        while self.wanted and not self._said.empty():
            self.deliver(self._said.get())

    def close_input(self) -> None:
        """Exit."""
        self.loop.call(lambda: self.tell_end(End(0)))

    def close(self) -> None:
        self.closed.set()


class OneLogin:
    """A connection for one program."""

    def __init__(self, channel: Spoken) -> None:
        self.channel = channel
        self.closed = threading.Event()

    def start(self, line: str, text: Sequence[bytes] = ()) -> Spoken:
        return self.channel

    def close(self) -> None:
        self.closed.set()


class NextLogins:
    """Connects to one program after the other."""

    def __init__(self, *channels: Spoken) -> None:
        self._channels = iter(channels)
        self.made: list[OneLogin] = []

    def connect(self, node: Node) -> OneLogin:
        self.made.append(OneLogin(next(self._channels)))
        return self.made[-1]

    def close(self) -> None:
        """Nothing is shared."""


def look_for_silence(listener: Wire, since: float) -> None:
    """Look whether the node was heard since then, when all that has arrived is handled."""
    looked: Future[None] = Future()

    def look() -> None:
        listener.end_if_silent(since)
        looked.set_result(None)

    listener.loop.call_when_handled(look)
    looked.result(300)


def hello() -> bytes:
    """Return what an agent sends first."""
    about = {"run": "run", "last": 0, "started": True, "peer": None, **questions.identity()}
    return frames.GREETING + frames.pack_message({"event": "hello", "time": time.time(), **about})


def test_every_reply_tells_how_far_the_clock_is_ahead_unless_it_was_set_meanwhile() -> None:
    channel = Spoken()
    node = Wire(NODE, OneLogin(channel))
    node.start(())
    channel.say(frames.GREETING)

    def reply(number: int, *, received: float, sent: float) -> None:
        asked = node.request("ask", TypeAdapter(None))
        message = {"reply": number, "value": None, "received": received, "time": sent}
        channel.say(frames.pack_message(message))
        asked.result(300)

    ahead = 90.0
    assert node.known_clock() is None
    began = time.monotonic()
    now = time.time() + ahead
    reply(1, received=now, sent=now)
    found = node.known_clock()
    assert found is not None
    assert found.error <= (time.monotonic() - began) / 2
    assert abs(found.offset - ahead) < time.monotonic() - began
    reply(2, received=now, sent=now + 3600.0)
    later = node.known_clock()
    assert later is not None
    assert later.offset == found.offset


def test_a_launcher_that_is_behind_does_not_take_a_node_for_silent() -> None:
    channel = Spoken()
    heard = Wire(NODE, OneLogin(channel))
    heard.start(())
    behind = threading.Event()
    heard.loop.call(behind.wait)  # the thread of all connections is busy
    channel.say(frames.GREETING)
    since = time.monotonic()
    threading.Timer(0.2, behind.set).start()
    look_for_silence(heard, since)
    assert not heard.over
    look_for_silence(heard, time.monotonic())
    assert heard.over


def test_a_node_is_not_silent_while_something_of_it_was_not_read() -> None:
    channel = Spoken()
    heard = Wire(NODE, OneLogin(channel))
    heard.start(())
    channel.unread = True
    look_for_silence(heard, time.monotonic() + 3600)
    assert not heard.over
    channel.unread = False
    look_for_silence(heard, time.monotonic() + 3600)
    assert heard.over


def test_a_silent_node_keeps_its_connection_until_there_is_another_one() -> None:
    first, second = Spoken(), Spoken()
    way = NextLogins(first, second)
    inbox = Inbox()
    session = Session(NODE, way.connect(NODE), AgentStart("run", "n1"), inbox, way)
    session.begin()
    first.say(hello())
    session.hello.result(300)
    session.follow(hold=True)
    look_for_silence(session, time.monotonic() + 3600)
    assert isinstance(inbox.get(timeout=300)[1], Away)
    second.say(hello())
    assert isinstance(inbox.get(timeout=300)[1], Back)
    assert way.made[0].closed.wait(300)
    assert first.closed.is_set()
    assert not second.closed.is_set()
    session.close()


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


def test_a_session_whose_loss_goes_wrong_is_lost_all_the_same() -> None:
    class Failing(Spoken):
        def close(self) -> None:
            raise RuntimeError("no more threads")

    inbox, channel = Inbox(), Failing()
    session = Session(NODE, OneLogin(channel), AgentStart("run", "n1"), inbox, fake())
    session.begin()
    channel.say(frames.GREETING + b"no frame at all" * 10)
    taken, lost = inbox.get(timeout=300)
    assert taken is session
    assert isinstance(lost, Lost)
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


class Silent(Spoken):
    """A login behind a relay whose shell starts nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.began = 0.0

    def others_began(self) -> float:
        return self.began


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
