"""Reading ssh_config, compared with what `ssh -G` says of the same files."""

from __future__ import annotations

import base64
import getpass
import hmac
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dslaunch.cluster.model import Node, Ssh
from dslaunch.errors import ConfigError
from dslaunch.transport.ssh.config import read
from dslaunch.transport.ssh.files import KnownHosts, client_of
from dslaunch.transport.ssh.known_hosts import EntryIndex, HostName, decide, parse
from dslaunch.transport.ssh.patterns import matches_any
from dslaunch.transport.ssh.route import Hop, RouteError, expand, parse_hop, route

NODE = Node("pod-n1", (0,))
NEEDS_SSH = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
FILES = {
    "first value wins": "Host pod-*\n  User a\nHost *\n  User b\n  Port 2\n",
    "equals signs and quotes":
        "Host=pod-n1\n\tUser = \"a\"\n  Port=7 # comment\nIdentityFile='/k'\n",
    "negation": "Host * !pod-n1\n  User a\nHost pod-* !pod-n2\n  Port 9\n",
    "HostName with a token": "Host pod-*\n  HostName %h.site.org\n",
    "identities add up": "Host pod-n1\n  IdentityFile /a\nHost *\n  IdentityFile /b\n",
    "Match":
        "Match originalhost pod-n1,x\n  Port 3\nMatch user no\n  Port 4\nMatch all\n  User c\n",
    "Match host after HostName": "Host pod-*\n  HostName h1\nMatch host h1\n  Port 5\n",
    "patterns of Match in capitals": "Match host POD-*\n  Port 3\n",
    "patterns of originalhost in capitals": "Match originalhost POD-*\n  Port 4\n",
    "patterns of Host in capitals": "Host POD-*\n  Port 3\n",
    "a name with a hash": "Include {dir}/a#b\nHost pod-n1\n  User a#b #c\n",
    "negated Match": "Match !originalhost pod-n1\n  Port 3\nMatch !user nobody\n  Port 6\n",
    "Match localuser": f"Match localuser {getpass.getuser()}\n  Port 8\n",
    "Include": "Include {dir}/more\nHost *\n  Port 1\n",
    "Include in a block": "Host other\n  Include {dir}/more\nHost pod-n1\n  User z\n",
    "Include, then the block goes on": "Host pod-n1\n  Include {dir}/block\n  User z\n",
    "keywords in capitals": "HOST pod-n1\n  PORT 12\n  user ABC\n",
    "spaces and tabs": "  Host\t pod-n1  \n\t\tPort\t 13 \n",
    "ProxyJump before ProxyCommand": "Host p*\n  ProxyJump j\nHost pod-n1\n  ProxyCommand x %h\n",
    "ProxyCommand before ProxyJump": "Host pod-n1\n  ProxyCommand x %h\nHost *\n  ProxyJump j\n",
    "ProxyJump none": "Host pod-n1\n  ProxyJump none\nHost *\n  ProxyJump j\n",
    "known hosts":
        "Host *\n  UserKnownHostsFile /a /b\n  GlobalKnownHostsFile /c\n  HostKeyAlias x\n",
}  # fmt: skip

BLOCK = "Host *\n  Port 78\n"


def hops(text: str, directory: Path, node: Node = NODE) -> tuple[Hop, ...]:
    """The way to a node by a configuration."""
    file = directory / "config"
    file.write_text(text.replace("{dir}", str(directory)))
    return route(client_of(Ssh(config_file=str(file)), {}), node)


def dumped(directory: Path) -> dict[str, list[str]]:
    """What `ssh -G` says."""
    command = ["ssh", "-G", "-F", str(directory / "config"), NODE.host]
    done = subprocess.run(command, text=True, capture_output=True, check=True)
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, []).append(value)
    return found


@NEEDS_SSH
@pytest.mark.parametrize("text", FILES.values(), ids=FILES.keys())
def test_options_are_read_as_ssh_reads_them(text: str, tmp_path: Path) -> None:
    for name, more in (("more", "Host pod-n1\n  Port 77\n"), ("block", BLOCK), ("a#b", BLOCK)):
        (tmp_path / name).write_text(more)
        (tmp_path / name).chmod(0o600)
    hop = hops(text, tmp_path)[-1]
    wanted = dumped(tmp_path)
    assert [hop.host] == wanted["hostname"]
    assert [hop.user] == wanted["user"]
    assert [str(hop.port)] == wanted["port"]
    assert [hop.jump] == wanted.get("proxyjump", [None])
    assert [hop.proxy_command] == wanted.get("proxycommand", [None])
    if hop.identity_files:
        assert [str(file) for file in hop.identity_files] == wanted["identityfile"]
    if text == FILES["known hosts"]:
        assert [str(file) for file in hop.known_hosts] == ["/a", "/b", "/c"]
        assert str(hop.known_as) == "x"


@pytest.mark.parametrize(
    ("text", "jump", "way"),
    [
        ("", None, ["pod-n1"]),
        ("", "a,b,c", ["a", "b", "c", "pod-n1"]),
        ("Host pod-n1\n  ProxyJump b\nHost b\n  ProxyJump a\n", None, ["a", "b", "pod-n1"]),
        # the first host of a list is reached by its own configuration, the others are not
        ("Host b\n  ProxyJump x\nHost a\n  ProxyJump y\n", "a,b", ["y", "a", "b", "pod-n1"]),
        ("Host pod-n1\n  ProxyJump b\n", "none", ["pod-n1"]),
        ("Host pod-n1\n  ProxyCommand x\n", "b", ["b", "pod-n1"]),
        ("Host *\n  ProxyJump b\nHost b\n  User x\n", "none", ["pod-n1"]),
    ],
)
def test_every_host_of_a_way_is_resolved(
    text: str, jump: str | None, way: list[str], tmp_path: Path
) -> None:
    found = hops(text, tmp_path, Node("pod-n1", (0,), jump=jump))
    assert [hop.alias for hop in found] == way


@pytest.mark.parametrize(
    "text",
    [
        "Host pod-n1\n  ProxyJump pod-n1\n",
        "Host pod-n1\n  ProxyJump b\nHost b\n  ProxyJump pod-n1\n",
        "Host *\n  ProxyJump %hx\n",
        "Host pod-n1\n  ProxyJump a b:c:d\n  Port x\n",
        "Host pod-n1\n  HostName %q\n",
        "Host pod-n1\n  Port ²\n",
        f"Host pod-n1\n  Port {'9' * 5000}\n",
    ],
)
def test_a_way_that_cannot_be_resolved_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(RouteError):
        hops(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bastion", (None, "bastion", None)),
        ("me@bastion:2222", ("me", "bastion", 2222)),
        ("me@[fe80::1]:22", ("me", "fe80::1", 22)),
        ("ssh://me@bastion:2222", ("me", "bastion", 2222)),
        ("ssh://me@bastion:2222/", ("me", "bastion", 2222)),
        ("me@site.org@bastion", ("me@site.org", "bastion", None)),
    ],
)
def test_a_jump_host_is_read(text: str, expected: tuple[str | None, str, int | None]) -> None:
    found = parse_hop(text)
    assert (found.user, found.alias, found.port) == expected


@pytest.mark.parametrize("text", ["", "@b", "me@", "b:0", "b:65536", "b:²", "b:" + "9" * 5000])
def test_what_is_no_jump_host_is_an_error(text: str) -> None:
    with pytest.raises(RouteError):
        parse_hop(text)


def test_tokens_and_variables_are_replaced_or_refused() -> None:
    assert expand("%h-%%-${A}", {"h": "x"}, {"A": "y"}) == "x-%-y"
    for text in ("%z", "${B}", "100%"):
        with pytest.raises(RouteError):
            expand(text, {}, {})


def test_a_file_that_includes_itself_ends(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(f"Include {file}\nHost *\n  Port 1\n")
    assert read(file, tmp_path)


@pytest.mark.parametrize(
    "data", [b"\x00\xff\xfe", b"@revoked", b"|1|x|y ssh-rsa AAAA", b"a" * 10**6]
)
def test_garbage_in_known_hosts_files_is_left_out(data: bytes) -> None:
    assert parse(data.decode(errors="surrogateescape")) == ()


def test_a_key_behind_four_megabytes_of_others_is_revoked_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIGUfxfoeF7qVV8vtVoTTFyo8YqHEIrNb1o0F0pEVY+Js"
    line = "#" + "x" * 1023 + "\n"
    file.write_text(line * 5_000 + f"@revoked n1 ssh-ed25519 {key}\nn1 ssh-ed25519 {key}\n")
    entries = KnownHosts().entries((file,))
    assert decide(entries, HostName("n1"), entries[0].key) == "revoked"


def test_an_index_finds_the_entries_that_name_a_host_in_their_order() -> None:
    keys = [base64.b64encode(_blob(number)).decode() for number in range(8)]
    salt, name_digest = b"salt", hmac.digest(b"salt", b"n1", "sha1")
    hashed = "|".join(
        ["", "1", base64.b64encode(salt).decode(), base64.b64encode(name_digest).decode()]
    )
    names = ["n2", "*,!n1", "n1,10.0.0.1", "[n1]:2222", hashed, "N1", "n?", "[n2]:2222"]
    lines = [f"{name} ssh-ed25519 {key}" for name, key in zip(names, keys, strict=True)]
    index = EntryIndex(parse("\n".join(lines)))
    assert [entry.line for entry in index.about(HostName("n1", 2222))] == [2, 3, 4, 5, 6, 7]
    assert [entry.line for entry in index.about(HostName("n1"))] == [3, 5, 6, 7]
    assert [entry.line for entry in index.about(HostName("n3"))] == [2, 7]


def _blob(number: int) -> bytes:
    return b"\0\0\0\x0bssh-ed25519" + bytes([number])


@pytest.mark.parametrize("size", [2**30, 2**40])
def test_a_file_that_is_too_large_is_an_error_and_not_empty(tmp_path: Path, size: int) -> None:
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, size)
    with pytest.raises(ConfigError, match="larger than"):
        KnownHosts().entries((file,))
    with pytest.raises(ConfigError, match="larger than"):
        read(file, tmp_path)


@pytest.mark.parametrize("name", ["${HOME}/more", "%d/more"])
def test_a_variable_in_an_include_is_for_openssh_to_replace(tmp_path: Path, name: str) -> None:
    hop = hops(f"Include {name}\n", tmp_path)[-1]
    assert [directive.keyword for directive in hop.options.undecided] == [""]


def test_a_device_or_pipe_as_configuration_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read(tmp_path / "pipe", tmp_path) == ()
    assert read(Path("/dev/zero"), tmp_path) == ()


@pytest.mark.parametrize(
    ("patterns", "found"),
    [("*", True), ("*,!a1", False), ("!b", False), ("a?", True), ("[a]1", False), ("A1", False)],
)
def test_patterns_match_as_in_openssh(patterns: str, found: bool) -> None:
    assert matches_any("a1", patterns.split(",")) is found
