"""The transport `tree`, with nodes that are shells of this machine, and a program `ssh` that lets
everybody in but where it is told not to."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

import pytest

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Cluster, Node
from dslaunch.errors import NodeError
from dslaunch.node import relay_frames
from dslaunch.protocol.queries import RESOLVE
from dslaunch.run.agent_program import AgentStart
from dslaunch.run.inbox import Inbox
from dslaunch.run.session import Session
from dslaunch.transport import program
from dslaunch.transport.base import Connection, Detour
from dslaunch.transport.channel import ChannelOutput
from dslaunch.transport.process import ProcessChannel, ProcessConnection
from dslaunch.transport.transports.tree import (
    UNFIT_AFTER,
    SharedConnection,
    TreeConnection,
    TreeTransport,
)

SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
echo "$2" >> "$LOGINS"
[ ! -e "$LOGINS.locked" ] || { echo "x@$2: Permission denied (publickey)." >&2; exit 255; }
echo
exec /bin/sh -c "$3"
"""


class Shell(ProcessConnection):
    """A connection to a node that is this machine.

    Programs are not marked as dslaunch's own: each run that begins on this machine, those of other
    tests too, would resume one that a test has stopped.
    """

    def __init__(self, env: dict[str, str]) -> None:
        super().__init__()
        self._env = env

    def start(self, line: str, text: Sequence[bytes] = ()) -> ProcessChannel:
        unmarked = line.replace(program.MARK, "UNMARKED")
        return self.keep(ProcessChannel(["/bin/sh", "-c", unmarked], text=text, env=self._env))


@dataclass
class Direct:
    """The launcher's own logins."""

    env: dict[str, str]
    hosts: list[str] = field(default_factory=list)
    shells: list[Shell] = field(default_factory=list)

    def connect(self, node: Node) -> Connection:
        self.hosts.append(node.host)
        self.shells.append(Shell(self.env))
        return self.shells[-1]

    def close(self) -> None:
        for shell in self.shells:
            shell.close()


@pytest.fixture
def direct(tmp_path: Path) -> Direct:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o700)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return Direct({**os.environ, "PATH": path, "LOGINS": str(tmp_path / "logins")})


@pytest.fixture
def cluster() -> Cluster:
    """Twelve nodes and a fan-out of three: node1, node5 and node9 have three children each."""
    text = f"""
transport: tree
ssh: {{tree_fanout: 3, config_file: /dev/null}}
python: {sys.executable}
nodes: [{{host: 'node[1-12]', slots: 1}}]
"""
    return parse_cluster(text, "c.yaml")


@pytest.fixture
def tree(cluster: Cluster, direct: Direct) -> Iterator[TreeTransport]:
    made = TreeTransport(cluster, direct)
    yield made
    made.close()


def connect_all(tree: TreeTransport, cluster: Cluster) -> dict[str, Connection]:
    with ThreadPoolExecutor(12) as pool:
        hosts = [node.host for node in cluster.nodes]
        return dict(zip(hosts, pool.map(tree.connect, cluster.nodes), strict=True))


def says(connection: Connection, line: str) -> bytes:
    channel = connection.start(line)
    channel.close_input()
    output = ChannelOutput(channel)
    pieces = []
    while piece := output.read():
        pieces.append(piece)
    return b"".join(pieces)


def relay_of(connection: Connection) -> int:
    """Return the process of the relay that has logged in to a node."""
    return int(says(connection, "echo $PPID"))


def test_the_launcher_logs_in_to_first_level_nodes_only_and_once(
    tree: TreeTransport, cluster: Cluster, direct: Direct
) -> None:
    reached = connect_all(tree, cluster)
    assert sorted(direct.hosts) == ["node1", "node5", "node9"]
    assert tree.detours() == ()
    assert [says(connection, "echo hello") for connection in reached.values()] == [b"hello\n"] * 12


def test_nodes_that_cannot_log_in_to_each_other_are_all_reached_after_few_tries(
    tree: TreeTransport, cluster: Cluster, direct: Direct
) -> None:
    Path(direct.env["LOGINS"] + ".locked").touch()
    for node in cluster.nodes:
        assert says(tree.connect(node), "echo hello") == b"hello\n"
    assert sorted(set(direct.hosts)) == sorted(node.host for node in cluster.nodes)
    tries = Path(direct.env["LOGINS"]).read_text().split()
    assert len(tries) <= 3 * UNFIT_AFTER
    children = {node.host for node in cluster.nodes} - {"node1", "node5", "node9"}
    assert {detour.host for detour in tree.detours()} == children
    assert {detour.kind for detour in tree.detours()} == {"authentication"}


def test_a_node_whose_parent_is_lost_is_reached_through_another(
    tree: TreeTransport, cluster: Cluster, direct: Direct
) -> None:
    reached = connect_all(tree, cluster)
    relay = relay_of(reached["node2"])
    os.kill(relay, signal.SIGKILL)
    assert relay_of(tree.connect(cluster.nodes[1])) != relay
    assert Detour("node2", "node1", "lost") in tree.detours()
    assert sorted(direct.hosts) == ["node1", "node5", "node9"]


def test_a_node_whose_parent_does_not_answer_is_reached_through_another(
    tree: TreeTransport, cluster: Cluster, direct: Direct
) -> None:
    reached = connect_all(tree, cluster)
    relay = relay_of(reached["node3"])
    output = ChannelOutput(reached["node3"].start("exec cat"))
    os.kill(relay, signal.SIGSTOP)
    assert output.read() == b""
    assert relay_of(tree.connect(cluster.nodes[2])) != relay
    assert Detour("node3", "node1", "lost") in tree.detours()


@pytest.fixture
def session(tree: TreeTransport, cluster: Cluster) -> Iterator[Session]:
    """A session with node2, whose agent is not started yet, and a relay of which it is behind."""
    agent = AgentStart(f"tree-{token_hex(4)}", "node2", waits=True)
    made = Session(cluster.nodes[1], tree.connect(cluster.nodes[1]), agent, Inbox(), tree)
    yield made
    made.close()


def test_a_node_whose_relay_is_lost_answers_what_it_was_asked_before(
    tree: TreeTransport, cluster: Cluster, session: Session
) -> None:
    relay = relay_of(tree.connect(cluster.nodes[1]))
    session.begin()
    greeting = session.hello.result()
    os.kill(relay, signal.SIGSTOP)
    clock, home = session.measure_clock(), session.ask({RESOLVE: ["localhost"]})
    os.kill(relay, signal.SIGKILL)
    assert clock.result().error > 0
    assert home.result()[RESOLVE]
    assert session.hello.result() is greeting
    assert Detour("node2", "node1", "lost") in tree.detours()


def test_an_agent_whose_relay_is_lost_before_it_greets_is_started_through_another(
    tree: TreeTransport, cluster: Cluster, session: Session
) -> None:
    relay = relay_of(tree.connect(cluster.nodes[1]))
    os.kill(relay, signal.SIGSTOP)
    session.begin()
    os.kill(relay, signal.SIGKILL)
    assert not session.hello.result().started
    assert Detour("node2", "node1", "lost") in tree.detours()


def test_what_connects_to_a_closed_tree_starts_nothing(
    tree: TreeTransport, cluster: Cluster, direct: Direct
) -> None:
    tree.close()
    with pytest.raises(NodeError):
        tree.connect(cluster.nodes[1])
    assert direct.hosts == []


def test_a_use_that_is_closed_twice_leaves_the_connection_to_the_others(direct: Direct) -> None:
    shared = SharedConnection(direct.connect(Node("node1", (0,))))
    first, second = shared.join(), shared.join()
    assert first is not None
    assert second is not None
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: first.close(), range(2)))
    assert says(second, "echo hello") == b"hello\n"
    second.close()
    assert shared.join() is None


def test_a_program_behind_a_relay_can_be_started_again(
    tree: TreeTransport, cluster: Cluster
) -> None:
    connection = tree.connect(cluster.nodes[1])
    assert isinstance(connection, TreeConnection)
    assert [says(connection, f"echo {n}") for n in range(3)] == [b"0\n", b"1\n", b"2\n"]


def test_what_a_program_behind_a_relay_does_not_read_is_counted(
    tree: TreeTransport, cluster: Cluster
) -> None:
    channel = tree.connect(cluster.nodes[1]).start(
        "head -c 1000000 >/dev/null; echo; exec sleep 60"
    )
    channel.write(bytes(4_000_000))
    output = ChannelOutput(channel)
    assert output.read() == b"\n"
    taken = 1_000_000 + 2 * relay_frames.INPUT_WINDOW
    assert channel.unsent > 4_000_000 - taken
    channel.close()
