"""Accelerate's configuration file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.json_text import json_literal
from dslaunch.launch.decisions import MASTER_ASSUMED
from dslaunch.launch.launchers import check_launcher
from dslaunch.notes import note
from dslaunch.render.launch import Rendered
from dslaunch.render.notes import RenderNote
from dslaunch.render.templates import render

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch


class AccelerateConfig:
    """The file for `accelerate launch --config_file`; only `--machine_rank` is each node's own."""

    summary = "the file for `accelerate launch --config_file`"

    def render(self, launch: Launch) -> Rendered:
        """Return the file. Raises PlanError as the launcher `accelerate` does."""
        check_launcher("accelerate", launch.world)
        text = render(
            "accelerate.yaml.j2",
            distributed_type="MULTI_GPU" if launch.world.size > 1 else "NO",
            master_address=json_literal(launch.decided.rendezvous.address),
            master_port=launch.decided.rendezvous.port,
            nodes=launch.world.node_count,
            ranks=launch.world.size,
        )
        notes = (note(RenderNote.MACHINE_RANK),)
        return Rendered(text, notes, assumes=MASTER_ASSUMED)


FORMAT = AccelerateConfig()
