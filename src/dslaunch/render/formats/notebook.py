"""A notebook cell for a world of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.render.launch import Rendered
from dslaunch.render.notes import secret_notes
from dslaunch.render.templates import render

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch


class Notebook:
    """Python that sets the variables of a launcher, for one rank."""

    summary = "a notebook cell for a world of one process"

    def render(self, launch: Launch) -> Rendered:
        """Return the cell, without network interfaces, since the world is on one machine."""
        variables = {
            **dict((*launch.job.env, *launch.job.overrides)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(launch.decided.rendezvous.port),
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_WORLD_SIZE": "1",
        }
        literals = [(repr(name), repr(value)) for name, value in variables.items()]
        text = render("notebook.py.j2", variables=literals)
        return Rendered(text, secret_notes(launch), assumes=())


FORMAT = Notebook()
