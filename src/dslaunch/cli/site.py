"""What a training will run on: by a cluster file, and by what its nodes answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, ui
from dslaunch.errors import ConfigError, Problem, UsageError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.cluster.select import Selection
    from dslaunch.deepspeed.hardware import NodeHardware

FactsFile = Annotated[
    Path | None,
    typer.Option("--facts", help="What the nodes answered: `dslaunch preflight --save` writes it."),
]


@dataclass(frozen=True, slots=True)
class Site:
    """The nodes of a training, as far as they are known."""

    nodes: tuple[NodeHardware, ...] = ()
    ranks: int | None = None
    network: float | None = None
    """Bytes per second between nodes, as measured."""
    nvme: int | None = None
    """Bytes free on the nodes' own disks, of the node with least."""


def site(cluster: Path | None, chosen: Selection, facts: Path | None) -> Site:
    """The nodes that a cluster file has, and what they answered.

    `facts` is preflight's recorded answers, whose own cluster counts where no file is named, or a
    JSON list of what nodes have. Raises ConfigError, and UsageError for a selection of nothing.
    """
    from dslaunch.cluster.select import Selection

    if facts is not None and not _is_list(facts):
        return _answered(cluster, chosen, facts)
    if cluster is None and chosen != Selection():
        raise UsageError("nodes are selected, and no --cluster is named")
    known = Site() if cluster is None else _described(options.open_cluster(cluster), chosen)
    return known if facts is None else Site(_listed(facts), known.ranks)


def _described(cluster: Cluster, chosen: Selection) -> Site:
    from dslaunch.cluster.select import select
    from dslaunch.deepspeed.hardware import hardware_of

    allocation = select(cluster, chosen)
    return Site(hardware_of(allocation), allocation.world_size)


def _answered(file: Path | None, chosen: Selection, path: Path) -> Site:
    from dslaunch.cluster.select import select
    from dslaunch.preflight.hardware import hardware, network, node_local
    from dslaunch.preflight.recording import read

    facts = read(path)
    cluster = facts.scope.cluster if file is None else options.open_cluster(file)
    allocation = select(cluster, chosen)
    silent = [host for host in allocation.hosts if host not in facts.nodes]
    if silent:
        from dslaunch.cluster.nodeset import fold

        ui.say(f"{path} holds no answers of {fold(silent)}: the cluster file's labels count")
    nodes = hardware(allocation, facts)
    return Site(nodes, allocation.world_size, network(facts), node_local(facts))


def _is_list(path: Path) -> bool:
    """Whether it is a list of what nodes have; standard input can be nothing else."""
    if str(path) == "-":
        return True
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(256).lstrip().startswith("[")
    except OSError as error:
        raise ConfigError((Problem(str(path), 0, 0, "", str(error.strerror)),)) from None


def _listed(path: Path) -> tuple[NodeHardware, ...]:
    from pydantic import ValidationError

    from dslaunch.deepspeed.hardware import facts_from_json

    try:
        return facts_from_json(options.read_text(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError((Problem(str(path), 0, 0, where, first["msg"]),)) from None
