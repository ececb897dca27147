"""One torchrun line per node, with a c10d rendezvous."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.render.lines import launcher_lines

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch, Rendered


class Elastic:
    """The lines that the launcher `elastic` runs, to be typed on the nodes."""

    summary = "one `torchrun` line per node for a run that goes on without some"

    def render(self, launch: Launch) -> Rendered:
        """Each node's line below its name. Raises PlanError as the launcher does."""
        return launcher_lines(launch, "elastic")


FORMAT = Elastic()
