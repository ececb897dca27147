"""Nodes that send without end, or read nothing: nobody waits for them, and nothing fills up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from dslaunch.errors import NodeError
from dslaunch.node import frames
from dslaunch.protocol.messages import MOST_EVENTS, Incoming, ProtocolError
from dslaunch.run.arrivals import Lost
from dslaunch.run.events import Event, Line
from dslaunch.run.follow import Follower
from dslaunch.run.outcome import History, judge
from dslaunch.run.reach import answer_of, ask, reach
from dslaunch.run.status import node_runs
from dslaunch.run.view import View as AnyView
from dslaunch.run.watch import Watch
from tests.growth import Work, grows
from tests.hostile.conftest import HostileCluster

Make = Callable[..., HostileCluster]
UNASKED = {
    "output": "struct.pack('>iBd', -1, 1, 1.0) + b'x'",
    "an event": "json.dumps({'event': 'joined', 'time': 1.0}).encode()",
}
KINDS = {"output": frames.OUTPUT, "an event": frames.MESSAGE}


@pytest.mark.parametrize("what", UNASKED)
def test_unrequested_output_and_events_are_discarded(hostile: Make, what: str) -> None:
    cluster = hostile(f"""
        def tamper(message):
            if "reply" in message:
                body = {UNASKED[what]}
                send(HEADER.pack(len(body), {KINDS[what]}, 0) + body)
            return message
    """).cluster
    with reach(cluster, cluster.nodes) as reached:
        assert node_runs(reached) == {}
        assert {host: f.kind for host, f in reached.failures.items()} == {"bad": "protocol"}
        assert reached.inbox.qsize() <= 1  # that it is lost


def test_what_is_asked_after_a_loss_fails_for_the_reason_of_the_loss(hostile: Make) -> None:
    cluster = hostile(f"""
        def tamper(message):
            if "reply" in message:
                body = {UNASKED["an event"]}
                send(HEADER.pack(len(body), {frames.MESSAGE}, 0) + body)
            return message
    """).cluster
    with reach(cluster, cluster.nodes) as reached:
        bad = reached.sessions["bad"]
        bad.measure_clock()
        session, arrived = reached.inbox.get(timeout=300)
        assert (session, isinstance(arrived, Lost)) == (bad, True)
        with pytest.raises(NodeError) as caught:
            answer_of("bad", bad.ask({}))
    assert caught.value.failures[0].kind == "protocol"


class View(AnyView):
    """Shows nothing, and counts."""

    lines = 0

    def line(self, line: Line) -> None:
        self.lines += 1

    def event(self, event: Event) -> None:
        pass


@pytest.mark.parametrize("last", [0, 2**62])
def test_output_without_end_is_read_only_as_long_as_the_user_wants(
    hostile: Make, last: int
) -> None:
    cluster = hostile(f"""
        def write():
            kept = sys.argv[0].rpartition("/")[0] + "/received"
            while b'"op":"follow"' not in open(kept, "rb").read():
                threading.Event().wait(0.05)
            body = struct.pack(">iBd", -1, 1, 1.0) + b"hello\\n"
            while True:
                send(HEADER.pack(len(body), 2, 0) + body)

        def tamper(message):
            if message.get("event") == "hello":
                message["last"] = {last}
                threading.Thread(target=write).start()
            return message
    """).cluster
    screen = View()
    with reach(cluster, cluster.nodes[1:]) as reached:
        ask(reached)
        follower = Follower(reached, Watch(screen))
        if last:
            follower.catch_up(until=lambda: screen.lines >= 1000)
            assert screen.lines >= 1000
        else:
            follower.catch_up()


READS_NOTHING_MORE = """
    def live_on():
        import time
        body = json.dumps({"event": "beat", "time": 1.0, "idle": 0.0}).encode()
        while True:
            time.sleep(0.5)
            send(HEADER.pack(len(body), 1, 0) + body)

    def tamper(message):
        if message.get("event") == "hello":
            threading.Thread(target=live_on).start()
        return message
"""


def test_a_node_that_takes_no_files_is_given_up(hostile: Make) -> None:
    cluster = hostile(READS_NOTHING_MORE)
    text = cluster.bad_python.read_text()
    stop = '            if b\'"op":"put"\' in data:\n                threading.Event().wait()\n'
    text = text.replace("            kept.write(data)\n", f"            kept.write(data)\n{stop}")
    cluster.bad_python.write_text(text)
    project = cluster.home / "project"
    project.mkdir()
    (project / "data.py").write_bytes(random.randbytes(3_000_000))
    began = time.monotonic()
    error = cluster.refused()
    assert [failure.host for failure in error.failures] == ["bad"]
    assert time.monotonic() - began < 300


def test_small_events_without_end_are_cut_off() -> None:
    event = frames.pack_message({"event": "exit", "time": 1.0, "rank": 0, "code": 1})
    incoming = Incoming(range(1))
    assert len(list(incoming.feed(event * MOST_EVENTS))) == MOST_EVENTS
    with pytest.raises(ProtocolError):
        list(incoming.feed(event))


def test_a_rank_that_fails_many_times_is_judged_in_time() -> None:
    lines = {("n1", 0): ["RuntimeError: " + "x " * 2000] * 40}

    def judged(failures: int) -> Work:
        events = [Event(1.0, "exit", "n1", 0, code=1, asked=False) for _ in range(failures)]
        return lambda: judge(History(events), last_lines=lines).status

    assert judged(10)() == "failed"
    assert not grows(judged, 1_000)
