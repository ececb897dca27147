"""A first cluster file, commented for whoever will edit it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import groupby

from dslaunch.cluster.discover import Discovered
from dslaunch.cluster.nodeset import fold_in_order
from dslaunch.registry import TRANSPORTS
from dslaunch.render.templates import render

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.,\[\]-]*")


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """Nodes that are alike, as YAML has them."""

    host: str
    slots: int
    user: str | None
    gpu: str | None


def cluster_yaml(found: Discovered) -> str:
    """Write a commented cluster file; equal neighbours are one entry."""
    users, types = dict(found.users), dict(found.gpu_types)
    entries = [
        NodeEntry(
            host=yaml_text(fold_in_order([host for host, _ in alike])),
            slots=slots,
            user=yaml_text(user) if user else None,
            gpu=yaml_text(gpu) if gpu else None,
        )
        for (slots, user, gpu), alike in groupby(
            found.nodes, key=lambda node: (node[1], users.get(node[0]), types.get(node[0]))
        )
    ]
    return render(
        "cluster.yaml.j2",
        source=_one_line(found.source),
        notes=[_one_line(note) for note in found.notes],
        entries=entries,
        guessed_slots=found.guessed_slots,
        config_file=found.config_file and json.dumps(found.config_file),
        local=TRANSPORTS.get(found.transport).same_machine,
    )


def yaml_text(text: str) -> str:
    """Return text as one YAML value, quoted where it could be something else."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _one_line(text: str) -> str:
    """Make text fit for a comment: it must not end, and so open the file to what follows."""
    return "".join(c if c.isprintable() else " " for c in text)
