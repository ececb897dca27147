"""A preflight as Markdown, to paste into an issue: what is wrong, and the rest folded away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from dslaunch.cluster.nodeset import fold
from dslaunch.preflight.check import Finding
from dslaunch.preflight.judge import Report
from dslaunch.report.preflight import summary

BAD = ("fail", "warn", "unknown")


def as_markdown(report: Report) -> str:
    """The whole text."""
    when = datetime.fromtimestamp(report.facts.time, UTC).strftime("%Y-%m-%d %H:%M UTC")
    bad = [f for f in report.findings if f.level in BAD]
    rest = [f for f in report.findings if f.level not in BAD]
    lines = [f"### Preflight of `{report.scope.cluster.name}`, {when}", "", summary(report), ""]
    lines += _table(bad) if bad else []
    for finding in bad:
        if finding.fix:
            lines.append(f"- **{finding.check}**: {_text(finding.fix)}")
    if rest:
        lines += [
            "",
            "<details><summary>what passed</summary>",
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
        cells = (f.level, f.check, fold(f.hosts), f.found, f.expected)
        yield f"| {' | '.join(map(_text, cells))} |"
    yield ""


def _text(words: str) -> str:
    """Words that stand in one cell as they are."""
    for character in "\\`*_[]<>|":
        words = words.replace(character, f"\\{character}")
    return " ".join(words.split())
