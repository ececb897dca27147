from __future__ import annotations

import socket

import pytest

from dslaunch.cluster.failures import folded
from dslaunch.cluster.model import Node
from dslaunch.transport.classify import from_error, from_words

NODE = Node("node01", (0,), user="ml", port=2222, identity_file="~/.ssh/k", jump="bastion")
# what OpenSSH 9.2 writes
WORDS = [
    ("ssh: Could not resolve hostname node01: Name or service not known", "name"),
    ("ssh: connect to host node01 port 22: Connection refused", "refused"),
    ("ssh: connect to host node01 port 22: Connection timed out", "timeout"),
    ("Connection timed out during banner exchange\r\n", "timeout"),
    ("ssh: connect to host node01 port 22: No route to host", "no-route"),
    ("No ED25519 host key is known for node01 and you have requested strict checking.\n"
     "Host key verification failed.", "host-key-unknown"),
    ("@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
     "Host key verification failed.", "host-key-changed"),
    ("ml@node01: Permission denied (publickey).", "authentication"),
    ("Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
     "authentication"),
    ("kex_exchange_identification: read: Connection reset by peer", "throttled"),
    ("nobody@10.0.0.1: Permission denied (publickey,password).", "authentication"),
    ("Load key \"/root/.ssh/k\": bad permissions\nml@n: Permission denied (publickey).",
     "authentication"),
    ("Permissions 0644 for '/root/.ssh/k' are too open.\n"
     "Load key \"/root/.ssh/k\": bad permissions\nml@n: Permission denied (publickey).",
     "key-permissions"),
    ("Permissions 0644 for '/root/.ssh/k' are too open.\nml@n: Permission denied (password).",
     "authentication"),
    ("sign_and_send_pubkey: signing failed for ED25519 \"k\" from agent: agent refused operation\n"
     "ml@n: Permission denied (publickey).", "agent-refused"),
    ("kex_exchange_identification: banner line contains invalid characters", "not-ssh"),
    ("kex_exchange_identification: Connection closed by remote host\n"
     "Connection closed by UNKNOWN port 65535", "throttled"),
    ("ssh: Could not resolve hostname bastion: Name or service not known\n"
     "kex_exchange_identification: Connection closed by remote host", "name"),
    ("stdio forwarding failed\nkex_exchange_identification: Connection closed by remote host",
     "behind-jump"),
    ("Bad owner or permissions on /root/.ssh/config", "permissions"),
    ("something never seen", "protocol"),
    ("", "protocol"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "kind"), WORDS, ids=[f"{k} {i}" for i, (_, k) in enumerate(WORDS)]
)
def test_what_ssh_writes_is_understood(words: str, kind: str) -> None:
    assert from_words(NODE, words).kind == kind


class AuthenticationException(Exception):
    """Called as paramiko calls its own: exceptions are told by their names there."""


ERRORS = [
    (socket.gaierror(-2, "Name or service not known"), "name"),
    (TimeoutError("timed out"), "timeout"),
    (ConnectionRefusedError(111, "Connection refused"), "refused"),
    (OSError(113, "No route to host"), "no-route"),
    (ConnectionResetError(104, "reset"), "throttled"),
    (EOFError(), "throttled"),
    (AuthenticationException("Authentication failed."), "authentication"),
    (RuntimeError("who knows"), "protocol"),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS, ids=[type(e).__name__ for e, _ in ERRORS])
def test_exceptions_are_understood(error: Exception, kind: str) -> None:
    assert from_error(NODE, error).kind == kind


def test_a_jump_host_is_named_in_the_message() -> None:
    assert "through bastion" in from_words(NODE, "Connection refused").message


def test_a_key_that_others_can_read_is_named_with_its_mode_and_the_command() -> None:
    words = "Permissions 0644 for '/home/ml/a {key}' are too open.\n"
    found = from_words(NODE, f"{words}ml@n: Permission denied (publickey).")
    assert "/home/ml/a {key}" in found.message and "mode 0644" in found.message
    assert found.hint == "run `chmod 600 '/home/ml/a {key}'`"


def test_the_hint_holds_the_nodes_own_user_port_and_key() -> None:
    found = from_words(NODE, "Permission denied (publickey).")
    assert "ssh-copy-id -i ~/.ssh/k -p 2222 ml@node01" in (found.hint or "")


def test_a_changed_key_is_removed_under_the_name_that_known_hosts_has() -> None:
    found = from_words(NODE, "REMOTE HOST IDENTIFICATION HAS CHANGED!")
    assert "ssh-keygen -R '[node01]:2222'" in (found.hint or "")


def test_the_same_trouble_of_64_nodes_is_one_line_with_one_hint() -> None:
    words = [
        f"{user}@10.0.0.{number}: Permission denied (publickey)."
        for number, user in enumerate(["ml"] * 64, 1)
    ]
    nodes = [Node(f"node{number}", (0,), user="ml") for number in range(1, 65)]
    failures = [from_words(node, text) for node, text in zip(nodes, words, strict=True)]
    (trouble,) = folded(failures)
    assert trouble.hosts == tuple(node.host for node in nodes)
    assert str(trouble).startswith("node[1-64]: permission denied for user ml")
    assert "ssh-copy-id ml@NODE" in (trouble.hint or "")


def test_different_troubles_stay_apart_and_in_order() -> None:
    nodes = [Node(f"node{number}", (0,)) for number in range(4)]
    words = ["Connection refused", "No route to host", "Connection refused", "No route to host"]
    found = folded(from_words(node, text) for node, text in zip(nodes, words, strict=True))
    assert [trouble.hosts for trouble in found] == [("node0", "node2"), ("node1", "node3")]


def test_a_single_node_keeps_its_details() -> None:
    key = "SHA256:" + "a" * 43
    words = (
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n"
        f"The fingerprint for the ED25519 key sent by the remote host is\n{key}.\n"
        "Host key for node01 has changed and you have requested strict checking."
    )
    (one,) = folded([from_words(Node("node01", (0,)), words)])
    assert f"ED25519 {key}" in one.message
