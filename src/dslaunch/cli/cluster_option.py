"""The default cluster file, and `--cluster` for every command whose argument is the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.models import ArgumentInfo

from dslaunch.cli.positional import FILE_ENDINGS, two_files
from dslaunch.cli.signatures import parameters_of, take

DEFAULT_FILE = "cluster.yaml"
FILE_VARIABLE = "DSLAUNCH_CLUSTER"
NAME = "--cluster"
ARGUMENT = "file"
"""The name of the parameter for the cluster file."""
ClusterOption = Annotated[
    Path | None,
    typer.Option(
        NAME,
        "-c",
        metavar="FILE",
        help="Cluster file, instead of the argument.",
    ),
]


def default_cluster(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the cluster file where none is given: `$DSLAUNCH_CLUSTER`, else ./cluster.yaml.

    None: there is neither.
    """
    if environ.get(FILE_VARIABLE):
        return Path(environ[FILE_VARIABLE])
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def _options(cluster_option: ClusterOption = None) -> None:
    """Define the parameter that is added."""


def with_cluster_option(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with `--cluster`, if its cluster file is an argument; else the command."""
    parameters = parameters_of(command)
    files = [each for each in parameters if each.name == ARGUMENT]
    if not files or not isinstance(get_args(files[0].annotation)[1], ArgumentInfo):
        return command

    @wraps(command)
    def chosen(cluster_option: Path | None, **own: Any) -> None:
        if cluster_option is not None:
            _check_single(cluster_option, own)
            own[ARGUMENT] = cluster_option
        command(**own)

    take(chosen, [*parameters, *parameters_of(_options)])
    return chosen


def _check_single(file: Path, own: dict[str, Any]) -> None:
    """Raise UsageError for a second cluster file, also where the name of a run is expected."""
    given = own[ARGUMENT]
    run = own.get("run")
    if given is None and isinstance(run, str) and run.endswith(FILE_ENDINGS):
        given = Path(run)
    if given is not None:
        raise two_files(given, file)
