"""Every field of every answer of a preflight changed by a hostile node: no other node suffers.

The honest answers are the recorded ones of every check. A hostile variant of what one node sends
goes through the real survey and the real checks. `--mutations N` says how many variants are tried.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from dslaunch.cluster.select import Selection, select
from dslaunch.preflight import hardware
from dslaunch.preflight.check import LEVELS, Check, Scope
from dslaunch.preflight.checks import built_in
from dslaunch.preflight.flow import FAULT
from dslaunch.preflight.judge import Report, judge
from dslaunch.preflight.logins import Logins
from dslaunch.preflight.recording import Recording
from dslaunch.preflight.runner import Survey
from dslaunch.report.junit import as_junit
from dslaunch.report.markdown import as_markdown
from dslaunch.report.page import as_page
from dslaunch.report.preflight import as_json, rows
from tests.checks.recorded import Case, facts_of, without_here
from tests.checks.test_checks import CASES
from tests.growth import result_within
from tests.hostile.mutations import Mutation, sample, text_sample
from tests.hostile.scripted import ScriptedNode, ScriptedTransport

CHECKS = built_in()
MOST_SECONDS = 2.0
"""Processor time that one hostile variant may take."""
LONGEST_WAIT = 300.0
"""Seconds on a busy machine after which something waits that should not."""
MOST_MEMORY = 300 << 20


@dataclass(frozen=True)
class Recorded:
    """What the nodes of a case send when all are honest."""

    name: str
    check: Check
    scope: Scope
    sent: Mapping[str, Any]
    here: Mapping[str, Any]

    def judged(self, sent: Mapping[str, Any]) -> tuple[Survey, Report]:
        """Ask nodes that send this, and judge them as the command does."""
        nodes = {host: ScriptedNode(sent[host], self.sent[host]) for host in sent}
        transport = ScriptedTransport(nodes)
        logins = Logins(transport, self.scope.nodes, at_once=len(nodes))
        survey = Survey(self.scope, {self.name: self.check}, lambda *_: None, logins)
        answered = survey.run()
        facts = Recording(self.scope, 0.0, answered, survey.failures, self.here)
        return survey, judge(facts, {self.name: self.check})


def recorded(case: Case) -> Recorded:
    check = CHECKS[case.check]
    facts = facts_of(case, check)
    sent = {
        host: {
            "hello": dict(of.hello),
            "answers": json.loads(json.dumps(of.answers)),
            "clock": None,
        }
        for host, of in facts.nodes.items()
    }
    as_sent = json.loads(json.dumps(sent))
    return Recorded(case.check, without_here(check), facts.scope, as_sent, facts.here)


def shown(report: Report, case: Recorded) -> str:
    """All that is made of a report, and of the facts for other commands."""
    facts = report.facts
    hardware.node_local(facts)
    hardware.network(facts)
    for node in hardware.hardware(select(case.scope.cluster, Selection()), facts):
        assert node.host
    terminal = "\n".join(rows(report, 100, every=True, color=False))
    pages = (as_json(report), as_markdown(report), as_junit(report))
    return "\n".join((terminal, *pages, as_page(report, {case.name: case.check})))


def assert_only_that_node_is_concerned(case: Recorded, host: str, mutation: Mutation) -> None:
    def judged() -> tuple[Survey, Report, str]:
        survey, report = case.judged({**case.sent, host: mutation.value})
        return survey, report, shown(report, case)

    began = time.perf_counter()
    survey, report, text = result_within(MOST_SECONDS, judged)
    assert time.perf_counter() - began < LONGEST_WAIT, mutation.where
    text.encode()
    assert survey.faults == [], mutation.where
    assert {(h, f.kind) for h, f in survey.failures.items()} <= {(host, "protocol")}, mutation.where
    for finding in report.findings:
        assert finding.level in LEVELS and finding.found and finding.hosts, mutation.where
        assert FAULT not in finding.found, (mutation.where, finding)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_hostile_answer_concerns_its_node_alone(name: str, mutation_count: int) -> None:
    of_check = [case for case in CASES if case.check == name]
    per_check = -(-mutation_count // (2 * len(CHECKS)))
    # at least two variants of a case; of many cases every n-th
    step = -(-len(of_check) // max(1, per_check // 2))
    cases = [recorded(case) for case in of_check[::step]]
    share = max(2, -(-per_check // len(cases)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, case in enumerate(cases):
        hosts = list(case.sent)
        host = hosts[number % len(hosts)]
        honest = case.sent[host]
        texts = text_sample(honest["answers"], share, number)
        for mutation in sample(honest, share, number):
            assert_only_that_node_is_concerned(case, host, mutation)
        for mutation in texts:
            changed = Mutation(mutation.where, {**honest, "answers": mutation.value})
            assert_only_that_node_is_concerned(case, host, changed)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < MOST_MEMORY


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_recorded_answers_are_valid(name: str) -> None:
    for case in (each for each in CASES if each.check == name):
        found = recorded(case)
        survey, report = found.judged(found.sent)
        assert survey.failures == {}, case.path
        answers = [a for node in report.facts.nodes.values() for a in node.answers.values()]
        invalid = [answer for answer in answers if answer.get("code") == "invalid"]
        assert invalid == [], case.path
