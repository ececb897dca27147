"""A file system that hangs costs its own answer, and is named."""

from __future__ import annotations

import time

import pytest
from tests.checks.recorded import HELLO, first_questions

from dslaunch.cluster.load import parse_cluster
from dslaunch.node import questions, survey
from dslaunch.preflight.check import Scope
from dslaunch.preflight.checks import built_in
from dslaunch.preflight.judge import judge
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.preflight.verdict import REACHED

WORK = "/tmp/a-mount-that-hangs"
HUNG = f'path "{WORK}"'
CHECKS = {name: built_in()[name] for name in ("fs.hung", "fs.free", "fs.writable", "fs.kind")}


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """One path never answers, in the child that asks for it."""
    real = questions.KINDS["path"]

    def path(where: str) -> object:
        while where == WORK:
            time.sleep(600)
        return real(where)

    monkeypatch.setitem(questions.KINDS, "path", path)


@pytest.mark.usefixtures("hung")
def test_a_hung_path_is_named_and_all_else_is_answered_in_the_meantime() -> None:
    cluster = parse_cluster("nodes: [{host: node1, slots: 1}]", "c.yaml")
    scope = Scope(cluster, cluster.nodes, directories=(WORK,))
    asked = [
        question
        for check in CHECKS.values()
        for questions in first_questions(check, scope).values()
        for question in questions.values()
    ]
    began = time.monotonic()
    answers = survey.ask(
        {
            q.key: {"kind": q.kind, "argument": q.argument, "timeout": 1 if q.key == HUNG else 60}
            for q in asked
        },
        survey.Children(),
    )
    assert time.monotonic() - began < 300
    assert [key for key, answer in answers.items() if "error" in answer] == [HUNG]
    facts = Recording(scope, 0.0, {"node1": NodeRecording(HELLO, answers, None, 1.0)}, {})
    found = judge(facts, CHECKS).findings
    hung = [f for f in found if f.check == "fs.hung"]
    assert [(f.level, f.found) for f in hung] == [
        ("fail", f"{WORK} does not respond: no answer within 1 s")
    ]
    assert {f.check for f in found if f.level in ("fail", "warn")} <= {"fs.hung", "fs.free"}
    assert REACHED in {f.check for f in found}
