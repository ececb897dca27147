"""Submit a script, and record the job as a run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.errors import DslaunchError, UsageError
from dslaunch.render.batch import Batch, grouped, job_name
from dslaunch.run.launch import cluster_json, new_run_id, open_record
from dslaunch.run.run_directory import CLUSTER, RunDirectory, runs_directory
from dslaunch.run.run_record import FILE, JobRecord, RunRecord
from dslaunch.run.secret import read_secrets
from dslaunch.slurm.client import SlurmClient
from dslaunch.slurm.environment import submit_environment
from dslaunch.slurm.identity import JobId
from dslaunch.slurm.job import Submitted, submitted
from dslaunch.slurm.output import Layout

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster

SCRIPT = "job.sbatch"


def layout_of(batch: Batch) -> Layout:
    """Return how the tasks of a script's step map to ranks."""
    groups = tuple((group.nodes, group.slots) for group in grouped(batch))
    launcher = batch.launch.launcher
    supervised = batch.supervised is not None
    return Layout(
        groups=groups,
        direct=launcher.task_per_rank,
        elastic=launcher.elastic,
        supervised=supervised,
    )


def submit(
    client: SlurmClient, script: str, batch: Batch, cluster: Cluster, environ: Mapping[str, str]
) -> tuple[Submitted, RunDirectory]:
    """Submit a script and record the job.

    Raises RefusedError, and UsageError for a missing secret, an output directory that cannot be
    created, or a state directory that other users control.
    """
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
        progress_patterns=cluster.progress,
        slurm=job_record,
    )
    record.write(FILE, about.as_json())
    record.write(CLUSTER, cluster_json(cluster))
    record.write(SCRIPT, script)
    return submitted(record.directory, job_record), record


def _first(client: SlurmClient, job: JobId) -> tuple[JobId, str]:
    """Return the job with its submission time and the path of its output, if SLURM knows them
    yet."""
    try:
        job, found = client.submitted(job)
    except DslaunchError:
        return job, ""
    return job, next((info.output for info in found), "")


def make_output_directories(batch: Batch) -> None:
    """Create the directories of the output files, without which a job fails without any output.

    Directories with patterns (`%x`), and on file systems that this machine does not have, are not
    created. Raises UsageError.
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
            raise UsageError(f"slurm.{key}: cannot create {parent}: {error.strerror}") from None


def _beginning(path: Path) -> Path:
    """Return the first directory of a path below the root: `/lustre`."""
    return Path(*path.parts[:2])
