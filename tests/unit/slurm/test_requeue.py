"""A job goes back into the queue without the nodes that failed, a bounded number of times."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from dslaunch.notes import Note, note
from dslaunch.slurm.client import Done, SlurmClient
from dslaunch.slurm.requeue import RequeueNote, requeue_without

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
    told: list[Note] = field(default_factory=list)

    def requeue(self, environ: Mapping[str, str] = JOB) -> None:
        """Requeue this job without n3."""
        requeue_without(SlurmClient(environ, self.run), ("n3",), limit=2, tell=self.tell)

    def tell(self, note: Note) -> None:
        self.told.append(note)
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
    assert scontrol.told == [note(RequeueNote.REQUEUED, job="7", nodes="n3")]
    assert scontrol.asked[1:] == [["requeue", "7"], ["update", "JobId=7", "ExcNodeList=n[3,8-9]"]]


def test_term_follows_the_exclusion_and_its_report() -> None:
    scontrol, before = Scontrol(), signal.getsignal(signal.SIGTERM)
    scontrol.requeue()
    assert scontrol.term_ignored == [False, True, True, True]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("environ", "code"),
    [
        ({}, RequeueNote.NOT_IN_A_JOB),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}, RequeueNote.LIMIT_REACHED),
    ],
)
def test_nothing_is_asked_outside_a_job_or_beyond_the_limit(
    environ: dict[str, str], code: RequeueNote
) -> None:
    scontrol = Scontrol()
    scontrol.requeue(environ)
    assert [told.code for told in scontrol.told] == [code]
    assert scontrol.asked == []


def test_a_rejection_by_slurm_is_reported_and_is_not_an_error_of_the_run() -> None:
    scontrol = Scontrol(fails="requeue")
    scontrol.requeue()
    (told,) = scontrol.told
    assert told.code is RequeueNote.FAILED
    assert "Access/permission denied" in str(told)


def test_the_job_of_this_cluster_is_meant_wherever_it_was_submitted_from() -> None:
    scontrol = Scontrol()
    scontrol.requeue(JOB | {"SLURM_CLUSTERS": "other"})
    assert not any("SLURM_CLUSTERS" in environ for environ in scontrol.environ)


def test_a_list_of_excluded_nodes_that_is_none_adds_nothing() -> None:
    scontrol = Scontrol(excluded="n[1-")
    scontrol.requeue()
    assert scontrol.asked[-1] == ["update", "JobId=7", "ExcNodeList=n3"]
