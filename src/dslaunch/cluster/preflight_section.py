"""The schema of `preflight:` in the cluster file."""

from __future__ import annotations

from dslaunch.cluster.forms import ListOf, MappingOf, Number, OneOf, Section, Text, key

CHECK = Text(r"[a-z0-9]+(?:[.-][a-z0-9]+)*", "a check such as `fs.free`", written=True)
LIMIT = Number(at_least=0, at_most=1e15, whole=False)


class PreflightSection(Section):
    """Settings of `dslaunch preflight`; `dslaunch preflight --list` lists the checks."""

    skip: list[str] = key(ListOf(CHECK), (), description="Checks to skip.")
    severity: dict[str, str] = key(
        MappingOf(CHECK, OneOf(("fail", "warn", "info"))),
        {},
        description="Severity of the failures and warnings of a check.",
    )
    limits: dict[str, dict[str, float]] = key(
        MappingOf(CHECK, MappingOf(Text(), LIMIT)),
        {},
        description="Thresholds of checks, such as `fs.free: {warn: 20}`; `--explain` shows them.",
    )
