"""How machines are wired, for people and programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dslaunch.cluster.nodeset import fold
from dslaunch.lint import Remark
from dslaunch.topology.advice import Advice
from dslaunch.topology.comparison import Comparison
from dslaunch.topology.layout import (
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
"""Columns that text is broken at where nobody has said how many there are."""
_INDENT = "  "


def text(
    by_host: Mapping[str, Topology],
    comparison: Comparison,
    advice: Sequence[Advice] = (),
    remarks: Sequence[Remark] = (),
    *,
    width: int | None = None,
) -> str:
    """Describe each distinct machine once, then who is odd, then what to do about it."""
    parts = [*(_machine(hosts, by_host[hosts[0]]) for hosts in alike(by_host))]
    if len(by_host) > 1:
        parts.append(_compared(by_host, comparison))
    if advice:
        parts.append(["advice", *_advised(advice, width or WIDTH)])
    if remarks:
        parts.append(["settings", *_remarked(remarks, width or WIDTH)])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def alike(by_host: Mapping[str, Topology]) -> list[tuple[str, ...]]:
    """Hosts that look the same in a report, in the order in which they are first met."""
    found: dict[tuple[str, ...], list[str]] = {}
    for host, topology in by_host.items():
        found.setdefault(tuple(_described(topology)), []).append(host)
    return [tuple(hosts) for hosts in found.values()]


def _machine(hosts: tuple[str, ...], topology: Topology) -> list[str]:
    return [f"{fold(hosts)}: {summary(topology)}", *_described(topology)]


def _described(topology: Topology) -> list[str]:
    """The facts of one machine, without its name."""
    if topology.trouble:
        return [f"{_INDENT}{topology.trouble.hint}"] if topology.trouble.hint else []
    facts = []
    if len(topology.gpus) > 1:
        facts.append(("NVLink", shown_islands(topology)))
    if found := ring(topology):
        order = "-".join(map(str, found.order))
        a, b = found.between
        facts.append(("ring", f"{order}, worst hop {found.worst} ({a}-{b})"))
    facts += [("note", note) for note in topology.notes]
    lines = [f"{_INDENT}{name:<7} {value}" for name, value in facts]
    return [*lines, *_gpu_table(topology)]


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
        return [f"{len(by_host)} nodes are wired alike"]
    lines = ["nodes differ"]
    lines += [f"{_INDENT}{odd.host}: {odd.aspect}: {odd.difference}" for odd in comparison.odd]
    for aspect, groups in comparison.undecided:
        shown = " / ".join(fold(hosts) for hosts in groups)
        lines.append(f"{_INDENT}{aspect}: no value is the most common one: {shown}")
    lines += [f"{_INDENT}{host}: not compared: {why}" for host, why in comparison.unread]
    return lines


def _advised(advice: Iterable[Advice], width: int) -> Iterable[str]:
    for each in advice:
        value = f": {each.value}" if each.value is not None else ""
        yield f"{_INDENT}{each.what}{value} on {fold(each.hosts)}"
        yield from _wrapped(each.reason, width)
        yield from _wrapped(f"source: {each.source}", width)


def _remarked(remarks: Iterable[Remark], width: int) -> Iterable[str]:
    """What is said of several nodes once."""
    files: dict[Remark, list[str]] = {}
    for each in remarks:
        files.setdefault(replace(each, file=""), []).append(each.file)
    for each, hosts in files.items():
        yield from _wrapped(f"{fold(hosts)}: {each.level}: {each.message}", width, _INDENT)
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


def data(
    by_host: Mapping[str, Topology],
    comparison: Comparison,
    advice: Sequence[Advice] = (),
    remarks: Sequence[Remark] = (),
) -> dict[str, Any]:
    """Give all of it for programs, in what JSON can hold."""
    return {
        "nodes": {host: _data(topology) for host, topology in by_host.items()},
        "comparison": {
            "equal": comparison.equal,
            "groups": [{"summary": line, "hosts": h} for line, h in comparison.groups],
            "odd": [asdict(odd) for odd in comparison.odd],
            "undecided": [{"aspect": a, "groups": groups} for a, groups in comparison.undecided],
            "unread": [{"host": host, "reason": why} for host, why in comparison.unread],
        },
        "advice": [asdict(each) for each in advice],
        "settings": [asdict(each) for each in remarks],
    }


def _data(topology: Topology) -> dict[str, Any]:
    found = ring(topology)
    return {
        "status": topology.status,
        "summary": summary(topology),
        "trouble": asdict(topology.trouble) if topology.trouble else None,
        "notes": topology.notes,
        "era": topology.era,
        "gpus": [asdict(gpu) for gpu in topology.gpus],
        "nics": [asdict(nic) for nic in topology.nics],
        "links": [{"a": a, "b": b, "link": link} for a, b, link in topology.links],
        "p2p_denied": [{"a": a, "b": b, "status": s} for a, b, s in topology.p2p],
        "islands": islands(topology),
        "nearest_nics": [
            {"gpu": n.gpu, "link": n.link, "nics": [nic.shown for nic in n.nics]}
            for n in nearest(topology)
        ],
        "ring": asdict(found) if found else None,
        "placement": placement(topology),
        "host": asdict(topology.host),
    }
