"""What needs OpenSSH: the table of options, the user's keys, and the decision."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from dslaunch.cluster.model import Node, Ssh
from dslaunch.errors import ConfigError, ErrorCode, PlanError, ToolMissingError
from dslaunch.transport.classify import from_words
from dslaunch.transport.ssh.choice import Inspection, decide
from dslaunch.transport.ssh.files import client_of
from dslaunch.transport.ssh.keys import agent_key_types, has_ticket, kind_of
from dslaunch.transport.ssh.needs import (
    APPLIED,
    RULES,
    WITHOUT_EFFECT,
    Need,
    Surroundings,
    needs_of_keys,
    needs_of_options,
)  # fmt: skip
from dslaunch.transport.ssh.route import route
from dslaunch.transport.ssh.strict import configuration


def string(data: bytes) -> bytes:
    """A string as SSH transmits it."""
    return len(data).to_bytes(4, "big") + data


def needs(text: str, directory: Path, around: Surroundings | None = None) -> list[Need]:
    """What the options of one node need."""
    file = directory / "config"
    file.write_text(text)
    client = client_of(Ssh(config_file=str(file)), {})
    (hop,) = route(client, Node("n1", (0,)))
    return list(needs_of_options(hop, around or Surroundings()))


OPTIONS = [
    ("GSSAPIAuthentication yes", False, None),
    ("GSSAPIAuthentication yes", True, False),
    ("GSSAPIAuthentication no", True, None),
    ("GSSAPIKeyExchange yes", True, False),
    ("PKCS11Provider /usr/lib/p11.so", False, False),
    ("PKCS11Provider none", False, None),
    ("CertificateFile ~/.ssh/c-cert.pub", False, False),
    ("HostKeyAlgorithms ssh-ed25519", False, True),
    ("PubkeyAcceptedAlgorithms -ssh-rsa", False, True),
    ("KexAlgorithms curve25519-sha256", False, True),
    ("MACs hmac-sha2-256", False, True),
    ("RequiredRSASize 3072", False, True),
    ("RevokedHostKeys /etc/ssh/revoked", False, True),
    ("CanonicalizeHostname yes", False, True),
    ("CanonicalizeHostname no", False, None),
    ("VerifyHostKeyDNS ask", False, False),
    ("VerifyHostKeyDNS no", False, None),
    ("AddressFamily any", False, None),
    ("AddressFamily inet6", False, True),
    ("BindInterface ib0", False, True),
    ("IdentityAgent ~/.agent", False, False),
    ("IdentityAgent SSH_AUTH_SOCK", False, None),
    ("PubkeyAuthentication no", False, False),
    ("ProxyUseFdpass yes", False, True),
    ("StrictHostKeyChecking no", False, None),
    ("UpdateHostKeys yes", False, None),
    ("AddKeysToAgent yes", False, None),
    ("ControlMaster auto", False, None),
    ("OptionOfTheFuture yes", False, True),
    ('unbalanced "quote', False, True),
    ("Match tagged x", False, True),
    ("Match localnetwork 10.0.0.0/8", False, True),
    ("Match version 10.*", False, True),
]


@pytest.mark.parametrize(("line", "ticket", "weaker"), OPTIONS)
def test_an_option_needs_openssh_or_does_not(
    line: str, ticket: bool, weaker: bool | None, tmp_path: Path
) -> None:
    found = needs(f"{line}\n", tmp_path, Surroundings(ticket=ticket))
    assert [need.weaker for need in found] == ([] if weaker is None else [weaker])


def test_every_option_of_the_installed_ssh_has_a_place_in_the_tables() -> None:
    command = ["ssh", "-G", "-F", "/dev/null", "n1"]
    done = subprocess.run(command, text=True, capture_output=True, check=True)
    known = {line.split()[0].lower() for line in done.stdout.splitlines()}
    tables = {*RULES, *APPLIED, *WITHOUT_EFFECT, "gssapiauthentication", "gssapikeyexchange"}
    assert known - tables - {"host"} == set()


def test_the_tables_do_not_overlap() -> None:
    assert set(RULES) & (APPLIED | WITHOUT_EFFECT) == set()
    assert set() == APPLIED & WITHOUT_EFFECT


# ------------------------------------------------------------------ keys


def private_key(key_type: bytes, cipher: bytes = b"none") -> str:
    """The beginning of a private key in OpenSSH's format."""
    public = string(key_type) + string(b"\0" * 32)
    data = b"openssh-key-v1\0" + string(cipher) + string(b"none") + string(b"")
    data += (1).to_bytes(4, "big") + string(public) + string(b"...")
    body = base64.b64encode(data).decode()
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}\n-----END OPENSSH PRIVATE KEY-----\n"


KEYS = {
    "plain": (private_key(b"ssh-ed25519"), "plain"),
    "encrypted": (private_key(b"ssh-ed25519", b"aes256-ctr"), "encrypted"),
    "security key": (private_key(b"sk-ssh-ed25519@openssh.com"), "security-key"),
    "old and encrypted": (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", "encrypted"),
    "old": ("-----BEGIN RSA PRIVATE KEY-----\nAAAA\n", "plain"),
    "public": ("ssh-ed25519 AAAA me\n", "public"),
    "empty": ("", "missing"),
    "cut off": (private_key(b"ssh-ed25519")[:60], "plain"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), KEYS.values(), ids=KEYS.keys())
def test_the_kind_of_a_key_is_read_from_its_file(text: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(text)
    assert kind_of(tmp_path / "key") == kind


def test_a_real_key_is_plain_and_with_a_passphrase_encrypted(tmp_path: Path) -> None:
    for name, passphrase in (("plain", ""), ("encrypted", "secret")):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", tmp_path / name]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        assert kind_of(tmp_path / name) == name


def test_a_security_key_of_a_standard_name_needs_openssh(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    key = private_key(b"sk-ssh-ed25519@openssh.com")
    (tmp_path / ".ssh" / "id_ed25519_sk").write_text(key)
    around = Surroundings(home=tmp_path)
    assert len(list(needs_of_keys((), around, only_these=False))) == 1
    assert list(needs_of_keys((tmp_path / "other",), around, only_these=False)) == []


@pytest.mark.parametrize(
    ("key_type", "expected"),
    [
        ("sk-ssh-ed25519@openssh.com", 1),
        ("ssh-ed25519-cert-v01@openssh.com", 1),
        ("ssh-ed25519", 0),
    ],
)
def test_keys_in_the_agent_count_unless_only_named_keys_are_used(
    key_type: str, expected: int
) -> None:
    around = Surroundings(agent_key_types=(key_type,))
    assert len(list(needs_of_keys((), around, only_these=False))) == expected
    assert list(needs_of_keys((), around, only_these=True)) == []


def answering(path: Path, answer: bytes) -> None:
    """An agent that gives one answer to one client."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)

    def serve() -> None:
        with server:
            client, _ = server.accept()
            with client:
                client.recv(5)
                client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()


def identities(*key_types: bytes) -> bytes:
    keys = b"".join(string(string(name) + b"key") + string(b"comment") for name in key_types)
    return string(bytes([12]) + len(key_types).to_bytes(4, "big") + keys)


@pytest.mark.parametrize(
    ("answer", "types"),
    [
        (identities(b"sk-ssh-ed25519@openssh.com", b"ssh-rsa"), 2),
        (identities(), 0),
        (string(bytes([5])), 0),
        (b"\xff\xff\xff\xff" + b"x" * 10, 0),
        (b"", 0),
        (string(bytes([12]) + b"\xff\xff\xff\xff" + b"\0\0\0\xff"), 0),
    ],
)
def test_the_agents_list_is_read_and_garbage_is_none(
    answer: bytes, types: int, tmp_path: Path
) -> None:
    answering(tmp_path / "a", answer)
    assert len(agent_key_types({"SSH_AUTH_SOCK": str(tmp_path / "a")})) == types


def test_a_ticket_is_found_by_klist_or_by_its_file(tmp_path: Path) -> None:
    nowhere = {"PATH": str(tmp_path)}
    cache = tmp_path / "cc"
    assert not has_ticket({**nowhere, "KRB5CCNAME": f"FILE:{cache}"})
    cache.write_text("x")
    assert has_ticket({**nowhere, "KRB5CCNAME": f"FILE:{cache}"})
    assert has_ticket({**nowhere, "KRB5CCNAME": "KEYRING:persistent:0"})
    for code in (0, 1):
        (tmp_path / "klist").write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / "klist").chmod(0o755)
        assert has_ticket(nowhere) is (code == 0)


# ------------------------------------------------------------------ the decision

LACKING = {Need("VerifyHostKeyDNS", "why", weaker=False): ["n1"]}
WEAKER = {Need("Ciphers", "why", weaker=True): ["n1", "n2"]}


def test_the_transport_is_decided_by_the_needs() -> None:
    assert decide("auto", {}, has_openssh=True).name == "fabric"
    assert decide("auto", LACKING, has_openssh=True).name == "openssh"
    assert decide("fabric", LACKING, has_openssh=True).name == "fabric"
    with pytest.raises(PlanError) as caught:
        decide("fabric", WEAKER, has_openssh=True)
    assert caught.value.error_code is ErrorCode.TRANSPORT_LESS_STRICT
    with pytest.raises(ToolMissingError):
        decide("auto", WEAKER, has_openssh=False)
    assert decide("auto", {}, has_openssh=False).name == "fabric"


def test_every_node_with_a_need_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("Host n*\n  ProxyJump b\nHost *\n  Ciphers aes128-ctr\n")
    nodes = [Node(f"n{i}", (0,)) for i in range(3)]
    found = Inspection(Ssh(config_file=str(tmp_path / "c")), {}).needs(nodes)
    assert list(found.values()) == [["n0", "n1", "n2"]]


# ------------------------------------------------------------------ the strict file


def test_strict_options_stand_before_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("StrictHostKeyChecking no\nHost x\n  BatchMode no\n")
    (tmp_path / "all").write_text(configuration(str(tmp_path / "c"), {}).text)
    command = ["ssh", "-G", "-F", str(tmp_path / "all"), "x"]
    done = subprocess.run(command, text=True, capture_output=True, check=True)
    assert {"stricthostkeychecking true", "batchmode yes"} <= set(done.stdout.splitlines())


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("NoSuchOption yes", "Bad configuration option: nosuchoption"),
        ("Port abc", "Bad port 'abc'"),
    ],
)
def test_a_wrong_option_is_named_with_the_users_own_file_and_line(
    tmp_path: Path, option: str, why: str
) -> None:
    file, written = tmp_path / "c", tmp_path / "all"
    file.write_text(f"Host x\n  {option}\n")
    strictly = configuration(str(file), {})
    written.write_text(strictly.text)
    command = ["ssh", "-F", str(written), "x"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    found = from_words(Node("x", (0,)), strictly.with_own_places(done.stderr, written))
    assert (found.kind, found.host) == ("route", "x")
    assert f"({file}:2: {why})" in found.message


def test_a_configuration_that_others_can_write_is_refused_as_ssh_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    config = tmp_path / ".ssh" / "config"
    config.write_text("Host x\n")
    config.chmod(0o600)
    assert client_of(Ssh(), {}).files[0]
    config.chmod(0o622)
    with pytest.raises(ConfigError):
        client_of(Ssh(), {})
    if os.getuid() == 0:
        config.chmod(0o600)
        os.chown(config, 65534, -1)
        with pytest.raises(ConfigError):
            client_of(Ssh(), {})
