"""What several commands take: the cluster file, the selection, the job."""

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

from dslaunch.cli.trusted import check_trusted
from dslaunch.cli.words import FILE_ENDINGS, JobOptions, make_job, own_first, split_words
from dslaunch.errors import ConfigError, Problem, SelectionError, UsageError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node
    from dslaunch.cluster.select import Selection
    from dslaunch.launch.job import Job

DEFAULT_FILE = "cluster.yaml"
FILE_VARIABLE = "DSLAUNCH_CLUSTER"
SHELL_ENDINGS = (".sh", ".bash")
LARGEST = 16 * 2**20
"""Characters of a text that is read; no file of settings has so many."""
# everything behind the first word that is no option belongs to that word
SCRIPT_LAST = {"allow_interspersed_args": False}


def in_order(*, formats: int = 0) -> Callable[[typer.Context, list[str] | None], list[str]]:
    """A callback that lets options stand behind the first words; see `words.MoreOptions`."""

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
    typer.Option("--launcher", "-l", help="torchrun, elastic, deepspeed, accelerate or direct."),
]
Setting = Annotated[
    list[str] | None, typer.Option("--env", help="NAME=VALUE for the ranks; NAME copies yours.")
]
Allocated = Annotated[
    bool, typer.Option("--slurm", help="On the nodes of the SLURM allocation that we are in.")
]
Way = Annotated[
    str | None,
    typer.Option(
        "--transport",
        help="How nodes are reached: auto, fabric, openssh, local or srun; default: as the file "
        "says, and with --slurm by srun.",
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
class Asked:
    """A cluster, and what to run on it."""

    cluster: Cluster
    job: Job


def find_cluster(path: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The cluster file: as given, else `$DSLAUNCH_CLUSTER`, else ./cluster.yaml.

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
    """Load the cluster file. Nodes emulated on this machine run the Python that runs us."""
    from dslaunch.cluster.load import load_cluster

    cluster = load_cluster(find_cluster(path))
    if cluster.transport != "local":
        return cluster

    def with_python(node: Node) -> Node:
        return node if node.python or node.activate else replace(node, python=sys.executable)

    return replace(cluster, nodes=tuple(map(with_python, cluster.nodes)))


def allocated(path: Path | None) -> Cluster:
    """The nodes and GPUs that SLURM gave, with all else as the cluster file has it, if there is
    one. Raises UsageError outside an allocation."""
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
    """The cluster, reached as the command line says, else as the file does.

    In an allocation the usual transport gives way to steps of the allocation, where there is an
    srun: many sites let nobody log in. Raises UsageError, DslaunchError.
    """
    from dslaunch.cluster.model import BY_STEPS, Cluster

    usual = cluster.transport == Cluster("", ()).transport
    if way is None and slurm and usual and shutil.which(BY_STEPS):
        way = BY_STEPS
    if way is None or way == cluster.transport:
        return cluster
    if way == BY_STEPS:
        from dslaunch.slurm import node_discovery
        from dslaunch.slurm.client import here

        return node_discovery.by_steps(here(), cluster)
    return replace(cluster, transport=way)


def selection(
    include: str, exclude: str, nodes: int | None, slots: int | None, label: list[str] | None
) -> Selection:
    """The selection that the options name."""
    from dslaunch.cluster.select import Selection

    return Selection(include, exclude, nodes, slots, tuple(label or ()))


def read_job(
    words: list[str], how: JobOptions, *, workdir: str | None = None, slurm: bool = False
) -> Asked:
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
    return Asked(cluster, job_on(cluster, program, args, how))


def taken_for_script(error: UsageError, file: Path | None, program: str | None) -> UsageError:
    """No cluster file was found, and the first word is no name of one."""
    if file is not None or program is None:
        return error
    endings = " or ".join(FILE_ENDINGS)
    return UsageError(
        f"{error.message}\n{program!r} is taken for the script: a cluster file ends in {endings}",
        hint=error.hint,
    )


def job_on(cluster: Cluster, program: str | None, args: tuple[str, ...], how: JobOptions) -> Job:
    """The job that the words name, else the cluster file. Raises UsageError."""
    job = make_job(cluster, program, args, how, os.environ)
    if job.kind == "module":
        return job
    cwd = Path.cwd()
    check_runnable(job, cwd)
    if job.kind == "command":
        return replace(job, program=command_path(job.program, cwd))
    return replace(job, program=program_path(job.program, cwd))


def check_runnable(job: Job, cwd: Path) -> None:
    """Raise UsageError for a directory in the place of the script, or another shell's script that
    Python would be given."""
    path = cwd / job.program
    if not job.program:
        return
    if job.kind == "script" and job.program.endswith(FILE_ENDINGS):
        raise UsageError(
            f"script {job.program!r} is a YAML file; the script stands behind the cluster file",
            hint="dslaunch run CLUSTER.yaml SCRIPT [ARGS]...",
        )
    if path.is_dir() and (job.kind == "script" or "/" in job.program):
        scripts = sorted(each.name for each in path.glob("*.py"))
        example = path / (scripts[0] if len(scripts) == 1 else "SCRIPT.py")
        raise UsageError(
            f"script {job.program!r} is a directory", hint=f"name the file to run: {example}"
        )
    if job.kind == "script" and job.program.endswith(SHELL_ENDINGS):
        raise UsageError(
            f"script {job.program!r} is a shell script, and Python would run it",
            hint=f"run it as a program: --no-python {shell_word(job.program)}",
        )


def shell_word(program: str) -> str:
    """The program as a shell would find it."""
    return program if "/" in program else f"./{program}"


def read_text(path: Path) -> str:
    """A user's text, line ends as they are; of `-` from standard input.

    Raises ConfigError, also for a device that has no end.
    """
    try:
        if str(path) == "-":
            text = sys.stdin.read(LARGEST + 1)
        else:
            with path.open(encoding="utf-8", newline="") as file:
                text = file.read(LARGEST + 1)
    except OSError as error:
        raise ConfigError((Problem(str(path), 0, 0, "", str(error.strerror)),)) from None
    except UnicodeDecodeError:
        raise ConfigError((Problem(str(path), 0, 0, "", "no text in UTF-8"),)) from None
    if len(text) > LARGEST:
        why = f"more than {LARGEST:,} characters, as no file of settings has"
        raise ConfigError((Problem(str(path), 0, 0, "", why),))
    return text


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


def program_path(program: str, cwd: Path) -> str:
    """A script as the nodes see it: relative where it lies below the working directory here,
    absolute where it does not."""
    path = Path(os.path.normpath(cwd / program))
    if not path.is_file() or "/" not in program:
        return program
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def command_path(program: str, cwd: Path) -> str:
    """A program as the nodes see it. One of the working directory keeps its `./`: without a slash
    it would be looked for in PATH.

    Raises UsageError for a file here that cannot be executed, or that PATH does not lead to.
    """
    file = cwd / program
    if "/" not in program:
        if file.is_file() and shutil.which(program) is None:
            raise UsageError(
                f"--no-python {program}: not in PATH, where a name without a slash is looked for",
                hint=f"write ./{program} for the file in the working directory",
            )
        return program
    if file.is_file() and not os.access(file, os.X_OK):
        raise UsageError(
            f"--no-python {program}: the file is not executable", hint=f"chmod +x {program}"
        )
    path = program_path(program, cwd)
    return path if "/" in path else f"./{path}"
