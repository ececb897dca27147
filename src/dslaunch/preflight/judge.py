"""From recorded answers to findings. Pure: the same facts give the same findings, anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster.failures import folded
from dslaunch.cluster.model import Node
from dslaunch.errors import NodeFailure
from dslaunch.plural import counted
from dslaunch.preflight.alike import AnswersByHost
from dslaunch.preflight.check import LEVELS, Check, Finding, Level, NodeAnswers, Scope
from dslaunch.preflight.flow import findings_of
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.preflight.verdict import REACHED, Fitness, NodeVerdict, node_verdicts
from dslaunch.terminal import cut

LONGEST = 2000
"""Characters of a part of a finding, which may quote a node."""


class Report(Struct, frozen=True, dict=True):
    """All findings, the worst first; within a level in the order of the checks."""

    facts: Recording
    findings: tuple[Finding, ...]

    @property
    def scope(self) -> Scope:
        """What was checked."""
        return self.facts.scope

    def count(self, level: Level) -> int:
        """How many findings have that level."""
        return sum(finding.level == level for finding in self.findings)

    @property
    def fit(self) -> bool:
        """Whether nothing failed, and something is known about each node."""
        unknown = any(verdict.fitness is Fitness.UNKNOWN for verdict in self.verdicts)
        return not self.count("fail") and not unknown

    @cached_property
    def verdicts(self) -> tuple[NodeVerdict, ...]:
        """Return whether each node is fit, in the order of the nodes."""
        hosts = [node.host for node in self.scope.nodes]
        return node_verdicts(hosts, self.facts.nodes, self.findings)


def judge(facts: Recording, checks: Mapping[str, Check]) -> Report:
    """Judge every check on every node, and fold what is equal."""
    findings = list(_reached(facts))
    nodes = node_answers(facts)
    for name, check in checks.items():
        severity = cast("Level | None", dict(facts.scope.cluster.preflight.severity).get(name))
        found = findings_of(name, check, facts.scope, nodes)
        findings += fold(name, check, found, severity)
    return Report(facts, tuple(sorted(findings, key=lambda f: LEVELS.index(f.level))))


def fold(
    name: str, check: Check, findings: Iterable[Finding], severity: Level | None
) -> Iterator[Finding]:
    """Yield one finding for all nodes with equal findings, with the texts of its check."""
    groups: dict[Finding, list[str]] = {}
    for finding in findings:
        groups.setdefault(finding.of(), []).extend(finding.hosts)
    for finding, hosts in groups.items():
        if not hosts:
            continue
        level = finding.level
        if severity is not None and level in ("fail", "warn"):
            level = severity
        wrong = level in ("fail", "warn")
        yield Finding(
            check=name,
            level=level,
            hosts=tuple(dict.fromkeys(hosts)),
            found=cut(finding.found, LONGEST),
            expected=cut(finding.expected, LONGEST),
            fix=cut(finding.fix or (check.fix if wrong else ""), LONGEST),
            see=cut(finding.see or check.see, LONGEST) if wrong or level == "unknown" else "",
            code=finding.code,
            of_job=finding.of_job,
        )


def node_answers(facts: Recording) -> AnswersByHost:
    """Return what each node answered, in their order; checks share it and parse each answer
    once."""
    scope = facts.scope
    answers = {
        node.host: NodeAnswers(
            node,
            scope,
            asked={},
            recorded=facts.nodes[node.host].answers,
            hello=facts.nodes[node.host].hello,
            clock=facts.nodes[node.host].clock,
            here=facts.here,
            noise=facts.nodes[node.host].noise,
        )
        for node in scope.nodes
        if node.host in facts.nodes
    }
    return AnswersByHost(answers, complete=True)


def _reached(facts: Recording) -> Iterator[Finding]:
    """Every node has a row, also one that did not answer."""
    nodes = facts.scope.nodes
    reached = tuple(node.host for node in nodes if node.host in facts.nodes)
    if reached:
        yield Finding("pass", "answered", hosts=reached, check=REACHED)
    yield from _with_invalid(facts, reached)
    yield from _unreached([node for node in nodes if node.host not in facts.nodes], facts)


def _unreached(nodes: Sequence[Node], facts: Recording) -> Iterator[Finding]:
    """The nodes that did not answer; the same trouble of many is one finding."""
    by_hand = {node.host: facts.scope.by_hand(node) for node in nodes}
    no_record = "no recorded answer"
    failures = [
        replace(facts.failures.get(host, NodeFailure(host, "timeout", no_record)), host=host)
        for host in by_hand
    ]
    for trouble in folded(failures):
        yield Finding(
            check=REACHED,
            level="fail",
            hosts=trouble.hosts,
            found=trouble.message,
            expected="an answer",
            fix=trouble.hint or "",
            see=by_hand[trouble.hosts[0]],
        )


def _with_invalid(facts: Recording, reached: Sequence[str]) -> Iterator[Finding]:
    """Nodes with answers that our program does not send: checks that do not need these answers
    might pass or be skipped. One finding for equal kinds of questions, since the questions
    themselves, and what is wrong with the answers, may differ by node."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for host in reached:
        kinds = {key.partition(" ")[0] for key in _invalid(facts.nodes[host])}
        if kinds:
            groups.setdefault(tuple(sorted(kinds)), []).append(host)
    for hosts in groups.values():
        first = facts.nodes[hosts[0]]
        keys = _invalid(first)
        why = first.answers[keys[0]].get("error", "")
        found = f"{counted(len(keys), 'invalid answer')}; the first is to `{keys[0][:60]}`: {why}"
        expected = "answers of dslaunch's program"
        yield Finding("unknown", found, expected, hosts=tuple(hosts), check=REACHED)


def _invalid(node: NodeRecording) -> list[str]:
    """Return the questions to which a node's answers are invalid."""
    return [key for key, answer in node.answers.items() if answer.get("code") == "invalid"]
