"""Whether a host's key is known, decided as OpenSSH decides (sshd(8), SSH_KNOWN_HOSTS). Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from dslaunch.transport.ssh.patterns import matches_any

Status = Literal["known", "unknown", "changed", "revoked"]
Marker = Literal["", "@revoked", "@cert-authority"]
DEFAULT_PORT = 22
_MARKERS: tuple[Marker, ...] = ("@revoked", "@cert-authority")
_HASHED = "|1|"
_NOT_PLAIN = "*?!|"
"""Characters of patterns and of hashed names (sshd(8), SSH_KNOWN_HOSTS)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a known_hosts file."""

    marker: Marker
    hosts: str
    """A list of patterns, or one hashed name."""
    key_type: str
    key: bytes
    """The public key as SSH transmits it."""
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @property
    def place(self) -> str:
        """Where it stands: `FILE:LINE`."""
        return f"{self.file}:{self.line}"

    @property
    def name(self) -> str:
        """Its type as ssh calls it: `ED25519`."""
        return type_name(self.key_type)

    @property
    def fingerprint(self) -> str:
        """`SHA256:...` as ssh-keygen writes it."""
        return fingerprint(self.key)


class HostName(Struct, frozen=True):
    """The name under which known_hosts files hold a host."""

    name: str
    port: int = DEFAULT_PORT
    alias: bool = False
    """Whether it is a HostKeyAlias, which stands without a port."""

    def __str__(self) -> str:
        """Return it as a known_hosts file has it."""
        name = self.name.lower()
        if self.alias or self.port == DEFAULT_PORT:
            return name
        return f"[{name}]:{self.port}"


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of a public key as ssh-keygen writes it: `SHA256:...`."""
    digest = hashlib.sha256(key).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def type_name(key_type: str) -> str:
    """Return a key's type as ssh calls it: `ED25519` for `ssh-ed25519`."""
    if key_type.startswith("ecdsa-"):
        return "ECDSA"
    return key_type.removeprefix("ssh-").upper()


def parse(text: str, file: str = "") -> tuple[Entry, ...]:
    """Return the entries of a known_hosts file. Lines that are no entries are left out."""
    # only a newline ends a line for OpenSSH; `splitlines` knows of nine more characters
    lines = enumerate(text.split("\n"), 1)
    entries = (_entry(line, file, number) for number, line in lines)
    return tuple(entry for entry in entries if entry is not None)


class EntryIndex:
    """Finds the entries about a host, of many, without comparing its name with every line."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._by_name: dict[str, list[int]] = {}
        self._patterns: list[int] = []
        """Places of the entries whose hosts are not all plain names."""
        for place, entry in enumerate(entries):
            if any(character in entry.hosts for character in _NOT_PLAIN):
                self._patterns.append(place)
                continue
            for name in entry.hosts.lower().split(","):
                self._by_name.setdefault(name, []).append(place)

    def about(self, host: HostName) -> tuple[Entry, ...]:
        """Return the entries for a host, with or without its port, in their order."""
        found: set[int] = set()
        for name in dict.fromkeys((str(host), host.name.lower())):
            found.update(self._by_name.get(name, ()))
            found.update(
                place for place in self._patterns if is_named(self._entries[place].hosts, name)
            )
        return tuple(self._entries[place] for place in sorted(found))


def decide(entries: Sequence[Entry], host: HostName, key: bytes) -> Status:
    """Return what the entries say of a key that a host has presented."""
    status = _decide(entries, str(host), key)
    other_port = host.port != DEFAULT_PORT and not host.alias
    if status == "unknown" and other_port:
        # OpenSSH also accepts a key that is known for the host without its port
        plain = _decide(entries, host.name.lower(), key)
        return "known" if plain == "known" else "unknown"
    return status


def key_types(entries: Sequence[Entry], host: HostName) -> tuple[str, ...]:
    """Return the types of the keys that are known for a host, each once."""
    names = (str(host), host.name.lower())
    plain = [entry for entry in entries if entry.marker == ""]
    known = (entry for name in names for entry in _of(plain, name))
    return tuple(dict.fromkeys(entry.key_type for entry in known))


def recorded(entries: Sequence[Entry], host: HostName) -> tuple[Entry, ...]:
    """Return the keys that are recorded for a host."""
    return tuple(entry for entry in _of(entries, str(host)) if entry.marker == "")


def has_authority(entries: Sequence[Entry], host: HostName) -> bool:
    """Return whether a certificate authority may vouch for the host's key."""
    authorities = [entry for entry in entries if entry.marker == "@cert-authority"]
    names = (str(host), host.name.lower())
    return any(is_named(entry.hosts, name) for entry in authorities for name in names)


def _decide(entries: Sequence[Entry], name: str, key: bytes) -> Status:
    found = list(_of(entries, name))
    if any(entry.marker == "@revoked" and entry.key == key for entry in found):
        return "revoked"
    known = [entry.key for entry in found if entry.marker == ""]
    if key in known:
        return "known"
    return "changed" if known else "unknown"


def _of(entries: Sequence[Entry], name: str) -> Iterator[Entry]:
    return (entry for entry in entries if is_named(entry.hosts, name))


def is_named(hosts: str, name: str) -> bool:
    """Return whether a list of patterns, or one hashed name, stands for a host's name."""
    if hosts.startswith(_HASHED):
        return _hash_matches(hosts, name)
    return matches_any(name, hosts.lower().split(","))


def _hash_matches(hosts: str, name: str) -> bool:
    """Return whether `|1|salt|hash` holds the HMAC-SHA1 of the name, keyed with the salt."""
    salt, _, wanted = hosts[len(_HASHED) :].partition("|")
    try:
        key, digest = base64.b64decode(salt), base64.b64decode(wanted)
    except (binascii.Error, ValueError):
        return False
    return hmac.digest(key, os.fsencode(name), hashlib.sha1) == digest


def _entry(line: str, file: str, number: int) -> Entry | None:
    words = line.split()
    if not words or words[0].startswith("#"):
        return None
    marker: Marker = ""
    if words[0].startswith("@"):
        known = [marker for marker in _MARKERS if marker == words[0]]
        if not known:
            return None
        marker = known[0]
        del words[0]
    if len(words) < 3:
        return None
    hosts, key_type, encoded = words[:3]
    key = _key(key_type, encoded)
    if key is None:
        return None
    return Entry(
        marker=marker,
        hosts=hosts,
        key_type=key_type,
        key=key,
        file=file,
        line=number,
    )


def _key(key_type: str, encoded: str) -> bytes | None:
    """Return the decoded key; None if it is damaged or of another type than the line says."""
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    name = os.fsencode(key_type)
    return key if key.startswith(len(name).to_bytes(4, "big") + name) else None
