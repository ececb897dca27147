"""A first cluster file, with comments for its editor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from msgspec import Struct

from dslaunch.cluster.discover import Discovered
from dslaunch.cluster.nodeset import fold_in_order
from dslaunch.json_text import json_literal
from dslaunch.registry import TRANSPORTS
from dslaunch.render.templates import render

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.,\[\]-]*")


class YamlNodes(Struct, frozen=True):
    """Equal nodes, as values of YAML."""

    host: str
    slots: int
    user: str | None
    gpu: str | None


def cluster_yaml(found: Discovered) -> str:
    """Return a cluster file with comments; adjacent equal nodes share an entry."""
    return render(
        "cluster.yaml.j2",
        source=_one_line(found.source),
        notes=[_one_line(str(note)) for note in found.notes],
        entries=list(_entries(found)),
        guessed_slots=found.guessed_slots,
        config_file=found.config_file and json_literal(found.config_file),
        local=TRANSPORTS.get(found.transport).same_machine,
    )


def _entries(found: Discovered) -> Iterator[YamlNodes]:
    """Yield adjacent equal nodes together."""
    users, types = dict(found.users), dict(found.gpu_types)

    def settings(node: tuple[str, int]) -> tuple[int, str | None, str | None]:
        host, slots = node
        return slots, users.get(host), types.get(host)

    for (slots, user, gpu), nodes in groupby(found.nodes, key=settings):
        yield YamlNodes(
            host=yaml_text(fold_in_order([host for host, _ in nodes])),
            slots=slots,
            user=yaml_text(user) if user else None,
            gpu=yaml_text(gpu) if gpu else None,
        )


def yaml_text(text: str) -> str:
    """Return text as one YAML value, quoted where it could be something else."""
    return text if _PLAIN.fullmatch(text) else json_literal(text)


def _one_line(text: str) -> str:
    """Return text for a comment, which must not end before the line does."""
    return "".join(c if c.isprintable() else " " for c in text)
