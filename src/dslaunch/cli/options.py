"""Options and arguments of several commands: the cluster file, the selection, the job."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch import api
from dslaunch.cli.file_trust import check_trusted
from dslaunch.cli.positional import FILE_ENDINGS, JobOptions, own_first, read_settings, split_words
from dslaunch.errors import SelectionError, UsageError
from dslaunch.registry import LAUNCHERS, TRANSPORTS

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.cluster.select import Selection
    from dslaunch.launch.job import Job

DEFAULT_FILE = "cluster.yaml"
FILE_VARIABLE = "DSLAUNCH_CLUSTER"
# everything behind the first word that is no option belongs to that word
SCRIPT_LAST = {"allow_interspersed_args": False}


def in_order(*, formats: int = 0) -> Callable[[typer.Context, list[str] | None], list[str]]:
    """Return a callback that lets options stand behind the first words (`MoreOptions`)."""

    def put_in_order(context: typer.Context, value: list[str] | None) -> list[str]:
        return own_first(context.obj or [], value or [], formats=formats)

    return put_in_order


ClusterFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="CLUSTER.yaml",
        help=f"The cluster file; default ${FILE_VARIABLE}, else ./{DEFAULT_FILE}.",
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CLUSTER.yaml SCRIPT ARGS",
        help=f"The cluster file, by default ${FILE_VARIABLE}, else ./{DEFAULT_FILE}; "
        "then what to run, by default the file's job.",
        show_default=False,
        callback=in_order(),
    ),
]


def not_empty(context: typer.Context, option: typer.CallbackParam, value: str) -> str:
    """Refuse an empty text that is given: an unset variable in a script must not mean all nodes.

    Raises SelectionError.
    """
    source = context.get_parameter_source(str(option.name))
    if source is not None and source.name == "COMMANDLINE" and not value.strip():
        raise SelectionError(
            f"--{option.name}: the value is empty",
            hint=f"check the variable that it comes from, or leave --{option.name} out",
        )
    return value


Include = Annotated[
    str,
    typer.Option(
        "--include", "-i", callback=not_empty, help="Use only these: node[01-03]:0-3@old01."
    ),
]
Exclude = Annotated[
    str, typer.Option("--exclude", "-e", callback=not_empty, help="Leave these out, likewise.")
]
Nodes = Annotated[int | None, typer.Option("--nodes", "-N", min=1, help="Use the first N nodes.")]
Slots = Annotated[int | None, typer.Option("--slots", min=1, help="Use N slots of each node.")]
Label = Annotated[list[str] | None, typer.Option("--label", help="Only nodes with KEY=VALUE.")]
Module = Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module's name.")]
NoPython = Annotated[bool, typer.Option("--no-python", help="SCRIPT is a program, no Python.")]
Launcher = Annotated[
    str | None,
    typer.Option("--launcher", "-l", help=f"One of {', '.join(LAUNCHERS.names())}."),
]
Setting = Annotated[
    list[str] | None, typer.Option("--env", help="NAME=VALUE for the ranks; NAME copies yours.")
]
Allocated = Annotated[
    bool, typer.Option("--slurm", help="On the nodes of the SLURM allocation that we are in.")
]
TransportName = Annotated[
    str | None,
    typer.Option(
        "--transport",
        help=f"How nodes are reached: {', '.join(TRANSPORTS.names())}; default: as the file says, "
        "and with --slurm by steps.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Start although the DeepSpeed config has errors, or the nodes belong to SLURM.",
    ),
]
Workdir = Annotated[str | None, typer.Option("--workdir", help="Where the job runs on the nodes.")]


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A cluster, and what to run on it."""

    cluster: Cluster
    job: Job


def find_cluster(path: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cluster file: as given, else `$DSLAUNCH_CLUSTER`, else ./cluster.yaml.

    Raises UsageError if no file is found, ConfigError if others control ./cluster.yaml.
    """
    if path is not None:
        return path
    if environ.get(FILE_VARIABLE):
        return Path(environ[FILE_VARIABLE])
    if Path(DEFAULT_FILE).is_file():
        check_trusted(Path(DEFAULT_FILE))
        return Path(DEFAULT_FILE)
    raise UsageError(
        f"no cluster file: none given, ${FILE_VARIABLE} is not set, no ./{DEFAULT_FILE}",
        hint="`dslaunch init` writes one",
    )


def open_cluster(path: Path | None) -> Cluster:
    """Load the cluster file. Raises UsageError, ConfigError."""
    from dslaunch.cluster.model import Cluster

    return Cluster.load(find_cluster(path))


def allocated(path: Path | None) -> Cluster:
    """Return the nodes and GPUs that SLURM has allocated; all else is as in the cluster file, if
    there is one. Raises UsageError outside an allocation."""
    from dslaunch.slurm import node_discovery
    from dslaunch.slurm.client import here

    try:
        cluster: Cluster | None = open_cluster(path)
    except UsageError:
        if path is not None:
            raise
        cluster = None
    return node_discovery.allocated(here(), cluster)


def reached(cluster: Cluster, way: str | None, *, slurm: bool) -> Cluster:
    """Return the cluster with the transport of the command line, else of the file.

    In an allocation the usual transport gives way to steps of the allocation, where there is an
    srun: many sites let nobody log in. Raises UsageError, DslaunchError.
    """
    from dslaunch.cluster.model import Cluster
    from dslaunch.transport.transports import srun

    usual = cluster.transport == Cluster("", ()).transport
    if way is None and slurm and usual and shutil.which(srun.NAME):
        way = srun.NAME
    if way is None or way == cluster.transport:
        return cluster
    if way == srun.NAME:
        from dslaunch.slurm import node_discovery
        from dslaunch.slurm.client import here

        return node_discovery.by_steps(here(), cluster)
    return replace(cluster, transport=way)


def selection(
    include: str, exclude: str, nodes: int | None, slots: int | None, label: list[str] | None
) -> Selection:
    """Return the selection that the options name."""
    from dslaunch.cluster.select import Selection

    return Selection(include, exclude, nodes, slots, tuple(label or ()))


def read_job(
    words: list[str], how: JobOptions, *, workdir: str | None = None, slurm: bool = False
) -> ClusterJob:
    """Read `[CLUSTER] [SCRIPT] [ARGS]` and the options beside them.

    With `slurm` the nodes are those of the allocation that we are in. Raises UsageError.
    """
    file, program, args = split_words(words)
    try:
        cluster = allocated(file) if slurm else open_cluster(file)
    except UsageError as error:
        raise taken_for_script(error, file, program) from None
    if workdir is not None:
        cluster = replace(cluster, storage=replace(cluster.storage, workdir=workdir))
    return ClusterJob(cluster, job_on(cluster, program, args, how))


def taken_for_script(error: UsageError, file: Path | None, program: str | None) -> UsageError:
    """Return the error for a missing cluster file, where the first word is no name of one."""
    if file is not None or program is None:
        return error
    endings = " or ".join(FILE_ENDINGS)
    return UsageError(
        f"{error.message}\n{program!r} is taken for the script: a cluster file ends in {endings}",
        hint=error.hint,
    )


def job_on(cluster: Cluster, program: str | None, args: tuple[str, ...], how: JobOptions) -> Job:
    """Return the job of the command line, else of the cluster file. Raises UsageError."""
    from dslaunch.launch.job import Job

    kind = how.kind
    if program == "":
        raise UsageError("the script's name is empty", hint="check the variable that it comes from")
    if program is None and kind == "script" and not api.has_job(cluster):
        if how.fallback is None:
            raise UsageError(
                "no script: none given, and the cluster file has no `job:`",
                hint=f"dslaunch {how.command} CLUSTER.yaml SCRIPT [ARGS]...",
            )
        program = how.fallback
    env = read_settings(how.env, os.environ)
    return Job.on(cluster, program, args, kind=kind, launcher=how.launcher, env=env)


def read_text(path: Path, most: int | None = None) -> str:
    """Read a user's text, line ends as they are; of `-` from standard input.

    Raises ConfigError, also for a device that has no end.
    """
    from dslaunch.lint.user_text import LARGEST, decoded, read_file

    most = most or LARGEST
    if str(path) != "-":
        return read_file(path, most)
    return decoded(sys.stdin.buffer.read(most + 1), str(path), most)


def check_writable(option: str, path: Path | None) -> None:
    """Raise UsageError if a file that an option names could not be written: known before nodes are
    asked for minutes, not after. Nothing is made or changed."""
    if path is None:
        return
    try:
        if path.is_dir():
            why = os.strerror(errno.EISDIR)
        elif not path.parent.is_dir():
            why = f"there is no directory {path.parent}"
        elif os.access(path if path.exists() else path.parent, os.W_OK):
            return
        else:
            why = os.strerror(errno.EACCES)
    except OSError as error:
        why = error.strerror or str(error)
    raise UsageError(f"{option} {path}: {why}")
