"""Put the job that we are in back into the queue, without the nodes that failed in it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from dslaunch.cluster.nodeset import fold
from dslaunch.errors import DslaunchError
from dslaunch.slurm.nodes import node_names
from dslaunch.slurm.states import fields_of, given, whole_number

if TYPE_CHECKING:
    from dslaunch.slurm.client import SlurmClient


def requeue_without(
    client: SlurmClient, nodes: Sequence[str], most: int, say: Callable[[str], None]
) -> None:
    """Requeue the job that we are in, unless it was `most` times, and exclude nodes from its next
    start; `say` what was done.

    SLURM accepts a list of excluded nodes of a pending job alone (22.05, slurmctld/job_mgr.c,
    `_update_job`), which this one is as soon as it is requeued, while its processes have the time
    of slurm.conf's KillWait to end.
    """
    job = client.environ.get("SLURM_JOB_ID", "")
    restarts = whole_number(client.environ.get("SLURM_RESTART_COUNT", "0")) or 0
    if not job:
        say("not requeued: this is no job of SLURM")
        return
    if restarts >= most:
        say(f"job {job} was requeued {restarts} times and is not again")
        return
    try:
        excluded = fold({*_excluded(client, job), *nodes})
        with _spared_by_term():
            _scontrol(client, "requeue", job)
            _scontrol(client, "update", f"JobId={job}", f"ExcNodeList={excluded}")
            say(f"job {job} is requeued without {fold(nodes)}")
    except DslaunchError as error:
        say(f"job {job}: {error.message}")


@contextlib.contextmanager
def _spared_by_term() -> Iterator[None]:
    """Ignore TERM, which SLURM sends to this program, and to the scontrol that it has started, as
    soon as the job is requeued."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _excluded(client: SlurmClient, job: str) -> tuple[str, ...]:
    """The nodes that the job does without already."""
    said = _scontrol(client, "--oneliner", "show", "job", job)
    return node_names(given(fields_of(said).get("ExcNodeList", "")))


def _scontrol(client: SlurmClient, *words: str) -> str:
    """What scontrol says of the cluster that we are in. Raises DslaunchError."""
    done = client.run(["scontrol", *words], "", client.asking)
    if done.code:
        last = done.err.strip().splitlines() or ["no reason given"]
        raise DslaunchError(f"`scontrol {' '.join(words)}` failed: {last[-1]}")
    return done.out
