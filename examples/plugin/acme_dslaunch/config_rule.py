"""A rule of `dslaunch config lint`. Its name is the entry point's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dslaunch.deepspeed.linted_config import LintedConfig
    from dslaunch.lint import Remark


def wall_clock(config: LintedConfig) -> Iterator[Remark]:
    """Timers wait for the GPU in every step."""
    if config.on("wall_clock_breakdown"):
        yield config.remark(
            rule="acme-wall-clock",
            level="warning",
            path="wall_clock_breakdown",
            message="it waits for the GPU several times in each step",
            fix="set it to false outside of measurements",
            source="Acme's handbook, training",
            edits=config.rewrite(("wall_clock_breakdown",), False),
        )
