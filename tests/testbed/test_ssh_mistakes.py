"""The commonest mistakes with SSH, against real sshd, with both clients: same kind, same words."""

from __future__ import annotations

import contextlib
import http.server
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dslaunch import transport
from dslaunch.cluster.failures import folded
from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Cluster
from dslaunch.errors import NodeError, NodeFailure
from tests.testbed.loopback import missing
from tests.testbed.sshd import Servers, keygen, public

pytestmark = pytest.mark.sshd


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A jump host, a node, a node that takes passwords only, and one that is always full."""
    if reason := missing():
        pytest.skip(reason)
    with Servers(tmp_path_factory.mktemp("mistakes")) as found:
        found.start("bastion")
        found.start("node")
        found.start("prompting", options="PubkeyAuthentication no\nPasswordAuthentication yes\n")
        found.start("full", options="MaxStartups 1:100:1\n")
        yield found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without any key, and no agent."""
    (tmp_path / ".ssh").mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


@pytest.fixture
def servers(running: Servers, home: Path) -> Servers:
    """The servers, whose keys are all known, for a user without an agent."""
    running.know_all()
    running.configure()
    return running


@dataclass
class World:
    """What a mistake is made in."""

    servers: Servers
    home: Path
    node: str = "host: node"
    blocks: str = ""
    identity: str = "{user}"
    """The IdentityFile of the configuration; empty: none."""
    timeout: int = 30
    """Seconds in which a connection must be there: only a server that is waited for needs few."""

    def cluster(self, way: str) -> Cluster:
        text = self.servers.configure(self.blocks).read_text()
        usual = f"  IdentityFile {self.servers.directory}/user\n"
        identity = self.identity.format(user=self.servers.directory / "user", home=self.home)
        line = f"  IdentityFile {identity}\n" if identity else ""
        self.servers.config.write_text(text.replace(usual, line))
        return parse_cluster(
            f"nodes: [{{{self.node}, slots: 1}}]\ntransport: {way}\n"
            f"ssh: {{config_file: '{self.servers.config}', connect_timeout: {self.timeout}}}\n",
            "c.yaml",
        )  # fmt: skip


def failed(given: Cluster) -> NodeFailure:
    way = transport.make(given.transport, given)
    try:
        with pytest.raises(NodeError) as caught:
            way.connect(given.nodes[0])
    finally:
        way.close()
    return caught.value.failures[0]


def no_key(world: World) -> None:
    world.identity = ""
    world.blocks = ""


def key_missing(world: World) -> None:
    world.identity = "{home}/.ssh/nope"


def own_key_missing(world: World) -> None:
    world.identity = ""
    world.node = f"host: node, identity_file: {world.home}/.ssh/typo"


def passphrase(world: World) -> None:
    key = world.home / ".ssh" / "locked"
    lock = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)]
    subprocess.run(lock, check=True)
    world.identity = str(key)


def standard_passphrase(world: World) -> None:
    key = world.home / ".ssh" / "id_ed25519"
    lock = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)]
    subprocess.run(lock, check=True)
    world.identity = ""


def other_key(world: World) -> None:
    keygen("-t", "ed25519", "-f", str(world.home / ".ssh" / "other"))
    world.identity = "{home}/.ssh/other"


def wrong_user(world: World) -> None:
    world.node = "host: node, user: nobody-here"


def unknown_jump(world: World) -> None:
    world.node = "host: node, jump: no-such-bastion.invalid"


def refusing_jump(world: World) -> None:
    world.blocks = "Host closed\n  HostName 127.0.2.250\n  Port 9\n"
    world.node = "host: node, jump: closed"


def unknown_key_of_jump(world: World) -> None:
    world.servers.know_all(but="bastion")
    world.node = "host: node, jump: bastion"


def unknown_host_key(world: World) -> None:
    world.servers.know()


def changed_host_key(world: World) -> None:
    other = world.home / "otherhost"
    keygen("-t", "ed25519", "-f", str(other))
    world.servers.know("# a comment", f"{world.servers.servers['node'].known_as} {public(other)}")


def passwords_only(world: World) -> None:
    world.node = "host: prompting"


def no_name(world: World) -> None:
    world.node = "host: no-such-node.invalid"


def refused(world: World) -> None:
    world.blocks = "Host closed\n  HostName 127.0.2.250\n  Port 9\n"
    world.node = "host: closed"


def refused_behind_jump(world: World) -> None:
    world.blocks = "Host closed\n  HostName 127.0.2.250\n  Port 9\n"
    world.node = "host: closed, jump: bastion"


def public_key_alone(world: World) -> None:
    """The public key is named in place of the private one."""
    named = world.home / ".ssh" / "named.pub"
    named.write_text((world.servers.directory / "user.pub").read_text())
    world.identity = str(named)


def another_is_missing(world: World) -> None:
    """The first key file is missing: both clients go on to the second."""
    other_key(world)
    missing_too = world.home / ".ssh" / "nope"
    world.blocks = f"Host node\n  IdentityFile {missing_too}\n"


MISTAKES: dict[str, tuple[Callable[[World], None], str, tuple[str, ...]]] = {
    "no key at all": (no_key, "no-key", ("no ssh-agent", "ssh-keygen", "ssh-copy-id")),
    "a key file that is missing": (key_missing, "key-missing", ("{home}/.ssh/nope",)),
    "its own key file is missing": (own_key_missing, "key-missing", ("{home}/.ssh/typo",)),
    "a public key": (public_key_alone, "key-unreadable", ("{home}/.ssh/named.pub", "ssh-agent")),
    "a key with a passphrase": (passphrase, "key-passphrase", ("{home}/.ssh/locked", "ssh-add")),
    "a standard key with a passphrase": (
        standard_passphrase, "key-passphrase", ("{home}/.ssh/id_ed25519", "ssh-add")),
    "a key that is not authorized": (
        other_key, "authentication", ("sshd accepts: ", "publickey", "{home}/.ssh/other")),
    "the wrong user": (wrong_user, "authentication", ("user nobody-here", "publickey")),
    "one key missing, another refused": (
        another_is_missing, "authentication", ("offered: {home}/.ssh/other", "nope (missing)")),
    "an unknown jump host": (unknown_jump, "name", ("jump host no-such-bastion.invalid",)),
    "a jump host without sshd": (refusing_jump, "refused", ("jump host closed", "port 9")),
    "an unknown key of the jump host": (
        unknown_key_of_jump, "host-key-unknown", ("jump host bastion", "dslaunch trust")),
    "an unknown host key": (unknown_host_key, "host-key-unknown", ("dslaunch trust",)),
    "a changed host key": (
        changed_host_key, "host-key-changed", ("{new}", "{old}", "{known}:2", "ssh-keygen -R")),
    "a server that takes passwords only": (
        passwords_only, "authentication", ("password", "PubkeyAuthentication")),
    "a name that does not resolve": (no_name, "name", ("/etc/hosts",)),
    "nobody listens": (refused, "refused", ("port 9",)),
    "nobody listens behind a jump host": (
        refused_behind_jump, "behind-jump", ("port 9", "bastion", "AllowTcpForwarding")),
}  # fmt: skip


def fingerprint(path: Path) -> str:
    done = subprocess.run(
        ["ssh-keygen", "-lf", str(path)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[1]


@pytest.mark.parametrize(("make", "kind", "told"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_alike_by_both_clients(
    servers: Servers, home: Path, make: Callable[[World], None], kind: str, told: tuple[str, ...]
) -> None:
    world = World(servers, home)
    make(world)
    found = [failed(world.cluster(way)) for way in ("fabric", "openssh")]
    assert [failure.kind for failure in found] == [kind, kind]
    values = {"home": home, "known": servers.known_hosts}
    if kind == "host-key-changed":
        values["new"] = fingerprint(servers.servers["node"].directory / "host_ed25519.pub")
        values["old"] = fingerprint(home / "otherhost.pub")
    for failure in found:
        text = f"{failure.message}\n{failure.hint}"
        assert [word for word in told if word.format(**values) not in text] == []
    assert found[0].common == found[1].common
    assert found[0].hint == found[1].hint


def test_a_key_that_others_can_read_is_named(servers: Servers, home: Path) -> None:
    """OpenSSH leaves such a key out; Paramiko takes it."""
    key = home / ".ssh" / "open"
    key.write_bytes((servers.directory / "user").read_bytes())
    key.chmod(0o644)
    found = failed(World(servers, home, identity=str(key)).cluster("openssh"))
    assert found.kind == "key-permissions"
    assert str(key) in found.message
    assert "0644" in found.message


@contextmanager
def agent(home: Path) -> Iterator[Path]:
    """A running agent without keys."""
    place = home / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield place
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("way", ["fabric", "openssh"])
def test_a_refusal_of_the_agent_is_named(
    servers: Servers, home: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is to be confirmed, and nobody can be asked."""
    with agent(home) as place:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        monkeypatch.setenv("SSH_ASKPASS", "/bin/false")
        add = ["ssh-add", "-q", "-c", str(servers.directory / "user")]
        subprocess.run(add, check=True, stderr=subprocess.DEVNULL)
        world = World(servers, home, identity="")
        text = world.cluster(way)
        servers.config.write_text(servers.config.read_text().replace("IdentitiesOnly yes", ""))
        found = failed(text)
    assert found.kind == "agent-refused"
    assert "ssh-add -X" in (found.hint or "")


@pytest.mark.parametrize("way", ["fabric", "openssh"])
def test_an_agent_that_is_gone_is_named(
    servers: Servers, home: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "gone"))
    found = failed(World(servers, home, identity="").cluster(way))
    assert found.kind == "no-key"
    assert "ssh-agent does not answer" in found.message


@pytest.mark.parametrize("way", ["fabric", "openssh"])
def test_a_web_server_is_no_ssh_server(servers: Servers, home: Path, way: str) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        world = World(servers, home, node=f"host: 127.0.0.1, port: {server.server_port}")
        assert failed(world.cluster(way)).kind in ("not-ssh", "throttled")
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("way", ["fabric", "openssh"])
def test_a_server_without_a_banner_is_a_timeout_with_its_seconds(
    servers: Servers, home: Path, way: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        world = World(servers, home, node=f"host: 127.0.0.1, port: {port}", timeout=2)
        found = failed(world.cluster(way))
    assert found.kind == "timeout"
    assert "within 2 s" in found.message
    assert "sent no banner" in found.message


@pytest.mark.parametrize("way", ["fabric", "openssh"])
def test_a_full_server_is_named(servers: Servers, home: Path, way: str) -> None:
    full = servers.servers["full"]
    with socket.create_connection((full.address, full.port)) as holding:
        holding.recv(10)  # the one that may be there without having logged in
        found = failed(World(servers, home, node="host: full").cluster(way))
    assert found.kind == "throttled"
    assert "MaxStartups" in (found.hint or "")


@pytest.mark.parametrize("way", ["fabric", "openssh"])
@pytest.mark.parametrize("kind", ["host-key-unknown", "no-key", "authentication"])
def test_the_same_mistake_on_many_nodes_is_one_line_with_one_hint(
    servers: Servers, home: Path, way: str, kind: str
) -> None:
    node = servers.servers["node"]
    blocks = f"Host n*\n  HostName {node.address}\n  Port {node.port}\n"
    world = World(servers, home, node='host: "n[1-6]"', blocks=blocks)
    if kind == "host-key-unknown":
        servers.know()
    elif kind == "no-key":
        world.identity = ""
    else:
        other_key(world)
    given = world.cluster(way)
    with contextlib.closing(transport.make(way, given)) as made, ThreadPoolExecutor(8) as pool:
        connecting = [pool.submit(made.connect, node) for node in given.nodes]
        errors = [one.exception() for one in connecting]
    failures = [f for error in errors if isinstance(error, NodeError) for f in error.failures]
    troubles = folded(failures)
    assert len(failures) == 6
    assert [str(trouble).partition(":")[0] for trouble in troubles] == ["n[1-6]"]
    assert {failure.kind for failure in failures} == {kind}
    assert len({trouble.hint for trouble in troubles}) == 1
