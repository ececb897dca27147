"""`dslaunch trust` against real sshd: what is asked and written, and what is never replaced."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.loopback import missing
from tests.testbed.sshd import Servers, keygen, public

pytestmark = pytest.mark.sshd
DONE = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A jump host and two nodes, one with keys of three kinds, one with a certificate."""
    if reason := missing():
        pytest.skip(reason)
    with Servers(tmp_path_factory.mktemp("trusting")) as found:
        found.start("bastion")
        found.start("node1", kinds=("ed25519", "ecdsa", "rsa"))
        found.start("node2")
        found.start("signed", authority="authority")
        yield found


@pytest.fixture
def servers(running: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """The servers, of which no key is known, and a cluster file of two nodes."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))
    running.known_hosts.unlink(missing_ok=True)
    running.configure()
    return running


def cluster(servers: Servers, nodes: str = 'host: "node[1-2]"', way: str = "auto") -> Path:
    path = servers.directory / "c.yaml"
    path.write_text(
        f"nodes: [{{{nodes}, slots: 1}}]\ntransport: {way}\n"
        f"ssh: {{config_file: '{servers.config}', connect_timeout: 30}}\n"
    )
    return path


def trust(path: Path, *words: str) -> DONE:
    """Call it without a terminal."""
    command = [sys.executable, "-m", "dslaunch", "trust", str(path), *words]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )


def answered(path: Path, *answers: str, options: tuple[str, ...] = ()) -> DONE:
    """Call it on a terminal at which somebody answers."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dslaunch", "trust", str(path), *options]
    try:
        with os.fdopen(ours, "wb", buffering=0) as terminal:
            terminal.write("".join(f"{answer}\n" for answer in answers).encode())
            return subprocess.run(
                command, stdin=theirs, capture_output=True, text=True, timeout=300, check=False
            )
    finally:
        os.close(theirs)


def listed(path: Path) -> str:
    """What `ssh-keygen -lf` prints of a key."""
    command = ["ssh-keygen", "-lf", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def fingerprint(servers: Servers, name: str, kind: str = "ed25519") -> str:
    return listed(servers.servers[name].directory / f"host_{kind}.pub").split()[1]


def test_all_fingerprints_are_shown_and_one_answer_records_all(servers: Servers) -> None:
    done = answered(cluster(servers), "yes")
    assert done.returncode == 0, done.stderr
    for name in ("node1", "node2"):
        assert fingerprint(servers, name) in done.stderr
        assert servers.ssh_connects(name)
    assert stat.S_IMODE(servers.known_hosts.stat().st_mode) == 0o600
    before = servers.known_hosts.read_bytes()
    again = trust(cluster(servers), "--json")
    statuses = {each["host"]: each["status"] for each in json.loads(again.stdout)}
    assert (again.returncode, statuses) == (0, {"node1": "known", "node2": "known"})
    assert servers.known_hosts.read_bytes() == before


@pytest.mark.parametrize("answer", ["", "y"])
def test_nothing_is_written_without_a_yes(servers: Servers, answer: str) -> None:
    done = answered(cluster(servers), answer)
    assert done.returncode == 1
    assert not servers.known_hosts.exists()


def test_without_a_terminal_and_a_list_it_refuses_and_shows_the_keys(servers: Servers) -> None:
    done = trust(cluster(servers))
    assert done.returncode == 2
    assert "--fingerprints" in done.stderr
    assert fingerprint(servers, "node2") in done.stderr
    assert not servers.known_hosts.exists()


def test_nodes_behind_an_unknown_jump_host_are_asked_after_it_is_recorded(servers: Servers) -> None:
    path = cluster(servers, 'host: "node[1-2]", jump: bastion')
    declined = answered(path, "no")
    assert declined.returncode == 5
    assert fingerprint(servers, "node1") not in declined.stderr
    done = answered(path, "yes", "yes")
    assert done.returncode == 0, done.stderr
    first, second = (fingerprint(servers, name) for name in ("bastion", "node1"))
    assert done.stderr.index(first) < done.stderr.index(second)
    assert len(servers.known_hosts.read_text().splitlines()) == 3


LISTS = {
    "ssh-keygen -lf": lambda s, n: f"256 {fingerprint(s, n)} root@{n} (ED25519)\n",
    "ssh-keyscan": lambda s, n: f"# {n}:22 SSH-2.0-OpenSSH_9.2\n{n} {s.servers[n].key()}\n",
}


@pytest.mark.parametrize("line", LISTS.values(), ids=LISTS.keys())
def test_a_list_is_compared_and_nothing_is_asked(servers: Servers, line: object) -> None:
    assert callable(line)
    file = servers.directory / "list"
    file.write_text(line(servers, "node1") + line(servers, "node2"))
    done = trust(cluster(servers), "--fingerprints", str(file))
    assert done.returncode == 0, done.stderr
    assert servers.ssh_connects("node1")
    assert servers.ssh_connects("node2")


def test_hosts_that_the_list_lacks_or_has_otherwise_are_refused_by_name(servers: Servers) -> None:
    file = servers.directory / "list"
    wrong = fingerprint(servers, "node2")
    file.write_text(f"{wrong} node1\n")
    done = trust(cluster(servers), "--fingerprints", str(file), "--json")
    assert done.returncode == 5
    assert {each["host"]: each["why"] for each in json.loads(done.stdout)} == {
        "node1": "host-key-unlisted",
        "node2": "host-key-unlisted",
    }
    assert not servers.known_hosts.exists()


def test_only_the_listed_kinds_of_keys_are_recorded(servers: Servers) -> None:
    file = servers.directory / "list"
    file.write_text(f"node1 {fingerprint(servers, 'node1', 'ecdsa')}\n")
    done = trust(cluster(servers, "host: node1"), "--fingerprints", str(file))
    assert done.returncode == 0, done.stderr
    (line,) = servers.known_hosts.read_text().splitlines()
    assert line.split()[1] == "ecdsa-sha2-nistp256"
    assert servers.ssh_connects("node1")


def test_a_changed_key_is_never_replaced(servers: Servers, tmp_path: Path) -> None:
    keygen("-t", "ed25519", "-f", str(tmp_path / "other"))
    servers.know(f"{servers.servers['node1'].known_as} {public(tmp_path / 'other')}")
    before = servers.known_hosts.read_text()
    file = servers.directory / "list"
    file.write_text(f"{fingerprint(servers, 'node1')} node1\n")
    for done in (trust(cluster(servers, "host: node1"), "--fingerprints", str(file)),
                 answered(cluster(servers, "host: node1"), "yes")):  # fmt: skip
        assert done.returncode == 5
        assert fingerprint(servers, "node1") in done.stderr
        assert f"{servers.known_hosts}:1" in done.stderr
        assert "ssh-keygen -R" in done.stderr
    assert servers.known_hosts.read_text() == before


def test_a_revoked_key_is_never_recorded(servers: Servers) -> None:
    key = servers.servers["node1"].key()
    servers.know(f"@revoked * {key}")
    assert answered(cluster(servers, "host: node1"), "yes").returncode == 5
    assert servers.known_hosts.read_text() == f"@revoked * {key}\n"
    servers.known_hosts.unlink()
    revoked = servers.directory / "krl"
    revoked.write_text(f"{key}\n")
    servers.configure(f"Host node1\n  RevokedHostKeys {revoked}\n")
    assert answered(cluster(servers, "host: node1"), "yes").returncode == 5
    assert not servers.known_hosts.exists()


def test_a_host_that_a_certificate_authority_vouches_for_needs_no_entry(servers: Servers) -> None:
    authority = public(servers.directory / "authority")
    servers.know(f"@cert-authority * {authority}")
    done = trust(cluster(servers, "host: signed"))
    assert done.returncode == 0, done.stderr
    assert servers.known_hosts.read_text() == f"@cert-authority * {authority}\n"
    # an authority that has not signed this host's key is no reason
    assert trust(cluster(servers, "host: node2")).returncode == 2


@pytest.mark.parametrize(
    ("option", "known_as"),
    [
        ("HashKnownHosts yes", None),
        ("HostKeyAlias pod", "pod"),
    ],
)
def test_entries_are_written_as_ssh_writes_them(
    servers: Servers, option: str, known_as: str | None
) -> None:
    servers.configure(f"Host node1\n  {option}\n")
    assert answered(cluster(servers, "host: node1"), "yes").returncode == 0
    name = servers.known_hosts.read_text().split()[0]
    assert name == known_as if known_as else name.startswith("|1|")
    assert servers.ssh_connects("node1")


def test_a_file_keeps_its_lines_its_mode_and_its_link(servers: Servers, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text("# mine\nelsewhere ssh-ed25519 AAAA")  # without a newline at its end
    real.chmod(0o640)
    servers.known_hosts.symlink_to(real)
    assert answered(cluster(servers, "host: node2"), "yes").returncode == 0
    assert servers.known_hosts.is_symlink()
    assert real.read_text().startswith("# mine\nelsewhere ssh-ed25519 AAAA\n[127.")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert servers.ssh_connects("node2")


@pytest.mark.parametrize("place", ["/dev/null", "none"])
def test_where_nothing_can_be_written_it_says_so(servers: Servers, place: str) -> None:
    servers.configure(f"Host node2\n  UserKnownHostsFile {place}\n")
    done = answered(cluster(servers, "host: node2"), "yes")
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr


def test_a_name_that_is_a_pattern_is_refused(servers: Servers) -> None:
    servers.configure("Host node2\n  HostKeyAlias *\n")
    done = answered(cluster(servers, "host: node2"), "yes")
    assert done.returncode == 2
    assert not servers.known_hosts.exists()


def test_a_host_that_cannot_be_reached_is_named_and_others_are_recorded(servers: Servers) -> None:
    servers.configure("Host node1\n  HostName 127.0.2.250\n  Port 9\n")
    done = answered(cluster(servers), "yes", options=("--json",))
    assert done.returncode == 5
    whys = {each["host"]: each["why"] for each in json.loads(done.stdout)}
    assert whys == {"node1": "refused", "node2": None}
    assert servers.ssh_connects("node2")
