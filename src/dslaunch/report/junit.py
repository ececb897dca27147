"""A preflight as JUnit XML for CI servers and monitoring: one test case per check.

CI servers show a row for each case and find its history by its name: one for each node would be
hundreds of thousands of rows for a large cluster.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from xml.sax.saxutils import escape, quoteattr

from dslaunch.cluster.nodeset import fold
from dslaunch.preflight.check import Finding, Level
from dslaunch.preflight.judge import Report
from dslaunch.report.node_list import listed_nodes
from dslaunch.terminal import cut, visible

_FORBIDDEN = re.compile("[\ufffe\uffff]")
"""Characters that XML 1.0 (2.2) forbids, also as references; control characters are escaped."""
_NO_NODES: tuple[Level, ...] = ("pass", "skip")
"""Levels of findings without names of nodes: they have most nodes, which take long to fold."""
LONGEST = 1000
"""Characters of a message, which CI servers show in one line; the text has all."""
_ELEMENTS: dict[Level, str] = {"fail": "failure", "unknown": "error", "skip": "skipped"}
"""The result of a case, by the level of a finding; without one it has passed."""


def as_junit(report: Report) -> str:
    """Return the document. A check that failed on any node is a failure, otherwise one without an
    answer of a node an error, and one that applies to no node skipped. Its other findings are in
    system-out."""
    of_check: dict[str, list[Finding]] = {}
    for finding in report.findings:
        of_check.setdefault(finding.check, []).append(finding)
    results = [_result(findings) for findings in of_check.values()]
    attributes = {
        "name": f"preflight of {report.scope.cluster.name}",
        "tests": str(len(results)),
        "failures": str(results.count("fail")),
        "errors": str(results.count("unknown")),
        "skipped": str(results.count("skip")),
        "timestamp": datetime.fromtimestamp(report.facts.time, UTC).isoformat(timespec="seconds"),
    }
    words = " ".join(f"{name}={_attribute(value)}" for name, value in attributes.items())
    cases = "".join(
        _case(report.scope.cluster.name, check, result, findings)
        for (check, findings), result in zip(of_check.items(), results, strict=True)
    )
    return (
        "<?xml version='1.0' encoding='utf-8'?>\n<testsuites>\n"
        f"  <testsuite {words}>\n{cases}  </testsuite>\n</testsuites>\n"
    )


def _result(findings: Sequence[Finding]) -> Level:
    """Return the level of a check's findings that is the result of its case."""
    levels = {finding.level for finding in findings}
    if "fail" in levels:
        return "fail"
    if "unknown" in levels:
        return "unknown"
    return "skip" if levels == {"skip"} else "pass"


def _case(cluster: str, check: str, result: Level, findings: Sequence[Finding]) -> str:
    decisive = [each for each in findings if each.level == result and result in _ELEMENTS]
    others = [each for each in findings if each.level != result or not decisive]
    elements = []
    if decisive:
        message = "; ".join(map(_message, decisive))
        name, text = _ELEMENTS[result], _text(decisive)
        elements.append(f"<{name} message={_attribute(cut(message, LONGEST))}>{text}</{name}>")
    if others:
        elements.append(f"<system-out>{_text(others)}</system-out>")
    inside = "".join(f"      {element}\n" for element in elements)
    head = f"<testcase classname={_attribute(cluster)} name={_attribute(check)}>"
    return f"    {head}\n{inside}    </testcase>\n"


def _message(finding: Finding) -> str:
    if finding.level in _NO_NODES:
        return finding.found
    return f"{listed_nodes(finding.hosts)}: {finding.found}"


def _text(findings: Sequence[Finding]) -> str:
    """Return findings as the text of an element."""
    return escape(_clean("\n\n".join(map(_words, findings))))


def _attribute(text: str) -> str:
    """Return a text as the value of an attribute, in quotes."""
    return quoteattr(_clean(text))


def _words(finding: Finding) -> str:
    lines = (
        (finding.level, finding.found),
        ("nodes", "" if finding.level in _NO_NODES else fold(finding.hosts)),
        ("expected", finding.expected),
        ("fix", finding.fix),
        ("see", finding.see),
    )
    return "\n".join(f"{name}: {text}" for name, text in lines if text)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", visible(text))
