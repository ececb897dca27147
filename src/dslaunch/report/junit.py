"""A preflight as JUnit XML for CI servers and monitoring: one case per check and node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from xml.sax.saxutils import escape, quoteattr

from dslaunch.preflight.check import LEVELS, Finding, Level
from dslaunch.preflight.judge import Report
from dslaunch.terminal import visible

_FORBIDDEN = re.compile("[\ufffe\uffff]")
"""Characters that XML 1.0 (2.2) forbids, also as references; control characters are escaped."""
_ELEMENTS: dict[Level, str] = {"fail": "failure", "unknown": "error", "skip": "skipped"}


def as_junit(report: Report) -> Iterator[str]:
    """Yield the document in parts: it has a case for each check on each node. A failed check is a
    failure, one without an answer an error; a warning passes, with its text in system-out."""
    cases = dict.fromkeys(LEVELS, 0)
    for finding in report.findings:
        cases[finding.level] += len(finding.hosts)
    attributes = {
        "name": f"preflight of {report.scope.cluster.name}",
        "tests": str(sum(cases.values())),
        "failures": str(cases["fail"]),
        "errors": str(cases["unknown"]),
        "skipped": str(cases["skip"]),
        "timestamp": datetime.fromtimestamp(report.facts.time, UTC).isoformat(timespec="seconds"),
    }
    words = " ".join(f"{name}={_attribute(value)}" for name, value in attributes.items())
    yield f"<?xml version='1.0' encoding='utf-8'?>\n<testsuites>\n  <testsuite {words}>\n"
    hosts = dict.fromkeys(host for finding in report.findings for host in finding.hosts)
    attribute_of = {host: _attribute(host) for host in hosts}
    for finding in report.findings:
        name, element = _attribute(finding.check), _element(finding)
        rest = f" name={name}>\n      {element}\n    </testcase>\n"
        for host in finding.hosts:
            yield f"    <testcase classname={attribute_of[host]}{rest}"
    yield "  </testsuite>\n</testsuites>\n"


def _element(finding: Finding) -> str:
    """Return the result of a case."""
    words = escape(_words(finding))
    if finding.level in _ELEMENTS:
        name = _ELEMENTS[finding.level]
        return f"<{name} message={_attribute(finding.found)}>{words}</{name}>"
    return f"<system-out>{words}</system-out>"


def _attribute(text: str) -> str:
    """Return a text as the value of an attribute, in quotes."""
    return quoteattr(_clean(text))


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
