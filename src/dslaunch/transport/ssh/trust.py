"""Which host keys to record, and how: what `dslaunch trust` decides. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from dslaunch.cluster.model import Node
from dslaunch.errors import ConfigError, Problem
from dslaunch.transport.ssh import known_hosts
from dslaunch.transport.ssh.known_hosts import fingerprint, type_name
from dslaunch.transport.ssh.patterns import matches_any
from dslaunch.transport.ssh.route import Client, Hop, RouteError, is_on, route

ServerId = tuple[str, str, int]
"""The name in known_hosts files, what is dialed, the port: what makes two hosts the same."""
SALT = 20
"""Bytes of the salt of a hashed name, as OpenSSH draws them (hostfile.c, `host_hash`)."""
_PLAIN_NAME = re.compile(
    r"\[?[A-Za-z0-9_][A-Za-z0-9._:%-]*\]?(?::[0-9]{1,5})?|\[?::[A-Za-z0-9.:%]*\]?"
)
_PRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}=?")
_KEY_TYPE = re.compile(r"(?:sk-)?(?:ssh|ecdsa)-[a-z0-9-]+(?:@openssh\.com)?")


class SshServer(Struct, frozen=True):
    """One SSH server: a node, or a jump host."""

    hop: Hop
    node: Node
    """The first node that is it, or is behind it."""
    before: tuple[ServerId, ...]
    """The jump hosts on the route."""
    names: tuple[str, ...]
    """Its names in the cluster file and in the SSH configuration."""

    @property
    def place(self) -> ServerId:
        """Return what distinguishes it from other servers."""
        return place_of(self.hop)

    @property
    def is_jump(self) -> bool:
        """Whether `node` is reached through it."""
        return self.hop.alias != self.node.host


class PublicKey(Struct, frozen=True):
    """A host key that a server has presented."""

    key_type: str
    blob: bytes

    def __str__(self) -> str:
        """Return it as ssh shows it: `ED25519 SHA256:...`."""
        return f"{type_name(self.key_type)} {fingerprint(self.blob)}"


class ListedFingerprint(Struct, frozen=True):
    """One line of a list of fingerprints."""

    names: tuple[str, ...]
    """Names or patterns, lower case; one hashed name."""
    fingerprint: str
    kind: str
    """`ED25519`; empty: the line does not say."""

    def is_for(self, names: Iterable[str]) -> bool:
        """Return whether the line names a host."""
        lower = [name.lower() for name in names]
        if self.names[:1] and self.names[0].startswith("|1|"):
            return any(known_hosts.is_named(self.names[0], name) for name in lower)
        return any(matches_any(name, self.names) for name in lower)


def place_of(hop: Hop) -> ServerId:
    """Return what distinguishes a server from others."""
    return str(hop.known_as), hop.host, hop.port


def hosts_of(client: Client, nodes: Sequence[Node]) -> tuple[tuple[SshServer, ...], dict[str, str]]:
    """Return every server on the routes to the nodes, each once and jump hosts first; and by node
    why a route cannot be resolved."""
    found: dict[ServerId, SshServer] = {}
    wrong: dict[str, str] = {}
    for node in nodes:
        try:
            hops = route(client, node)
        except RouteError as error:
            wrong[node.host] = str(error)
            continue
        for depth, hop in enumerate(hops):
            before = tuple(map(place_of, hops[:depth]))
            known = found.get(place_of(hop))
            names = (*(known.names if known else ()), hop.alias, hop.host)
            first = known or SshServer(hop, node, before, ())
            unique = tuple(dict.fromkeys((*names, str(hop.known_as), hop.known_as.name)))
            found[first.place] = SshServer(first.hop, first.node, first.before, unique)
    return tuple(sorted(found.values(), key=lambda host: len(host.before))), wrong


def file_for(hop: Hop) -> Path | None:
    """Return the file to which ssh would add the host's key: the first of UserKnownHostsFile."""
    if hop.options.first("userknownhostsfile") == "none":
        return None
    return hop.known_hosts[0] if hop.known_hosts else None


def line_for(hop: Hop, key: PublicKey, salt: bytes) -> str:
    """Return the line of a known_hosts file, its name hashed if HashKnownHosts says so.

    Raises ValueError for a name that such a file would read as a pattern or as several names.
    """
    name = str(hop.known_as)
    if _PLAIN_NAME.fullmatch(name) is None:
        raise ValueError(f"the name {name!r} is a pattern in a known_hosts file")
    if is_on(hop.options, "hashknownhosts"):
        digest = hmac.digest(salt, os.fsencode(name), hashlib.sha1)
        name = f"|1|{_base64(salt)}|{_base64(digest)}"
    return f"{name} {key.key_type} {_base64(key.blob)}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# ------------------------------------------------------------------- lists of fingerprints


def parse_list(text: str, file: str) -> tuple[ListedFingerprint, ...]:
    """Read a list of fingerprints: `SHA256:... HOST`, what `ssh-keygen -lf` prints, lines of
    `ssh-keyscan` or known_hosts, and public keys with the host's name as comment.

    Raises ConfigError with every line that is none of these.
    """
    found, problems = [], []
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        listed = _listed(line)
        if isinstance(listed, str):
            problems.append(Problem(file=file, line=number, column=1, path="", message=listed))
        else:
            found.append(listed)
    if not found and not problems:
        problems.append(
            Problem(file=file, line=0, column=0, path="", message="lists no fingerprint")
        )
    if problems:
        hint = "expected lines of `SHA256:... HOST`, of `ssh-keygen -lf KEY.pub` or of ssh-keyscan"
        raise ConfigError(tuple(problems), hint=hint)
    return tuple(found)


def _listed(line: str) -> ListedFingerprint | str:
    """Return what a line lists, or what is wrong with it."""
    words = line.split()
    if words[0].startswith("@"):
        return f"unexpected marker {words[0][:40]} in a list of fingerprints"
    if any(word.upper().startswith("MD5:") for word in words):
        return "an MD5 fingerprint; expected SHA256"
    prints = [word for word in words if _PRINT.fullmatch(word)]
    if len(prints) > 1:
        return "several fingerprints in one line"
    if prints:
        return _by_fingerprint(words, prints[0])
    return _by_key(line, words)


def _by_key(line: str, words: list[str]) -> ListedFingerprint | str:
    """Return what a line of known_hosts or a public key with a comment lists."""
    if _KEY_TYPE.fullmatch(words[0]) and len(words) > 2:
        entries = known_hosts.parse(f"x {words[0]} {words[1]}")
        names = _names(words[2:])
    else:
        entries = known_hosts.parse(line)
        is_hashed = words[0].startswith("|")
        names = tuple((words[0] if is_hashed else words[0].lower()).split(","))
    if not entries or not names:
        return "no fingerprint and no public key with a host name"
    return ListedFingerprint(names, entries[0].fingerprint, entries[0].name)


def _by_fingerprint(words: list[str], found: str) -> ListedFingerprint | str:
    rest = [word for word in words if word != found]
    kind = ""
    if rest and rest[-1].startswith("(") and rest[-1].endswith(")"):
        kind = rest.pop()[1:-1].upper()
    if rest and words[0].isdecimal():
        rest.pop(0)  # the number of bits
    names = _names(rest)
    if not names or rest == ["no", "comment"]:
        return "no host name beside the fingerprint"
    return ListedFingerprint(names, found.rstrip("="), kind)


def _names(words: list[str]) -> tuple[str, ...]:
    """Return the host names in words: `node1,node2`, or the `root@node1` of a key's comment."""
    parts = [part for word in words for part in word.lower().split(",")]
    return tuple(part.rpartition("@")[2] for part in parts if part)


def accepted(
    host: SshServer, keys: Sequence[PublicKey], listed: Sequence[ListedFingerprint], file: str
) -> tuple[PublicKey, ...] | str:
    """Return the keys that a list has for a host, or why none of them may be recorded."""
    lines = [line for line in listed if line.is_for(host.names)]
    presented = {fingerprint(key.blob): key for key in keys}
    agreed = {line.fingerprint for line in lines if line.fingerprint in presented}
    contradiction = _contradiction(lines, keys, agreed)
    if contradiction is not None:
        line, key = contradiction
        return f"{file} lists {line.kind} {line.fingerprint}, presented: {key}"
    if agreed:
        return tuple(key for found, key in presented.items() if found in agreed)
    shown = " and ".join(map(str, keys))
    if lines:
        return f"{file} lists {lines[0].fingerprint}, presented: {shown}"
    return f"{file} does not list this host, presented: {shown}"


def _contradiction(
    lines: Sequence[ListedFingerprint], keys: Sequence[PublicKey], agreed: set[str]
) -> tuple[ListedFingerprint, PublicKey] | None:
    """Return a line whose kind of key the host has with another fingerprint; None without one.

    Of several lines for one kind of key, one that agrees is enough.
    """
    agreed_kinds = {line.kind for line in lines if line.fingerprint in agreed}
    for line in lines:
        if not line.kind or line.kind in agreed_kinds:
            continue
        for key in keys:
            if type_name(key.key_type) == line.kind:
                return line, key
    return None
