"""The nodes of a training, from `--cluster` and `--facts`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, ui
from dslaunch.cluster.select import Selection, select
from dslaunch.errors import ConfigError, Problem, UsageError

if TYPE_CHECKING:
    from dslaunch.deepspeed.hardware import NodeHardware
    from dslaunch.run.hardware import Hardware

FactsFile = Annotated[
    Path | None,
    typer.Option("--facts", help="What the nodes answered: `dslaunch preflight --save` writes it."),
]


def hardware_of(cluster: Path | None, chosen: Selection, facts: Path | None) -> Hardware:
    """Return the nodes that a cluster file has, and what they answered.

    `facts` is preflight's recorded answers, whose own cluster counts where no file is named, or a
    JSON list of what nodes have. Raises ConfigError, and UsageError for a selection of nothing.
    """
    from dslaunch.run.hardware import Hardware

    if facts is not None and not _is_list(facts):
        return _answered(cluster, chosen, facts)
    if cluster is None and chosen != Selection():
        raise UsageError("nodes are selected, and no --cluster is named")
    known = Hardware()
    if cluster is not None:
        loaded = options.open_cluster(cluster)
        known = Hardware.of(loaded, select(loaded, chosen))
    return known if facts is None else Hardware(_listed(facts), known.ranks)


def _answered(file: Path | None, chosen: Selection, path: Path) -> Hardware:
    from dslaunch.preflight.recording import read
    from dslaunch.run.hardware import Hardware

    facts = read(path)
    cluster = facts.scope.cluster if file is None else options.open_cluster(file)
    known = Hardware.of(cluster, select(cluster, chosen), facts)
    if known.unanswered:
        from dslaunch.cluster.nodeset import fold

        silent = fold(known.unanswered)
        ui.say(f"{path} holds no answers of {silent}: the cluster file's labels count")
    return known


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
