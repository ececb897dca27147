"""Anybody on the network reaches the control port of a detached run: the run goes on."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dslaunch.cluster.model import Network
from dslaunch.launch.facts import Facts, Interface, NodeFacts, PortFact
from dslaunch.launch.plan import Rendezvous
from dslaunch.node import member_connections, member_link, network, processes
from dslaunch.node.coordinator import Coordinator
from dslaunch.node.event_loop import EventLoop
from dslaunch.node.member import REDIAL, Member
from dslaunch.node.member_link import Broken, MemberLink
from dslaunch.run.detach import Control, control
from tests.hostile.neighbor import Victim, agents, listening, ranks, until

KEYS = {"v1": "a" * 64, "n2": "b" * 64}


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    made = Victim(tmp_path)
    made.shared.mkdir()
    made.shared.chmod(0o1777)
    made.describe()
    yield made


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process open more files than an agent may."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(usual[1], 20_000), usual[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def dial(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=300, source_address=(source, 0))


def accepted(port: int) -> int:
    """How many connections to a port are established at its end."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(f[3] == "01" and f[1].endswith(f":{port:04X}") for f in fields)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end closes a connection, after at most a nonce."""
    connection.settimeout(300)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(4096):
            pass
    connection.close()
    return True


def still_runs(victim: Victim, run: str) -> bool:
    (row,) = json.loads(victim.dslaunch("ps", "c.yaml", "--json").stdout)
    return row["run"] == run and row["state"] == "running" and len(ranks(run)) == 2


# ---------------------------------------------------------------- a run


def test_1100_idle_connections_do_not_disturb_a_run(
    victim: Victim, live: str, many_files: None
) -> None:
    for pid in agents(live):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, 1024))
    _, port = listening(live)
    with contextlib.ExitStack() as stack:
        for _ in range(1100):
            with contextlib.suppress(OSError):
                stack.enter_context(dial(port))
        assert until(lambda: accepted(port) <= member_connections.MOST_UNPROVED + 1, 300)
        assert still_runs(victim, live)
        assert until(lambda: accepted(port) <= 1, 300), "an idle connection was kept"
    assert still_runs(victim, live)
    # the nodes still coordinate: the end of one rank ends the other node
    (rank,) = processes.tagged(live, "v1")
    os.kill(rank, 9)
    assert until(lambda: ranks(live) == set())


def test_connections_leave_files_to_an_agent_that_may_open_few(victim: Victim, live: str) -> None:
    _, port = listening(live)
    before = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in agents(live)}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most_files(pid), hard))
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(dial(port))
        used, began = {pid: cpu(pid) for pid in before}, time.monotonic()
        time.sleep(2)  # measures processor time
        seconds = time.monotonic() - began
        busy = {pid: cpu(pid) - used[pid] for pid in before}
        assert max(busy.values()) < seconds / 2, "an agent spins"
        assert len(ranks(live)) == 2
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert still_runs(victim, live)


def most_files(pid: int) -> int:
    """A limit that leaves a process ten files more than it keeps free."""
    highest = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
    return highest + member_connections.SPARE_FILES + 10


def count_files(pid: int) -> int:
    """How many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def cpu(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = processes.stat(pid)
    assert fields is not None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"\n" * 1000,
        b"x" * 100_000,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\xfe\0" * 500 + b"\n",
        b"0" * 64 + b"\n",
        b"0" * 64 + b" v1\n" + b"0" * 64 + b" {}\n",
        b"0" * 64 + b" v1\n" + b"0" * 64 + b' {"failed": "x"}\n' * 100,
        b"0" * 64 + b" n7\n",
        ("é" * 64 + " v1\n").encode(),
        b"[" * 5000 + b"\n",
    ],
)
def test_garbage_is_answered_by_closing_the_connection(
    victim: Victim, live_port: tuple[str, int], data: bytes
) -> None:
    run, port = live_port
    with dial(port) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        assert is_closed(connection)
    assert len(ranks(run)) == 2


@pytest.fixture(scope="module")
def live_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A run that several tests attack, and its port."""
    made = Victim(tmp_path_factory.mktemp("port"))
    made.shared.mkdir()
    made.shared.chmod(0o1777)
    made.describe()
    run = made.detach()
    yield run, listening(run)[1]
    assert len(ranks(run)) == 2
    made.dslaunch("stop", run, "--grace", "0")
    assert until(lambda: ranks(run) == set())


def test_a_connection_from_an_address_of_no_member_is_closed(live_port: tuple[str, int]) -> None:
    run, port = live_port
    with dial(port, source="127.0.0.2") as connection:
        connection.settimeout(300)
        assert connection.recv(100) == b""
    assert len(ranks(run)) == 2


def test_the_first_node_listens_at_the_rendezvous_address_only(live_port: tuple[str, int]) -> None:
    run, port = live_port
    assert listening(run) == ("0100007F", port)


def test_the_control_port_is_the_one_in_the_cluster_file(victim: Victim) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        last = min(first + 20, 65535)
        victim.describe(f"network: {{control_port: {first}-{last}}}")
        run = victim.detach()
        assert first < listening(run)[1] <= last
        victim.dslaunch("stop", run, "--grace", "0")
        assert until(lambda: ranks(run) == set())


def test_a_control_port_that_is_taken_is_an_error_that_names_it(victim: Victim) -> None:
    (victim.path / "job.py").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        victim.describe(f"network: {{control_port: {port}}}")
        done = victim.dslaunch("run", "--detach", "c.yaml", "job.py")
    assert done.returncode not in (0, 1), done.stderr
    assert str(port) in done.stderr
    assert "v0" in done.stderr
    assert "control_port" in done.stderr


# ---------------------------------------------------------------- the two ends


@dataclass
class Loop:
    """What the two ends use of an agent, with real sockets."""

    host: str
    loop: EventLoop = field(default_factory=EventLoop)
    timeouts: dict[str, float] = field(
        default_factory=lambda: {"heartbeat": 15.0, "reconnect": 20.0}
    )
    idle: float = 0.0
    done: bool = False
    ended: list[tuple[float, str]] = field(default_factory=list)

    def end(self, grace: float, why: str, **cause: float) -> None:
        self.ended.append((grace, why))


LINK: dict[str, Any] = {
    "hosts": ["v0", "v1", "n2"],
    "grace": 3.0,
    "exit_timeout": 60.0,
    "hang": None,
}


@pytest.fixture
def first() -> Iterator[Coordinator]:
    listen = {"address": "127.0.0.1", "ports": (0, 0), "members": ["127.0.0.1"]}
    made = Coordinator({**LINK, "keys": KEYS, "listen": listen}, Loop("v0"))  # type: ignore[arg-type]
    yield made
    connections = made.connections
    for end in (*connections.members.values(), *connections.unproved):
        connections.drop(end)
    connections.server.close()


Join = Callable[..., Member]


@pytest.fixture
def member(first: Coordinator) -> Iterator[Join]:
    """Make a member that connects to the first node, or to another port."""
    made: list[Member] = []

    def join(host: str = "v1", port: int | None = None, key: str | None = None) -> Member:
        keys = {host: key or KEYS[host]}
        made.append(Member({**LINK, "keys": keys}, Loop(host)))  # type: ignore[arg-type]
        made[-1].connect_to({"address": "127.0.0.1", "port": port or first.port})
        wait_until_tried(made[-1])
        return made[-1]

    yield join
    for each in made:
        wait_until_tried(each)  # a tick may have begun to connect again
        each.drop()


def wait_until_tried(end: Member) -> None:
    """Wait until a member has connected, or failed to."""
    while end.is_connecting:
        end.agent.loop.turn(1.0)


def turn(*ends: Coordinator | Member) -> None:
    """Let all ends do what they can."""
    for _ in range(20):
        for end in ends:
            end.agent.loop.turn(0.005)


def ended(end: Coordinator | Member) -> list[tuple[float, str]]:
    found: list[tuple[float, str]] = end.agent.ended  # type: ignore[attr-defined]
    return found


def ended_for(end: Coordinator | Member, host: str) -> list[float]:
    """The grace periods with which an agent ended its ranks for a failure on that host."""
    return [grace for grace, why in ended(end) if host in why]


def test_a_failure_on_one_member_ends_all_nodes(first: Coordinator, member: Join) -> None:
    one, two = member(), member("n2")
    turn(first, one, two)
    assert set(first.connections.members) == {"v1", "n2"}
    one.note({"event": "exit", "asked": False, "code": 3, "signal": None, "rank": 5})
    turn(first, one, two)
    assert ended_for(first, "v1") == ended_for(two, "v1") == [3.0]


@pytest.mark.parametrize("drawn_again", [True, False])
def test_a_recorded_conversation_cannot_be_replayed(
    first: Coordinator, member: Join, drawn_again: bool
) -> None:
    """To a member: all that the first node said, a stop included."""
    said = bytearray()
    with contextlib.ExitStack() as sockets:
        relay = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        one = member(port=relay.getsockname()[1])
        inner = sockets.enter_context(relay.accept()[0])
        outer = sockets.enter_context(dial(first.port or 0))
        for each in (inner, outer):
            each.setblocking(False)
        for step in range(10):
            if step == 8:
                first.stop("a test")
            turn(first, one)
            with contextlib.suppress(BlockingIOError):
                piece = outer.recv(65536)
                said += piece
                inner.sendall(piece)
            with contextlib.suppress(BlockingIOError):
                outer.sendall(inner.recv(65536))
        turn(one)
        assert ended(one) == [(3.0, "a test")]
        assert said.count(b"\n") >= 3
        again = member("v1" if drawn_again else "n2", port=relay.getsockname()[1])
        connection = relay.accept()[0]
        connection.sendall(said)
        turn(again)
        assert ended(again) == []
        assert again.member is None
        assert is_closed(connection)


def test_a_message_without_the_key_is_not_taken(first: Coordinator, member: Join) -> None:
    one = member()
    turn(first, one)
    heard = first.heard["n2"]
    with socket.create_connection(("127.0.0.1", first.port)) as stranger:
        turn(first)
        nonce = stranger.recv(200)
        assert len(nonce) == 2 * member_link.NONCE_BYTES + 1
        stranger.sendall(b"0" * 64 + b" n2\n" + b"f" * 64 + b' {"failed": "lie"}\n')
        turn(first)
        assert is_closed(stranger)
    assert ended(first) == []
    assert first.heard["n2"] == heard
    assert set(first.connections.members) == {"v1"}


def test_a_member_cannot_speak_for_another_one(first: Coordinator, member: Join) -> None:
    other = member("n2", key=KEYS["v1"])
    turn(first, other)
    assert first.connections.members == {}
    assert other.member is None


def test_an_impostor_of_the_first_node_learns_and_does_nothing(
    first: Coordinator, member: Join
) -> None:
    with contextlib.ExitStack() as stack:
        impostor = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        one = member(port=impostor.getsockname()[1])
        connection = stack.enter_context(impostor.accept()[0])
        connection.sendall(b"0" * 64 + b"\n" + b"0" * 64 + b' {"stop": 0, "why": "lie"}\n')
        one.note({"event": "exit", "asked": False, "code": 3, "signal": None, "rank": 5})
        turn(one)
        assert ended(one) == []
        said = connection.recv(65536)
        assert b"failed" not in said
        assert one.unsaid == [{"failed": "rank 5 failed"}]


def test_an_impostor_that_sends_nothing_is_disconnected(first: Coordinator, member: Join) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        one = member(port=impostor.getsockname()[1])
        turn(one)
        assert one.member is not None
        one.tick(time.monotonic() + member_connections.PROOF_TIMEOUT + 1)
        assert is_closed(impostor.accept()[0])


@pytest.mark.parametrize(
    "message",
    [
        {"failed": 5},
        {"failed": "x" * 1000},
        {"failed": "\x1b[2J"},
        {"failed": None, "good": 1},
        {"good": "yes"},
        {"done": []},
        {"idle": "9"},
        {"idle": -1},
        {"idle": True},
        {"idle": float("nan")},
        {"idle": float("inf")},
        {"idle": 10**400},
        {"idle": {}},
        {"idle": 1.0, "printed": "never"},
        {"idle": 1.0, "moved": -1},
        {"port": "46000"},
        {"port": 70000},
        {"port": True},
        {"dialed": 1},
    ],
)
def test_a_member_that_sends_invalid_values_is_disconnected(
    first: Coordinator, member: Join, message: dict[str, Any]
) -> None:
    one = member()
    turn(first, one)
    assert one.member is not None
    one.member.send(message)
    turn(first)
    assert first.connections.members == {}
    assert ended(first) == []
    first.tick(time.monotonic())


@pytest.mark.parametrize(
    "message", [{"stop": "now"}, {"stop": -1}, {"stop": 1, "why": []}, {"record": "all"}]
)
def test_a_first_node_that_sends_invalid_values_is_disconnected(
    first: Coordinator, member: Join, message: dict[str, Any]
) -> None:
    one = member()
    turn(first, one)
    first.connections.tell_all(message)
    turn(one)
    assert one.member is None
    assert ended(one) == []


def test_a_member_does_not_wait_until_it_is_connected(first: Coordinator) -> None:
    keys = {"v1": KEYS["v1"]}
    one = Member({**LINK, "keys": keys}, Loop("v1"))  # type: ignore[arg-type]
    one.connect_to({"address": "127.0.0.1", "port": first.port})
    assert (one.is_connecting, one.member) == (True, None)
    wait_until_tried(one)
    assert one.member is not None
    one.drop()


def test_what_a_member_could_not_say_is_said_once_it_is_connected(
    first: Coordinator, member: Join
) -> None:
    one = member()
    one.note({"event": "done"})
    assert one.busy()
    turn(first, one)
    assert first.finished["v1"]
    assert not one.busy()


def test_what_a_member_said_before_it_left_is_taken_though_it_cannot_be_answered(
    first: Coordinator, member: Join
) -> None:
    one = member()
    turn(first, one)
    assert one.member is not None
    first.connections.tell_all({"beat": True})  # unread at the end, so that the connection is reset
    one.note({"event": "exit", "asked": False, "code": 3, "signal": None, "rank": 5})
    one.member.send({"idle": 0.5})
    one.member.send({"done": True})
    one.drop()
    turn(first)
    assert ended_for(first, "v1") == [3.0]
    assert first.finished["v1"]


@pytest.mark.parametrize("stopped", [True, False])
def test_a_member_stays_until_the_first_node_knows_that_it_is_done(
    first: Coordinator, member: Join, stopped: bool
) -> None:
    one = member()
    turn(first, one)
    if stopped:  # then each message is answered, also the last one
        first.stop("the user asked for it")
        turn(one)
    one.note({"event": "done"})
    one.note({"event": "stopping", "by": "root"})
    assert one.busy()
    first.connections.tell_all({"beat": True})
    turn(one)
    assert one.busy()
    turn(first, one)
    assert first.finished["v1"]
    assert not one.busy()
    one.tick(time.monotonic() + 10)
    assert one.member is None


def test_a_member_says_again_that_it_is_done_where_the_connection_broke(
    first: Coordinator, member: Join
) -> None:
    one = member()
    turn(first, one)
    one.note({"event": "done"})
    (accepted,) = first.connections.members.values()
    reset(accepted.socket)
    first.connections.drop(accepted)
    turn(one)
    assert one.busy()
    one.tick(time.monotonic() + REDIAL + 1)
    wait_until_tried(one)
    turn(first, one)
    assert first.finished["v1"]
    assert not one.busy()


def test_a_member_does_not_stay_for_a_first_node_that_is_gone(
    first: Coordinator, member: Join
) -> None:
    one = member()
    turn(first, one)
    one.note({"event": "done"})
    (accepted,) = first.connections.members.values()
    reset(accepted.socket)
    first.connections.drop(accepted)
    first.connections.server.close()
    turn(one)
    assert one.busy()
    one.tick(time.monotonic() + REDIAL + 1)
    wait_until_tried(one)
    assert not one.busy()


def reset(connection: socket.socket) -> None:
    """Make the end of a connection a reset, as by a firewall: what came is lost."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_new_connection_of_a_member_replaces_the_older_one(
    first: Coordinator, member: Join
) -> None:
    one, again = member(), member()
    turn(first, one)
    turn(first, one, again)
    assert list(first.connections.members) == ["v1"]
    assert len(first.connections.unproved) == 0


def test_a_member_connects_while_strangers_flood_the_port(first: Coordinator, member: Join) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(dial(first.port or 0))
            first.agent.loop.turn(0)
        one = member()
        turn(first, one)
        assert "v1" in first.connections.members
        assert len(first.connections.unproved) <= member_connections.MOST_UNPROVED_OF_ONE


def test_bytes_before_the_proof_are_bounded() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        end = MemberLink(ours, KEYS)
        theirs.sendall(b"x" * 10_000)
        with pytest.raises(Broken):
            for _ in range(2):
                list(end.receive())
        assert len(ours.recv(100_000)) == 10_000 - member_link.LONGEST_HELLO


# ---------------------------------------------------------------- where it listens


def facts(*addresses: str, more: str = "192.0.2.9") -> tuple[Facts, Rendezvous]:
    nodes = tuple(
        NodeFacts(
            f"n{i}",
            f"m{i}",
            "/",
            (Interface("lo", "127.0.0.1", loopback=True), Interface("e", address)),
        )
        for i, address in enumerate((*addresses, more))
    )
    own = tuple((node.host, a) for node, a in zip(nodes, (*addresses, more), strict=True))
    return Facts(nodes, PortFact(1)), Rendezvous(addresses[0], 1, (), own)


def test_the_first_node_listens_where_the_others_reach_it() -> None:
    made = control(Network(control_port=(5, 9)), *facts("192.0.2.1", "192.0.2.2"))
    assert made == Control("192.0.2.1", (5, 9), ("192.0.2.2", "192.0.2.9"))


def test_a_first_node_that_means_itself_by_its_name_listens_everywhere() -> None:
    assert control(Network(), *facts("127.0.1.1", "192.0.2.2")).address == ""


def test_addresses_that_are_none_are_left_out() -> None:
    made = control(Network(), *facts("192.0.2.1", "-o evil", "", more="\x1b[2J"))
    assert made.members == ()


# ---------------------------------------------------------------- the listener of the evidence


def test_the_listener_of_the_evidence_survives_a_flood(many_files: None) -> None:
    port = network.listen({"ports": [0], "token": "T"})["port"]
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(network.MOST_PEERS + 50):
                stack.enter_context(dial(port))
            opened = count_files(os.getpid())
            resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 2, usual[1]))
            with contextlib.suppress(OSError):
                for _ in range(10):
                    stack.enter_context(dial(port))
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
            targets = {"a": ["127.0.0.1", port]}
            told = network.dial({"targets": targets, "token": "T", "timeout": 5})
        assert told == {"a": {"local": "127.0.0.1"}}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        network.hang_up()
