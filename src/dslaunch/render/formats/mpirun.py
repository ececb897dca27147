"""An Open MPI hostfile and `mpirun` line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, Word, activated, quote
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.program import python_command
from dslaunch.render.launch import Rendered
from dslaunch.render.launcher_lines import directory
from dslaunch.render.notes import differing_notes, home_notes, secret_notes, ssh_notes
from dslaunch.render.templates import render

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch

HOSTFILE = "mpi_hostfile"
AS_TORCH_NAMES_THEM = (
    "export RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK "
    "WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE"
)
"""Sets torch's variables from those of Open MPI."""


class Mpirun:
    """A script that writes the hostfile and starts all ranks with Open MPI 4 or later."""

    summary = "an Open MPI hostfile and the `mpirun` line for it"

    def render(self, launch: Launch) -> Rendered:
        """Return a shell script; its hostfile has the number of slots of each node."""
        nodes = [(p.node.host, len(p.slots)) for p in launch.placements]
        text = render("mpirun.sh.j2", hostfile=HOSTFILE, nodes=nodes, command=command(launch))
        notes = (
            *ssh_notes(launch),
            *differing_notes(launch, "mpirun"),
            *home_notes(quote(directory(launch.decided.workdir))),
            *secret_notes(launch),
        )
        return Rendered(text, notes)


def command(launch: Launch) -> str:
    """Return the command. `--map-by slot` fills node after node, as in the plan.

    The program and its arguments are one word, because a word `:` begins the next program for
    mpirun (Open MPI 4.1, mpirun(1)).
    """
    first = launch.placements[0].node
    program = Command(python_command(interpreter(first), launch.job))
    started = activated(program, first.activate).shell()
    rendezvous = launch.decided.rendezvous
    master = {"MASTER_ADDR": rendezvous.address, "MASTER_PORT": str(rendezvous.port)}
    env = master | dict(launch.environment(launch.placements[0])) | master
    mpirun: list[Word] = ["mpirun", "-n", str(launch.world.size), "--hostfile", HOSTFILE]
    mpirun += ["--map-by", "slot", "--bind-to", "none"]
    mpirun += ["--wdir", directory(launch.decided.workdir)]
    for name, value in env.items():
        mpirun += ["-x", f"{name}={value}"]
    mpirun += ["bash", "-c", f"{AS_TORCH_NAMES_THEM} && exec {started}"]
    return Command(tuple(mpirun)).shell()


FORMAT = Mpirun()
