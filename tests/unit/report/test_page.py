"""The page of a preflight: what is folded, what comes first, and how large it is."""

from __future__ import annotations

from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import NodeFailure
from dslaunch.preflight import checks
from dslaunch.preflight.check import LEVELS, Finding, Level, Scope
from dslaunch.preflight.judge import Report
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.preflight.verdict import Fitness
from dslaunch.report.page import as_page, entries_of, grid_of, groups_of

LARGEST = 300_000
"""Bytes of the page of 500 nodes."""


def report(hosts: str, *findings: Finding, unreachable: str = "") -> Report:
    """What was found on some nodes, one of which may be unreachable."""
    cluster = parse_cluster(f"nodes: [{{host: '{hosts}', slots: 8}}]", "pod.yaml")
    names = [node.host for node in cluster.nodes]
    reached = {host: NodeRecording({}, {}, None, 0.1) for host in names if host != unreachable}
    lost = [host for host in names if host == unreachable]
    failures = {host: NodeFailure(host, "timeout", "no answer") for host in lost}
    recording = Recording(Scope(cluster, cluster.nodes), 0.0, reached, failures)
    worst_first = sorted(findings, key=lambda finding: LEVELS.index(finding.level))
    return Report(recording, tuple(worst_first))


def finding(level: Level, check: str, *hosts: str) -> Finding:
    return Finding(level, "7 of 8 GPUs found", "8", hosts=hosts, check=check)


def test_nodes_with_equal_findings_are_one_group() -> None:
    found = report(
        "n[1-4]", finding("fail", "gpu.count", "n2", "n4"), finding("warn", "fs.free", "n3")
    )
    groups = groups_of(found, entries_of(found.findings))
    assert [(group.hosts, group.count, group.fitness) for group in groups] == [
        ("n[2,4]", 2, Fitness.UNFIT),
        ("n3", 1, Fitness.FIT),
        ("n1", 1, Fitness.FIT),
    ]


def test_unreachable_nodes_come_first() -> None:
    found = report(
        "n[1-3]",
        finding("fail", "gpu.count", "n1"),
        finding("fail", "ssh.connect", "n3"),
        unreachable="n3",
    )
    groups = groups_of(found, entries_of(found.findings))
    assert [group.hosts for group in groups] == ["n3", "n1", "n2"]


def test_columns_are_checks_that_did_not_pass_everywhere() -> None:
    found = report(
        "n[1-2]",
        finding("pass", "fs.free", "n1", "n2"),
        finding("pass", "gpu.count", "n1"),
        finding("fail", "gpu.count", "n2"),
    )
    grid = grid_of(found)
    assert (grid.checks, grid.passed) == (("gpu.count",), ("fs.free",))
    assert [(row.hosts, row.levels) for row in grid.rows] == [
        ("n2", ("fail",)),
        ("n1", ("pass",)),
    ]


def test_page_of_500_nodes_is_small() -> None:
    names = sorted(checks.built_in())
    hosts = [f"gpu-{number:03}" for number in range(1, 501)]
    scattered = [
        finding("fail", name, *hosts[position * 7 :: 61]) for position, name in enumerate(names[:8])
    ]
    passed = [finding("pass", name, *hosts) for name in names]
    found = report("gpu-[001-500]", *scattered, *passed)
    assert len(as_page(found, checks.built_in()).encode()) < LARGEST
