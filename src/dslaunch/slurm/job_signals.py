"""Send signals to the ranks of a running SLURM job.

`scancel --signal` sends them to all processes of a step, also to launchers, which are killed by
them. So a separate step on each node finds the ranks by their environment (`node/rank_signals.py`),
in jobs with and without `dslaunch run` inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace

from dslaunch.cluster.model import Cluster, Node
from dslaunch.errors import DslaunchError, NodeFailure
from dslaunch.protocol.queries import JOB_SIGNAL, Answers, SignaledRanks
from dslaunch.run.rank_signals import Order, Signaled, send_signal
from dslaunch.run.reach import reach
from dslaunch.run.session import Session
from dslaunch.slurm.nodes import node_names
from dslaunch.slurm.states import JobInfo
from dslaunch.transport.transports.srun import NAME, SrunTransport


def signal_jobs(jobs: Sequence[JobInfo], what: Order, environ: Mapping[str, str]) -> Signaled:
    """Send a signal to the ranks of running jobs: tasks of an array, or components.

    Raises DslaunchError if no node can be reached, and as `check_delivery`.
    """
    sessions: list[Session] = []
    failures: list[NodeFailure] = []
    job_of: dict[Session, JobInfo] = {}
    with contextlib.ExitStack() as stack:
        for info in jobs:
            cluster = _cluster(info)
            steps = SrunTransport(_inside(info, environ))
            reached = stack.enter_context(reach(cluster, cluster.nodes, opened=steps))
            failures += reached.failures.values()
            sessions += reached.sessions.values()
            job_of |= dict.fromkeys(reached.sessions.values(), info)
        if not sessions:
            why = failures[0].message if failures else "it has no nodes"
            raise DslaunchError(f"job {jobs[0].job} cannot be reached by steps: {why}")

        def ask(session: Session, order: Order) -> Future[SignaledRanks]:
            return ask_node(job_of[session], session, order)

        return replace(send_signal(sessions, what, ask), failures=tuple(failures))


def ask_node(info: JobInfo, session: Session, what: Order) -> Future[SignaledRanks]:
    """Ask a node to send a signal to the ranks of a job."""
    argument = {"jobs": [info.job, *filter(None, [info.leader])], **asdict(what)}
    asked = session.ask({JOB_SIGNAL: argument})
    answered: Future[SignaledRanks] = Future()

    def take(done: Future[Answers]) -> None:
        try:
            answered.set_result(done.result()[JOB_SIGNAL])
        except Exception as error:  # noqa: BLE001 - raised again by `result`
            answered.set_exception(error)

    asked.add_done_callback(take)
    return answered


def _cluster(info: JobInfo) -> Cluster:
    """Return the nodes of a job as a cluster; slots do not matter to one that is only asked."""
    nodes = tuple(Node(host, slots=(0,)) for host in node_names(info.nodes))
    return Cluster(f"job {info.job}", nodes, transport=NAME)


def _inside(info: JobInfo, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment by which the transport finds the nodes of a job."""
    kept = {name: value for name, value in environ.items() if name != "SLURM_HET_SIZE"}
    return kept | {"SLURM_JOB_ID": info.job, "SLURM_JOB_NODELIST": info.nodes}
