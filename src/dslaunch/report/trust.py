"""Host keys as a table, with equal fingerprints folded, and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dslaunch.cluster.nodeset import fold
from dslaunch.plural import counted

if TYPE_CHECKING:
    from dslaunch.transport.ssh.hostkeys import Presented

HEAD = ("HOST", "NAME IN KNOWN_HOSTS", "KEY")


def rows(found: Sequence[Presented]) -> list[tuple[str, ...]]:
    """Return a row per key, with all hosts that present it."""
    groups: dict[str, list[Presented]] = {}
    for presented in found:
        for key in presented.keys:
            groups.setdefault(str(key), []).append(presented)
    return [HEAD, *((_hosts(group), _known_as(group), key) for key, group in groups.items())]


def _hosts(group: Sequence[Presented]) -> str:
    return fold(presented.host.hop.alias for presented in group)


def _known_as(group: Sequence[Presented]) -> str:
    names = dict.fromkeys(str(presented.host.hop.known_as) for presented in group)
    return fold(names) if len(names) < 4 else f"{fold(list(names)[:3])},..."


def summary(found: Sequence[Presented]) -> str:
    """Return how many host keys have which state."""
    words = {
        "recorded": "recorded",
        "known": "already known",
        "certified": "signed by a trusted certificate authority",
        "declined": "not recorded",
        "failed": "failed",
    }
    counts = {status: sum(each.status == status for each in found) for status in words}
    parts = [f"{counts[status]} {text}" for status, text in words.items() if counts[status]]
    return f"{counted(len(found), 'host')}: {', '.join(parts)}"


def as_data(found: Sequence[Presented]) -> list[dict[str, Any]]:
    """Return the host keys as JSON data."""
    return [
        {
            "host": each.host.hop.alias,
            "address": each.host.hop.host,
            "port": each.host.hop.port,
            "known_as": str(each.host.hop.known_as),
            "jump_host": each.host.is_jump,
            "status": each.status,
            "keys": [
                dict(zip(("type", "fingerprint"), str(k).split(), strict=True)) for k in each.keys
            ],
            "why": each.failure.kind if each.failure else None,
        }
        for each in found
    ]
