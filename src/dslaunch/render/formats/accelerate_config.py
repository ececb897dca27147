"""Accelerate's configuration file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dslaunch.launch.launchers import check_launcher
from dslaunch.render.launch import Rendered
from dslaunch.render.templates import render

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch


class AccelerateConfig:
    """The file for `accelerate launch --config_file`; only `--machine_rank` is each node's own."""

    summary = "the file for `accelerate launch --config_file`"

    def render(self, launch: Launch) -> Rendered:
        """The file. Raises PlanError as the launcher `accelerate` does."""
        check_launcher("accelerate", launch.world)
        text = render(
            "accelerate.yaml.j2",
            distributed_type="MULTI_GPU" if launch.world.size > 1 else "NO",
            master_address=json.dumps(launch.decided.rendezvous.address),
            master_port=launch.decided.rendezvous.port,
            nodes=launch.world.node_count,
            ranks=launch.world.size,
        )
        rank = "`accelerate launch --config_file accelerate.yaml --machine_rank N`"
        return Rendered(text, (f"on each node: {rank} with N from 0",))


FORMAT = AccelerateConfig()
