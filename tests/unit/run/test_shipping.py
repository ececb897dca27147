"""Files that real agents hand on to each other, with a program `ssh` that lets everybody in."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from dslaunch.cluster.model import Cluster, Node, Ssh
from dslaunch.errors import NodeError
from dslaunch.run.agent_program import AgentStart
from dslaunch.run.events import Event
from dslaunch.run.inbox import Inbox
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.job_files import JobFiles, Shipment, digests
from dslaunch.run.session import Session
from dslaunch.run.shipping import NodeLogins, ship
from dslaunch.transport.transports.local import LocalTransport

SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
case "$2" in
locked) echo "root@locked: Permission denied (publickey)." >&2; exit 255;;
cut) { head -c 2000000; cat >/dev/null; } | /bin/sh -c "$3"; exit;;
forged) { head -c 2000000; tr a b; } | /bin/sh -c "$3"; exit;;
esac
exec /bin/sh -c "$3"
"""
"""Logs in to everybody but `locked`. What it sends to `cut` ends early; to `forged`, it is changed.
"""
SIZE = 11 * 2**20
"""Bytes for each node; those for three are enough to be handed on."""


class Ship:
    """Nodes on this machine, and files that they need."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sessions: list[Session] = []
        self.run = f"ship-{secrets.token_hex(4)}"
        (directory / "bin").mkdir()
        (directory / "bin/ssh").write_text(SSH)
        (directory / "bin/ssh").chmod(0o755)
        (directory / "temporary").mkdir()
        self.code = directory / "code"
        self.code.mkdir()
        (self.code / "model.dat").write_bytes(Random(2).randbytes(SIZE))
        (self.code / "train.py").write_text("print('hello')\n")

    def to(self, *hosts: str) -> list[Event]:
        """Ship the files to nodes of these names. Raises NodeError."""
        nodes = [Node(host, (0,), python=sys.executable) for host in hosts]
        environ = {
            **os.environ,
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "TMPDIR": str(self.directory / "temporary"),
        }
        transport = LocalTransport(self.directory / "nodes", environ)
        for node in nodes:
            agent = AgentStart(self.run, node.host)
            session = Session(node, transport.connect(node), agent, Inbox(), transport)
            session.begin()
            session.hello.result(60)
            self.sessions.append(session)
        found = tuple(digests(self.code))
        source = JobFiles(self.code, "work", "train.py", found)
        shipments = [Shipment(host, tuple(path for path, _ in found)) for host in hosts]
        config = self.directory / "ssh_config"
        config.touch()
        cluster = Cluster("c", tuple(nodes), ssh=Ssh(config_file=str(config)))
        logins = NodeLogins(cluster, self.run)
        return ship(source, shipments, self.sessions, Interrupts(), logins=logins)

    def files_of(self, host: str) -> dict[str, str]:
        """Return the digests of what a node has got."""
        return dict(digests(self.directory / "nodes" / host / "work"))

    def end(self) -> None:
        """Dismiss all agents."""
        for session in self.sessions:
            session.close()


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[Ship]:
    making = Ship(tmp_path)
    yield making
    making.end()


def test_nodes_hand_files_on_and_leave_nothing_else(shipped: Ship) -> None:
    assert shipped.to("n1", "n2", "n3", "n4") == []
    for host in ("n1", "n2", "n3", "n4"):
        assert shipped.files_of(host) == dict(digests(shipped.code))
    shipped.end()
    places = list((shipped.directory / "temporary").rglob("*"))
    assert [path for path in places if path.is_file() or path.is_socket()] == []


@pytest.mark.parametrize(
    ("name", "kind"), [("locked", "authentication"), ("cut", "broken"), ("forged", "protocol")]
)
def test_the_launcher_sends_what_a_node_does_not_hand_on_as_announced(
    shipped: Ship, name: str, kind: str
) -> None:
    [event] = shipped.to("n1", name, "n3")
    assert (event.kind, event.receivers, event.senders) == ("resent", name, "n1")
    assert event.failure == kind
    for host in ("n1", name, "n3"):
        assert shipped.files_of(host) == dict(digests(shipped.code))


def test_a_node_that_is_lost_is_the_only_one_that_fails(shipped: Ship) -> None:
    (shipped.directory / "nodes/n2").mkdir(parents=True)
    (shipped.directory / "nodes/n2/work").write_text("a file, and no directory")
    with pytest.raises(NodeError) as caught:
        shipped.to("n1", "n2", "n3")
    assert [failure.host for failure in caught.value.failures] == ["n2"]
    assert shipped.files_of("n3") == dict(digests(shipped.code))
