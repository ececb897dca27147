"""What a node printed is parsed once, for all checks of one judgment, and never for longer."""

from __future__ import annotations

from tests.checks.recorded import HELLO

from dslaunch.cluster.load import parse_cluster
from dslaunch.preflight.check import NodeAnswers, Scope
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks import some
from dslaunch.preflight.flow import RunningCheck
from dslaunch.preflight.judge import node_answers
from dslaunch.preflight.recording import NodeRecording, Recording

CLUSTER = parse_cluster("nodes: [{host: 'n[1-2]', slots: 1}]\n", "c.yaml")
SCOPE = Scope(CLUSTER, CLUSTER.nodes)
CHECKS = some(("gpu.mig", "gpu.power-limit"))


def facts() -> Recording:
    query = {"code": 0, "out": "index, name\n0, NVIDIA H100\n", "err": ""}
    which = {"nvidia-smi": "/usr/bin/nvidia-smi"}
    answers = {nvidia.WHICH.key: {"value": which}, nvidia.QUERY.key: {"value": query}}
    nodes = {n.host: NodeRecording(HELLO, answers, None, 0.1) for n in CLUSTER.nodes}
    return Recording(SCOPE, 0.0, nodes, {})


def of_host(host: str) -> list[NodeAnswers]:
    """A node's answers as each of the checks sees them in one judgment."""
    nodes = node_answers(facts())
    running = [RunningCheck(name, check, SCOPE) for name, check in CHECKS.items()]
    return [check.named(nodes)[host] for check in running]


def test_checks_share_the_parsed_query_of_a_node() -> None:
    mig, power = of_host("n1")
    assert mig.limits != power.limits
    assert nvidia.gpus(mig) is nvidia.gpus(power)
    assert nvidia.driver(mig) is nvidia.Driver.UP


def test_equal_texts_of_two_nodes_and_of_two_judgments_are_parsed_each() -> None:
    nodes = node_answers(facts())
    (again, _) = of_host("n1")
    first, second, later = (nvidia.gpus(a) for a in (nodes["n1"], nodes["n2"], again))
    assert first == second == later
    assert first is not second
    assert first is not later
