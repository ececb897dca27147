"""How a preflight leaves its nodes: idle, busy, or still connecting."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Node
from dslaunch.node import frames
from dslaunch.preflight import runner
from dslaunch.preflight.check import Scope
from dslaunch.preflight.conversation import MOST_BYTES, Conversation
from dslaunch.preflight.logins import Logins, log_in
from dslaunch.protocol.survey import SURVEYED
from dslaunch.transport.base import End
from dslaunch.transport.channel import PushChannel
from dslaunch.transport.future import done_with
from dslaunch.transport.wire import LEAVE_TIMEOUT, LostError


class Fake(PushChannel):
    """A transport, its connection and its channel at once: what is done with them is noted."""

    def __init__(self, connects: bool = True, ends: bool = True) -> None:
        super().__init__()
        self.ends = ends
        self.connecting: Queue[str] = Queue()
        """The nodes that are being connected to."""
        self.may_connect = threading.Event()
        if connects:
            self.may_connect.set()
        self.done: list[str] = []
        self.unsaid: list[bytes] = []

    def connect(self, node: Node) -> Fake:
        self.connecting.put(node.host)
        assert self.may_connect.wait(300)
        self.done.append("connect")
        return self

    def start(self, line: str, text: Sequence[bytes] = ()) -> Fake:
        self.done.append("start")
        return self

    def say(self, data: bytes) -> None:
        self.unsaid.append(data)
        self.loop.call(self.read_on)

    def read_on(self) -> None:
        while self.wanted and self.unsaid:
            self.deliver(self.unsaid.pop(0))

    unsent = 0

    def write(self, data: bytes) -> None:
        """It is taken; the clock is told."""
        if b'"clock"' in data[frames.HEADER.size :]:
            told = frames.pack_message({"reply": 1, "time": 0.0, "value": None})
            self.say(frames.GREETING + told)

    def close_input(self) -> None:
        self.done.append("close input")
        if self.ends:
            self.loop.call(lambda: self.tell_end(End(0)))

    def close(self) -> None:
        self.done.append("close")
        self.loop.call(lambda: self.tell_end(End()))


def conversation(transport: Fake) -> Conversation:
    node = Node("n", (0,))
    talk = Conversation(node)
    talk.open(done_with(log_in(node, transport))).result()
    transport.done.clear()
    return talk


def test_an_idle_node_cleans_up_before_it_is_left() -> None:
    transport = Fake()
    conversation(transport).end()
    assert transport.done == ["close input", "close", "close"]


def test_a_node_that_does_not_end_is_left_without_being_ended() -> None:
    transport = Fake(ends=False)
    conversation(transport).end()
    assert transport.done == ["close input", "close"]  # the connection only


def test_a_busy_node_is_not_waited_for() -> None:
    transport = Fake()
    talk = conversation(transport)
    assert talk.wire is not None
    talk.wire.request("survey", SURVEYED, questions={})
    talk.end()
    assert transport.done == ["close input", "close"]


def test_a_node_with_a_first_message_only_is_busy() -> None:
    transport = Fake()
    talk = conversation(transport)
    transport.say(frames.GREETING)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(talk.ask, ())
        while transport.unsaid or talk.wire is None or not talk.wire.busy:
            time.sleep(0.01)
        talk.end()
        assert isinstance(asking.exception(60), LostError)
    assert transport.done == ["close input", "close"]


def test_a_node_that_has_answered_is_not_busy() -> None:
    transport = Fake()
    talk = conversation(transport)
    talk.measure_clock().result(60)
    talk.end()
    assert transport.done == ["close input", "close", "close"]


def test_what_is_still_to_be_connected_when_it_ends_is_not_or_is_closed_again() -> None:
    nodes = "nodes: [{host: 'n[1-6]', slots: 1}]\n"
    cluster = parse_cluster(nodes, "c.yaml")
    transport = Fake(connects=False)
    logins = Logins(transport, cluster.nodes, at_once=2)
    survey = runner.Survey(Scope(cluster, cluster.nodes), {}, lambda *_: None, logins)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(survey.run)
        assert {transport.connecting.get(timeout=300) for _ in range(2)} == {"n1", "n2"}
        survey.close()
        logins.close()
        transport.may_connect.set()
        assert asking.result(60) == {}
    assert [transport.done.count(word) for word in ("connect", "start")] == [2, 0]
    assert transport.done.count("close") >= 2
    assert set(survey.failures) == {f"n{number}" for number in range(1, 7)}


def test_a_node_whose_answers_are_too_many_in_all_is_lost() -> None:
    transport = Fake()
    talk = conversation(transport)
    assert talk.wire is not None
    transport.say(frames.GREETING)
    each = 1 << 20
    for number in range(MOST_BYTES // each):
        asked = talk.wire.request("survey", SURVEYED, questions={})
        padding = "x" * (each if number else 2 * each)
        told = {"reply": number + 1, "time": 0.0, "value": padding}
        transport.say(frames.pack_message(told))
        error = asked.exception(60)
    assert isinstance(error, LostError)
    assert "more than 24 MiB in all" in error.failure.message


def test_to_leave_takes_less_than_the_launcher_waits() -> None:
    assert LEAVE_TIMEOUT + 1 < runner.FAREWELL
