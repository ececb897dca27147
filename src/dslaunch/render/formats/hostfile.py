"""DeepSpeed's hostfile."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from dslaunch.cluster.nodeset import fold_in_order
from dslaunch.notes import Note, note
from dslaunch.render.launch import Rendered
from dslaunch.render.notes import RenderNote

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement
    from dslaunch.render.launch import Launch


class Hostfile:
    """`host slots=N` per node; N slots are always the slots 0 to N-1.

    Without comments: DeepSpeed skips them, `ds_ssh -f` does not (0.19.8, bin/ds_ssh).
    """

    summary = "DeepSpeed's hostfile"

    def render(self, launch: Launch) -> Rendered:
        """Return one line per node, with the slots up to the last one that is used."""
        lines = [f"{p.node.host} slots={p.slots[-1] + 1}\n" for p in launch.placements]
        hosts_by_gap: dict[tuple[int, ...], list[str]] = {}
        for placement in filter(_has_gap, launch.placements):
            hosts_by_gap.setdefault(placement.slots, []).append(placement.node.host)
        notes = tuple(starmap(_gap_note, hosts_by_gap.items()))
        return Rendered("".join(lines), notes, assumes=())


def _has_gap(placement: Placement) -> bool:
    """Return whether the slots are not the first ones of the node, which a hostfile cannot
    express."""
    return placement.slots != tuple(range(len(placement.slots)))


def _gap_note(slots: tuple[int, ...], hosts: list[str]) -> Note:
    return note(
        RenderNote.SLOT_GAPS,
        slots=",".join(map(str, slots)),
        nodes=fold_in_order(hosts),
    )


FORMAT = Hostfile()
