"""What the answers of all nodes show besides findings: how they are wired, and what was measured
between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dslaunch.preflight.checks._wiring import topologies
from dslaunch.preflight.judge import Report, node_answers
from dslaunch.preflight.pair_matrix import PairMatrix, bandwidth, tcp
from dslaunch.topology.model import Topology

WIRED, MESHED, MEASURED = "topo.uniform", "net.mesh", "net.bandwidth"
"""The checks whose answers are shown."""


class Overview(Struct, frozen=True):
    """What nodes are wired like, and what was measured between them."""

    topologies: Mapping[str, Topology]
    """By host: of the nodes that reported it."""
    matrices: tuple[PairMatrix, ...]
    """Connections and bandwidth, where they were measured."""


def overview(report: Report) -> Overview:
    """Return what the answers show to the checks of a report."""
    checks = {finding.check for finding in report.findings}
    nodes = node_answers(report.facts)
    measured = (
        tcp(nodes) if MESHED in checks else None,
        bandwidth(nodes) if MEASURED in checks else None,
    )
    return Overview(
        topologies=topologies(nodes) if WIRED in checks else {},
        matrices=tuple(matrix for matrix in measured if matrix is not None),
    )
