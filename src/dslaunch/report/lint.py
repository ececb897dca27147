"""Findings of a lint as text, JSON, SARIF and GitHub annotations. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from msgspec import to_builtins

from dslaunch.json_text import json_text
from dslaunch.lint import ORDER, Level, Remark
from dslaunch.plural import counted
from dslaunch.terminal import one_line

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_SARIF_LEVELS: dict[Level, str] = {"error": "error", "warning": "warning", "info": "note"}
_GITHUB_LEVELS: dict[Level, str] = {"error": "error", "warning": "warning", "info": "notice"}


def as_text(remarks: Sequence[Remark], ignored: int = 0) -> str:
    """Return each finding as `file:line:column: level: path: message [rule]`, with its fix and
    source below, then the counts and how many were `ignored`. Control characters are escaped."""
    lines = [line for remark in remarks for line in _lines(remark)]
    total = summary(remarks) + (f" ({ignored} ignored)" if ignored else "")
    return "\n".join([*lines, total]) + "\n"


def _lines(remark: Remark) -> list[str]:
    below = (("fix", remark.fix), ("source", remark.source))
    head = one_line(f"{remark} [{remark.rule}]")
    return [head, *(f"    {name}: {one_line(words)}" for name, words in below if words)]


def summary(remarks: Sequence[Remark]) -> str:
    """Return for example `1 error, 2 warnings`; `no findings` for none."""
    numbers = Counter(remark.level for remark in remarks)
    words = {"error": "error", "warning": "warning", "info": "note"}
    parts = [counted(numbers[level], words[level]) for level in ORDER if numbers[level]]
    return ", ".join(parts) or "no findings"


def as_json(remarks: Sequence[Remark]) -> str:
    """Return a JSON list of objects with the fields of Remark."""
    return json_text([to_builtins(remark) for remark in remarks], indent=2) + "\n"


def as_sarif(remarks: Sequence[Remark], version: str, documentation: str = "") -> str:
    """Return a SARIF 2.1.0 log for code scanning and editors.

    `version` is dslaunch's, `documentation` the address of a rule's section, with RULE for its
    name; empty: unknown.
    """
    rules = sorted({remark.rule for remark in remarks})
    driver = {
        "name": "dslaunch",
        "version": version,
        "rules": [_sarif_rule(rule, documentation) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif(remark, rules) for remark in remarks],
    }
    return json_text({"$schema": SARIF, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _sarif_rule(name: str, documentation: str) -> dict[str, str]:
    """Return a rule; `helpUri` is its section of the page of lint rules."""
    if not documentation:
        return {"id": name}
    return {"id": name, "helpUri": documentation.replace("RULE", name)}


def _sarif(remark: Remark, rules: Sequence[str]) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(remark.file)}}
    if remark.line:
        place["region"] = {"startLine": remark.line, "startColumn": remark.column}
    result: dict[str, Any] = {
        "ruleId": remark.rule,
        "ruleIndex": rules.index(remark.rule),
        "level": _SARIF_LEVELS[remark.level],
        "message": {"text": _sentence(remark)},
        "locations": [{"physicalLocation": place}],
    }
    if remark.path:
        result["locations"][0]["logicalLocations"] = [{"fullyQualifiedName": remark.path}]
    return result


def _uri(file: str) -> str:
    return quote(file, errors="surrogateescape")


def as_github(remarks: Sequence[Remark]) -> str:
    """Return workflow commands, which GitHub Actions shows at the lines that they name."""
    return "".join(f"{_github(remark)}\n" for remark in remarks)


def _github(remark: Remark) -> str:
    place = {"file": remark.file}
    if remark.line:
        place |= {"line": str(remark.line), "col": str(remark.column)}
    place["title"] = remark.rule
    properties = ",".join(f"{name}={_property(value)}" for name, value in place.items())
    return f"::{_GITHUB_LEVELS[remark.level]} {properties}::{_data(_sentence(remark))}"


def _sentence(remark: Remark) -> str:
    """Return path, message, fix and source as one text."""
    what = ": ".join(part for part in (remark.path, remark.message) if part)
    more = (("fix", remark.fix), ("source", remark.source))
    return "\n".join([what, *(f"{name}: {words}" for name, words in more if words)])


def _data(text: str) -> str:
    """Escape text as GitHub Actions' runner expects it (actions/toolkit, command.ts)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
