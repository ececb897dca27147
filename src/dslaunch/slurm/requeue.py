"""Requeue the SLURM job of this process without the nodes that failed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from dslaunch.cluster.nodeset import fold
from dslaunch.errors import DslaunchError
from dslaunch.notes import Note, NoteCode, note
from dslaunch.slurm.scontrol import excluded_nodes
from dslaunch.slurm.states import whole_number

if TYPE_CHECKING:
    from dslaunch.slurm.client import SlurmClient


class RequeueNote(NoteCode):
    """What became of a request to requeue the job."""

    NOT_IN_A_JOB = "not-in-a-job", "not requeued: this process does not run in a SLURM job"
    LIMIT_REACHED = (
        "limit-reached",
        "job {job} is not requeued: it reached the limit of {limit} requeues",
    )
    REQUEUED = "requeued", "job {job} is requeued without {nodes}"
    FAILED = "failed", "job {job} is not requeued: {error}"


def requeue_without(
    client: SlurmClient, nodes: Sequence[str], limit: int, tell: Callable[[Note], None]
) -> None:
    """Requeue the job of this process, at most `limit` times, and exclude nodes from its next
    start; `tell` what was done.

    SLURM accepts a list of excluded nodes for a pending job only (22.05, slurmctld/job_mgr.c,
    `_update_job`). The job is pending as soon as it is requeued, while its processes have the time
    of slurm.conf's KillWait to exit.
    """
    job = client.environ.get("SLURM_JOB_ID", "")
    restarts = whole_number(client.environ.get("SLURM_RESTART_COUNT", "0")) or 0
    if not job:
        tell(note(RequeueNote.NOT_IN_A_JOB))
        return
    if restarts >= limit:
        tell(note(RequeueNote.LIMIT_REACHED, job=job, limit=limit))
        return
    try:
        before = excluded_nodes(_scontrol(client, "--oneliner", "show", "job", job))
        excluded = fold({*before, *nodes})
        with _term_ignored():
            _scontrol(client, "requeue", job)
            _scontrol(client, "update", f"JobId={job}", f"ExcNodeList={excluded}")
            tell(note(RequeueNote.REQUEUED, job=job, nodes=fold(nodes)))
    except DslaunchError as error:
        tell(note(RequeueNote.FAILED, job=job, error=error.message))


@contextlib.contextmanager
def _term_ignored() -> Iterator[None]:
    """Ignore TERM, which SLURM sends to this process and to its scontrol once the job is
    requeued."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _scontrol(client: SlurmClient, *words: str) -> str:
    """Return the output of scontrol about the cluster of this job. Raises DslaunchError."""
    done = client.scontrol(*words)
    if done.code:
        last = done.err.strip().splitlines() or ["no reason given"]
        raise DslaunchError(f"`scontrol {' '.join(words)}` failed: {last[-1]}")
    return done.out
