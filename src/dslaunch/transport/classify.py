"""Classify SSH failures: from ssh's messages or exceptions to a code, and what to do. Pure.

This is the only place that reads texts of OpenSSH and Paramiko. Both transports get the same
result: a `Symptom` is parsed from what the client reported, then `failure` explains it by what this
machine knows about the host, its keys and the user's.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dslaunch.errors import NODE, FailureKind, NodeFailure
from dslaunch.transport.ssh.refused_login import (
    PUBLIC_KEY,
    FailureExplanation,
    key_open_to_others,
    refused_login,
)

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.transport.ssh.keys import Keys
    from dslaunch.transport.ssh.known_hosts import Entry
    from dslaunch.transport.ssh.route import Hop

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
_REVOKED = ("is marked as revoked", "REVOKED HOST KEY", "revoked by file")
_CHANGED = "REMOTE HOST IDENTIFICATION HAS CHANGED"
_TOO_OPEN = re.compile(r"Permissions (0[0-7]{3}) for '(.{1,4096})' are too open")
"""OpenSSH, `sshkey_perm_ok` (authfile.c)."""
_TERMINATING = " bad configuration options"
_PLACE = re.compile(r"(?P<file>.{1,4096}?):? line (?P<line>[0-9]+): (?P<what>.*?)\.?")
"""OpenSSH, `read_config_file_depth` and `process_config_line_depth` (readconf.c)."""
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


class Symptom(Struct, frozen=True):
    """What a client reported, parsed without looking at anything else."""

    kind: FailureKind
    said: str = ""
    """Its message, without addresses."""
    host: str = ""
    """The host in the message, as it is written there; empty: none."""
    methods: tuple[str, ...] = ()
    """The authentication methods that the server accepts."""
    key: str = ""
    """The host key that was presented: `ED25519 SHA256:...`."""
    ignored: tuple[str, int] | None = None
    """The path and mode of a private key that the client did not use."""


class Scene(Struct, frozen=True):
    """Where a connection failed, and what this machine knows about it."""

    node: Node
    hop: Hop | None = None
    """The host that failed: the node or a jump host; None: unknown."""
    keys: Keys | None = None
    """The keys that were available for the login."""
    recorded: Sequence[Entry] = field(default=())
    """The keys in known_hosts files for the host."""
    config_file: str | None = None
    timeout: float | None = None
    """Seconds that a connection may take."""


def from_words(node: Node, words: str) -> NodeFailure:
    """Classify what the ssh client wrote before it gave up, without looking at anything else."""
    return failure(Scene(node), symptom_in(words))


def from_error(node: Node, error: BaseException) -> NodeFailure:
    """Classify an exception in the same way."""
    return failure(Scene(node), symptom_of(error))


# ------------------------------------------------------------------- messages and exceptions


def symptom_in(words: str) -> Symptom:
    """Parse what the ssh client wrote (OpenSSH 9.2; `LogLevel ERROR` and above).

    The ssh that it starts for a jump host writes to the same output, and first.
    """
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    if _TERMINATING in words:
        return _wrong_configuration(lines)
    key = _presented(words)
    for read in (_host_key, _login, _connection):
        for line in lines:
            found = read(line, words, key)
            if found is not None:
                return found
    return Symptom("protocol", lines[-1] if lines else "")


def _wrong_configuration(lines: Sequence[str]) -> Symptom:
    """Parse what ssh writes before it terminates since its configuration is wrong."""
    places = filter(None, map(_PLACE.fullmatch, lines))
    said = [f"{place['file']}:{place['line']}: {place['what']}" for place in places]
    return Symptom("route", said[0] if said else lines[-1])


def _presented(words: str) -> str:
    """Return the host key of the warning about a changed one."""
    _, marker, rest = words.partition("The fingerprint for the ")
    kind = rest[:40].partition(" ")[0]
    found = _FINGERPRINT.search(rest[:400])
    return f"{kind} {found[0]}" if marker and found else ""


def _host_key(line: str, words: str, key: str) -> Symptom | None:
    if any(text in words for text in _REVOKED):
        return Symptom("host-key-revoked", host=_between(words, "host key for ", " "), key=key)
    before, found, _ = line.partition(" has changed and you have requested")
    if found and before.startswith("Host key for "):
        return Symptom("host-key-changed", host=before.removeprefix("Host key for "), key=key)
    if _CHANGED in line and "Host key for " not in words:
        return Symptom("host-key-changed", key=key)
    _, found, rest = line.partition(" host key is known for ")
    if found:
        return Symptom("host-key-unknown", host=rest.partition(" ")[0])
    has_reason = "known for" in words or _CHANGED in words
    if "Host key verification failed" in line and not has_reason:
        return Symptom("host-key-unknown")
    return None


def _ignored_key(words: str) -> tuple[str, int] | None:
    """Return the path and mode of a private key that the client did not use."""
    found = _TOO_OPEN.search(words)
    return None if found is None else (found[2], int(found[1], 8))


def _login(line: str, words: str, key: str) -> Symptom | None:
    before, found, methods = line.partition(": Permission denied (")
    host = before.rpartition("@")[2] if found else ""
    if "agent refused operation" in words and found:
        return Symptom("agent-refused", host=host, methods=_listed(methods))
    if found:
        listed = _listed(methods)
        ignored = _ignored_key(words) if PUBLIC_KEY in listed else None
        return Symptom("authentication", host=host, methods=listed, ignored=ignored)
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
    """With a jump host, ssh reports no more at this log level if it cannot reach the node."""
    if "stdio forwarding failed" in words:
        return Symptom("behind-jump")
    return Symptom("throttled", "" if "_exchange_identification" in line else line)


def symptom_of(error: BaseException) -> Symptom:
    """Parse an exception of Paramiko or the socket layer."""
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
"""Exceptions by name: Paramiko is imported only where it connects."""


def _words(error: BaseException) -> str:
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error) or type(error).__name__


def _between(text: str, before: str, after: str) -> str:
    """Return the text between two others, at most 300 characters; empty if there is none."""
    _, found, rest = text.partition(before)
    return rest[:300].partition(after)[0] if found else ""


def _listed(methods: str) -> tuple[str, ...]:
    return tuple(methods.partition(")")[0].split(","))


def hop_of(symptom: Symptom, hops: Sequence[Hop]) -> Hop | None:
    """Return the host of a route that a client's message is about: the one that it names, else the
    node. OpenSSH names hosts by the address that it dials, or by their name in known_hosts."""
    for hop in hops:
        if symptom.host in (hop.host, hop.alias, str(hop.known_as)):
            return hop
    return hops[-1] if hops else None


# ------------------------------------------------------------------- explanations


def failure(scene: Scene, symptom: Symptom) -> NodeFailure:
    """Return the failure of a node: what happened, and what to do."""
    found = _refused_login(scene, symptom) or _explained(scene, symptom)
    jump_host = _jump_host(scene)
    if jump_host is not None:
        message = f"jump host {jump_host}: {found.message}"
    elif scene.node.jump:
        message = f"{found.message}, through {scene.node.jump}"
    else:
        message = found.message
    return NodeFailure(
        host=scene.node.host,
        kind=found.kind,
        message=f"{message} ({found.detail})" if found.detail else message,
        hint=found.hint.format(**_commands(scene, jump_host or scene.node.host)),
        detail=found.detail,
        common_hint=found.hint.format(**_commands(scene, jump_host or NODE)),
    )


def _jump_host(scene: Scene) -> str | None:
    """Return the jump host that failed; None: the node itself, or not known."""
    if scene.hop is None or scene.hop.alias == scene.node.host:
        return None
    return scene.hop.alias


def _refused_login(scene: Scene, symptom: Symptom) -> FailureExplanation | None:
    """Return why a login was refused, by the available keys, or where they are not known by what
    the client says of one; None: it was not the login."""
    if symptom.kind not in ("authentication", "agent-refused"):
        return None
    if scene.keys is None and symptom.ignored is not None:
        return key_open_to_others(*symptom.ignored)
    return refused_login(
        kind=symptom.kind,
        user=scene.hop.user if scene.hop else scene.node.user,
        keys=scene.keys,
        methods=symptom.methods,
        said=symptom.said,
    )


def _explained(scene: Scene, symptom: Symptom) -> FailureExplanation:
    return FailureExplanation(
        kind=symptom.kind,
        message=_meaning(scene, symptom),
        hint=_HINTS[symptom.kind],
        detail=_detail(scene, symptom),
    )


def _meaning(scene: Scene, symptom: Symptom) -> str:
    port = scene.hop.port if scene.hop else scene.node.port or 22
    said = f" ({symptom.said})" if symptom.said else ""
    within = f" within {scene.timeout:g} s" if scene.timeout else " in time"
    return {
        "name": f"host name cannot be resolved{said}",
        "refused": f"connection refused on port {port}{said}: no SSH server listens there",
        "timeout": f"no answer on port {port}{within}{said}",
        "no-route": f"no route to host{said}",
        "behind-jump": f"the jump host cannot connect to it on port {port}{said}",
        "host-key-unknown": "host key unknown: not in any known_hosts file",
        "host-key-changed": "host key changed: it differs from the recorded one",
        "host-key-revoked": "host key revoked: listed as revoked on this machine",
        "route": f"its SSH configuration cannot be resolved{said}",
        "throttled": f"sshd refuses new connections on port {port}{said}",
        "not-ssh": f"no SSH server on port {port}: another service answers",
        "permissions": f"ssh refuses {symptom.said}: another user owns it or can write it",
        "protocol": f"the SSH connection failed{said}",
    }[symptom.kind]


def _detail(scene: Scene, symptom: Symptom) -> str:
    """Return what differs from node to node."""
    hop = scene.hop
    if symptom.kind == "host-key-changed" and symptom.key:
        recorded = [f"{e.name} {e.fingerprint} in {e.place}" for e in scene.recorded]
        known = f", recorded: {' and '.join(recorded)}" if recorded else ""
        return f"presented: {symptom.key}{known}"
    if symptom.kind.startswith("host-key"):
        return symptom.key
    if hop is None or hop.host == hop.alias or symptom.kind not in _DIALED:
        return ""
    return f"HostName {hop.host}" if symptom.kind == "name" else hop.host


_DIALED = ("name", "refused", "timeout", "no-route", "throttled", "not-ssh", "behind-jump")
"""Failures of an address, which may be another one than the node's name suggests."""


_HINTS = {
    "name": "correct `host:`, or add its HostName to ~/.ssh/config or its address to /etc/hosts",
    "refused": "start sshd there, or correct `port:`",
    "timeout": "check that the host is up and that no firewall drops port {port}; raise "
    "`ssh.connect_timeout` for slow hosts",
    "no-route": "check that the host is up, its address, and the route to it",
    "behind-jump": "check the host's name, port and sshd from the jump host, whose sshd must allow "
    "forwarding (AllowTcpForwarding)",
    "host-key-unknown": f"compare and record the host key: {TRUST}",
    "host-key-changed": "find out whether the host was reinstalled or another machine has its "
    f"address; if the new key is right, run `{{forget}}`, then {TRUST}",
    "host-key-revoked": "generate a new host key: the revoked one may be compromised",
    "route": "correct the SSH configuration, or `jump:` in the cluster file",
    "throttled": "lower `ssh.fanout`, raise MaxStartups in its sshd_config, or check `port:`; "
    "fail2ban and PerSourcePenalties close connections too",
    "not-ssh": "correct `host:` or `port:`",
    "permissions": "run `chmod 600` on it as its owner",
    "protocol": "connect by hand: `{ssh} -v {login}`",
}


def _commands(scene: Scene, name: str) -> dict[str, str]:
    """Return the parts of commands to try by hand, for the host or for NODE."""
    node, hop = scene.node, scene.hop
    # the cluster file's options are for the node, not for its jump hosts
    own = node if _jump_host(scene) is None else None
    config = f" -F {_word(scene.config_file)}" if scene.config_file else ""
    key = f" -i {_word(own.identity_file)}" if own and own.identity_file else ""
    port = f" -p {own.port}" if own and own.port else ""
    target = f"{own.user}@{name}" if own and own.user else name
    return {
        "ssh": f"ssh{config}",
        "copy_id": f"ssh-copy-id{config}{key}{port}",
        "login": f"{key}{port} {target}".strip(),
        "target": target,
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
