"""What an SSH failure means and what to do about it, from exceptions and from ssh's words. Pure.

Both transports lead to the same text: first a `Symptom` is taken from what the client said, then
`failure` explains it by what this machine knows about the host, its keys and ours.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import TYPE_CHECKING

from dslaunch.errors import FailureKind, NodeFailure
from dslaunch.transport.ssh.login import Login, login_trouble

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.transport.ssh.keys import Keys
    from dslaunch.transport.ssh.known_hosts import Entry
    from dslaunch.transport.ssh.route import Hop

NODE = "NODE"
"""What stands for the name in a text that holds for several nodes."""
TRUST = "`dslaunch trust CLUSTER.yaml`"
_REFUSED, _UNREACHABLE = {111}, {101, 113}
"""Numbers of ECONNREFUSED; of ENETUNREACH and EHOSTUNREACH (Linux, asm-generic/errno.h)."""
_CLOSED = (
    "kex_exchange_identification: read",
    "kex_exchange_identification: Connection closed",
    "ssh_exchange_identification",
    "Exceeded MaxStartups",
    "Error reading SSH protocol banner",
    "Not allowed at this time",
)
"""What clients say when sshd drops a connection before it greets (OpenSSH 9.2, Paramiko 5.1). From
OpenSSH 9.8 on, PerSourcePenalties writes "Not allowed at this time"."""
_NOT_SSH = (
    "banner line contains invalid characters",
    "No SSH identification string",
    "Bad remote protocol version identification",
    "Indecipherable protocol version",
    "invalid format",
    "Bad packet length",
)
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a client said, understood as far as it goes without looking at anything else."""

    kind: FailureKind
    said: str = ""
    """Its own words, without addresses."""
    host: str = ""
    """The host that the words name, as they name it; empty: they name none."""
    methods: tuple[str, ...] = ()
    """The ways to log in that the server offers."""
    key: str = ""
    """The host key that was presented: `ED25519 SHA256:...`."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a connection failed, and what this machine knows about it."""

    node: Node
    hop: Hop | None = None
    """The host that failed: the node, or a jump host; None: not known."""
    keys: Keys | None = None
    """What there was to log in with."""
    recorded: Sequence[Entry] = field(default=())
    """The keys that known_hosts files have for the host."""
    config_file: str | None = None
    timeout: float | None = None
    """Seconds that a connection may take."""


def from_words(node: Node, words: str) -> NodeFailure:
    """Explain what the ssh client wrote before it gave up, without looking at anything else."""
    return failure(Scene(node), symptom_in(words))


def from_error(node: Node, error: BaseException) -> NodeFailure:
    """Explain an exception likewise."""
    return failure(Scene(node), symptom_of(error))


# ------------------------------------------------------------------- what was said


def symptom_in(words: str) -> Symptom:
    """Understand what the ssh client wrote (OpenSSH 9.2; `LogLevel ERROR` and above).

    The ssh that it starts for a jump host writes into the same text, and first.
    """
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    key = _presented(words)
    for read in (_host_key, _login, _connection):
        for line in lines:
            found = read(line, words, key)
            if found is not None:
                return found
    return Symptom("protocol", lines[-1] if lines else "")


def _presented(words: str) -> str:
    """Return the host key of the warning about a changed one."""
    _, marker, rest = words.partition("The fingerprint for the ")
    kind = rest[:40].partition(" ")[0]
    found = _FINGERPRINT.search(rest[:400])
    return f"{kind} {found[0]}" if marker and found else ""


def _host_key(line: str, words: str, key: str) -> Symptom | None:
    if "is marked as revoked" in words or "REVOKED HOST KEY" in words or "revoked by file" in words:
        return Symptom("host-key-revoked", host=_between(words, "host key for ", " "), key=key)
    before, found, _ = line.partition(" has changed and you have requested")
    if found and before.startswith("Host key for "):
        return Symptom("host-key-changed", host=before.removeprefix("Host key for "), key=key)
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in line and "Host key for " not in words:
        return Symptom("host-key-changed", key=key)
    _, found, rest = line.partition(" host key is known for ")
    if found:
        return Symptom("host-key-unknown", host=rest.partition(" ")[0])
    only = "known for" not in words and "IDENTIFICATION HAS CHANGED" not in words
    return Symptom("host-key-unknown") if only and "Host key verification failed" in line else None


def _login(line: str, words: str, key: str) -> Symptom | None:
    before, found, methods = line.partition(": Permission denied (")
    host = before.rpartition("@")[2] if found else ""
    if "agent refused operation" in words and found:
        return Symptom("agent-refused", host=host, methods=_listed(methods))
    if found:
        return Symptom("authentication", host=host, methods=_listed(methods))
    for text in ("Permission denied", "Too many authentication failures", "Bad passphrase"):
        if text in line:
            return Symptom("authentication", "" if text in line[:20] else text)
    return None


def _connection(line: str, words: str, key: str) -> Symptom | None:
    if "Could not resolve hostname " in line:
        return Symptom("name", host=_between(line, "Could not resolve hostname ", ":"))
    if "Bad owner or permissions on " in line:
        return Symptom("permissions", line.rpartition(" ")[2])
    host = _between(line, "connect to host ", " port ")
    if "Connection refused" in line:
        return Symptom("refused", host=host)
    if "banner exchange" in line and "timed out" in line:
        return Symptom("timeout", "connected, but the SSH server sent no banner")
    if "timed out" in line:
        return Symptom("timeout", host=host)
    if "No route to host" in line or "Network is unreachable" in line:
        return Symptom("no-route", host=host)
    if any(text in line for text in _NOT_SSH):
        return Symptom("not-ssh")
    if any(text in line for text in _CLOSED):
        return _closed(words, line)
    return None


def _closed(words: str, line: str) -> Symptom:
    """With a jump host, ssh does not say more at this log level if it cannot reach the node."""
    if "stdio forwarding failed" in words:
        return Symptom("behind-jump")
    return Symptom("throttled", "" if "_exchange_identification" in line else line)


def symptom_of(error: BaseException) -> Symptom:
    """Understand an exception of Paramiko, Fabric or the socket layer."""
    if isinstance(error, socket.gaierror):
        return Symptom("name")
    if isinstance(error, TimeoutError):
        return Symptom("timeout")
    name, said = type(error).__name__, _words(error)
    kind = _BY_NAME.get(name)
    if kind is not None and kind.startswith("host-key"):
        return Symptom(kind, key=said)
    if kind is not None or "No authentication methods" in said:
        return Symptom("authentication")
    if "cannot be used for signing" in said:
        return Symptom("agent-refused")
    if name == "ChannelException":
        return Symptom("behind-jump")
    return _network_symptom(error, said)


def _network_symptom(error: BaseException, said: str) -> Symptom:
    errors = [error, *getattr(error, "errors", {}).values()]  # NoValidConnectionsError has several
    numbers = {getattr(e, "errno", None) for e in errors}
    words = " ".join(map(str, errors))
    if numbers & _REFUSED or "Connection refused" in words:
        return Symptom("refused")
    if numbers & _UNREACHABLE:
        return Symptom("no-route")
    if "timed out" in words.lower() or "timeout" in words.lower():
        return Symptom("timeout")
    if any(text in words for text in _NOT_SSH):
        return Symptom("not-ssh")
    if "protocol banner" in words or isinstance(error, ConnectionResetError | EOFError):
        return Symptom("throttled")
    return Symptom("protocol", said)


_BY_NAME: dict[str, FailureKind] = {
    "HostKeyChanged": "host-key-changed",
    "HostKeyRevoked": "host-key-revoked",
    "HostKeyUnknown": "host-key-unknown",
    "AuthenticationException": "authentication",
    "BadAuthenticationType": "authentication",
    "PasswordRequiredException": "authentication",
}
"""Exceptions by their names: Paramiko is imported only where it connects."""


def _words(error: BaseException) -> str:
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error) or type(error).__name__


def _between(text: str, before: str, after: str) -> str:
    """Return what stands between two texts, at most 300 characters; empty: it is not there."""
    _, found, rest = text.partition(before)
    return rest[:300].partition(after)[0] if found else ""


def _listed(methods: str) -> tuple[str, ...]:
    return tuple(methods.partition(")")[0].split(","))


def hop_of(symptom: Symptom, hops: Sequence[Hop]) -> Hop | None:
    """Return the host of a route that a client's words are about: the one that they name, else the
    node. OpenSSH names hosts by what it dials, and by the name that known_hosts files have."""
    for hop in hops:
        if symptom.host in (hop.host, hop.alias, str(hop.known_as)):
            return hop
    return hops[-1] if hops else None


# ------------------------------------------------------------------- what it means


def failure(scene: Scene, symptom: Symptom) -> NodeFailure:
    """Put a symptom into words, with what to do."""
    node, hop = scene.node, scene.hop
    kind, explained = symptom.kind, _explained(scene, symptom)
    if explained is not None:
        kind = explained.kind
    at_jump = hop is not None and _is_jump(scene)
    message = explained.message if explained else _meaning(scene, symptom)
    if at_jump and hop is not None:
        message = f"jump host {hop.alias}: {message}"
    elif node.jump:
        message += f", through {node.jump}"
    detail = explained.detail if explained else _detail(scene, symptom)
    own = hop.alias if at_jump and hop is not None else node.host
    hints = [
        (explained.hint if explained else _HINTS[symptom.kind]).format(**_commands(scene, name))
        for name in (own, own if at_jump else NODE)
    ]
    full = f"{message} ({detail})" if detail else message
    return NodeFailure(
        host=node.host,
        kind=kind,
        message=full,
        hint=hints[0],
        detail=detail,
        common_hint=hints[1],
    )


def _is_jump(scene: Scene) -> bool:
    return scene.hop is not None and scene.hop.alias != scene.node.host


def _explained(scene: Scene, symptom: Symptom) -> Login | None:
    """Say why a login was refused, by the keys that there were."""
    if symptom.kind not in ("authentication", "agent-refused"):
        return None
    user = scene.hop.user if scene.hop else scene.node.user
    return login_trouble(symptom.kind, user, scene.keys, symptom.methods, symptom.said)


def _meaning(scene: Scene, symptom: Symptom) -> str:
    port = scene.hop.port if scene.hop else scene.node.port or 22
    said = f" ({symptom.said})" if symptom.said else ""
    within = f" within {scene.timeout:g} s" if scene.timeout else " in time"
    return {
        "name": f"its name cannot be resolved{said}",
        "refused": f"connection refused on port {port}{said}: no SSH server listens there",
        "timeout": f"no answer on port {port}{within}{said}",
        "no-route": f"no route to host{said}",
        "behind-jump": f"the jump host cannot connect to it on port {port}{said}",
        "host-key-unknown": "host key unknown: no known_hosts file has it",
        "host-key-changed": "host key changed: it is not the recorded one",
        "host-key-revoked": "host key revoked: a list on this machine marks it as revoked",
        "route": f"its route cannot be resolved{said}",
        "throttled": f"sshd closes new connections on port {port} before its banner{said}",
        "not-ssh": f"no SSH server: something else answers on port {port}",
        "permissions": f"ssh refuses {symptom.said}: another user owns it or can write it",
        "protocol": f"the SSH connection failed{said}",
    }[symptom.kind]


def _detail(scene: Scene, symptom: Symptom) -> str:
    """Return what differs from node to node."""
    hop = scene.hop
    if symptom.kind == "host-key-changed" and symptom.key:
        recorded = [f"{e.name} {e.fingerprint} in {e.place}" for e in scene.recorded]
        known = f", recorded is {' and '.join(recorded)}" if recorded else ""
        return f"it presents {symptom.key}{known}"
    if symptom.kind.startswith("host-key"):
        return symptom.key
    if hop is None or hop.host == hop.alias or symptom.kind not in _DIALED:
        return ""
    return f"HostName {hop.host}" if symptom.kind == "name" else hop.host


_DIALED = ("name", "refused", "timeout", "no-route", "throttled", "not-ssh", "behind-jump")
"""Troubles of an address, which need not be the one that the node's name suggests."""


_HINTS = {
    "name": "correct `host:`, or add its HostName to ~/.ssh/config or its address to /etc/hosts",
    "refused": "start sshd there, or correct `port:`",
    "timeout": "check that it is up and that no firewall drops port {port}; "
    "`ssh.connect_timeout` sets the limit",
    "no-route": "check that it is up, its address, and the network to it",
    "behind-jump": "check its name, its port and its sshd as seen from the jump host, whose sshd "
    "must allow it (AllowTcpForwarding)",
    "host-key-unknown": f"compare and record its host key: {TRUST}",
    "host-key-changed": "find out why: was it reinstalled, or does another machine answer in its "
    f"place? If the new key is right: `{{forget}}`, then {TRUST}",
    "host-key-revoked": "give the host a new key: others may have the revoked one",
    "route": "correct ProxyJump in the SSH configuration, or `jump:` in the cluster file",
    "throttled": "lower `ssh.fanout`, raise MaxStartups in its sshd_config, or check `port:`; "
    "fail2ban and PerSourcePenalties close connections too",
    "not-ssh": "correct `host:` or `port:`",
    "permissions": "`chmod 600` it, as its owner",
    "protocol": "connect by hand: `{ssh} -v {login}`",
}


def _commands(scene: Scene, name: str) -> dict[str, str]:
    """Return the parts of commands to try by hand, for the host or for NODE."""
    node, hop = scene.node, scene.hop
    jump = _is_jump(scene)
    port = None if jump else node.port
    user = None if jump else node.user
    key = _word(node.identity_file or "")
    options = f" -F {_word(scene.config_file)}" if scene.config_file else ""
    flags = (f" -i {key}" if node.identity_file and not jump else "") + (
        f" -p {port}" if port else ""
    )
    return {
        "ssh": f"ssh{options}",
        "copy_id": f"ssh-copy-id{options}{flags}",
        "login": f"{flags} {user}@{name}".strip() if user else f"{flags} {name}".strip(),
        "target": f"{user}@{name}" if user else name,
        "port": str(hop.port if hop else node.port or 22),
        "forget": _forget(scene, name),
    }


def _word(path: str) -> str:
    """Quote a path for a shell, except a `~` at its beginning."""
    return f"~/{quote(path[2:])}" if path.startswith("~/") else quote(path)


def _forget(scene: Scene, name: str) -> str:
    """Return the command that removes a host's recorded key."""
    if name == NODE:
        return "ssh-keygen -R NAME -f FILE` with the names and files of `dslaunch trust"
    port = scene.node.port or 22
    known_as = name if port == 22 else f"[{name}]:{port}"
    if scene.hop is not None:
        known_as = str(scene.hop.known_as)
    files = dict.fromkeys(entry.file for entry in scene.recorded if entry.file)
    return f"ssh-keygen -R '{known_as}'" + "".join(f" -f {_word(file)}" for file in files)
