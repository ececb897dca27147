"""Topologies of machines, for users and programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from dslaunch.lint import Remark
from dslaunch.report.node_list import listed_nodes
from dslaunch.topology.advice_codes import Advice
from dslaunch.topology.comparison import Comparison
from dslaunch.topology.layout import (
    KEPT,
    Near,
    islands,
    nearest,
    placement,
    ring,
    shown_islands,
    summary,
)
from dslaunch.topology.model import Topology

WIDTH = 100
"""Columns at which text is wrapped if the width is unknown."""
_INDENT = "  "


def text(
    by_host: Mapping[str, Topology],
    comparison: Comparison,
    advice: Sequence[Advice] = (),
    remarks: Sequence[Remark] = (),
    *,
    width: int | None = None,
) -> str:
    """Return each distinct machine once, then the differences, then the advice."""
    parts = [*(_machine(hosts, by_host[hosts[0]]) for hosts in alike(by_host))]
    if len(by_host) > 1:
        parts.append(_compared(by_host, comparison))
    if advice:
        parts.append(["advice", *_advised(advice, width or WIDTH)])
    if remarks:
        parts.append(["settings", *_remarked(remarks, width or WIDTH)])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def alike(by_host: Mapping[str, Topology]) -> list[tuple[str, ...]]:
    """Return groups of hosts with the same description, in order of first appearance."""
    found: dict[tuple[str, ...], list[str]] = {}
    for host, topology in by_host.items():
        found.setdefault(_described(topology), []).append(host)
    return [tuple(hosts) for hosts in found.values()]


def _machine(hosts: tuple[str, ...], topology: Topology) -> list[str]:
    return [f"{listed_nodes(hosts)}: {summary(topology)}", *_described(topology)]


@lru_cache(maxsize=KEPT)
def _described(topology: Topology) -> tuple[str, ...]:
    """Return the description of one machine, without its name."""
    if topology.trouble:
        return (f"{_INDENT}{topology.trouble.hint}",) if topology.trouble.hint else ()
    facts = []
    if len(topology.gpus) > 1:
        facts.append(("NVLink", shown_islands(topology)))
    if found := ring(topology):
        order = "-".join(map(str, found.order))
        a, b = found.between
        facts.append(("ring", f"{order}, worst hop {found.worst} ({a}-{b})"))
    facts += [("note", str(note)) for note in topology.notes]
    lines = [f"{_INDENT}{name:<7} {value}" for name, value in facts]
    return (*lines, *_gpu_table(topology))


def _gpu_table(topology: Topology) -> list[str]:
    rows = [("GPU", "NUMA", "CPUS", "NEAREST NIC")]
    for gpu, near in zip(topology.gpus, nearest(topology), strict=True):
        rows.append((str(gpu.index), gpu.numa or "-", _cut(gpu.cpus or "-"), _near(near)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [zip(row, widths, strict=True) for row in rows]
    return [(_INDENT + "  ".join(c.ljust(w) for c, w in row)).rstrip() for row in cells]


def _cut(words: str) -> str:
    return words if len(words) <= 24 else words[:23] + "…"


def _near(near: Near) -> str:
    if near.link is None:
        return "-"
    names = [nic.shown for nic in near.nics]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{near.link} {','.join(names[:4])}{more}"


def _compared(by_host: Mapping[str, Topology], comparison: Comparison) -> list[str]:
    if comparison.equal:
        return [f"{len(by_host)} nodes have the same topology"]
    lines = ["nodes differ"]
    lines += _together((odd.host, f"{odd.aspect}: {odd.text}") for odd in comparison.odd)
    for aspect, groups in comparison.undecided:
        shown = " / ".join(listed_nodes(hosts) for hosts in groups)
        lines.append(f"{_INDENT}{aspect}: no common value: {shown}")
    lines += _together((node.host, f"not compared: {node.text}") for node in comparison.unread)
    return lines


def _together(said: Iterable[tuple[str, str]]) -> Iterable[str]:
    """Return lines of what is said of hosts: the same of several hosts once."""
    hosts_of: dict[str, list[str]] = {}
    for host, words in said:
        hosts_of.setdefault(words, []).append(host)
    return [f"{_INDENT}{listed_nodes(hosts)}: {words}" for words, hosts in hosts_of.items()]


def _advised(advice: Iterable[Advice], width: int) -> Iterable[str]:
    for each in advice:
        value = f": {each.value}" if each.value is not None else ""
        yield f"{_INDENT}{each.what}{value} on {listed_nodes(each.hosts)}"
        yield from _wrapped(each.reason, width)
        yield from _wrapped(f"source: {each.source}", width)


def _remarked(remarks: Iterable[Remark], width: int) -> Iterable[str]:
    """Return the findings, those of several nodes once."""
    files: dict[Remark, list[str]] = {}
    for each in remarks:
        files.setdefault(replace(each, file=""), []).append(each.file)
    for each, hosts in files.items():
        yield from _wrapped(f"{listed_nodes(hosts)}: {each.level}: {each.message}", width, _INDENT)
        for line in (each.fix, f"source: {each.source}" if each.source else None):
            if line:
                yield from _wrapped(line, width)


def _wrapped(words: str, width: int, indent: str = _INDENT * 2) -> list[str]:
    return textwrap.wrap(
        words,
        max(width, 40),
        initial_indent=indent,
        subsequent_indent=_INDENT * 2,
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_data(
    by_host: Mapping[str, Topology],
    comparison: Comparison,
    advice: Sequence[Advice] = (),
    remarks: Sequence[Remark] = (),
) -> dict[str, Any]:
    """Return machines, differences and advice as JSON data."""
    return {
        "nodes": {host: _data(topology) for host, topology in by_host.items()},
        "comparison": {
            "equal": comparison.equal,
            "groups": [{"summary": line, "hosts": h} for line, h in comparison.groups],
            "odd": [{**to_builtins(odd), "difference": odd.text} for odd in comparison.odd],
            "undecided": [{"aspect": a, "groups": groups} for a, groups in comparison.undecided],
            "unread": [
                {"host": node.host, "code": node.code, "reason": node.text}
                for node in comparison.unread
            ],
        },
        "advice": [_advice(each) for each in advice],
        "settings": [to_builtins(each) for each in remarks],
    }


def _advice(each: Advice) -> dict[str, Any]:
    values = dict(each.values)
    return {**to_builtins(each), "values": values, "reason": each.reason, "source": each.source}


@lru_cache(maxsize=KEPT)
def _data(topology: Topology) -> dict[str, Any]:
    found = ring(topology)
    return {
        "status": topology.status,
        "summary": summary(topology),
        "trouble": to_builtins(topology.trouble) if topology.trouble else None,
        "notes": [
            {"code": note.code, "values": dict(note.values), "text": str(note)}
            for note in topology.notes
        ],
        "era": topology.era,
        "gpus": [to_builtins(gpu) for gpu in topology.gpus],
        "nics": [to_builtins(nic) for nic in topology.nics],
        "links": [{"a": a, "b": b, "link": link} for a, b, link in topology.links],
        "p2p_denied": [{"a": a, "b": b, "status": s} for a, b, s in topology.p2p],
        "islands": islands(topology),
        "nearest_nics": [
            {"gpu": n.gpu, "link": n.link, "nics": [nic.shown for nic in n.nics]}
            for n in nearest(topology)
        ],
        "ring": to_builtins(found) if found else None,
        "placement": placement(topology),
        "host": to_builtins(topology.host),
    }
