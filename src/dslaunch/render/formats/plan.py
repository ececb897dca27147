"""The whole plan as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.plan import plan_to_json
from dslaunch.launch.planner import make_plan
from dslaunch.render.launch import Rendered

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch


class PlanFormat:
    """The plan of `dslaunch run`, for programs."""

    summary = "the plan of `dslaunch run` as JSON"

    def render(self, launch: Launch) -> Rendered:
        """Return the plan. Raises PlanError as the job's launcher does."""
        plan = make_plan(launch.allocation, launch.job, launch.decided, cluster=launch.cluster)
        return Rendered(plan_to_json(plan))


FORMAT = PlanFormat()
