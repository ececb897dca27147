"""What is said of a node that did not answer, and how a person can see it for himself."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.checks.recorded import HELLO

from dslaunch.cluster.load import parse_cluster
from dslaunch.preflight.check import Scope
from dslaunch.preflight.judge import judge
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.protocol.survey import recorded


@pytest.mark.parametrize(
    ("way", "see"),
    [
        ("fabric", "ssh n1 true"),
        ("openssh", "ssh n1 true"),
        ("srun", "srun --overlap --nodes=1 --nodelist=n1 true"),
    ],
)
def test_the_hint_for_an_unreachable_node_uses_its_route(way: str, see: str) -> None:
    cluster = replace(parse_cluster("nodes: [{host: n1, slots: 1}]\n", "c.yaml"), transport=way)
    scope = Scope(cluster, cluster.nodes)
    (finding,) = judge(Recording(scope, 0.0, {}, {}), {}).findings
    assert (finding.check, finding.level, finding.see) == ("ssh.connect", "fail", see)


def test_the_hint_for_a_node_has_its_user_and_port() -> None:
    text = "nodes: [{host: n1, slots: 1, user: ml, port: 2222}]\n"
    cluster = parse_cluster(text, "c.yaml")
    scope = Scope(cluster, cluster.nodes)
    (finding,) = judge(Recording(scope, 0.0, {}, {}), {}).findings
    assert finding.see == "ssh -p 2222 ml@n1 true"


def test_invalid_answers_to_one_kind_of_question_are_one_finding() -> None:
    cluster = parse_cluster("nodes: [{host: 'n[1-3]', slots: 1}]\n", "c.yaml")
    scope = Scope(cluster, cluster.nodes)
    nodes = {}
    for host in ("n1", "n2", "n3"):
        key, sent = f'resolve ["{host}"]', {"value": {host: ["no address"]}}
        answer = recorded(key, sent)
        assert answer is not None
        nodes[host] = NodeRecording(HELLO, {key: answer}, None, 0.1)
    found = judge(Recording(scope, 0.0, nodes, {}), {}).findings
    assert [(finding.level, finding.hosts) for finding in found] == [
        ("unknown", ("n1", "n2", "n3")),
        ("pass", ("n1", "n2", "n3")),
    ]
