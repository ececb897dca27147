"""Judge answers again that were saved: later, elsewhere, or with other thresholds."""

from __future__ import annotations

from pathlib import Path

from dslaunch.cluster.load import parse_cluster
from dslaunch.launch.job import Job
from dslaunch.preflight.check import Scope
from dslaunch.preflight.facts import Facts, read


def replayed(path: Path) -> tuple[Scope, Facts]:
    """What was asked, and the answers. Raises ConfigError."""
    facts = read(path)
    cluster = parse_cluster(facts.cluster, facts.file)
    hosts = {*facts.nodes, *facts.failures}
    scope = Scope(
        cluster=cluster,
        nodes=tuple(node for node in cluster.nodes if node.host in hosts),
        job=Job(facts.program, kind=facts.kind, launcher=facts.launcher),
        purposes=frozenset(facts.purposes),
        directories=facts.directories,
        root=facts.root,
        files=facts.files,
        named=frozenset(facts.named),
        token=facts.token,
        imports=facts.imports,
    )
    return scope, facts
