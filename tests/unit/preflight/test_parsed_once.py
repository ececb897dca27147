"""What a node printed is parsed once, for all checks of one judgment, and never for longer."""

from __future__ import annotations

import logging

import pytest
from tests.checks.recorded import HELLO, first_questions
from tests.hostile.scripted import ScriptedNode, ScriptedTransport

from dslaunch.cluster.load import parse_cluster
from dslaunch.preflight.check import NodeAnswers, Scope
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks import some
from dslaunch.preflight.flow import RunningCheck
from dslaunch.preflight.judge import node_answers
from dslaunch.preflight.logins import Logins
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.preflight.runner import Survey

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


def test_a_question_of_several_checks_is_asked_and_its_answer_taken_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "dslaunch.preflight")
    honest = {"hello": HELLO, "answers": {}, "clock": None}
    nodes = {node.host: ScriptedNode(honest, honest) for node in CLUSTER.nodes}
    logins = Logins(ScriptedTransport(nodes), CLUSTER.nodes, at_once=2)
    Survey(SCOPE, CHECKS, lambda *_: None, logins).run()
    asked = {
        question.key
        for check in CHECKS.values()
        for question in first_questions(check, SCOPE)["n1"].values()
    }
    answered = [vars(record) for record in caplog.records if vars(record)["event"] == "answered"]
    assert [each["fields"]["questions"] for each in answered] == [len(asked)] * 2
