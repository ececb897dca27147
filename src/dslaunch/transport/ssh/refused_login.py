"""Explain why a login was refused, by the keys that were available. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from dslaunch.errors import FailureKind
    from dslaunch.transport.ssh.keys import KeyFile, Keys

PUBLIC_KEY = "publickey"
_COPY = "`{copy_id} {target}`"


class FailureExplanation(Struct, frozen=True):
    """A failure of the login to a node, and its fix."""

    kind: FailureKind
    message: str
    hint: str
    """May hold `{copy_id}`, `{target}`, `{ssh}` and `{login}`."""
    detail: str = ""


def refused_login(
    kind: FailureKind, user: str | None, keys: Keys | None, methods: Sequence[str], said: str
) -> FailureExplanation:
    """Return why a login was refused: the first reason in the order in which ssh checks them.

    A key that others can read is not used by OpenSSH (`sshkey_perm_ok`, authfile.c); a key with a
    passphrase only if the agent holds it, since there are no prompts.
    """
    rejected = _rejected(user, keys, methods, said)
    if methods and PUBLIC_KEY not in methods:
        return rejected
    if kind == "agent-refused":
        return FailureExplanation(
            kind,
            "ssh-agent refused to sign with its key",
            "touch the security key or confirm its use; unlock the agent with `ssh-add -X`; list "
            "its keys with `ssh-add -l`",
        )
    if keys is None or keys.usable:
        return rejected
    for reason in (_missing, _unreadable, _open_to_others, _encrypted, _not_private):
        found = reason(keys)
        if found is not None:
            return found
    return FailureExplanation(
        "no-key",
        f"no key to log in with: {_no_files(keys)}, {_AGENT[keys.agent]}",
        f"create a key with `ssh-keygen -t ed25519` and install it with {_COPY}, or set "
        "`identity_file:`",
    )


_AGENT = {
    "none": "no ssh-agent (SSH_AUTH_SOCK is not set)",
    "unreachable": "ssh-agent does not answer at SSH_AUTH_SOCK",
    "empty": "ssh-agent holds no key",
    "unused": "ssh-agent is not used (IdentitiesOnly)",
    "holds": "ssh-agent has keys that were not accepted",
}


def _no_files(keys: Keys) -> str:
    return "no key file is usable" if keys.named else "~/.ssh has none of the standard names"


def _first(keys: Keys, kind: str) -> KeyFile | None:
    return next((file for file in keys.files if file.kind == kind), None)


def _missing(keys: Keys) -> FailureExplanation | None:
    if not keys.named or not all(file.kind == "missing" for file in keys.files):
        return None
    paths = " and ".join(str(file.path) for file in keys.files)
    verb = "does" if len(keys.files) == 1 else "do"
    return FailureExplanation(
        "key-missing",
        f"the key file {paths} {verb} not exist",
        "correct `identity_file:` in the cluster file or IdentityFile in the SSH configuration",
    )


def _unreadable(keys: Keys) -> FailureExplanation | None:
    file = _first(keys, "unreadable")
    if file is None:
        return None
    message = f"the key file {file.path} cannot be read by this user"
    return FailureExplanation(
        "key-unreadable", message, "change its owner to yourself, or use another key"
    )


def _not_private(keys: Keys) -> FailureExplanation | None:
    """Return that a file has no private key, but a public one of a key of the agent, or rubbish."""
    file = _first(keys, "public")
    if file is None:
        return None
    return FailureExplanation(
        "key-unreadable",
        f"the key file {file.path} contains no private key, {_AGENT[keys.agent]}",
        "correct the file or `identity_file:`, or add the key to ssh-agent with `ssh-add`",
    )


def _open_to_others(keys: Keys) -> FailureExplanation | None:
    file = next((file for file in keys.files if file.open_to_others), None)
    return None if file is None else key_open_to_others(str(file.path), file.mode)


def key_open_to_others(path: str, mode: int) -> FailureExplanation:
    """Return that ssh does not use a key since other users can read its file."""
    word = quote(path).replace("{", "{{").replace("}", "}}")
    return FailureExplanation(
        "key-permissions",
        f"ssh ignores the key file {path}: other users can read it (mode {mode:04o})",
        f"run `chmod 600 {word}`",
    )


def _encrypted(keys: Keys) -> FailureExplanation | None:
    file = _first(keys, "encrypted")
    if file is None:
        return None
    start = "" if keys.agent in ("holds", "empty") else 'eval "$(ssh-agent)" && '
    return FailureExplanation(
        "key-passphrase",
        f"the key {file.path} has a passphrase, and {_without(keys)}",
        f"`{start}ssh-add {file.path}`, then try again",
    )


def _without(keys: Keys) -> str:
    return "ssh-agent does not hold it" if keys.agent == "holds" else _AGENT[keys.agent]


def _rejected(
    user: str | None, keys: Keys | None, methods: Sequence[str], said: str
) -> FailureExplanation:
    """Explain a login that was refused although a key was offered, or no key is accepted."""
    who = f"user {user}" if user else "the user"
    accepted = f"sshd accepts: {', '.join(sorted(methods))}" if methods else ""
    if methods and PUBLIC_KEY not in methods:
        hint = "set `PubkeyAuthentication yes` in its sshd_config: dslaunch answers no prompts"
        return FailureExplanation(
            "authentication", f"sshd accepts no public keys for {who}", hint, accepted
        )
    offered = f"offered: {', '.join(keys.offered)}" if keys is not None and keys.offered else ""
    skipped = f"not offered: {', '.join(keys.skipped)}" if keys and keys.skipped else ""
    return FailureExplanation(
        "authentication",
        f"permission denied for {who}",
        f"install the key with {_COPY}, or correct `user:` and `identity_file:`. On the node, make "
        "sure that no other user can write the home directory, ~/.ssh or ~/.ssh/authorized_keys",
        "; ".join(text for text in (accepted, offered, skipped, said) if text),
    )
