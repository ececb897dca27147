"""One `accelerate launch` line per node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.render.lines import launcher_lines

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch, Rendered


class Accelerate:
    """The lines that the launcher `accelerate` runs, to be typed on the nodes."""

    summary = "one `accelerate launch` line per node, to type there"

    def render(self, launch: Launch) -> Rendered:
        """Each node's line below its name. Raises PlanError as the launcher does."""
        return launcher_lines(launch, "accelerate")


FORMAT = Accelerate()
