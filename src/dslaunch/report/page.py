"""A preflight as one HTML page: readable offline, on paper, on a phone and without color."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from dslaunch.cluster.nodeset import fold
from dslaunch.plural import counted
from dslaunch.preflight.check import LEVELS, Check, Finding, Level
from dslaunch.preflight.judge import Report
from dslaunch.preflight.overview import overview
from dslaunch.preflight.verdict import Fitness, hosts_that_are
from dslaunch.render.templates import render_page
from dslaunch.report.preflight import readable, summary
from dslaunch.report.topology import alike
from dslaunch.report.topology_svg import drawing
from dslaunch.topology.model import Topology

SIGNS: Mapping[Level, str] = {
    "fail": "✗",
    "warn": "!",
    "unknown": "?",
    "info": "i",
    "skip": "–",
    "pass": "✓",
}
WORDS: Mapping[Level, str] = {
    "fail": "failed",
    "warn": "warning",
    "unknown": "unknown",
    "info": "information",
    "skip": "not applicable",
    "pass": "passed",
}
SHOWN: tuple[Level, ...] = ("fail", "warn", "unknown", "info")
"""The levels of findings that a person reads; the others are signs in the table of checks."""


class Entry(Struct, frozen=True):
    """A finding as it stands on the page."""

    anchor: str
    level: Level
    sign: str
    word: str
    hosts: str
    """The nodes, folded."""
    count: int
    """How many nodes."""
    finding: Finding


class NodeGroup(Struct, frozen=True):
    """Nodes with the same findings."""

    hosts: str
    """Folded."""
    count: int
    fitness: Fitness
    entries: tuple[Entry, ...]


class GridRow(Struct, frozen=True):
    """Nodes with the same result of every check."""

    hosts: str
    """Folded."""
    count: int
    levels: tuple[Level | None, ...]
    """Of the checks of the grid's columns; None: not asked."""


class Grid(Struct, frozen=True):
    """Results by node and check, without what is the same everywhere."""

    checks: tuple[str, ...]
    """The columns, those that failed first."""
    rows: tuple[GridRow, ...]
    """The worst first."""
    passed: tuple[str, ...]
    """The checks that passed, or do not apply, on every node that was asked."""


def as_page(report: Report, checks: Mapping[str, Check]) -> str:
    """Return the page."""
    when = datetime.fromtimestamp(report.facts.time, UTC)
    entries = entries_of(readable(report.findings))
    groups = groups_of(report, entries)
    shown = overview(report)
    names = sorted({finding.check for finding in report.findings})
    return render_page(
        "preflight.html.j2",
        report=report,
        title=f"Preflight of {report.scope.cluster.name}",
        summary=summary(report),
        when=when.strftime("%Y-%m-%d %H:%M UTC"),
        entries=entries,
        groups=groups,
        unfit=fold(hosts_that_are(report.verdicts, Fitness.UNFIT)),
        unknown=fold(hosts_that_are(report.verdicts, Fitness.UNKNOWN)),
        grid=grid_of(report),
        titles={name: checks[name].title if name in checks else name for name in names},
        machines=drawings(shown.topologies),
        matrices=shown.matrices,
        signs=SIGNS,
        levels=[(level, SIGNS[level], WORDS[level]) for level in LEVELS],
        counted=counted,
    )


def entries_of(findings: Sequence[Finding]) -> tuple[Entry, ...]:
    """Return what is shown of the findings, in their order."""
    shown = [finding for finding in findings if finding.level in SHOWN]
    return tuple(
        Entry(
            anchor=f"finding-{number}",
            level=finding.level,
            sign=SIGNS[finding.level],
            word=WORDS[finding.level],
            hosts=fold(finding.hosts),
            count=len(finding.hosts),
            finding=finding,
        )
        for number, finding in enumerate(shown, 1)
    )


def groups_of(report: Report, entries: Sequence[Entry]) -> tuple[NodeGroup, ...]:
    """Return the nodes grouped by equal findings: unreachable ones first, then the worst."""
    by_host: dict[str, list[Entry]] = {node.host: [] for node in report.scope.nodes}
    for entry in entries:
        for host in entry.finding.hosts:
            if host in by_host:
                by_host[host].append(entry)
    hosts_of: dict[tuple[Fitness, tuple[str, ...]], list[str]] = {}
    for verdict in report.verdicts:
        anchors = tuple(entry.anchor for entry in by_host[verdict.host])
        hosts_of.setdefault((verdict.fitness, anchors), []).append(verdict.host)
    groups = [
        NodeGroup(
            hosts=fold(hosts),
            count=len(hosts),
            fitness=fitness,
            entries=tuple(by_host[hosts[0]]),
        )
        for (fitness, _), hosts in hosts_of.items()
    ]
    return tuple(sorted(groups, key=_severity_of_group))


def _severity_of_group(group: NodeGroup) -> tuple[bool, int]:
    """Return a key that sorts unknown nodes first, then by the worst finding."""
    answered = group.fitness is not Fitness.UNKNOWN
    levels = [LEVELS.index(entry.level) for entry in group.entries]
    return answered, min(levels, default=len(LEVELS))


def grid_of(report: Report) -> Grid:
    """Return the results by node and check; of several findings of a check the worst counts."""
    worst_of_check: dict[str, Level] = {}
    for finding in report.findings:  # the worst first
        worst_of_check.setdefault(finding.check, finding.level)
    columns = [name for name, level in worst_of_check.items() if level in SHOWN]
    worst: dict[str, dict[str, Level]] = {name: {} for name in columns}
    """By check and node."""
    for finding in reversed(report.findings):
        if finding.check in worst:
            worst[finding.check].update(dict.fromkeys(finding.hosts, finding.level))
    hosts_of: dict[tuple[Level | None, ...], list[str]] = {}
    for node in report.scope.nodes:
        levels = tuple(of_check.get(node.host) for of_check in worst.values())
        hosts_of.setdefault(levels, []).append(node.host)
    rows = [GridRow(fold(hosts), len(hosts), levels) for levels, hosts in hosts_of.items()]
    return Grid(
        checks=tuple(columns),
        rows=tuple(sorted(rows, key=_severity_of_row)),
        passed=tuple(sorted(set(worst_of_check) - set(columns))),
    )


def _severity_of_row(row: GridRow) -> list[int]:
    """Return a key that sorts rows with more of the worst level first."""
    return [-row.levels.count(level) for level in SHOWN]


def drawings(known: Mapping[str, Topology]) -> dict[str, str]:
    """Return a drawing (SVG) of each distinct machine, by the nodes that are wired like it."""
    return {fold(hosts): drawing(known[hosts[0]], fold(hosts)) for hosts in alike(known)}
