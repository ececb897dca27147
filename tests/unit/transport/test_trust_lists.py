"""Lists of fingerprints: what is read, and which keys they vouch for."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.model import Node
from dslaunch.errors import ConfigError
from dslaunch.transport.ssh.config import Options
from dslaunch.transport.ssh.known_hosts import HostName, fingerprint
from dslaunch.transport.ssh.route import Hop
from dslaunch.transport.ssh.trust import PublicKey, SshServer, accepted, line_for, parse_list

BLOB = b"\0\0\0\x0bssh-ed25519" + b"\0\0\0\x20" + bytes(32)
KEY = PublicKey("ssh-ed25519", BLOB)
TEXT = base64.b64encode(BLOB).decode()
PRINT = fingerprint(BLOB)
OTHER = fingerprint(b"other")


def host(name: str = "node1", known_as: str = "node1") -> SshServer:
    hop = Hop(
        alias=name, host=name, port=22, user="ml", known_as=HostName(known_as), known_hosts=(),
        identity_files=(), only_these_keys=False, proxy_command=None, jump=None, options=Options(),
    )  # fmt: skip
    return SshServer(hop, Node(name, (0,)), (), (name,))


@pytest.mark.parametrize(
    "line",
    [
        f"{PRINT} node1",
        f"{PRINT}= node1",
        f"node1 {PRINT}",
        f"{PRINT} node0,NODE1",
        f"256 {PRINT} root@node1 (ED25519)",
        f"256 {PRINT} node1 (ED25519)",
        f"node1 ssh-ed25519 {TEXT}",
        f"node0,node1 ssh-ed25519 {TEXT} a comment",
        f"node* ssh-ed25519 {TEXT}",
        f"ssh-ed25519 {TEXT} root@node1",
        f"# node1:22 SSH-2.0\n\n  node1 ssh-ed25519 {TEXT}\r",
    ],
)
def test_a_key_is_accepted_for_the_host_that_the_line_names(line: str) -> None:
    listed = parse_list(f"{line}\n", "list")
    assert accepted(host(), [KEY], listed, "list") == (KEY,)
    assert isinstance(accepted(host("elsewhere"), [KEY], listed, "list"), str)


@pytest.mark.parametrize(
    "line",
    [
        PRINT,
        f"256 {PRINT} no comment (ED25519)",
        f"256 MD5:{':'.join(['aa'] * 16)} root@node1 (RSA)",
        f"{PRINT} {OTHER} node1",
        f"@cert-authority node1 ssh-ed25519 {TEXT}",
        "SHA256:short node1",
        "node1 ssh-ed25519 !!!",
        "node1",
    ],
)
def test_a_line_that_vouches_for_nothing_is_a_problem_with_its_number(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_list(f"# a list\n{line}\n", "list")
    assert [problem.line for problem in caught.value.problems] == [2]


def test_another_fingerprint_of_the_same_kind_refuses_the_host() -> None:
    listed = parse_list(f"256 {OTHER} node1 (ED25519)\n", "list")
    verdict = accepted(host(), [KEY], listed, "list")
    assert isinstance(verdict, str)
    assert (OTHER in verdict, PRINT in verdict) == (True, True)


@given(st.text(max_size=200) | st.text(alphabet="SHA256: node1ssh-ed25519=,@()#|\n", max_size=200))
def test_no_text_raises_anything_but_config_errors(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_list(text, "list")


@pytest.mark.parametrize("name", ["*", "a,b", "!a", "a b", "|1|x|y", "#a", "@revoked", "a?"])
def test_a_name_that_known_hosts_reads_otherwise_is_never_written(name: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        line_for(host(known_as=name).hop, KEY, b"salt")
