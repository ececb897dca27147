"""The options that define a run, as values: its nodes, its job, and how it is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dslaunch import api
from dslaunch.cli import options
from dslaunch.cli.positional import FILE_ENDINGS, read_settings, split_words
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    import signal

    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.cluster.select import Selection
    from dslaunch.launch.job import Job, Kind
    from dslaunch.run.request import RunRequest
    from dslaunch.run.timeouts import Timeouts


class SelectionOptions(Struct, frozen=True):
    """The options that select nodes and slots."""

    include: options.Include = ""
    exclude: options.Exclude = ""
    nodes: options.Nodes = None
    slots: options.Slots = None
    label: options.Label = None

    @property
    def selection(self) -> Selection:
        """Return the selection."""
        from dslaunch.cluster.select import Selection

        labels = tuple(self.label or ())
        return Selection(self.include, self.exclude, self.nodes, self.slots, labels)

    def of(self, cluster: Cluster) -> Allocation:
        """Return the selected nodes and slots in rank order. Raises SelectionError."""
        from dslaunch.cluster.select import select

        return select(cluster, self.selection)


class JobOptions(Struct, frozen=True):
    """The options that define how the program is run."""

    module: options.Module = False
    no_python: options.NoPython = False
    launcher: options.Launcher = None
    launcher_arg: options.LauncherArg = None
    env: options.Setting = None
    """`NAME=VALUE`, or `NAME` to copy the caller's value."""
    workdir: options.Workdir = None

    @property
    def kind(self) -> Kind:
        """What the script is. Raises UsageError."""
        if self.module and self.no_python:
            raise UsageError("--module and --no-python exclude each other")
        if self.module:
            return "module"
        return "command" if self.no_python else "script"


class StartOptions(Struct, frozen=True):
    """The options that define how nodes are reached and a job is started on them."""

    slurm: options.Allocated = False
    transport: options.TransportName = None
    master_port: options.Port = None
    no_sync: options.NoSync = False
    no_preflight: options.NoPreflight = False
    force: options.Force = False

    def reached(self, cluster: Cluster) -> Cluster:
        """Return the cluster with the transport of the options. Raises UsageError."""
        return api.with_transport(cluster, self.transport, in_allocation=self.slurm)

    def request(
        self,
        cluster: Cluster,
        job: Job,
        allocation: Allocation,
        *,
        timeouts: Timeouts,
        restarts: int | None = None,
        min_nodes: int | None = None,
        detached: bool = False,
        notice: signal.Signals | None = None,
    ) -> RunRequest:
        """Return the request to start a job. Raises SelectionError, UsageError."""
        return api.run_request(
            cluster,
            job,
            allocation,
            sync=not self.no_sync,
            preflight=not self.no_preflight,
            force=self.force,
            restarts=restarts,
            min_nodes=min_nodes,
            timeouts=timeouts,
            detached=detached,
            notice=notice,
        )

    def check_not_scheduled(self, cluster: Cluster) -> None:
        """Raise PlanError for nodes that SLURM manages, unless an option says that they are
        reached as intended."""
        if not (self.force or self.slurm or self.transport):
            api.check_not_scheduled(cluster, os.environ)


class ClusterJob(Struct, frozen=True):
    """A cluster and the job to run on it."""

    cluster: Cluster
    job: Job


def read_job(
    words: list[str] | None,
    how: JobOptions,
    *,
    command: str,
    file: Path | None = None,
    slurm: bool = False,
    fallback: str | None = None,
) -> ClusterJob:
    """Return the cluster and the job of `[CLUSTER] [SCRIPT] [ARGS]` and of the options.

    `file` is that of `--cluster`. With `slurm` the nodes are those of the current allocation.
    `command` and `fallback`: see `job_on`. Raises UsageError.
    """
    file, program, args = split_words(words or [], file)
    if program is not None and not how.no_python:
        check_no_hostfile(program)
    try:
        cluster = options.allocated(file) if slurm else options.open_cluster(file)
    except UsageError as error:
        raise taken_for_script(error, file, program) from None
    if how.workdir is not None:
        cluster = replace(cluster, storage=replace(cluster.storage, workdir=how.workdir))
    job = job_on(cluster, program, args, how, command=command, fallback=fallback)
    return ClusterJob(cluster, job)


def check_no_hostfile(program: str) -> None:
    """Raise ConfigError for a hostfile that was given as the cluster file, and taken for the
    script."""
    path = Path(program)
    if path.suffix == ".py" or not _is_file(path):
        return
    from dslaunch.cluster.load import load_cluster
    from dslaunch.cluster.other_files import is_hostfile_with_slots
    from dslaunch.run.job_files import read_small

    if is_hostfile_with_slots(read_small(path) or ""):
        load_cluster(path)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name that is too long, or a directory of another user
        return False


def with_master_port(cluster: Cluster, port: int | None) -> Cluster:
    """Return the cluster with the rendezvous port of the command line, if there is one."""
    if port is None:
        return cluster
    return replace(cluster, network=replace(cluster.network, master_port=port))


def taken_for_script(error: UsageError, file: Path | None, program: str | None) -> UsageError:
    """Return the error for a missing cluster file, with a note about the first word."""
    if file is not None or program is None:
        return error
    endings = " or ".join(FILE_ENDINGS)
    return UsageError(
        f"{error.message}\n{program!r} is taken for the script: a cluster file ends in {endings}",
        hint=error.hint,
    )


def job_on(
    cluster: Cluster,
    program: str | None,
    args: tuple[str, ...],
    how: JobOptions,
    *,
    command: str,
    fallback: str | None = None,
) -> Job:
    """Return the job of the command line, else of the cluster file. Raises UsageError.

    `command`: its name, for a hint. `fallback`: the script if neither names one; None: one is
    required.
    """
    from dslaunch.launch.job import Job

    kind = how.kind
    if program == "":
        raise UsageError("SCRIPT is empty", hint="check the shell variable in it")
    if program is None and kind == "script" and not api.has_job(cluster):
        if fallback is None:
            raise UsageError(
                "no script given, and the cluster file has no `job:`",
                hint=f"dslaunch {command} CLUSTER.yaml SCRIPT [ARGS]...",
            )
        program = fallback
    return Job.on(
        cluster,
        program,
        args,
        kind=kind,
        launcher=how.launcher,
        launcher_args=tuple(how.launcher_arg or ()),
        env=read_settings(how.env or (), os.environ),
    )
