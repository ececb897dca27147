"""Bad days of a real SLURM, at random: no job that lives is reported as ended, no other touched.

SEED=7 ROUNDS=20 pytest tests/testbed/test_slurm_rounds.py plays the rounds 7 to 26.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from secrets import token_hex

import pytest

from tests.testbed.scheduler import Job, revive, submit, until
from tests.testbed.slurm_scenarios import CANCELLED, COMPLETED, INTERRUPTED, OK
from tests.testbed.slurm_stage import PATIENCE, Stage
from tests.testbed.vcluster import CONTROL, VirtualCluster
from tests.testbed.vcluster.api import Running
from tests.testbed.vcluster.slurm import ASKING

FIRST = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "1"))
FOLLOWED, EVENTS = 3, 6


@dataclass
class Followed:
    """A job of ours, and the command that follows it."""

    stage: Stage
    running: Running
    number: str

    def check_alive(self, log: list[str]) -> None:
        """It has not been reported as ended."""
        assert self.running.popen.poll() is None, f"{log}\n{self.stage.said}"
        assert not list((self.stage.here / "state/runs").glob("*/result.json")), log


class Round:
    """One site, the jobs on it, and what happens to them."""

    def __init__(self, cluster: VirtualCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.log: list[str] = []

    def scontrol(self, *words: str) -> None:
        """Refused where it does not fit, such as the requeue of a job that waits."""
        self.cluster.run(CONTROL, ["scontrol", *words])

    def rename(self, one: Followed) -> None:
        self.scontrol("update", f"jobid={one.number}", "name=a JobState=FAILED b")

    def requeue(self, one: Followed) -> None:
        self.scontrol("requeue", one.number)

    def hold_and_release(self, one: Followed) -> None:
        self.scontrol("requeuehold", one.number)
        one.stage.call("ps")
        self.scontrol("release", one.number)

    def suspend_and_resume(self, one: Followed) -> None:
        self.scontrol("suspend", one.number)
        one.stage.call("status", "latest")
        self.scontrol("resume", one.number)

    def without(self, service: str) -> Callable[[Followed], None]:
        """A service is stopped while a command is called, and maybe while jobs are changed."""

        def play(one: Followed) -> None:
            self.cluster.service(CONTROL, service, "stop")
            done = one.stage.call(*self.random.choice((("ps",), ("status", "latest"))))
            assert done.returncode == 0, done.stderr
            if self.random.random() < 0.5:
                self.requeue(one)
            revive(self.cluster)

        return play

    def play_something(self, jobs: list[Followed]) -> None:
        """One event, of one of the jobs."""
        events: dict[str, Callable[[Followed], None]] = {
            "rename": self.rename,
            "requeue": self.requeue,
            "hold, release": self.hold_and_release,
            "suspend, resume": self.suspend_and_resume,
            "slurmctld": self.without("slurmctld"),
            "slurmdbd": self.without("slurmdbd"),
            "munged": self.without("munged"),
        }
        name, one = self.random.choice(sorted(events)), self.random.choice(jobs)
        self.log.append(f"{name} {one.number}")
        events[name](one)

    def await_running(self, one: Followed) -> None:
        """Wait until a job runs again. TimeoutError with what happened."""

        def told() -> str:
            return f"{self.log}\n{one.stage.said}"

        until(lambda: one.stage.is_running(one.number), 2 * PATIENCE, told, pause=ASKING)

    def end(self, one: Followed) -> None:
        """Stop a job, or let it come to its end."""
        code, state = self.random.choice(((OK, COMPLETED), (INTERRUPTED, CANCELLED)))
        if code == OK:
            one.stage.go()
        else:
            done = one.stage.call("stop", one.number)
            assert done.returncode == 0, f"{self.log}\n{done.stderr}"
        ended = (one.running.wait(PATIENCE), one.stage.settled(one.number))
        assert ended == (code, state), f"{self.log}\n{one.stage.said}"


def follow(cluster: VirtualCluster, stack: ExitStack) -> Followed:
    """Submit a job that runs until it is let go, and follow it."""
    stage = Stage(cluster, f"round-{token_hex(4)}", nodes="{host: 'node[1-2]', slots: 1}")
    stage.set(requeue="9")
    running = stack.enter_context(stage.open("slurm", "c.yaml", "go.py"))
    number = stage.job(running)
    stage.up(number)
    return Followed(stage, running, number)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(FIRST, FIRST + ROUNDS))
def test_no_living_job_is_reported_as_ended_and_no_other_job_touched(
    slurm_pair: VirtualCluster, seed: int
) -> None:
    bad_day = Round(slurm_pair, seed)
    with ExitStack() as stack:
        foreign: Job = submit(slurm_pair, "sleep 1000", "--mem=100")
        foreign.wait("RUNNING", within=PATIENCE)
        jobs = [follow(slurm_pair, stack) for _ in range(FOLLOWED)]
        for _ in range(EVENTS):
            bad_day.play_something(jobs)
            for one in jobs:
                one.check_alive(bad_day.log)
            assert foreign.state == "RUNNING", bad_day.log
        for one in jobs:
            bad_day.await_running(one)
            bad_day.end(one)
        assert foreign.state == "RUNNING", bad_day.log
