"""The shape of the cluster file's `preflight:`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dslaunch.cluster.field_types import Matching, Section, Written

CheckName = Annotated[
    Written, Matching(r"[a-z0-9]+(?:[.-][a-z0-9]+)*", "a check such as `fs.free`")
]
Limit = Annotated[float, Field(ge=0, le=1e15)]


class PreflightSection(Section):
    """What `dslaunch preflight` asks less, judges otherwise; `--list` names the checks."""

    skip: list[CheckName] = Field(default_factory=list, description="Checks that are left out.")
    severity: dict[CheckName, Literal["fail", "warn", "info"]] = Field(
        default_factory=dict, description="What a check's failures and warnings count as."
    )
    limits: dict[CheckName, dict[str, Limit]] = Field(
        default_factory=dict,
        description="Thresholds, such as `fs.free: {warn: 20}`; `--explain` says a check's own.",
    )
