"""What to run: a script, module or command with its arguments and environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dslaunch.cluster.model import Pairs, SecretSource
from dslaunch.launch.command import Word

Kind = Literal["script", "module", "command"]


@dataclass(frozen=True, slots=True)
class Job:
    """A program and all that it is given, independent of where it runs."""

    program: str
    """The script's path as the nodes see it from their working directory, a module's dotted
    name, or the program of a command, by `kind`."""
    args: tuple[Word, ...] = ()
    """Text as it is; a word with a variable in it names a file of the node's run directory."""
    kind: Kind = "script"
    launcher: str = "torchrun"
    env: Pairs = ()
    """The variables for every node: those of the cluster file, of the caller (`env_from`) and
    of the command line, the later ones winning; a node's own `env` wins over the cluster's."""
    overrides: Pairs = ()
    """Variables that the user set for this one run; they win over everything."""
    secrets: tuple[SecretSource, ...] = ()
    """Only names and sources; the values go to the agents and nowhere else."""
    restarts: int = 0
    """How often a launcher that can is to start failed ranks again by itself."""
    min_nodes: int | None = None
    """With how few nodes the job can do, for a launcher that can go on without some."""
