"""Options and arguments of several commands, and the cluster file that they name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dslaunch import api
from dslaunch.cli.cluster_option import DEFAULT_FILE, FILE_VARIABLE, default_cluster
from dslaunch.cli.cluster_option import ClusterOption as ClusterOption
from dslaunch.cli.file_trust import check_trusted
from dslaunch.cli.positional import own_first
from dslaunch.errors import ConfigError, SelectionError, UsageError
from dslaunch.registry import LAUNCHERS, TRANSPORTS
from dslaunch.run.timeouts import LONGEST_TIMEOUT

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster

Value = TypeVar("Value")
# everything after the first word that is not an option belongs to that word
SCRIPT_LAST = {"allow_interspersed_args": False}


def in_order(*, formats: int = 0) -> Callable[[typer.Context, list[str] | None], list[str]]:
    """Return a callback that allows options after the first words (`MoreOptions`)."""

    def put_in_order(context: typer.Context, value: list[str] | None) -> list[str]:
        if context.resilient_parsing:
            return value or []
        return own_first(context.obj or [], value or [], formats=formats)

    return put_in_order


ClusterFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="CLUSTER.yaml",
        help=f"Cluster file (default: ${FILE_VARIABLE}, else ./{DEFAULT_FILE}).",
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CLUSTER.yaml] [SCRIPT [ARG]...]",
        help=f"Cluster file (default: ${FILE_VARIABLE}, else ./{DEFAULT_FILE}), then the script "
        "and its arguments (default: `job:` of the cluster file).",
        show_default=False,
        callback=in_order(),
    ),
]


def not_empty(context: typer.Context, option: typer.CallbackParam, value: str) -> str:
    """Raise SelectionError for an empty value: an unset variable must not select all nodes."""
    source = context.get_parameter_source(str(option.name))
    if source is not None and source.name == "COMMANDLINE" and not value.strip():
        raise SelectionError(
            f"--{option.name}: the value is empty",
            hint=f"check the shell variable in it, or omit --{option.name}",
        )
    return value


Include = Annotated[
    str,
    typer.Option(
        "--include",
        "-i",
        metavar="HOSTS",
        callback=not_empty,
        help="Use only these nodes or slots, for example node[01-03]:0-3@old01.",
    ),
]
Exclude = Annotated[
    str,
    typer.Option(
        "--exclude",
        "-e",
        metavar="HOSTS",
        callback=not_empty,
        help="Exclude nodes or slots (same syntax as --include).",
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option("--nodes", "-N", metavar="N", min=1, help="Use the first N nodes."),
]
Slots = Annotated[
    int | None,
    typer.Option("--slots", metavar="N", min=1, help="Use N slots (GPUs) of each node."),
]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Use only nodes with this label."),
]
Module = Annotated[
    bool, typer.Option("--module", "-m", help="Run SCRIPT as a Python module (python -m).")
]
NoPython = Annotated[
    bool, typer.Option("--no-python", help="Run SCRIPT as a program, without Python.")
]
Launcher = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        "-l",
        metavar="NAME",
        help=f"Launcher: {', '.join(LAUNCHERS.names())} (default: of the cluster file).",
    ),
]
LauncherArg = Annotated[
    list[str] | None,
    typer.Option(
        "--launcher-arg",
        metavar="OPTION",
        help="Pass an option to the launcher, for example `--numa-binding=node`.",
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="Set a variable for the ranks; NAME alone copies your value.",
    ),
]
Allocated = Annotated[
    bool, typer.Option("--slurm", help="Use the nodes of the current SLURM allocation.")
]
TransportName = Annotated[
    str | None,
    typer.Option(
        "--transport",
        metavar="NAME",
        help=f"How to reach the nodes: {', '.join(TRANSPORTS.names())} (default: of the cluster "
        "file; with --slurm: srun).",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Start despite errors in the DeepSpeed config, or on nodes that SLURM manages.",
    ),
]
Workdir = Annotated[
    str | None,
    typer.Option("--workdir", metavar="DIR", help="Working directory of the job on the nodes."),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--master-port",
        metavar="PORT",
        min=1,
        max=65535,
        help="Rendezvous port (default: `network.master_port`, else 29500).",
    ),
]
NoSync = Annotated[
    bool, typer.Option("--no-sync", help="Do not copy code to the nodes; fail if it differs.")
]
NoPreflight = Annotated[
    bool, typer.Option("--no-preflight", help="Skip the quick checks of the nodes.")
]


def seconds(text: str, *names: str, least: float) -> Any:
    """Return the option for a time, at least `least` and at most LONGEST_TIMEOUT seconds.

    `text`: its help. Without `names`, it has the name of its parameter.
    """
    return typer.Option(*names, metavar="SECONDS", min=least, max=LONGEST_TIMEOUT, help=text)


Grace = Annotated[float, seconds("Time between SIGTERM and SIGKILL for a rank.", least=0)]
HangTimeout = Annotated[
    float | None,
    seconds("Stop the run when no rank has made progress for this time, and say why.", least=1),
]


def find_cluster(path: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cluster file: as given, else the default.

    Raises UsageError if no file is found, ConfigError if others control ./cluster.yaml.
    """
    if path is not None:
        return path
    default = default_cluster(environ)
    if default is None:
        raise UsageError(
            f"no cluster file: none given, ${FILE_VARIABLE} not set, ./{DEFAULT_FILE} not found",
            hint="create one with `dslaunch init`",
        )
    if not environ.get(FILE_VARIABLE):
        check_trusted(default)
    return default


def open_cluster(path: Path | None) -> Cluster:
    """Load the cluster file. Raises UsageError, ConfigError."""
    from dslaunch.cluster.model import Cluster

    return Cluster.load(find_cluster(path))


def allocated(path: Path | None) -> Cluster:
    """Return the nodes and GPUs that SLURM has allocated, with all other settings of the cluster
    file, if there is one. Raises UsageError outside an allocation."""
    try:
        cluster: Cluster | None = open_cluster(path)
    except UsageError:
        if path is not None:
            raise
        cluster = None
    return api.allocated(cluster)


def of_each(
    files: Sequence[Path], read: Callable[[Path], Value]
) -> tuple[list[Value], ConfigError | None]:
    """Return what `read` returns for each file, and one error for all files for which it raises
    ConfigError; None: for no file."""
    found: list[Value] = []
    errors: list[ConfigError] = []
    for file in files:
        try:
            found.append(read(file))
        except ConfigError as error:
            errors.append(error)
    if not errors:
        return found, None
    problems = tuple(problem for error in errors for problem in error.problems)
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    return found, ConfigError(problems, hint="\n".join(hints) or None)


def read_text(path: Path, most: int | None = None) -> str:
    """Return the text of a user's file, line ends unchanged; `-` is standard input.

    Raises ConfigError, also for an endless device.
    """
    from dslaunch.lint.user_text import LARGEST, decoded

    return decoded(read_bytes(path, most or LARGEST), str(path))


def read_bytes(path: Path, most: int) -> bytes:
    """Return what a user's file contains; `-` is standard input. Raises ConfigError."""
    from dslaunch.lint import user_text

    if str(path) != "-":
        return user_text.read_bytes(path, most)
    return user_text.bounded(sys.stdin.buffer, str(path), most)
