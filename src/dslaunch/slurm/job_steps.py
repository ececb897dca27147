"""Reach the nodes of running SLURM jobs by steps beside those of the job.

The program on a node finds the ranks by their environment (`node/rank_signals.py`), in jobs with
and without `dslaunch run` inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from dslaunch.cluster.model import Cluster, Node
from dslaunch.errors import DslaunchError, ErrorCode, NodeFailure
from dslaunch.run.reach import ReachedNodes, reach
from dslaunch.run.session import Session
from dslaunch.slurm.nodes import node_names
from dslaunch.slurm.states import JobInfo
from dslaunch.transport.transports.srun import NAME, SrunTransport


class ReachedJob(Struct, frozen=True):
    """A running job, a task of an array or a component, and its nodes."""

    info: JobInfo
    nodes: ReachedNodes

    @property
    def sessions(self) -> list[Session]:
        """Return the sessions with the nodes that were reached."""
        return list(self.nodes.sessions.values())

    @property
    def failures(self) -> list[NodeFailure]:
        """Return why the other nodes were not reached."""
        return list(self.nodes.failures.values())

    @property
    def numbers(self) -> list[str]:
        """Return the numbers that its ranks may have in their environment."""
        return [self.info.job, *filter(None, [self.info.leader])]


@contextlib.contextmanager
def reach_jobs(
    jobs: Sequence[JobInfo], environ: Mapping[str, str], hosts: Collection[str] = ()
) -> Iterator[list[ReachedJob]]:
    """Start a step on each node of these jobs, or on these nodes of them.

    Raises DslaunchError if no node can be reached.
    """
    found: list[ReachedJob] = []
    with contextlib.ExitStack() as stack:
        for info in jobs:
            cluster = _cluster(info, hosts)
            if not cluster.nodes:
                continue
            steps = SrunTransport(_inside(info, environ))
            nodes = stack.enter_context(reach(cluster, cluster.nodes, opened=steps))
            found.append(ReachedJob(info, nodes))
        if not any(job.sessions for job in found):
            failures = [failure for job in found for failure in job.failures]
            why = failures[0].message if failures else "it has no nodes"
            raise DslaunchError.coded(ErrorCode.STEPS_REFUSED, job=jobs[0].job, why=why)
        yield found


def _cluster(info: JobInfo, hosts: Collection[str]) -> Cluster:
    """Return the nodes of a job as a cluster. Slots do not matter: no ranks are started."""
    chosen = [host for host in node_names(info.nodes) if not hosts or host in hosts]
    nodes = tuple(Node(host, slots=(0,)) for host in chosen)
    return Cluster(f"job {info.job}", nodes, transport=NAME)


def _inside(info: JobInfo, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment by which the transport finds the nodes of a job."""
    kept = {name: value for name, value in environ.items() if name != "SLURM_HET_SIZE"}
    return kept | {"SLURM_JOB_ID": info.job, "SLURM_JOB_NODELIST": info.nodes}
