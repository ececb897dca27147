"""What scontrol prints becomes typed values. Pure.

The one parser of scontrol's records, `KEY=value` pairs in which a value may contain blanks. Free
text of a record, such as a job's name and comment or a node's reason, may look like further pairs:
of a key that occurs again, the first pair counts, which scontrol prints before any free text except
a job's name (SLURM 22.05, src/api/job_info.c, node_info.c and partition_info.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from dslaunch.cluster.nodeset import numbers
from dslaunch.slurm.nodes import node_names, node_states
from dslaunch.slurm.states import given

_KEY = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")
_SINCE = re.compile(r"(?P<why>.*) \[\S+@(?P<when>[0-9]{1,18})\]")
_ACCOUNT = re.compile(r"[\w.@+-]{1,64}", re.ASCII)
_GPU_INDEXES = re.compile(r"(?:^|,)gpu(?::[\w.-]{1,64})?:[0-9]{1,9}\(IDX:([0-9,-]+)\)")
"""The GPUs of one type, in the list of all generic resources that a job has on a node."""


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of a record in one line, as of `scontrol --oneliner`."""
    keys = list(_KEY.finditer(line))
    ends = [*(key.start() for key in keys[1:]), len(line)]
    fields: dict[str, str] = {}
    for key, end in zip(keys, ends, strict=False):
        fields.setdefault(key[1], line[key.end() : end].strip())
    return fields


class NodeRecord(Struct, frozen=True):
    """A node as SLURM knows it."""

    states: frozenset[str]
    """Such as IDLE and DRAIN."""
    reason: str = ""
    """Why it is down or drained, as an administrator or SLURM wrote it."""
    since: int | None = None
    """When the reason was set, in Unix seconds."""


def node_records(text: str) -> dict[str, NodeRecord]:
    """Return the nodes of `scontrol --oneliner show node`, by their names."""
    records = map(fields_of, text.splitlines())
    return {fields["NodeName"]: _node(fields) for fields in records if "NodeName" in fields}


def _node(fields: dict[str, str]) -> NodeRecord:
    states = node_states(fields.get("State", ""))
    reason = fields.get("Reason", "")
    found = _SINCE.fullmatch(reason)
    if found is None:
        return NodeRecord(states, reason)
    return NodeRecord(states, reason=found["why"], since=int(found["when"]))


def excluded_nodes(text: str) -> tuple[str, ...]:
    """Return the nodes that a job excludes, by `scontrol --oneliner show job`."""
    return node_names(given(fields_of(text).get("ExcNodeList", "")))


def allowed_accounts(text: str) -> tuple[str, ...]:
    """Return the accounts of `scontrol --oneliner show partition`; empty: all are allowed."""
    names = fields_of(text).get("AllowAccounts", "ALL").split(",")
    valid = [name for name in names if _ACCOUNT.fullmatch(name)]
    return () if "ALL" in valid else tuple(valid)


def gpu_indexes(text: str) -> dict[str, tuple[int, ...]]:
    """Return the GPUs that a job has on each node, by `scontrol --details show job`.

    The lines are such as `Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:a100:2(IDX:0-1)`; a node may
    have GPUs of several types.
    """
    found: dict[str, tuple[int, ...]] = {}
    for fields in map(fields_of, text.splitlines()):
        indexes = tuple(sorted(set(_indexes(fields.get("GRES", "")))))
        if indexes and "Nodes" in fields:
            found |= dict.fromkeys(node_names(fields["Nodes"]), indexes)
    return found


def _indexes(gres: str) -> Iterator[int]:
    for listed in _GPU_INDEXES.findall(gres):
        for part in listed.split(","):
            try:
                yield from numbers(part)
            except ValueError:
                continue  # cut, or too many
