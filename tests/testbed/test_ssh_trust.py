"""Host keys, jump hosts and what a configuration needs, against real sshd and beside `ssh`."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dslaunch import transport
from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Cluster
from dslaunch.errors import NodeError, PlanError
from dslaunch.node import processes
from dslaunch.transport.channel import ChannelOutput
from tests.testbed.loopback import missing
from tests.testbed.sshd import Servers, keygen, public

pytestmark = pytest.mark.sshd
TRANSPORTS = pytest.mark.parametrize("way", ["fabric", "openssh"])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Three servers: `outer` and `inner` as jump hosts, and `node`."""
    if reason := missing():
        pytest.skip(reason)
    with Servers(tmp_path_factory.mktemp("trust")) as found:
        for name in ("outer", "inner", "node"):
            found.start(name, kinds=("ed25519", "ecdsa") if name == "node" else ("ed25519",))
        yield found


@pytest.fixture
def servers(running: Servers, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """The servers, whose keys are all known, for a user without an agent."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    running.know_all()
    running.configure()
    return running


def cluster(servers: Servers, way: str, jump: str = "", host: str = "node") -> Cluster:
    """A cluster of one node."""
    jumping = f", jump: '{jump}'" if jump else ""
    return parse_cluster(
        f"nodes: [{{host: {host}, slots: 1{jumping}}}]\ntransport: {way}\n"
        f"ssh: {{config_file: '{servers.config}', connect_timeout: 30}}\n", "c.yaml",
    )  # fmt: skip


def outcome(given: Cluster, *, choose: bool = True) -> str:
    """`connected`, or the kind of the failure."""
    make = transport.get if choose else transport.make
    way = make(given.transport, given)
    try:
        connection = way.connect(given.nodes[0])
        channel = connection.start("echo here")
        said = ChannelOutput(channel).read()
        channel.close()
        connection.close()
    except NodeError as error:
        return error.failures[0].kind
    finally:
        way.close()
    return "connected" if said == b"here\n" else f"printed {said!r}"


def wrong_key(servers: Servers, name: str) -> str:
    """A known_hosts line with a key that the server does not have."""
    other = servers.directory / "other"
    if not other.exists():
        keygen("-f", str(other))
    return f"{servers.servers[name].known_as} {public(other)}"


# ------------------------------------------------------------------ jump hosts

NESTED = "Host inner\n  ProxyJump outer\n"
WAYS = {
    "ProxyJump of the jump host": (NESTED, "inner"),
    "ProxyJump of the node and of its jump host": (f"Host node\n  ProxyJump inner\n{NESTED}", ""),
    "a list": ("", "outer,inner"),
    "a list in the configuration": ("Host node\n  ProxyJump outer,inner\n", ""),
    "one jump host": ("", "outer"),
}
ALL_WAYS = pytest.mark.parametrize(("blocks", "jump"), WAYS.values(), ids=WAYS.keys())


@TRANSPORTS
@ALL_WAYS
@pytest.mark.parametrize(
    "everyone",
    [
        pytest.param("", id=""),
        pytest.param("  StrictHostKeyChecking no\n", id="lenient", marks=pytest.mark.long),
    ],
)
def test_a_changed_key_of_the_outer_jump_host_is_refused(
    servers: Servers, way: str, blocks: str, jump: str, everyone: str
) -> None:
    servers.configure(blocks, everyone)
    assert outcome(cluster(servers, way, jump)) == "connected"
    servers.know_all(but="outer")
    with servers.known_hosts.open("a") as file:
        file.write(f"{wrong_key(servers, 'outer')}\n")
    assert outcome(cluster(servers, way, jump)) == "host-key-changed"


@TRANSPORTS
@ALL_WAYS
@pytest.mark.parametrize("everyone", ["", "  StrictHostKeyChecking accept-new\n"])
def test_an_unknown_key_of_the_outer_jump_host_is_refused_and_not_learned(
    servers: Servers, way: str, blocks: str, jump: str, everyone: str
) -> None:
    servers.configure(blocks, everyone)
    servers.know_all(but="outer")
    before = servers.known_hosts.read_text()
    assert outcome(cluster(servers, way, jump)) == "host-key-unknown"
    assert servers.known_hosts.read_text() == before


@TRANSPORTS
def test_jump_none_goes_through_no_jump_host_of_the_configuration(
    servers: Servers, way: str
) -> None:
    servers.configure("Host node\n  ProxyJump outer\n")
    servers.know_all(but="outer")
    assert outcome(cluster(servers, way)) == "host-key-unknown"
    assert outcome(cluster(servers, way, "none")) == "connected"


@TRANSPORTS
@pytest.mark.parametrize(
    "blocks",
    [
        "Host node\n  ProxyJump inner\nHost inner\n  ProxyJump node\n",
        "Host *\n  ProxyJump outer\n",
    ],
    ids=["each other", "itself"],
)
def test_a_loop_of_jump_hosts_is_a_failure_of_that_node(
    servers: Servers, way: str, blocks: str
) -> None:
    servers.configure(blocks)
    assert outcome(cluster(servers, way)) == "route"


# ------------------------------------------------------------------ known hosts

Lines = Callable[[Servers], list[str]]


def lines(*templates: str) -> Lines:
    """Lines with `{place}`, `{address}`, `{key}`, `{ecdsa}`, `{other}` (a wrong key)."""

    def fill(servers: Servers) -> list[str]:
        node = servers.servers["node"]
        wrong_key(servers, "node")
        values = {
            "place": node.known_as, "address": node.address, "port": node.port,
            "key": node.key(), "ecdsa": node.key("ecdsa"),
            "other": public(servers.directory / "other"),
        }  # fmt: skip
        return [template.format(**values) for template in templates]

    return fill


def hashed(*templates: str) -> Lines:
    """The same with hashed names."""

    def fill(servers: Servers) -> list[str]:
        file = servers.directory / "to_hash"
        file.write_text("".join(f"{line}\n" for line in lines(*templates)(servers)))
        command = ["ssh-keygen", "-H", "-f", str(file)]
        subprocess.run(command, check=True, capture_output=True)
        return file.read_text().splitlines()

    return fill


TABLE: dict[str, tuple[Lines, str]] = {
    "the key": (lines("{place} {key}"), "connected"),
    "nothing": (lines(), "host-key-unknown"),
    "only another host": (lines("elsewhere {key}"), "host-key-unknown"),
    "another key": (lines("{place} {other}"), "host-key-changed"),
    "another key and the key": (lines("{place} {other}", "{place} {key}"), "connected"),
    "only the key of another type": (lines("{place} {ecdsa}"), "connected"),
    "both types": (lines("{place} {ecdsa}", "{place} {key}"), "connected"),
    "hashed": (hashed("{place} {key}"), "connected"),
    "hashed, another key": (hashed("{place} {other}"), "host-key-changed"),
    "hashed, another host": (hashed("elsewhere {key}"), "host-key-unknown"),
    "a list": (lines("elsewhere,{place},third {key}"), "connected"),
    "a wildcard": (lines("[127.0.*]:* {key}"), "connected"),
    "a star": (lines("* {key}"), "connected"),
    "a question mark": (lines("[127.0.?.?]:{port} {key}"), "connected"),
    "a bracket is no set of characters": (lines("[127.0.[2].3]:{port} {key}"), "host-key-unknown"),
    "a wildcard without port": (lines("127.0.* {key}"), "connected"),
    "a negated name": (lines("*,!{place},!{address} {key}"), "host-key-unknown"),
    "a negated name, but not without port": (lines("*,!{place} {key}"), "connected"),
    "a negated other name": (lines("*,!elsewhere {key}"), "connected"),
    "only a negation": (lines("!elsewhere {key}"), "host-key-unknown"),
    "the host without its port": (lines("{address} {key}"), "connected"),
    "the host without its port, another key": (lines("{address} {other}"), "host-key-unknown"),
    "both with and without port": (
        lines("{place} {other}", "{address} {key}"), "host-key-changed"),
    "another port": (lines("[{address}]:1 {key}"), "host-key-unknown"),
    "revoked": (lines("@revoked {place} {key}"), "host-key-revoked"),
    "revoked and known": (lines("{place} {key}", "@revoked {place} {key}"), "host-key-revoked"),
    "revoked for all": (lines("@revoked * {key}", "{place} {key}"), "host-key-revoked"),
    "revoked, hashed": (hashed("{place} {key}", "@revoked {place} {key}"), "host-key-revoked"),
    "revoked for another host": (
        lines("@revoked elsewhere {key}", "{place} {key}"), "connected"),
    "another key revoked": (lines("@revoked * {other}", "{place} {key}"), "connected"),
    "an unknown marker": (lines("@trusted {place} {key}"), "host-key-unknown"),
    "comments, blanks, garbage": (
        lines("", "# {place} {other}", "x", "\x00\xff", "{place} ssh-ed25519 !!!", "{place}",
              "{place} ssh-rsa AAAA", "  {place}\t{key} a comment"), "connected"),
    "a key under the name of another type": (
        lines("{place} ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAA"), "host-key-unknown"),
    "a certificate authority of others": (
        lines("@cert-authority elsewhere {other}", "{place} {key}"), "connected"),
    "a certificate authority, and the key": (
        lines("@cert-authority * {other}", "{place} {key}"), "connected"),
    "a certificate authority alone": (lines("@cert-authority * {other}"), "host-key-unknown"),
    "the key as a certificate authority": (lines("@cert-authority * {key}"), "host-key-unknown"),
    "in capitals": (lines("{place},ELSEWHERE {key}"), "connected"),
}  # fmt: skip


@pytest.mark.parametrize(("known", "expected"), TABLE.values(), ids=TABLE.keys())
def test_known_hosts_are_decided_as_ssh_decides(
    servers: Servers, known: Lines, expected: str
) -> None:
    servers.know(*known(servers))
    assert servers.ssh_connects() == (expected == "connected")
    assert outcome(cluster(servers, "fabric"), choose=False) == expected
    assert outcome(cluster(servers, "openssh")) == expected


def test_a_revoked_key_is_refused_at_every_connection(servers: Servers) -> None:
    servers.know(*lines("@revoked {place} {key}", "{place} {key}")(servers))
    given = cluster(servers, "fabric")
    way = transport.get("fabric", given)
    for _ in range(3):
        with pytest.raises(NodeError) as caught:
            way.connect(given.nodes[0])
        assert caught.value.failures[0].kind == "host-key-revoked"
    way.close()


@TRANSPORTS
@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("HostKeyAlias pod", "connected"),
        ("HostKeyAlias elsewhere", "host-key-unknown"),
        ("UserKnownHostsFile /nonexistent {known}", "connected"),
        ("UserKnownHostsFile {directory}/known_%k", "host-key-unknown"),
        ("UserKnownHostsFile none", "host-key-unknown"),
        ("GlobalKnownHostsFile {known}\n  UserKnownHostsFile /dev/null", "connected"),
        ("NoHostAuthenticationForLocalhost yes\n  UserKnownHostsFile none", "host-key-unknown"),
        ("StrictHostKeyChecking no\n  UserKnownHostsFile none", "host-key-unknown"),
    ],
)
def test_the_options_about_host_keys_hold(
    servers: Servers, way: str, option: str, expected: str
) -> None:
    servers.know(*lines("{place} {key}", "pod {key}")(servers))
    filled = option.format(known=servers.known_hosts, directory=servers.directory)
    servers.configure(f"Host node\n  {filled}\n")
    assert outcome(cluster(servers, way)) == expected


# ------------------------------------------------------------------ what needs OpenSSH

CHOICES = {
    "nothing special": ("", "fabric"),
    "harmless options": ("Host *\n  ControlMaster auto\n  ForwardAgent yes\n", "fabric"),
    "an option of another host": ("Host elsewhere\n  Ciphers aes128-ctr\n", "fabric"),
    "Match host": ("Match originalhost node\n  LogLevel DEBUG\n", "fabric"),
    "Match all": ("Match all\n  LogLevel DEBUG\n", "fabric"),
    "Match exec": ('Match exec "true"\n  LogLevel DEBUG\n', "openssh"),
    "Match exec of another host": ('Match originalhost other exec "true"\n', "fabric"),
    "Match final": ("Match final all\n  LogLevel DEBUG\n", "openssh"),
    "ProxyCommand": ("Host node\n  ProxyCommand {nc}\n", "openssh"),
    "KnownHostsCommand": ("Host node\n  KnownHostsCommand /bin/cat {known}\n", "openssh"),
    "Ciphers": ("Host node\n  Ciphers aes128-ctr\n", "openssh"),
    "RevokedHostKeys": ("Host node\n  RevokedHostKeys {empty}\n", "openssh"),
    "CheckHostIP": ("Host node\n  CheckHostIP yes\n", "openssh"),
    "an included option": ("Include {included}\n", "openssh"),
    "Include for another host": ("Host elsewhere\n  Include {included}\n", "fabric"),
    "an option in capitals": ("HOST node\n  CIPHERS=aes128-ctr\n", "openssh"),
}  # fmt: skip


@pytest.mark.parametrize(("blocks", "expected"), CHOICES.values(), ids=CHOICES.keys())
def test_the_transport_is_chosen_by_the_configuration_and_connects_as_ssh_does(
    servers: Servers, blocks: str, expected: str
) -> None:
    node, directory = servers.servers["node"], servers.directory
    (directory / "included").write_text("Host node\n  MACs hmac-sha2-256\n")
    (directory / "empty").write_text("")
    relay = Path(__file__).with_name("relay.py")
    connect = f"{sys.executable} {relay} {node.address} {node.port}"
    values = {
        "nc": connect, "known": servers.known_hosts, "included": directory / "included",
        "empty": directory / "empty",
    }  # fmt: skip
    servers.configure(blocks.format(**values))
    given = cluster(servers, "auto")
    assert transport.choose("auto", given).name == expected
    assert servers.ssh_connects()
    assert outcome(given) == "connected"


@pytest.mark.parametrize("option", ["Ciphers aes128-ctr", "CheckHostIP yes", "ProxyCommand false"])
def test_fabric_is_refused_where_it_would_be_less_strict(servers: Servers, option: str) -> None:
    servers.configure(f"Host node\n  {option}\n")
    with pytest.raises(PlanError) as caught:
        transport.get("fabric", cluster(servers, "fabric"))
    assert option.split()[0].lower() in caught.value.message.lower()


def test_fabric_is_used_with_a_remark_where_it_would_merely_lack_something(
    servers: Servers,
) -> None:
    servers.configure("Host node\n  VerifyHostKeyDNS yes\n")
    chosen = transport.choose("fabric", cluster(servers, "fabric"))
    assert (chosen.name, chosen.notable) == ("fabric", True)
    assert outcome(cluster(servers, "fabric")) == "connected"


def test_a_host_certificate_is_verified_by_openssh(servers: Servers) -> None:
    if "signed" not in servers.servers:
        servers.start("signed", authority="authority")
    signed = servers.servers["signed"]
    servers.configure()
    authority = public(servers.directory / "authority")
    servers.know(f"@cert-authority {signed.known_as} {authority}")
    given = cluster(servers, "auto", host="signed")
    chosen = transport.choose("auto", given)
    assert (chosen.name, chosen.notable) == ("openssh", True)
    assert servers.ssh_connects("signed")
    assert outcome(given) == "connected"
    revoked = f"@revoked * {authority}"
    servers.know(f"@cert-authority {signed.known_as} {authority}", revoked)
    assert not servers.ssh_connects("signed")
    assert outcome(given) == "host-key-revoked"
    servers.know(f"@cert-authority {signed.known_as} {servers.servers['node'].key()}")
    assert not servers.ssh_connects("signed")
    assert outcome(given) == "host-key-unknown"


def test_a_list_of_revoked_keys_is_applied(servers: Servers) -> None:
    node, revoked = servers.servers["node"], servers.directory / "revoked"
    revoked.write_text(f"{node.key()}\n{node.key('ecdsa')}\n")
    servers.configure(f"Host node\n  RevokedHostKeys {revoked}\n")
    assert not servers.ssh_connects()
    assert outcome(cluster(servers, "auto")) == "host-key-revoked"


def test_a_user_certificate_logs_in_by_openssh(servers: Servers) -> None:
    directory = servers.directory
    if "certified" not in servers.servers:
        keygen("-f", str(directory / "user_ca"))
        keygen("-f", str(directory / "unlisted"))
        sign = ["ssh-keygen", "-q", "-s", str(directory / "user_ca"), "-I", "id", "-n"]
        subprocess.run([*sign, getpass.getuser(), str(directory / "unlisted.pub")], check=True)
        trust = f"TrustedUserCAKeys {directory}/user_ca.pub\nAuthorizedKeysFile none\n"
        servers.start("certified", options=trust)
    servers.know_all()
    servers.configure(f"Host certified\n  IdentityFile {directory}/unlisted\n")
    given = cluster(servers, "auto", host="certified")
    assert transport.choose("auto", given).name == "openssh"
    assert servers.ssh_connects("certified")
    assert outcome(given) == "connected"


def test_a_key_with_a_passphrase_is_taken_from_the_agent(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With IdentitiesOnly, where Paramiko offers no key of the agent."""
    key = tmp_path / "user"
    key.write_bytes((servers.directory / "user").read_bytes())
    key.chmod(0o600)
    socket = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        wait_until(Path(socket).exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        subprocess.run(["ssh-add", "-q", str(key)], check=True, stderr=subprocess.DEVNULL)
        public_key = (servers.directory / "user.pub").read_text()
        encrypt = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)]
        subprocess.run(encrypt, check=True, stdout=subprocess.DEVNULL)
        (tmp_path / "user.pub").write_text(public_key)
        text = servers.configure().read_text().replace(f"{servers.directory}/user\n", f"{key}\n")
        servers.config.write_text(text)
        given = cluster(servers, "auto")
        assert transport.choose("auto", given).name == "openssh"
        assert outcome(given) == "connected"
    finally:
        agent.terminate()
        agent.wait()


# ------------------------------------------------------------------ master connections

HOLD = """
import os, signal, sys
from dslaunch import transport
from dslaunch.cluster.load import parse_cluster
given = parse_cluster(sys.argv[1], "c.yaml")
way = transport.get("openssh", given)
connections = [way.connect(node) for node in given.nodes]
channel = connections[0].start("sleep 1000")
print("connected", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("jump", ["", "outer"])
def test_master_connections_end_with_a_launcher_that_is_killed(servers: Servers, jump: str) -> None:
    jumping = f", jump: {jump}" if jump else ""
    text = f"nodes: [{{host: node, slots: 1{jumping}}}]\nssh: {{config_file: '{servers.config}'}}\n"
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # sockets need a short path
        environ = {**os.environ, "TMPDIR": directory}
        done = subprocess.run(
            [sys.executable, "-c", HOLD, text], env=environ, text=True, capture_output=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (-9, "connected\n"), done.stderr
        wait_until(lambda: not with_argument(directory))
        wait_until(lambda: not list(Path(directory).iterdir()))


def with_argument(text: str) -> list[int]:
    """The processes on whose command line a text stands."""
    return [pid for pid in processes.pids() if text.encode() in command_line(pid)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something is true. Fails after 15 s."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("name", ["a" * 120, "a b", "100%d", 'quo"te', "$A", "${A}"])
def test_a_temporary_directory_of_any_name_will_do(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with tempfile.TemporaryDirectory(prefix=name, dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        assert outcome(cluster(servers, "openssh")) == "connected"
        assert not list(Path(directory).iterdir())


def test_a_login_shell_that_is_no_shell_is_no_obstacle(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/false")
    assert outcome(cluster(servers, "openssh")) == "connected"


def test_forwardings_of_the_users_configuration_are_not_set_up(servers: Servers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        servers.configure(
            f"Host node\n  LocalForward 127.0.0.1:{port} 127.0.0.1:1\n  ExitOnForwardFailure yes\n"
        )
        assert outcome(cluster(servers, "openssh")) == "connected"
