"""A job that runs `dslaunch run` on its first node: the additional parts of its script.

That run reaches all nodes of the job by SLURM steps (transport `srun`), with the same features as
over SSH: quick checks, evidence, root cause, hang timeout, restarts. It gets the command line and
the cluster file of the submission, although the file may change while the job is pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dslaunch.cluster import schema, yamltext
from dslaunch.errors import PlanError
from dslaunch.json_text import json_text
from dslaunch.launch.command import Command, Var, Word, at_home, document_end, quote, wrapped
from dslaunch.launch.program import kind_flag
from dslaunch.render.batch import Batch, Supervised, grouped, signal_name
from dslaunch.render.launcher_lines import directory

if TYPE_CHECKING:
    from dslaunch.launch.job import Job

PYTHON, CLUSTER, RESULT = Var("python"), Var("cluster"), Var("result")
RESULT_SUFFIX = ".run.json"
"""The suffix of the file with the result of the run, beside the output of the job."""
NOTICES = ("USR1", "USR2")
"""Signals that `dslaunch run` forwards to the ranks."""
NOT_THERE = 6
"""Exit code of a job whose first node lacks dslaunch: that of a missing program."""


def supervised(batch: Batch, job: Job, how: Supervised) -> Batch:
    """Return the batch with the original `job`: the run in the job decides from evidence which
    files to ship and how to change the DeepSpeed config.

    Raises PlanError for a container, which steps of that run do not enter, and for a signal that
    would end that run itself.
    """
    signal = signal_name(batch.slurm)
    if signal is not None and signal not in NOTICES:
        raise PlanError(
            f"slurm.signal: {signal} ends a supervised job, and is not forwarded to its ranks",
            hint=f"use {' or '.join(NOTICES)}, or submit with --plain",
        )
    if batch.slurm.container is not None:
        raise PlanError(
            "slurm.container: not supported in a supervised job",
            hint="submit with --plain",
        )
    decided = replace(batch.launch.decided, files=())
    launch = replace(batch.launch, job=job, decided=decided)
    return replace(batch, launch=launch, supervised=how)


def cluster_file(text: str, name: str, job: Job, workdir: str) -> str:
    """Return the cluster file for the run in the job, as JSON, which is YAML.

    Nodes stay folded. What depends on this machine is resolved: the variables of `env_from`, the
    working directory, and secrets, whose values are in the environment of the job. `slurm:` and
    `job:` are removed.
    """
    data: dict[str, Any] = dict(yamltext.parse(text, name, verbatim=schema.VERBATIM).data)
    for done in ("slurm", "job", "env_from", "launcher", "launcher_args"):
        data.pop(done, None)
    data["name"] = name
    data["env"] = dict(job.env)
    data["secrets"] = [secret.name for secret in job.secrets]
    data["storage"] = {**(data.get("storage") or {}), "workdir": workdir}
    return json_text(data, indent=1, ascii_only=False)


def values(batch: Batch, how: Supervised) -> dict[str, Any]:
    """Return the variables of the template of such a job."""
    workdir = batch.launch.decided.workdir
    return {
        "pythons": " ".join(quote(at_home(python)) for python in how.pythons),
        "workdir": "" if workdir.startswith("/") else quote(directory(workdir)),
        "file": how.file,
        "end": document_end(how.file),
        "not_there": NOT_THERE,
        "suffix": RESULT_SUFFIX,
    }


def run_command(batch: Batch, how: Supervised) -> str:
    """Return the command line of `dslaunch run`."""
    job, groups = batch.launch.job, grouped(batch)
    signal = signal_name(batch.slurm)
    options: list[Word] = [f"--launcher={job.launcher}"]
    options += [f"--launcher-arg={argument}" for argument in job.launcher_args]
    if len(groups) == 1:
        options.append(f"--slots={groups[0].slots}")
    options.append(f"--restarts={job.restarts}")
    if job.min_nodes is not None:
        options.append(f"--min-nodes={job.min_nodes}")
    if how.hang_timeout is not None:
        options.append(f"--hang-timeout={how.hang_timeout:g}")
    if signal:
        options.append(f"--notice={signal}")
    if batch.slurm.requeue:
        options.append(f"--requeue={batch.slurm.requeue}")
    if not how.preflight:
        options.append("--no-preflight")
    if how.force:
        options.append("--force")
    options.append(("--result=", RESULT))
    options += [f"--env={name}={value}" for name, value in job.overrides]
    options += kind_flag(job, "--no-python")
    words = ((PYTHON,), "-P", "-m", "dslaunch", "run", "--slurm", *options)
    return wrapped(Command((*words, (CLUSTER,), job.program, *job.args)))
