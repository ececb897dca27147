"""Tests of ranks that a launcher starts, and starts again: found, read and told of once each."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dslaunch.node import processes
from dslaunch.node.event_loop import EventLoop
from dslaunch.node.ranks import Ranks
from dslaunch.node.redact import Secrets

LAUNCHER = """
import os, subprocess, sys, time
logs = os.environ["DSLAUNCH_LOGS"]
for attempt, codes in enumerate(eval(sys.argv[1])):
    started = []
    for local_rank, code in enumerate(codes):
        environment = {**os.environ, "RANK": str(local_rank), "LOCAL_RANK": str(local_rank)}
        until_seen = f'until [ -e "{logs}/seen {attempt}" ]; do sleep 0.05; done'
        line = f"echo attempt {attempt}; {until_seen}; exit {code}"
        words = [f"{logs}/rank.py", "LOCAL_RANK", "command", "sh", "-c", line]
        started.append(subprocess.Popen([sys.executable, *words], env=environment))
    while not os.path.exists(f"{logs}/collect {attempt}"):
        time.sleep(0.01)
    for each in started:
        each.wait()
"""


class FakeAgent:
    """Takes what is said, and has the loop of a real one."""

    is_ending = False
    secrets = Secrets()

    def __init__(self) -> None:
        self.said: list[tuple[str, int, Any]] = []
        self.outputs: dict[int, bytes] = {}
        self.loop = EventLoop()
        self.started: list[int] = []
        self.ended: list[int] = []
        self.logs = Path()

    def say(self, event: dict[str, Any]) -> None:
        """An event of a rank."""
        if event["rank"] < 0:
            return
        self.said.append((event["event"], event["rank"], event.get("code")))
        if event["event"] == "started":
            self.started.append(event["rank"])
            self.let("seen", self.started)
        if event["event"] == "exit":
            self.ended.append(event["rank"])
            self.let("collect", self.ended)

    def let(self, go_on: str, told: list[int]) -> None:
        """Let an attempt go on once both of its ranks were told of: ranks end after they were
        `seen`, and the launcher can `collect` those that have ended."""
        attempts, of_one = divmod(len(told), 2)
        if attempts and not of_one:
            (self.logs / f"{go_on} {attempts - 1}").touch()

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """What a rank wrote."""
        self.outputs[rank] = self.outputs.get(rank, b"") + data


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
def start(agent: FakeAgent, tmp_path: Path) -> Iterator[Callable[[str], Ranks]]:
    """Starts a launcher whose attempts' ranks end with the codes in a literal."""
    made: list[Ranks] = []

    def begin(codes: str) -> Ranks:
        (tmp_path / "launcher.py").write_text(LAUNCHER)
        argv = [sys.executable, str(tmp_path / "launcher.py"), codes]
        message = {
            "processes": [{"rank": None, "argv": argv, "env": {}}],
            "first_rank": 0,
            "slots": 2,
            "master_port": 1,
        }
        agent.logs = tmp_path / "logs"
        agent.logs.mkdir()
        logs = {"DSLAUNCH_LOGS": str(agent.logs)}
        made.append(Ranks(message, {**os.environ, **logs}, cast("Any", agent), None))
        made[0].start(str(tmp_path))
        return made[0]

    yield begin
    for ranks in made:
        ranks.ask_to_end()
        processes.send(ranks.children, 9)


def watched(ranks: Ranks, agent: FakeAgent) -> None:
    """Watch to the end."""
    until = time.monotonic() + 300
    while ranks.running():
        assert time.monotonic() < until
        ranks.watch()
        agent.loop.turn(0.05)
    ranks.finish()


@pytest.mark.parametrize("told", [True, False], ids=["pidfd", "no pidfd"])
def test_restarted_ranks_are_each_found_read_and_reported_once(
    told: bool,
    start: Callable[[str], Ranks],
    agent: FakeAgent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not told:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    ranks = start("[(3, 0), (0, 0)]")
    watched(ranks, agent)
    for rank, first in ((0, 3), (1, 0)):
        events = [(event, code) for event, of, code in agent.said if of == rank]
        assert events == [("started", None), ("exit", first), ("started", None), ("exit", 0)]
    assert agent.outputs == dict.fromkeys((0, 1), b"attempt 0\nattempt 1\n")
    assert ranks.launched.polled == (set() if told else {0, 1})


def test_an_end_that_is_reported_too_early_is_searched_again(
    start: Callable[[str], Ranks], agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def readable_at_once(pid: int) -> int:
        ours, theirs = os.pipe()
        os.close(theirs)
        return ours

    monkeypatch.setattr(os, "pidfd_open", readable_at_once, raising=False)
    watched(start("[(0, 7)]"), agent)
    ends = sorted(said for said in agent.said if said[0] == "exit")
    assert ends == [("exit", 0, 0), ("exit", 1, 7)]


def test_without_a_reader_the_pipes_of_found_ranks_are_not_read(
    start: Callable[[str], Ranks], agent: FakeAgent
) -> None:
    ranks = start("[(0, 0)]")
    ranks.output.pause()
    until = time.monotonic() + 300
    while len(ranks.launched.found) < 2:
        assert time.monotonic() < until
        ranks.watch()
    assert agent.outputs == {}
    ranks.output.resume()
    watched(ranks, agent)
    assert agent.outputs == {0: b"attempt 0\n", 1: b"attempt 0\n"}


def test_a_rank_that_dies_at_once_is_known_without_looking_for_it(
    start: Callable[[str], Ranks], agent: FakeAgent
) -> None:
    ranks = start("[(9, 0)]")
    until = time.monotonic() + 300
    while ("exit", 0, 9) not in agent.said:  # the processes of the node are never looked through
        assert time.monotonic() < until
        agent.loop.turn(0.05)
    assert ("started", 0, None) in agent.said
    watched(ranks, agent)


@pytest.mark.parametrize("said", [b"1\n", b"0\n", b"99999999999999999999\n", b"-1\n", b"x\xff\n"])
def test_a_rank_cannot_say_that_it_is_another_process(
    said: bytes, start: Callable[[str], Ranks], agent: FakeAgent
) -> None:
    ranks = start("[(0, 0)]")
    ranks.launched.born(0, said + b"%d\n" % os.getpid())
    assert ranks.launched.found == {}
    watched(ranks, agent)
