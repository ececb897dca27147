"""A rule of `dslaunch config lint`. Its name is the entry point's."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.plugin import LintedConfig, Remark, rule


@rule(
    "acme-wall-clock",
    "warning",
    "`wall_clock_breakdown` is on",
    source="Acme's handbook, training",
)
def wall_clock(config: LintedConfig) -> Iterator[Remark]:
    """Timers wait for the GPU in every step."""
    if config.on("wall_clock_breakdown"):
        yield config.warning(
            "acme-wall-clock",
            "wall_clock_breakdown",
            "the timers wait for the GPU several times in each step",
            fix="set it to false, except for measurements",
            edits=config.rewrite(("wall_clock_breakdown",), False),
        )
