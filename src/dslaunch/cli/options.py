"""What several commands take: the cluster file, the selection, the job."""

from __future__ import annotations

import fnmatch
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cluster.model import Cluster, JobDefaults, Node
from dslaunch.errors import UsageError
from dslaunch.launch.job import Job, Kind

if TYPE_CHECKING:
    from dslaunch.cluster.select import Selection

DEFAULT_FILE = "cluster.yaml"
FILE_VARIABLE = "DSLAUNCH_CLUSTER"
# everything behind the first word that is no option belongs to that word
SCRIPT_LAST = {"allow_interspersed_args": False}

ClusterFile = Annotated[
    Path | None,
    typer.Argument(help=f"The cluster file; default ${FILE_VARIABLE}, else ./{DEFAULT_FILE}."),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CLUSTER.yaml] [SCRIPT] [ARGS]...", show_default=False),
]
Include = Annotated[
    str, typer.Option("--include", "-i", help="Use only these: node[01-03]:0-3@old01.")
]
Exclude = Annotated[str, typer.Option("--exclude", "-e", help="Leave these out, likewise.")]
Nodes = Annotated[int | None, typer.Option("--nodes", "-N", min=1, help="Use the first N nodes.")]
Slots = Annotated[int | None, typer.Option("--slots", min=1, help="Use N slots of each node.")]
Label = Annotated[list[str] | None, typer.Option("--label", help="Only nodes with KEY=VALUE.")]
Module = Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module's name.")]
NoPython = Annotated[bool, typer.Option("--no-python", help="SCRIPT is a program, no Python.")]
Launcher = Annotated[
    str | None,
    typer.Option("--launcher", "-l", help="torchrun, deepspeed, accelerate or direct."),
]
Setting = Annotated[
    list[str] | None, typer.Option("--env", help="NAME=VALUE for the ranks; NAME copies yours.")
]
Workdir = Annotated[str | None, typer.Option("--workdir", help="Where the job runs on the nodes.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """A cluster, and what to run on it."""

    cluster: Cluster
    job: Job


def find_cluster(path: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The cluster file: as given, else `$DSLAUNCH_CLUSTER`, else ./cluster.yaml.

    Raises UsageError if there is none of them.
    """
    if path is not None:
        return path
    if environ.get(FILE_VARIABLE):
        return Path(environ[FILE_VARIABLE])
    if Path(DEFAULT_FILE).is_file():
        return Path(DEFAULT_FILE)
    raise UsageError(
        f"no cluster file: none given, ${FILE_VARIABLE} is not set, no ./{DEFAULT_FILE}",
        hint="`dslaunch init` writes one",
    )


def open_cluster(path: Path | None) -> Cluster:
    """Load the cluster file. Nodes emulated on this machine run the Python that runs us."""
    from dslaunch.cluster.load import load_cluster

    cluster = load_cluster(find_cluster(path))
    if cluster.transport != "local":
        return cluster

    def with_python(node: Node) -> Node:
        return node if node.python or node.activate else replace(node, python=sys.executable)

    return replace(cluster, nodes=tuple(map(with_python, cluster.nodes)))


def selection(
    include: str, exclude: str, nodes: int | None, slots: int | None, label: list[str] | None
) -> Selection:
    """The selection that the options name."""
    from dslaunch.cluster.select import Selection

    return Selection(include, exclude, nodes, slots, tuple(label or ()))


def read_job(
    words: list[str],
    *,
    module: bool,
    no_python: bool,
    launcher: str | None,
    env: list[str] | None,
    workdir: str | None,
    fallback: str | None = None,
) -> Asked:
    """Read `[CLUSTER] [SCRIPT] [ARGS]` and the options beside them.

    `fallback` is the script where none is named, for commands that need none. Raises UsageError.
    """
    if module and no_python:
        raise UsageError("--module and --no-python exclude each other")
    file, program, args = split_words(words)
    cluster = open_cluster(file)
    if workdir is not None:
        cluster = replace(cluster, storage=replace(cluster.storage, workdir=workdir))
    defaults = cluster.job or JobDefaults()
    kind: Kind = "module" if module else "command" if no_python else "script"
    if program is None:
        program, kind, args = _default_program(defaults, kind, fallback)
    if kind != "module":
        program = program_path(program, Path.cwd())
    variables = dict(cluster.env)
    variables |= copied(cluster.env_from, os.environ)
    variables |= dict(defaults.env) | read_settings(env or [], os.environ)
    job = Job(
        program=program,
        args=tuple(args),
        kind=kind,
        launcher=launcher or cluster.launcher,
        env=tuple(variables.items()),
        secrets=cluster.secrets,
    )
    return Asked(cluster, job)


def split_words(words: list[str]) -> tuple[Path | None, str | None, list[str]]:
    """Split into cluster file, program and arguments; the file is known by its ending.

    Raises UsageError for an option that stands behind the cluster file.
    """
    rest = list(words)
    file = Path(rest.pop(0)) if rest and rest[0].endswith((".yaml", ".yml")) else None
    if file is not None and rest and rest[0].startswith("-"):
        raise UsageError(
            f"{rest[0]} stands behind the cluster file, where the script is expected",
            hint=f"options of dslaunch go before {file}; what follows the script is the script's",
        )
    program = rest.pop(0) if rest else None
    return file, program, rest


def program_path(program: str, cwd: Path) -> str:
    """A script as the nodes see it: relative where it lies below the working directory here,
    absolute where it does not."""
    path = Path(os.path.normpath(cwd / program))
    if not path.is_file() or "/" not in program:
        return program
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def copied(patterns: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables whose names match one of the patterns."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def read_settings(settings: list[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Read `NAME=VALUE` words; a bare `NAME` copies the caller's. Raises UsageError."""
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"--env: {name!r} is no name of a variable", hint="--env NAME=VALUE")
        if not equals and name not in environ:
            raise UsageError(
                f"--env: {name} is not set in your environment", hint="--env NAME=VALUE"
            )
        found[name] = value if equals else environ[name]
    return found


def _default_program(
    defaults: JobDefaults, kind: Kind, fallback: str | None
) -> tuple[str, Kind, list[str]]:
    if defaults.module is not None:
        return defaults.module, "module", list(defaults.args)
    if defaults.script is not None:
        return defaults.script, "script", list(defaults.args)
    if fallback is not None:
        return fallback, kind, []
    raise UsageError(
        "no script: none given, and the cluster file has no `job:`",
        hint="dslaunch run CLUSTER.yaml SCRIPT [ARGS]...",
    )
