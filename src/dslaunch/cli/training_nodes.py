"""The nodes of a training, from `--cluster` and `--facts`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, ui
from dslaunch.cluster.nodeset import fold
from dslaunch.cluster.select import Selection, select
from dslaunch.deepspeed.hardware import facts_from_json
from dslaunch.errors import ConfigError, Problem, UsageError
from dslaunch.preflight.recording import read
from dslaunch.recorded import InvalidValue
from dslaunch.run.hardware import Hardware

if TYPE_CHECKING:
    from dslaunch.deepspeed.hardware import NodeHardware

FactsFile = Annotated[
    Path | None,
    typer.Option(
        "--facts", metavar="FILE", help="Recorded hardware of the nodes, by `preflight --save`."
    ),
]


def hardware_of(cluster: Path | None, chosen: Selection, facts: Path | None) -> Hardware:
    """Return the nodes of a cluster file with their recorded hardware.

    `facts` is a recording of preflight, whose cluster is used if no file is named, or a JSON list
    of nodes. Raises ConfigError, and UsageError for a selection without a cluster.
    """
    if facts is not None and not _is_list(facts):
        return _answered(cluster, chosen, facts)
    if cluster is None and chosen != Selection():
        raise UsageError("a selection of nodes needs --cluster", hint="add --cluster FILE")
    known = Hardware()
    if cluster is not None:
        loaded = options.open_cluster(cluster)
        known = Hardware.of(loaded, select(loaded, chosen))
    return known if facts is None else Hardware(_listed(facts), known.ranks)


def _answered(file: Path | None, chosen: Selection, path: Path) -> Hardware:
    facts = read(path)
    cluster = facts.scope.cluster if file is None else options.open_cluster(file)
    known = Hardware.of(cluster, select(cluster, chosen), facts)
    if known.unanswered:
        unanswered = fold(known.unanswered)
        ui.say(f"{path}: no answers of {unanswered}; using the labels of the cluster file")
    return known


def _is_list(path: Path) -> bool:
    """Return whether a file is a JSON list of nodes; standard input always is."""
    if str(path) == "-":
        return True
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(256).lstrip().startswith("[")
    except OSError as error:
        raise ConfigError((Problem(str(path), 0, 0, "", str(error.strerror)),)) from None


def _listed(path: Path) -> tuple[NodeHardware, ...]:
    try:
        return facts_from_json(options.read_text(path))
    except InvalidValue as error:
        problem = Problem(str(path), error.line, error.column, error.place, error.problem)
        raise ConfigError((problem,)) from None
