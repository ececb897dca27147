"""What a killed write leaves is what the end removes."""

from __future__ import annotations

from tests.checks.recorded import HELLO

from dslaunch.cluster.load import parse_cluster
from dslaunch.preflight.check import NodeAnswers, Scope
from dslaunch.preflight.checks.fs_write_speed import CHECK
from dslaunch.preflight.flow import RunningFlow


def test_every_file_that_is_written_is_removed_by_name_at_the_end() -> None:
    cluster = parse_cluster("nodes: [{host: 'node[1-3]', slots: 1}]", "c.yaml")
    scope = Scope(cluster, cluster.nodes, directories=("/work", "ckpt"), token="t0")
    nodes = {n.host: NodeAnswers(n, scope, {}, {}, HELLO) for n in cluster.nodes}
    written: dict[str, set[str]] = {}
    flow = RunningFlow(CHECK.flow(scope))
    assert flow.pending is not None
    last = flow.pending.last
    flow.answered(nodes)
    while flow.pending is not None:
        assert flow.pending.alone
        for host, asked in flow.pending.asked.items():
            for question in asked.values():
                told = question.argument
                written.setdefault(host, set()).add(f"{told['path']}/{told['name']}")
        flow.answered(nodes)
    for host, files in written.items():
        removed = [each for q in last[host].values() for each in q.argument.items()]
        assert files <= {f"{path}/{name}" for name, paths in removed for path in paths}
    assert {host: len(files) for host, files in written.items()} == {
        "node1": 2,
        "node2": 2,
        "node3": 1,
    }
