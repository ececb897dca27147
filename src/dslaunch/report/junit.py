"""A preflight as JUnit XML for CI servers and monitoring: one case per check and node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from xml.etree import ElementTree

from dslaunch.preflight.check import Finding
from dslaunch.preflight.judge import Report
from dslaunch.terminal import visible

_FORBIDDEN = re.compile("[\ufffe\uffff]")
"""Characters that XML 1.0 (2.2) forbids, also as references; control characters are escaped."""


def as_junit(report: Report) -> str:
    """Return the document. A failed check is a failure, one without an answer an error; a warning
    passes, with its text in system-out."""
    cases = list(_cases(report))
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(f"preflight of {report.scope.cluster.name}"),
        tests=str(len(cases)),
        failures=str(_count(cases, "failure")),
        errors=str(_count(cases, "error")),
        skipped=str(_count(cases, "skipped")),
        timestamp=datetime.fromtimestamp(report.facts.time, UTC).isoformat(timespec="seconds"),
    )
    suite.extend(cases)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _count(cases: list[ElementTree.Element], kind: str) -> int:
    return sum(case.find(kind) is not None for case in cases)


def _cases(report: Report) -> Iterator[ElementTree.Element]:
    for finding in report.findings:
        for host in finding.hosts:
            case = ElementTree.Element(
                "testcase", classname=_clean(host), name=_clean(finding.check)
            )
            kind = {"fail": "failure", "unknown": "error", "skip": "skipped"}.get(finding.level)
            if kind is not None:
                ElementTree.SubElement(case, kind, message=_clean(finding.found)).text = _words(
                    finding
                )
            else:
                ElementTree.SubElement(case, "system-out").text = _words(finding)
            yield case


def _words(finding: Finding) -> str:
    lines = (
        (finding.level, finding.found),
        ("expected", finding.expected),
        ("fix", finding.fix),
        ("see", finding.see),
    )
    return _clean("\n".join(f"{name}: {text}" for name, text in lines if text))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", visible(text))
