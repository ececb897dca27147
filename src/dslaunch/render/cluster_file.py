"""A first cluster file, commented for whoever will edit it."""

from __future__ import annotations

import json
import re
from itertools import groupby

from dslaunch.cluster.discover import Discovered
from dslaunch.cluster.nodeset import fold_in_order
from dslaunch.render.templates import render

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.,\[\]-]*")


def cluster_yaml(found: Discovered) -> str:
    """Write a commented cluster file; equal neighbours are one entry."""
    entries = [
        (_yaml_text(fold_in_order([host for host, _ in alike])), slots)
        for slots, alike in groupby(found.nodes, key=lambda node: node[1])
    ]
    return render(
        "cluster.yaml.j2",
        source=_one_line(found.source),
        notes=[_one_line(note) for note in found.notes],
        entries=entries,
        guessed_slots=found.guessed_slots,
        local=found.transport == "local",
    )


def _yaml_text(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _one_line(text: str) -> str:
    """Make text fit for a comment: it must not end, and so open the file to what follows."""
    return "".join(c if c.isprintable() else " " for c in text)
