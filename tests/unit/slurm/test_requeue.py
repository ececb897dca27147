"""A job goes back into the queue without the nodes that failed, a bounded number of times."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from dslaunch.slurm.client import Done, SlurmClient
from dslaunch.slurm.requeue import requeue_without

JOB = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}


def is_term_ignored() -> bool:
    return signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


@dataclass
class Scontrol:
    """Plays scontrol; notes what it is asked, and how TERM would be taken then."""

    excluded: str = "(null)"
    fails: str = ""
    asked: list[list[str]] = field(default_factory=list)
    term_ignored: list[bool] = field(default_factory=list)
    environ: list[Mapping[str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def requeue(self, environ: Mapping[str, str] = JOB) -> None:
        """Requeue this job without n3."""
        requeue_without(SlurmClient(environ, self.run), ("n3",), most=2, say=self.say)

    def say(self, words: str) -> None:
        self.said.append(words)
        self.term_ignored.append(is_term_ignored())

    def run(self, argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        self.asked.append(list(argv[1:]))
        self.environ.append(environ)
        self.term_ignored.append(is_term_ignored())
        if self.fails in argv:
            return Done(1, "", "scontrol: error: Access/permission denied\n")
        return Done(0, f"JobId=7 JobName=x ExcNodeList={self.excluded} Reason=None\n", "")


def test_failed_nodes_join_those_that_are_excluded_already() -> None:
    scontrol = Scontrol(excluded="n[8-9]")
    scontrol.requeue()
    assert scontrol.said == ["job 7 is requeued without n3"]
    assert scontrol.asked[1:] == [["requeue", "7"], ["update", "JobId=7", "ExcNodeList=n[3,8-9]"]]


def test_term_cannot_come_before_the_exclusion_and_before_it_is_told() -> None:
    scontrol, before = Scontrol(), signal.getsignal(signal.SIGTERM)
    scontrol.requeue()
    assert scontrol.term_ignored == [False, True, True, True]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}])
def test_nothing_is_asked_outside_a_job_or_beyond_the_bound(environ: dict[str, str]) -> None:
    scontrol = Scontrol()
    scontrol.requeue(environ)
    assert scontrol.asked == []


def test_a_refusal_of_slurm_is_told_and_is_no_error_of_the_run() -> None:
    scontrol = Scontrol(fails="requeue")
    scontrol.requeue()
    (words,) = scontrol.said
    assert "Access/permission denied" in words


def test_the_job_of_this_cluster_is_meant_wherever_it_was_submitted_from() -> None:
    scontrol = Scontrol()
    scontrol.requeue(JOB | {"SLURM_CLUSTERS": "other"})
    assert not any("SLURM_CLUSTERS" in environ for environ in scontrol.environ)


def test_a_list_of_excluded_nodes_that_is_none_adds_nothing() -> None:
    scontrol = Scontrol(excluded="n[1-")
    scontrol.requeue()
    assert scontrol.asked[-1] == ["update", "JobId=7", "ExcNodeList=n3"]
