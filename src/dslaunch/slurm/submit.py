"""Submit a script, and record the job like any other run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.errors import DslaunchError, UsageError
from dslaunch.run.launch import cluster_json, new_run_id, open_record
from dslaunch.run.run_directory import CLUSTER, RunDirectory, runs_directory
from dslaunch.run.run_record import FILE, JobRecord, RunRecord
from dslaunch.run.secret import read_secrets
from dslaunch.slurm.client import Client
from dslaunch.slurm.environment import submit_environment, withheld
from dslaunch.slurm.identity import JobId
from dslaunch.slurm.job import Submitted, submitted
from dslaunch.slurm.output import Layout

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.render.batch import Batch

SCRIPT = "job.sbatch"


def layout_of(batch: Batch) -> Layout:
    """How the tasks of a script's step become ranks."""
    from dslaunch.render.batch import grouped

    groups = tuple((group.nodes, group.slots) for group in grouped(batch))
    launcher = batch.launch.launcher
    supervised = batch.supervised is not None
    return Layout(groups, launcher.task_per_rank, launcher.elastic, supervised)


def submit(
    client: Client, script: str, batch: Batch, cluster: Cluster, environ: Mapping[str, str]
) -> tuple[Submitted, RunDirectory]:
    """Submit a script and write down what is needed to find the job again.

    Raises RefusedError, UsageError for a missing secret, an output directory that cannot be, or a
    state directory that others control.
    """
    from dslaunch.render.batch import job_name

    job, layout = batch.launch.job, layout_of(batch)
    secrets = read_secrets(job.secrets, environ)
    make_output_directories(batch)
    records = runs_directory(environ)
    job_id = client.submit(script, submit_environment(environ, script, secrets))
    record = open_record(records / new_run_id(job))
    job_id, output = _first(client, job_id)
    job_record = JobRecord(
        job=job_id.number,
        cluster=job_id.cluster,
        name=job_name(batch),
        submitted=job_id.submitted,
        token=job_id.token,
        user=job_id.user,
        output=output,
        groups=layout.groups,
        direct=layout.direct,
        elastic=layout.elastic,
        supervised=layout.supervised,
    )
    about = RunRecord(
        program=job.program,
        cluster=cluster.name,
        launcher=job.launcher,
        hosts=batch.launch.allocation.hosts,
        world_size=sum(nodes * slots for nodes, slots in layout.groups),
        detached=False,
        agents=record.directory.name,
        started=time.time(),
        pid=os.getpid(),
        machine=socket.gethostname(),
        slurm=job_record,
    )
    record.write(FILE, about.to_json())
    record.write(CLUSTER, cluster_json(cluster))
    record.write(SCRIPT, script)
    return submitted(record.directory, job_record), record


def _first(client: Client, job: JobId) -> tuple[JobId, str]:
    """The job with its time, and the path of its output, if SLURM says them at once."""
    try:
        job, found = client.submitted(job)
    except DslaunchError:
        return job, ""
    return job, next((info.output for info in found), "")


def withheld_secrets(batch: Batch, script: str, environ: Mapping[str, str]) -> str | None:
    """Why sbatch would keep the secrets from the job; None: it would not."""
    names = [secret.name for secret in batch.launch.job.secrets]
    why = withheld(names, script, environ) if names else None
    if why is None:
        return None
    advice = "leave it out, or add ALL to the list"
    return f"{why} keeps the secrets from the job: {', '.join(names)}; {advice}"


def make_output_directories(batch: Batch) -> None:
    """Make the directories of the output files: without them a job fails and leaves no word.

    What SLURM fills in (`%x`) cannot be made, and what is not on this machine's disks need not be.
    Raises UsageError.
    """
    slurm = batch.slurm
    options = dict(slurm.options)
    base = Path(options.get("chdir", batch.launch.decided.workdir)).expanduser()
    for key, file in (("output", slurm.output), ("error", options.get("error"))):
        if file is None:
            continue
        parent = (base / file).parent
        if "%" in str(parent) or not _beginning(parent).is_dir():
            continue
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"slurm.{key}: {parent} cannot be made: {error.strerror}") from None


def _beginning(path: Path) -> Path:
    """The first directory of a path below the root: `/lustre`."""
    return Path(*path.parts[:2])
