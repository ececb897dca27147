"""Send signals to the ranks of a running SLURM job.

`scancel --signal` sends them to all processes of a step, also to launchers, which are killed by
them. So a separate step on each node finds the ranks by their environment (`node/rank_signals.py`),
in jobs with and without `dslaunch run` inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import to_builtins
from msgspec.structs import replace

from dslaunch.protocol.queries import JOB_SIGNAL, Answers, SignaledRanks
from dslaunch.run.rank_signals import Order, Signaled, send_signal
from dslaunch.run.session import Session
from dslaunch.slurm.job_steps import reach_jobs
from dslaunch.slurm.states import JobInfo
from dslaunch.transport.future import Future


def signal_jobs(jobs: Sequence[JobInfo], what: Order, environ: Mapping[str, str]) -> Signaled:
    """Send a signal to the ranks of running jobs: tasks of an array, or components.

    Raises DslaunchError if no node can be reached, and as `check_delivery`.
    """
    with reach_jobs(jobs, environ) as reached:
        job_of = {session: job for job in reached for session in job.sessions}
        failures = [failure for job in reached for failure in job.failures]

        def ask(session: Session, order: Order) -> Future[SignaledRanks]:
            return ask_node(job_of[session].numbers, session, order)

        return replace(send_signal(list(job_of), what, ask), failures=tuple(failures))


def ask_node(numbers: Sequence[str], session: Session, what: Order) -> Future[SignaledRanks]:
    """Ask a node to send a signal to the ranks of a job; `numbers` as `ReachedJob`."""
    argument = {"jobs": list(numbers), **to_builtins(what)}
    asked = session.ask({JOB_SIGNAL: argument})
    answered: Future[SignaledRanks] = Future()

    def take(done: Future[Answers]) -> None:
        try:
            answered.set_result(done.result()[JOB_SIGNAL])
        except Exception as error:  # noqa: BLE001 - raised again by `result`
            answered.set_exception(error)

    asked.add_done_callback(take)
    return answered
