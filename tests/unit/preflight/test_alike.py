"""Nodes with equal answers are judged once, and each other node by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest
from tests import dgx_nodes, many_nodes
from tests.checks.recorded import HELLO

from dslaunch.cluster.load import parse_cluster
from dslaunch.launch.job import Job
from dslaunch.preflight.check import Asked, Check, Finding, NodeAnswers, Question, Scope
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.checks import built_in
from dslaunch.preflight.flow import NodeFlow, each, findings_of, judged
from dslaunch.preflight.judge import fold, judge, node_answers
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.protocol.survey import Answer

CLUSTER = parse_cluster("nodes: [{host: 'n[1-6]', slots: 8}]", "c.yaml")
SCOPE = Scope(CLUSTER, CLUSTER.nodes, Job("train.py"))
MEMORY, SWAP = Question("read", ["/memory"]), Question("read", ["/swap"])
FEW = {MEMORY.key: {"value": {"/memory": "1"}}}
ENOUGH: dict[str, Answer] = {MEMORY.key: {"value": {"/memory": "8"}}}


def asked(scope: Scope) -> Asked:
    return {"memory": MEMORY}


def found(check: Callable[..., object], *answers: dict[str, Answer]) -> dict[str, list[str]]:
    """Return the nodes of each finding, for nodes with these answers."""
    hosts = [node.host for node in CLUSTER.nodes]
    nodes = {
        host: NodeRecording(HELLO, given, None, 0.1)
        for host, given in zip(hosts, answers, strict=False)
    }
    made = Check(title="t", why="w", fix="f", see="s", source="s", flow=check)  # type: ignore[arg-type]
    report = judge(Recording(SCOPE, 0.0, nodes, {}), {"acme.memory": made})
    return {f.found: list(f.hosts) for f in report.findings if f.check == "acme.memory"}


def test_nodes_with_equal_answers_are_judged_once() -> None:
    calls = []

    def by_memory(a: NodeAnswers) -> Iterable[Finding]:
        memory = a["memory"]["/memory"]
        calls.append(memory)
        return [Finding("warn", memory)]

    texts = [dict(FEW), dict(ENOUGH), dict(FEW), {**FEW, SWAP.key: {"error": "no"}}, dict(ENOUGH)]
    assert found(judged(by_memory, asked), *texts) == {"1": ["n1", "n3", "n4"], "8": ["n2", "n5"]}
    assert sorted(calls) == ["1", "8"]


def test_what_a_check_reads_of_the_node_itself_is_not_taken_from_another() -> None:
    def by_name(a: NodeAnswers) -> Iterable[Finding]:
        return [Finding("warn", f"{a.host} has {a['memory']['/memory']}")]

    nodes = found(judged(by_name, asked), FEW, FEW, ENOUGH)
    assert nodes == {"n1 has 1": ["n1"], "n2 has 1": ["n2"], "n3 has 8": ["n3"]}


def test_nodes_whose_further_answers_differ_are_judged_by_these() -> None:
    def by_swap(a: NodeAnswers) -> NodeFlow:
        if a["memory"]["/memory"] == "1":
            a = yield {"swap": SWAP}
            return [Finding("warn", a["swap"]["/swap"])]
        return []

    answers = [{**FEW, SWAP.key: {"value": {"/swap": text}}} for text in ("2", "3", "2")]
    nodes = found(each(by_swap, asked, fine="enough"), *answers, ENOUGH, FEW)
    assert nodes == {"not asked": ["n5"], "2": ["n1", "n3"], "3": ["n2"], "enough": ["n4"]}


def test_a_check_that_raises_for_some_answers_judges_the_others() -> None:
    def by_number(a: NodeAnswers) -> Iterable[Finding]:
        return [Finding("warn", str(8 // (int(a["memory"]["/memory"]) - 1)))]

    nodes = found(judged(by_number, asked), FEW, ENOUGH, FEW)
    assert nodes.pop("1") == ["n2"]
    assert list(nodes.values()) == [["n1", "n3"]]


def first_digit(a: NodeAnswers) -> str:
    """A part of an answer in which nodes are equal whose answers differ."""
    return str(a.value(MEMORY)["/memory"][0])


def test_nodes_whose_answers_differ_are_judged_together_by_the_part_that_a_check_reads() -> None:
    calls = []

    def by_part(a: NodeAnswers) -> Iterable[Finding]:
        digit = a.part(first_digit)
        calls.append(digit)
        return [Finding("warn", digit)]

    answers = [{MEMORY.key: {"value": {"/memory": text}}} for text in ("12", "13", "80", "14")]
    assert found(judged(by_part, asked), *answers) == {"1": ["n1", "n2", "n4"], "8": ["n3"]}
    assert sorted(calls) == ["1", "8"]


def test_a_part_of_equal_answers_is_read_once() -> None:
    calls = []

    def size(a: NodeAnswers) -> int:
        calls.append(a.value(MEMORY))
        return len(a.value(MEMORY))

    def by_size(a: NodeAnswers) -> Iterable[Finding]:
        return [Finding("warn", str(a.part(size)))]

    answers = [ENOUGH, FEW, {**ENOUGH, SWAP.key: {"error": "no"}}, dict(FEW)]
    assert found(judged(by_size, asked), *answers) == {"1": ["n1", "n2", "n3", "n4"]}
    assert len(calls) < len(answers)


def test_nodes_without_the_answer_that_a_part_is_of_are_judged_together() -> None:
    def by_part(a: NodeAnswers) -> Iterable[Finding]:
        return [Finding("warn", a.part(first_digit))]

    missing: dict[str, Answer] = {MEMORY.key: {"error": "no such file"}}
    nodes = found(judged(by_part, asked), FEW, missing, ENOUGH, missing, {})
    expected = {"1": ["n1"], "8": ["n3"], "no such file": ["n2", "n4"], "not asked": ["n5"]}
    assert nodes == expected


def test_a_part_that_names_the_node_is_read_of_each() -> None:
    def name(a: NodeAnswers) -> str:
        return a.host

    def by_name(a: NodeAnswers) -> Iterable[Finding]:
        return [Finding("warn", a.part(name))]

    assert found(judged(by_name, asked), FEW, FEW) == {"n1": ["n1"], "n2": ["n2"]}


@pytest.mark.parametrize("recording", [many_nodes.recording, dgx_nodes.recording])
def test_groups_of_nodes_are_judged_like_their_nodes_one_by_one(
    recording: Callable[[int], Recording],
) -> None:
    facts = recording(60)
    together = node_answers(facts)
    one_by_one = dict(node_answers(facts))
    for name, check in built_in().items():
        found = [
            list(fold(name, check, findings_of(name, check, facts.scope, nodes), None))
            for nodes in (together, one_by_one)
        ]
        assert found[0] == found[1]


def test_nodes_are_asked_the_same_about_the_job_and_each_reads_its_own_name() -> None:
    question = job.ask(SCOPE)["job"]
    assert job.ask(SCOPE)["job"] is question
    for host in ("n1", "n6"):
        told = json.loads(question.spelt(host)["text"])
        assert told["env"]["DSLAUNCH_HOST"] == host
