"""DeepSpeed's hostfile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.render.launch import Rendered

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement
    from dslaunch.render.launch import Launch


class Hostfile:
    """`host slots=N` per node; N slots are always the slots 0 to N-1.

    Without comments: DeepSpeed skips them, `ds_ssh -f` does not (0.19.8, bin/ds_ssh).
    """

    summary = "DeepSpeed's hostfile"

    def render(self, launch: Launch) -> Rendered:
        """One line per node, with as many slots as reach to the last one used."""
        lines = [f"{p.node.host} slots={p.slots[-1] + 1}\n" for p in launch.placements]
        gaps = [p for p in launch.placements if has_gap(p)]
        return Rendered("".join(lines), tuple(map(_note, gaps)))


def has_gap(placement: Placement) -> bool:
    """Whether the slots used are other than the first ones, which a hostfile cannot say."""
    return placement.slots != tuple(range(len(placement.slots)))


def _note(placement: Placement) -> str:
    slots = ",".join(map(str, placement.slots))
    return (
        f"{placement.node.host} uses only slots {slots}, which a hostfile cannot say: "
        "give `deepspeed` what the format `include` prints, too"
    )


FORMAT = Hostfile()
