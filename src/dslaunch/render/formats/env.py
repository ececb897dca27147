"""Export lines for ranks that are started by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import exports
from dslaunch.launch.decisions import INTERFACE_ASSUMED, MASTER_ASSUMED
from dslaunch.render.launch import Rendered, ranks_of
from dslaunch.render.notes import secret_notes

if TYPE_CHECKING:
    from dslaunch.cluster.model import Pairs, Placement
    from dslaunch.render.launch import Launch


class Env:
    """The variables of each node; RANK and LOCAL_RANK differ between the processes."""

    summary = "`export` lines for each node's shell"

    def render(self, launch: Launch) -> Rendered:
        """Return the lines of each node below its name."""
        lines = []
        for placement in launch.placements:
            ranks = ranks_of(placement.first_rank, len(placement.slots))
            lines.append(f"# {placement.node.host}: {ranks}")
            lines += exports((*launch.environment(placement), *_world(launch, placement)))
        text = "".join(f"{line}\n" for line in lines)
        assumes = MASTER_ASSUMED | INTERFACE_ASSUMED
        return Rendered(text, secret_notes(launch), assumes)


def _world(launch: Launch, placement: Placement) -> Pairs:
    rendezvous = launch.decided.rendezvous
    pairs = (
        ("MASTER_ADDR", rendezvous.address),
        ("MASTER_PORT", rendezvous.port),
        ("WORLD_SIZE", launch.world.size),
        ("LOCAL_WORLD_SIZE", len(placement.slots)),
        ("NNODES", launch.world.node_count),
        ("NODE_RANK", placement.node_rank),
    )
    return tuple((name, str(value)) for name, value in pairs)


FORMAT = Env()
