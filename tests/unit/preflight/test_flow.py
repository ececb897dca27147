"""A check's flow: questions that follow from answers, of each node and of all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.checks.recorded import HELLO

from dslaunch.cluster.load import parse_cluster
from dslaunch.preflight.check import (
    Asked,
    Check,
    Flow,
    NodeAnswers,
    Nodes,
    Question,
    Round,
    Scope,
    UnansweredError,
    passed,
)
from dslaunch.preflight.checks import built_in
from dslaunch.preflight.comparison import read_of_nodes
from dslaunch.preflight.flow import (
    FAULT,
    NodeFlow,
    RunningCheck,
    RunningFlow,
    compared,
    each,
    findings_of,
)

CLUSTER = parse_cluster("nodes: [{host: 'n[1-3]', slots: 1}]\n", "c.yaml")
SCOPE = Scope(CLUSTER, CLUSTER.nodes)
FIRST, SECOND = Question("read", ["/first"]), Question("read", ["/second"])


def nodes(**second: Mapping[str, Any]) -> Nodes:
    """The nodes that answered; `second`: what some answered to the second question."""
    return {
        node.host: NodeAnswers(node, SCOPE, {}, {SECOND.key: second[node.host]}, HELLO)
        for node in CLUSTER.nodes
        if node.host in second
    }


def of_one(a: NodeAnswers) -> NodeFlow:
    """Asks twice, the second node only once, and says what the second answer was."""
    a = yield {"first": FIRST}
    if a.host == "n2":
        return [passed("once")]
    a = yield {"second": SECOND}
    if a.value(SECOND) == "bad":
        raise KeyError(a.host)
    return [passed(a.value(SECOND))]


GOOD = {"value": "twice"}


def checked(flow: Callable[[Scope], Flow]) -> Check:
    return Check(title="t", why="w", fix="f", see="s", source="", flow=flow)


def test_each_node_is_asked_what_its_own_flow_asks() -> None:
    flow = RunningFlow(each(of_one)(SCOPE))
    flow.answered(nodes(n1=GOOD, n2=GOOD, n3=GOOD))
    asked: list[Mapping[str, Asked]] = []
    while flow.pending is not None:
        asked.append(flow.pending.asked)
        flow.answered(nodes(n1=GOOD, n2=GOOD, n3=GOOD))
    assert [{host: [*of] for host, of in each.items()} for each in asked] == [
        {"n1": ["first"], "n2": ["first"], "n3": ["first"]},
        {"n1": ["second"], "n3": ["second"]},
    ]
    found = [(verdict.found, verdict.hosts) for verdict in flow.findings()]
    assert found == [("twice", ("n1", "n3")), ("once", ("n2",))]


def test_why_a_node_has_no_value_keeps_nothing_else_of_it() -> None:
    read = dict(read_of_nodes(nodes(n1={"error": "none"}), lambda a: a.value(SECOND)))
    assert isinstance(read["n1"], UnansweredError)
    assert read["n1"].__traceback__ is None


@pytest.mark.parametrize("returned", [None, ["text"], [3]])
def test_a_result_that_is_no_list_of_findings_is_unknown(returned: Any) -> None:
    check = checked(compared(lambda nodes: returned))
    (verdict,) = findings_of("a.check", check, SCOPE, nodes(n1=GOOD))
    assert verdict.level == "unknown"
    assert verdict.found.startswith(f"{FAULT}: TypeError: ")


@pytest.mark.parametrize(
    ("answer", "found"),
    [({"value": "bad"}, f"{FAULT}: KeyError: "), ({"error": "it crashed"}, "it crashed")],
)
def test_what_a_nodes_flow_raises_concerns_this_node(answer: Any, found: str) -> None:
    check = checked(each(of_one))
    verdicts = findings_of("a.check", check, SCOPE, nodes(n1=answer, n3=GOOD))
    assert [(verdict.level, verdict.hosts) for verdict in verdicts] == [
        ("unknown", ("n1",)),
        ("pass", ("n3",)),
    ]
    assert verdicts[0].found.startswith(found)


def test_a_node_that_is_lost_between_two_rounds_is_asked_no_more() -> None:
    flow = RunningFlow(each(of_one)(SCOPE))
    flow.answered(nodes(n1=GOOD, n3=GOOD))
    flow.answered(nodes(n3=GOOD))
    assert flow.pending is not None
    assert set(flow.pending.asked) == {"n3"}
    flow.answered(nodes(n3=GOOD))
    assert [verdict.hosts for verdict in flow.findings()] == [("n3",)]


def test_a_flow_that_raises_has_ended() -> None:
    def flow(scope: Scope) -> Flow:
        nodes = yield Round.of_all(scope, {})
        raise UnansweredError(next(iter(nodes)))

    progress = RunningFlow(flow(SCOPE))
    with pytest.raises(UnansweredError, match="n1"):
        progress.answered(nodes(n1=GOOD))
    assert progress.pending is None


@pytest.mark.parametrize("name", ["fs.shared", "dns.resolve", "net.mesh", "gpu.mig"])
def test_a_skipped_check_asks_no_node_and_has_a_reason(name: str) -> None:
    check = built_in()[name].left_out("not here")
    running = RunningCheck(name, check, SCOPE)
    assert running.pending is not None
    assert [*running.pending.asked.values()] == [{}, {}, {}]
    assert (running.pending.here, running.pending.last) == ({}, {})
    found = findings_of(name, check, SCOPE, nodes(n1=GOOD))
    assert [(v.level, v.found, v.hosts) for v in found] == [("skip", "not here", ("n1",))]


def test_what_this_machine_answers_is_asked_in_the_first_round_only() -> None:
    def flow(scope: Scope) -> Flow:
        yield Round.of_all(scope, {})
        yield Round.of_all(scope, {}, here={"first": FIRST})
        return []

    running = RunningCheck("a.check", checked(flow), SCOPE)
    with pytest.raises(ValueError, match="first round"):
        running.answered(nodes(n1=GOOD))
