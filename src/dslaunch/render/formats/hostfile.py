"""DeepSpeed's hostfile."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from dslaunch.cluster.nodeset import fold_in_order
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
        gaps: dict[tuple[int, ...], list[str]] = {}
        for placement in filter(_has_gap, launch.placements):
            gaps.setdefault(placement.slots, []).append(placement.node.host)
        return Rendered("".join(lines), tuple(starmap(_note, gaps.items())))


def _has_gap(placement: Placement) -> bool:
    """Whether the slots used are other than the first ones, which a hostfile cannot say."""
    return placement.slots != tuple(range(len(placement.slots)))


def _note(slots: tuple[int, ...], hosts: list[str]) -> str:
    use = "uses" if len(hosts) == 1 else "use"
    return (
        f"{fold_in_order(hosts)} {use} only slots {','.join(map(str, slots))}, which a hostfile "
        "cannot say: give `deepspeed` what the format `include` prints, too"
    )


FORMAT = Hostfile()
