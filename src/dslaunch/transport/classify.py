"""What an SSH failure means and what to do about it, from exceptions and from ssh's words. Pure."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

from dslaunch.errors import NodeFailure

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node

_MEANINGS = {
    "name": "its name cannot be resolved",
    "refused": "the connection was refused: no SSH server listens there",
    "timeout": "no answer in time",
    "no-route": "the network leads nowhere",
    "host-key-unknown": "its host key is not known here",
    "host-key-changed": "its host key is not the one known here",
    "authentication": "it does not accept the key",
    "throttled": "its SSH server takes no more connections for the moment",
    "protocol": "the SSH connection failed",
}
_WORDS = (
    ("host-key-changed", r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for .* has changed"),
    ("host-key-unknown", r"Host key verification failed|No \w+ host key is known"),
    ("name", r"Could not resolve hostname|Name or service not known"),
    ("authentication", r"Permission denied|Too many authentication failures|Bad passphrase"),
    ("refused", r"Connection refused"),
    ("timeout", r"timed out"),
    ("no-route", r"No route to host|Network is unreachable"),
    ("throttled", r"kex_exchange_identification|ssh_exchange_identification|Exceeded MaxStartups"),
)


def from_words(node: Node, words: str) -> NodeFailure:
    """Classify what the ssh client wrote before it gave up."""
    kind = next((k for k, pattern in _WORDS if re.search(pattern, words)), "protocol")
    last = next((line for line in reversed(words.strip().splitlines()) if line.strip()), "")
    return failure(node, kind, last.strip())


def from_error(node: Node, error: BaseException) -> NodeFailure:
    """Classify an exception of paramiko, Fabric or the socket layer."""
    return failure(node, _kind(error), _words(error))


def _words(error: BaseException) -> str:
    """What it says; of several addresses that were tried, each with its own reason."""
    tried = getattr(error, "errors", None)
    if isinstance(tried, dict):  # paramiko's NoValidConnectionsError has (address, port) -> OSError
        reasons = {f"{where[0]}: {why.strerror or why}" for where, why in tried.items()}
        return ", ".join(sorted(reasons))
    return (
        (error.strerror if isinstance(error, OSError) else None)
        or str(error)
        or type(error).__name__
    )


def _kind(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, socket.gaierror):
        return "name"
    if isinstance(error, TimeoutError):
        return "timeout"
    by_name = {
        "BadHostKeyException": "host-key-changed",
        "HostKeyUnknown": "host-key-unknown",
        "AuthenticationException": "authentication",
        "BadAuthenticationType": "authentication",
        "PasswordRequiredException": "authentication",
    }
    if name in by_name:
        return by_name[name]
    errors = [error, *getattr(error, "errors", {}).values()]  # NoValidConnectionsError has several
    numbers = {getattr(e, "errno", None) for e in errors}
    words = " ".join(map(str, errors))
    if numbers & {111} or "Connection refused" in words:
        return "refused"
    if numbers & {113, 101}:
        return "no-route"
    if "timed out" in words.lower() or "timeout" in words.lower():
        return "timeout"
    if "protocol banner" in words or isinstance(error, ConnectionResetError | EOFError):
        return "throttled"
    return "protocol"


def failure(node: Node, kind: str, detail: str) -> NodeFailure:
    """Put a kind and a detail into words, with what to do."""
    through = f", through {node.jump}" if node.jump else ""
    said = f" ({detail})" if detail else ""
    return NodeFailure(node.host, kind, f"{_MEANINGS[kind]}{through}{said}", _hint(node, kind))


def _hint(node: Node, kind: str) -> str:
    port = f" -p {node.port}" if node.port else ""
    user = f"{node.user}@" if node.user else ""
    name = f"[{node.host}]:{node.port}" if node.port not in (None, 22) else node.host
    key = f" -i {node.identity_file}" if node.identity_file else ""
    return {
        "name": "correct `host:`, or give its HostName in ~/.ssh/config or /etc/hosts",
        "refused": "start sshd there, or correct `port:`",
        "timeout": "see whether it is up and its network leads there; `ssh.connect_timeout` is how "
        "long is waited",
        "no-route": "see whether it is up and its network leads there",
        "host-key-unknown": f"see it with `ssh-keyscan{port} {node.host}`, compare it with the "
        f"node's own, then connect once by hand: `ssh{port} {user}{node.host}`",
        "host-key-changed": "find out why: reinstalled, or somebody in between? Then "
        f"`ssh-keygen -R '{name}'` and connect once by hand",
        "authentication": f"`ssh-copy-id{key}{port} {user}{node.host}`, or correct `user:` and "
        "`identity_file:`; a key with a passphrase must be in ssh-agent",
        "throttled": "lower `ssh.fanout`, or raise MaxStartups in its sshd_config",
        "protocol": f"try it by hand: `ssh -v{port} {user}{node.host}`",
    }[kind]
