"""The agent and those who speak to it: whoever has gone holds nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from dslaunch.node import frames, peer, processes
from dslaunch.node.agent import Agent
from dslaunch.node.client import AgentClient

BOUND = 300
"""Seconds for what takes a fraction of one."""
AGENT = """\
import socket, sys
from dslaunch.node.agent import Agent
import os
timeouts = {{"heartbeat": 2.0, "reconnect": {reconnect}}}
Agent("r1", "n1", timeouts, os.getppid()).serve(socket.socket(fileno={fd}))
"""
CLOCK = frames.pack_message({"op": "clock", "id": 1})
HOLD = frames.pack_message({"op": "follow", "after": 0, "hold": True})
BYE = frames.pack_message({"op": "bye"})


def start_agent(
    say: Callable[[socket.socket], None], *, reconnect: float = 0.0
) -> subprocess.Popen[bytes]:
    """Start an agent after its launcher has said something over the connection."""
    ours, its = socket.socketpair()
    say(ours)
    with its, ours:
        program = AGENT.format(fd=its.fileno(), reconnect=reconnect)
        return subprocess.Popen([sys.executable, "-c", program], pass_fds=[its.fileno()])


@pytest.mark.parametrize(
    "said",
    [b"", CLOCK, CLOCK + HOLD, HOLD, BYE + HOLD, CLOCK[:5]],
    ids=["nothing", "clock", "clock, hold", "hold", "bye, hold", "half a message"],
)
def test_agent_exits_if_its_launcher_has_ended_before_the_first_message(said: bytes) -> None:
    with start_agent(lambda launcher: launcher.sendall(said)) as agent:
        try:
            assert agent.wait(BOUND) == 0
        finally:
            agent.kill()


def test_agent_leaves_when_asked_by_a_signal_before_the_start() -> None:
    ours, its = socket.socketpair()
    with its, ours:
        program = AGENT.format(fd=its.fileno(), reconnect=100)
        with subprocess.Popen([sys.executable, "-c", program], pass_fds=[its.fileno()]) as agent:
            its.close()
            try:
                assert ours.recv(1)  # its handlers are set before it greets
                os.kill(agent.pid, signal.SIGTERM)
                ours.close()
                assert agent.wait(BOUND) == 0
            finally:
                agent.kill()


SIGNALED = """\
import os, signal, socket
from dslaunch.node.agent import Agent
ours, its = socket.socketpair()
agent = Agent("r1", "n1", {"heartbeat": 2.0, "reconnect": 2.0}, os.getppid())
agent.prepare(its)
os.kill(os.getpid(), signal.SIGTERM)
before = agent.dismissed
agent.loop.turn(0)
print(before is None and agent.dismissed is not None)
"""


def test_a_signal_is_handled_between_two_turns_of_the_loop() -> None:
    """In the midst of a message that is written, its handler would write another one."""
    done = subprocess.run([sys.executable, "-c", SIGNALED], capture_output=True, timeout=BOUND)
    assert done.stdout == b"True\n"


GUARDED = '''\
import os, signal, subprocess, sys
from dslaunch.node import guardian, processes
agent = os.fork()
if agent == 0:
    signal.pause()
left = f"""
import os, signal
print('up', flush=True)
while True:
    if not os.path.exists('/proc/{agent}'):
        os.kill({os.getpid()}, signal.SIGTERM)
"""
tags = {processes.RUN_ID: sys.argv[1], processes.HOST: "n1"}
command = [sys.executable, "-c", left]
child = subprocess.Popen(command, env={**os.environ, **tags}, stdout=subprocess.PIPE)
child.stdout.readline()
os.kill(agent, signal.SIGKILL)
guardian.guard(agent, sys.argv[1], "n1")
'''


def test_a_guardian_that_is_to_end_first_ends_what_a_dead_agent_has_left(tmp_path: Path) -> None:
    """The process that is left sends it signals, from the agent's death to its own."""
    places = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    run = f"guarded-{os.getpid()}"  # it ends all that carries this name on the machine
    command = [sys.executable, "-c", GUARDED, run]
    done = subprocess.run(command, env={**os.environ, **places}, timeout=BOUND, capture_output=True)
    assert (done.returncode, done.stderr) == (1, b"")
    assert processes.tagged(run, "n1") == set()


def test_agent_removes_its_directory_before_it_hangs_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ours, its = socket.socketpair()
    with ours, its:
        agent = Agent("r1", "n1", {"heartbeat": 1.0, "reconnect": 1.0}, os.getppid())
        client = AgentClient(its, agent)
        agent.clients.append(client)
        agent.holder.take(client)
        directory = Path(agent.node_directory())
        assert directory.is_dir()
        agent.requests.do_bye(client, {"op": "bye"})
        assert ours.recv(1) == b""
        assert not directory.exists()


def test_the_reconnect_timeout_restarts_with_each_contact() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        agent = Agent("r1", "n1", {"heartbeat": 1.0, "reconnect": 1.0}, os.getppid())
        client = AgentClient(its, agent)
        client.heard = 0.0
        agent.holder.take(client)
        agent.holder.forget(client)
        assert agent.abandoned()
        agent.ranks = cast("Any", object())
        agent.requests.do_coming(client, {"op": "coming", "ssh": ""})
        assert not agent.abandoned()


@pytest.mark.parametrize(
    ("says", "reported"),
    [({"op": "coming", "ssh": ""}, []), ({"op": "ping"}, [("stopping", "alice@login1")])],
    ids=["the launcher", "another client"],
)
def test_only_a_stop_that_another_client_requests_is_reported_to_the_launcher(
    says: frames.Message, reported: list[tuple[str, str]]
) -> None:
    """A launcher that reconnects may request the end before it holds the run again."""
    ours, its = socket.socketpair()
    agent = Agent("r1", "n1", {"heartbeat": 1.0, "reconnect": 1.0}, os.getppid())
    with ours, its:
        client = AgentClient(its, agent)
        agent.requests.take(client, says)
        agent.requests.take(client, {"op": "stop", "grace": 0.0, "by": "alice@login1"})
    events = list(frames.Decoder().feed(agent.journal.read(0)[0]))
    stops = [event for event in events if event["event"] == "stopping"]
    assert [(event["event"], event["by"]) for event in stops] == reported


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("", None),
        ("10.0.0.1 5000 10.0.0.2 22", "10.0.0.1"),
        ("fe80::1 5000 fe80::2 22", "fe80::1"),
        ("10.0.0.1 x 10.0.0.2 22", None),
        ("10.0.0.1", None),
    ],
)
def test_the_launchers_address_is_that_of_sshd(told: str, found: str | None) -> None:
    assert peer.address(told) == found


def connected() -> tuple[socket.socket, socket.socket, str]:
    """Both ends of a TCP connection, and what sshd would say of it: the client's end is first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return client, accepted, " ".join(map(str, (*client.getsockname(), *client.getpeername())))


def test_a_launcher_that_has_closed_the_connection_has_left() -> None:
    client, served, told = connected()
    client.close()
    assert served.recv(1) == b""
    served.close()
    # both ends are on this machine here: the one that closed first leaves an entry of its own,
    # which belongs to the other direction
    assert peer.has_left(told)


def test_a_launcher_whose_connection_was_closed_here_may_reconnect() -> None:
    client, served, told = connected()
    served.close()
    assert client.recv(1) == b""
    client.close()
    assert not peer.has_left(told)


def test_a_launcher_is_not_known_to_have_left_where_there_was_no_ssh() -> None:
    assert not peer.has_left("")


def test_gathered_output_comes_before_the_end_of_its_rank(tmp_path: Path) -> None:
    """The interval never ends: only the exit can send what was written after the first line."""
    script = "echo first; sleep 0.1; echo second; printf 'no newline' >&2"
    start: frames.Message = {
        "op": "start",
        "processes": [{"argv": ["sh", "-c", script], "env": {}, "rank": 0}],
        "env": {},
        "secret": [],
        "cwd": str(tmp_path),
        "files": [],
        "slots": 1,
        "first_rank": 0,
        "master_port": 1,
        "output_interval": 3600.0,
        "about": {},
    }
    ours, its = socket.socketpair()
    with its, ours:
        ours.settimeout(BOUND)
        ours.sendall(HOLD + frames.pack_message(start))
        environment = {**os.environ, "HOME": str(tmp_path)}
        program = AGENT.format(fd=its.fileno(), reconnect=0.0)
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, pass_fds=[its.fileno()], env=environment) as agent:
            output = output_before_exit(ours)
            ours.sendall(BYE)
            assert agent.wait(BOUND) == 0
    assert output == {1: b"first\nsecond\n", 2: b"no newline"}


def test_an_agent_that_fails_sends_what_happened_in_its_last_turn_first() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        agent = Agent("r1", "n1", {"heartbeat": 1.0, "reconnect": 1.0}, os.getppid())
        agent.welcome(its, holds=True)
        agent.clients[0].follow(0)
        agent.say({"event": "exit", "rank": 0})
        agent.output(1, 2, b"last words")
        agent.crashed(OSError("no space"), "")
        ours.recv(len(frames.GREETING), socket.MSG_WAITALL)
        sent = frames.Decoder().feed(ours.recv(1 << 16))
    said = [each.data if isinstance(each, frames.Output) else each["event"] for each in sent]
    assert said == ["hello", "exit", b"last words", "gone"]


def output_before_exit(connection: socket.socket) -> dict[int, bytes]:
    """What an agent sends of each stream before it tells that a rank has ended."""
    connection.recv(len(frames.GREETING), socket.MSG_WAITALL)
    decoder = frames.Decoder()
    output: dict[int, bytes] = {}
    while True:
        for frame in decoder.feed(connection.recv(1 << 16)):
            if isinstance(frame, frames.Output):
                output[frame.stream] = output.get(frame.stream, b"") + frame.data
            elif isinstance(frame, dict) and frame.get("event") == "exit":
                return output


@pytest.mark.parametrize("holds", [True, False], ids=["launcher", "command"])
@pytest.mark.parametrize("request_", [{}, {"op": "usage"}, {"op": "received", "archive": 9}])
def test_a_request_that_lacks_something_is_refused(request_: dict[str, Any], holds: bool) -> None:
    assert reply_to(request_, holds=holds)["error"]


def test_a_request_is_refused_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container whose limit of processes the ranks have reached: the run goes on."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert reply_to({"op": "usage", "output": 0}, holds=True)["error"]


def reply_to(request_: dict[str, Any], *, holds: bool) -> dict[str, Any]:
    """What an agent replies to a request of its launcher, or of a command."""
    ours, its = socket.socketpair()
    with ours, its:
        agent = Agent("r1", "n1", {"heartbeat": 1.0, "reconnect": 1.0}, os.getppid())
        agent.welcome(its, holds=holds)
        agent.take(agent.clients[0], {"id": 7, **request_})
        ours.recv(len(frames.GREETING), socket.MSG_WAITALL)
        sent = frames.Decoder().feed(ours.recv(1 << 16))
        (reply,) = (frame for frame in sent if isinstance(frame, dict) and "reply" in frame)
        assert reply["reply"] == 7
        return reply


def test_heartbeats_do_not_pile_up_for_a_client_that_reads_nothing() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        agent = Agent("r1", "n1", {"heartbeat": 1.0, "reconnect": 1.0}, os.getppid())
        agent.welcome(its)
        client = agent.clients[0]
        for _ in range(10_000):  # more than any buffer of a socket takes
            client.beat(idle=0.0)
        assert 0 < beats_read(ours, client) < 10_000
        client.beat(idle=0.0)
        assert beats_read(ours, client) == 1


def beats_read(connection: socket.socket, client: AgentClient) -> int:
    """Read all that is pending; return how many heartbeats there were."""
    data = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            data += connection.recv(1 << 20, socket.MSG_DONTWAIT)
            client.write()
    return data.count(b'"beat"')


def test_what_happens_in_a_turn_arrives_at_once_and_in_its_order() -> None:
    # a socket that keeps apart what is sent by different calls
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        agent = Agent("r1", "n1", {"heartbeat": 1.0, "reconnect": 1.0}, os.getppid())
        agent.welcome(its)
        greeting = ours.recv(1 << 16)
        assert greeting.startswith(frames.GREETING)
        assert b'"hello"' in greeting
        client = agent.clients[0]
        client.follow(after=0)
        for rank in range(2):
            agent.say({"event": "started", "rank": rank})
        client.reply(7, None)
        agent.say({"event": "joined"})
        agent.publish()
        assert kinds_of(ours.recv(1 << 16)) == ["started", "started", 7]
        assert kinds_of(ours.recv(1 << 16)) == ["joined"]


def kinds_of(data: bytes) -> list[Any]:
    """Return the events and the numbers of replies that have arrived."""
    messages = [cast("frames.Message", frame) for frame in frames.Decoder().feed(data)]
    return [message.get("event", message.get("reply")) for message in messages]
