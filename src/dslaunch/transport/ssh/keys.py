"""Find the user's keys without using them: files, and the agent's list."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from dslaunch.transport.ssh.config import read_text

KeyKind = Literal["missing", "unreadable", "plain", "encrypted", "security-key", "public"]
AgentState = Literal["none", "unreachable", "empty", "unused", "holds"]
STANDARD_NAMES = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
AGENT_TIMEOUT = 2.0
LONGEST_ANSWER = 2**20
_BEGIN = "-----BEGIN OPENSSH PRIVATE KEY-----"
_MAGIC = b"openssh-key-v1\0"
_REQUEST_IDENTITIES, _IDENTITIES_ANSWER = 11, 12


class KeyFile(Struct, frozen=True):
    """A private key that may be offered."""

    path: Path
    kind: KeyKind
    mode: int = 0o600
    in_agent: bool = False
    """Whether the agent holds the same key."""

    @property
    def open_to_others(self) -> bool:
        """Whether other users may read it, for which reason OpenSSH does not use it."""
        return self.kind != "public" and bool(self.mode & 0o077)

    @property
    def usable(self) -> bool:
        """Whether OpenSSH can log in with it without a question."""
        if self.in_agent:
            return True
        return self.kind in ("plain", "security-key") and not self.open_to_others

    @property
    def why_not(self) -> str:
        """Return why it is not offered; empty: it is."""
        if self.usable or self.kind == "public":
            return ""
        if self.kind in ("missing", "unreadable"):
            return self.kind
        if self.open_to_others:
            return f"other users can read it, mode {self.mode:04o}"
        return "has a passphrase, and ssh-agent does not hold it"


class Keys(Struct, frozen=True):
    """The keys that were available for a login."""

    files: tuple[KeyFile, ...]
    named: bool
    """Whether the cluster file or the SSH configuration names the files."""
    agent: AgentState

    @property
    def offered(self) -> tuple[str, ...]:
        """Return the keys that were offered, as text."""
        files = [str(file.path) for file in self.files if file.usable]
        return (*files, "the keys of ssh-agent") if self.agent == "holds" else tuple(files)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Return the key files that could not be offered, and why, as text."""
        return tuple(f"{file.path} ({file.why_not})" for file in self.files if file.why_not)

    @property
    def usable(self) -> bool:
        """Whether anything could be offered."""
        return bool(self.offered)


def keys_for(
    named: Sequence[Path], *, only_these: bool, home: Path, environ: Mapping[str, str]
) -> Keys:
    """Return the keys that a login may use: the named ones, else those with standard names."""
    held = agent_keys(environ)
    standard = [home / ".ssh" / name for name in STANDARD_NAMES]
    files = [_key_file(path, held or ()) for path in named or standard]
    if not named:
        files = [file for file in files if file.kind != "missing"]
    return Keys(tuple(files), bool(named), _agent_state(environ, held, only_these=only_these))


def _agent_state(
    environ: Mapping[str, str], held: Sequence[bytes] | None, *, only_these: bool
) -> AgentState:
    if not environ.get("SSH_AUTH_SOCK"):
        return "none"
    if held is None:
        return "unreachable"
    if not held:
        return "empty"
    return "unused" if only_these else "holds"


def _key_file(path: Path, held: Sequence[bytes]) -> KeyFile:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return KeyFile(path, "missing")
    if not os.access(path, os.R_OK):
        return KeyFile(path, "unreadable", mode)
    return KeyFile(path, kind_of(path), mode, _public_part(path) in held)


def _public_part(path: Path) -> bytes:
    """Return the public key as the agent names it: of a private key of OpenSSH's format, else of
    the file beside it."""
    text = read_text(path).strip()
    if text.startswith(_BEGIN):
        return _header(text)[2]
    if text.startswith("-----BEGIN"):
        text = read_text(path.with_name(f"{path.name}.pub"))
    words = text.split()
    with contextlib.suppress(binascii.Error, ValueError, IndexError):
        return base64.b64decode(words[1])
    return b"?"


def kind_of(path: Path) -> KeyKind:
    """Return what an identity file is."""
    text = read_text(path).strip()
    if not text:
        return "missing"
    if not text.startswith("-----BEGIN"):
        return "public"
    if not text.startswith(_BEGIN):
        return "encrypted" if "ENCRYPTED" in text[:200] else "plain"
    cipher, key_type, _ = _header(text)
    if key_type.startswith("sk-"):
        return "security-key"
    return "plain" if cipher == "none" else "encrypted"


def certificate_of(path: Path) -> Path | None:
    """Return the certificate that OpenSSH takes with a key: `KEY-cert.pub` beside it."""
    certificate = path.with_name(f"{path.name}-cert.pub")
    return certificate if certificate.is_file() else None


def _header(text: str) -> tuple[str, str, bytes]:
    """Return the cipher, the type of the public key of a private key file, and that key."""
    body = "".join(text.removeprefix(_BEGIN).split("-----END")[0].split())
    with contextlib.suppress(binascii.Error, ValueError, IndexError, OverflowError):
        data = base64.b64decode(body)
        cipher, rest = _string(data.removeprefix(_MAGIC))
        _kdf, rest = _string(rest)
        _options, rest = _string(rest)
        public, _ = _string(rest[4:])  # after the number of keys
        key_type, _ = _string(public)
        return cipher.decode(), key_type.decode(), public
    return "none", "", b"?"


def _string(data: bytes) -> tuple[bytes, bytes]:
    """Return the string with which `data` begins, and what follows it. Raises ValueError."""
    length = int.from_bytes(data[:4], "big")
    if len(data) < 4 + length:
        raise ValueError("cut off")
    return data[4 : 4 + length], data[4 + length :]


def agent_key_types(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the types of the keys that the agent holds; none without an agent."""
    with contextlib.suppress(ValueError):
        keys = agent_keys(environ) or ()
        return tuple(_string(key)[0].decode(errors="replace") for key in keys)
    return ()


def agent_keys(environ: Mapping[str, str]) -> tuple[bytes, ...] | None:
    """Return the public keys that the agent holds; None without an agent that answers."""
    place = environ.get("SSH_AUTH_SOCK")
    if not place:
        return None
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(AGENT_TIMEOUT)
        agent.connect(place)
        agent.sendall((1).to_bytes(4, "big") + bytes([_REQUEST_IDENTITIES]))
        with agent.makefile("rb") as answer:
            size = int.from_bytes(answer.read(4), "big")
            return _keys_in(answer.read(min(size, LONGEST_ANSWER)))
    return None


def _keys_in(answer: bytes) -> tuple[bytes, ...]:
    """Return the keys in an agent's answer. Raises ValueError."""
    if not answer or answer[0] != _IDENTITIES_ANSWER:
        raise ValueError("no list of keys")
    count, rest = int.from_bytes(answer[1:5], "big"), answer[5:]
    keys = []
    while count > 0 and rest:
        key, rest = _string(rest)
        _comment, rest = _string(rest)
        keys.append(key)
        count -= 1
    return tuple(keys)


def has_ticket(environ: Mapping[str, str]) -> bool:
    """Return whether the user has a valid Kerberos ticket."""
    klist = shutil.which("klist", path=environ.get("PATH"))
    if klist is not None:
        command = [klist, "-s"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command, env=dict(environ), timeout=5, check=False)
            return done.returncode == 0
    default = f"FILE:/tmp/krb5cc_{os.getuid()}"
    kind, _, place = environ.get("KRB5CCNAME", default).rpartition(":")
    return kind not in ("", "FILE") or Path(place).is_file()
