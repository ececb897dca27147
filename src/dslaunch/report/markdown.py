"""A preflight as Markdown for an issue: problems first, the rest folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from dslaunch.preflight.check import Finding
from dslaunch.preflight.judge import Report
from dslaunch.report.node_list import listed_nodes
from dslaunch.report.preflight import readable, summary
from dslaunch.terminal import one_line

BAD = ("fail", "warn", "unknown")
_MARKUP = re.compile(r"[\\`*_\[\]<>|&~$]")
_LINKED = re.compile(r"@(?=\w)|#(?=[0-9])|:(?=//)|(?i:GH-(?=[0-9])|www(?=\.))")
"""What GitHub turns into a mention, a reference or a link; an empty comment prevents it."""


def as_markdown(report: Report) -> str:
    """Return the report as Markdown."""
    when = datetime.fromtimestamp(report.facts.time, UTC).strftime("%Y-%m-%d %H:%M UTC")
    findings = readable(report.findings)
    bad = [finding for finding in findings if finding.level in BAD]
    rest = [finding for finding in findings if finding.level not in BAD]
    name = one_line(report.scope.cluster.name).replace("`", "'")
    lines = [f"### Preflight of `{name}`, {when}", "", summary(report), ""]
    if bad:
        lines += _table(bad)
    fixes = dict.fromkeys((finding.check, finding.fix) for finding in bad if finding.fix)
    lines += [f"- **{_text(check)}**: {_text(fix)}" for check, fix in fixes]
    if rest:
        lines += [
            "",
            "<details><summary>other findings</summary>",
            "",
            *_table(rest),
            "",
            "</details>",
        ]
    return "\n".join(lines) + "\n"


def _table(findings: Iterable[Finding]) -> Iterator[str]:
    yield "| | check | nodes | found | expected |"
    yield "|---|---|---|---|---|"
    for f in findings:
        cells = (f.level, f.check, listed_nodes(f.hosts), f.found, f.expected)
        yield f"| {' | '.join(map(_text, cells))} |"
    yield ""


def _text(words: str) -> str:
    """Return text for a table cell, without effective markup, links or mentions."""
    shown = one_line(" ".join(words.split()))
    escaped = _MARKUP.sub(r"\\\g<0>", shown)
    return _LINKED.sub(r"\g<0><!-- -->", escaped)
