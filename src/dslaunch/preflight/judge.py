"""From recorded answers to findings. Pure: the same facts give the same findings, anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from dslaunch.errors import NodeFailure
from dslaunch.preflight.check import (
    LEVELS,
    Answers,
    Check,
    Finding,
    Level,
    Scope,
    UnansweredError,
    Verdict,
)
from dslaunch.preflight.facts import Facts

REACHED = "ssh.connect"
"""The finding of every node, whether it answered at all. Not a file: nothing can be asked."""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, the worst first; within a level in the order of the checks."""

    scope: Scope
    facts: Facts
    findings: tuple[Finding, ...]

    def count(self, level: Level) -> int:
        """How many findings have that level."""
        return sum(finding.level == level for finding in self.findings)

    @property
    def fit(self) -> bool:
        """Whether nothing failed."""
        return not self.count("fail")


def judge(scope: Scope, facts: Facts, checks: Mapping[str, Check]) -> Report:
    """Judge every check on every node, and fold what is equal."""
    findings = list(_reached(scope, facts))
    for name, check in checks.items():
        severity = cast("Level | None", dict(scope.cluster.preflight.severity).get(name))
        findings += fold(name, check, _verdicts(name, check, scope, facts), severity)
    return Report(scope, facts, tuple(sorted(findings, key=lambda f: LEVELS.index(f.level))))


def fold(
    name: str, check: Check, verdicts: Sequence[tuple[str, Verdict]], severity: Level | None
) -> Iterator[Finding]:
    """One finding for all nodes of which the same is said."""
    groups: dict[Verdict, list[str]] = {}
    for host, verdict in verdicts:
        said = replace(verdict, hosts=()) if verdict.hosts else verdict
        groups.setdefault(said, []).append(host)
    for verdict, hosts in groups.items():
        level = verdict.level
        if severity is not None and level in ("fail", "warn"):
            level = severity
        bad = level in ("fail", "warn", "unknown")
        yield Finding(
            name,
            level,
            tuple(dict.fromkeys(hosts)),
            verdict.found,
            verdict.expected,
            (verdict.fix or check.fix) if bad and level != "unknown" else verdict.fix,
            (verdict.see or check.see) if bad else "",
        )


def _verdicts(name: str, check: Check, scope: Scope, facts: Facts) -> list[tuple[str, Verdict]]:
    nodes = answers(name, check, scope, facts)
    found: list[tuple[str, Verdict]] = []
    if check.judge is not None:
        found += [(host, verdict) for host, of in nodes.items() for verdict in _of(check, of)]
    if check.compare is not None and nodes:
        try:
            found += [(h, v) for v in check.compare(nodes) for h in v.hosts]
        except UnansweredError as error:
            found += [(host, Verdict("unknown", str(error))) for host in nodes]
    return found


def answers(name: str, check: Check, scope: Scope, facts: Facts) -> dict[str, Answers]:
    """What the nodes answered to a check, in the order of the nodes."""
    asked = check.ask(scope)
    limits = {**check.limits, **dict(dict(scope.cluster.preflight.limits).get(name, ()))}
    return {
        node.host: Answers(
            node,
            scope,
            asked,
            facts.nodes[node.host].answers,
            {**facts.nodes[node.host].hello, "noise": facts.nodes[node.host].noise},
            facts.nodes[node.host].clock,
            limits,
            facts.here,
        )
        for node in scope.nodes
        if node.host in facts.nodes
    }


def _of(check: Check, of: Answers) -> list[Verdict]:
    assert check.judge is not None
    try:
        return list(check.judge(of))
    except UnansweredError as error:
        return [Verdict("unknown", str(error))]


def _reached(scope: Scope, facts: Facts) -> Iterator[Finding]:
    """Every node has a row, also one that did not answer."""
    reached = tuple(node.host for node in scope.nodes if node.host in facts.nodes)
    if reached:
        yield Finding(REACHED, "pass", reached, "answered")
    for node in scope.nodes:
        if node.host not in facts.nodes:
            silent = NodeFailure(node.host, "timeout", "no answer is recorded")
            failure = facts.failures.get(node.host, silent)
            see = scope.by_hand(node)
            yield Finding(
                REACHED, "fail", (node.host,), failure.message, "an answer", failure.hint or "", see
            )
