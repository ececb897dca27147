"""The schema of `preflight:` in the cluster file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dslaunch.cluster.field_types import Matching, Section, Written

CheckName = Annotated[
    Written, Matching(r"[a-z0-9]+(?:[.-][a-z0-9]+)*", "a check such as `fs.free`")
]
Limit = Annotated[float, Field(ge=0, le=1e15)]


class PreflightSection(Section):
    """Settings of `dslaunch preflight`; `dslaunch preflight --list` lists the checks."""

    skip: list[CheckName] = Field(default_factory=list, description="Checks to skip.")
    severity: dict[CheckName, Literal["fail", "warn", "info"]] = Field(
        default_factory=dict, description="Severity of the failures and warnings of a check."
    )
    limits: dict[CheckName, dict[str, Limit]] = Field(
        default_factory=dict,
        description="Thresholds of checks, such as `fs.free: {warn: 20}`; `--explain` shows them.",
    )
