"""A preflight as one HTML page: readable offline, on paper, on a phone and without colour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from dslaunch.cluster.nodeset import fold
from dslaunch.preflight.check import LEVELS, Check, Finding, Level
from dslaunch.preflight.checks._wiring import topologies
from dslaunch.preflight.judge import Report, answers
from dslaunch.preflight.pair_matrix import PairMatrix, bandwidth, tcp
from dslaunch.render.templates import render_page
from dslaunch.report.preflight import summary
from dslaunch.report.topology import alike
from dslaunch.report.topology_svg import drawing

WIRED, MESHED, MEASURED = "topo.uniform", "net.mesh", "net.bandwidth"
"""The checks whose questions tell of machines, and of pairs of nodes."""
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
    "unknown": "not answered",
    "info": "worth knowing",
    "skip": "does not apply",
    "pass": "passed",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What one check says of one node."""

    level: Level
    sign: str
    title: str


def as_page(report: Report, checks: Mapping[str, Check]) -> str:
    """The page."""
    when = datetime.fromtimestamp(report.facts.time, UTC)
    findings = [f for f in report.findings if f.level in ("fail", "warn", "unknown", "info")]
    names = sorted({f.check for f in report.findings})
    return render_page(
        "preflight.html.j2",
        report=report,
        title=f"Preflight of {report.scope.cluster.name}",
        summary=summary(report),
        when=when.strftime("%Y-%m-%d %H:%M UTC"),
        findings=[(f, SIGNS[f.level], WORDS[f.level], fold(f.hosts)) for f in findings],
        names=names,
        titles={name: checks[name].title if name in checks else name for name in names},
        rows=grid(report, names),
        machines=machines(report, checks),
        matrices=matrices(report, checks),
        levels=[(level, SIGNS[level], WORDS[level]) for level in LEVELS],
    )


def machines(report: Report, checks: Mapping[str, Check]) -> dict[str, str]:
    """Drawings (SVG) of each distinct machine, by the nodes that are such a one."""
    if WIRED not in checks:
        return {}
    known = topologies(answers(WIRED, checks[WIRED], report.facts))
    return {fold(hosts): drawing(known[hosts[0]], fold(hosts)) for hosts in alike(known)}


def matrices(report: Report, checks: Mapping[str, Check]) -> list[PairMatrix]:
    """From node to node: who reaches whom, and how fast."""
    found = [
        matrix_of(answers(name, checks[name], report.facts))
        for name, matrix_of in ((MESHED, tcp), (MEASURED, bandwidth))
        if name in checks
    ]
    return [matrix for matrix in found if matrix is not None]


def grid(report: Report, names: list[str]) -> list[tuple[str, list[Cell | None]]]:
    """A row of cells for each node; of several findings of a check the worst."""
    worst: dict[tuple[str, str], Finding] = {}
    for finding in report.findings:  # the worst first
        for host in finding.hosts:
            worst.setdefault((host, finding.check), finding)
    return [
        (node.host, [_cell(worst.get((node.host, name))) for name in names])
        for node in report.scope.nodes
    ]


def _cell(finding: Finding | None) -> Cell | None:
    if finding is None:
        return None
    title = f"{finding.check}: {WORDS[finding.level]}: {finding.found}"
    return Cell(finding.level, SIGNS[finding.level], title)
