"""What SLURM's commands print becomes values and words. Texts recorded from SLURM 22.05."""

from __future__ import annotations

import pytest

from dslaunch.slurm.states import (
    JobInfo,
    how_ended,
    is_down,
    parse_accounting,
    parse_job,
    why_cut,
    why_refused,
    why_waiting,
)

HET = (
    "JobId=7 HetJobId=6 HetJobOffset=1 JobName=my train HetJobIdSet=6-7 UserId=root(0) "
    "GroupId=root(0) MCS_label=N/A Priority=4294901753 Nice=0 Account=(null) QOS=(null) "
    "JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=0 Restarts=2 BatchFlag=1 "
    "Reboot=0 ExitCode=1:0 RunTime=00:00:00 TimeLimit=00:05:00 TimeMin=N/A "
    "SubmitTime=2026-11-21T08:11:02 StartTime=2026-11-21T08:12:57 ReqNodeList=(null) "
    "ExcNodeList=(null) NodeList=node[2-3] BatchHost=node2 NumNodes=2 ReqB:S:C:T=0:0:*:* "
    "TRES=cpu=4,node=2,billing=4 Command=/shared/w/het-torchrun.sh WorkDir=/shared/w "
    "StdErr=/shared/my dir/train-7.out StdOut=/shared/my dir/train-7.out Power= "
    "TresPerNode=gres:gpu:1 "
)


def test_a_component_of_a_heterogeneous_job_is_read() -> None:
    assert parse_job(HET) == JobInfo(
        "7", "FAILED", "NonZeroExitCode", 1, 0, "node[2-3]", "node2", 2, "my train",
        "2026-11-21T08:11:02", "/shared/my dir/train-7.out", component=1,
    )  # fmt: skip


def test_a_waiting_task_of_an_array_is_read() -> None:
    info = parse_job(
        "JobId=12 ArrayJobId=12 ArrayTaskId=1-3%1 JobName=t JobState=PENDING Reason=Resources "
        "ExitCode=0:0 NodeList=(null) StdOut=/s/t-12_4294967294.out"
    )
    assert (info.array, info.task, info.nodes, info.waiting, info.over) == (
        *("12", "1-3%1", ""), True, False,
    )  # fmt: skip


def test_accounting_tells_the_last_start_of_a_job() -> None:
    text = (
        "12|NODE_FAIL|0:0|node[1-2]|train|2026-11-21T08:00:00\n"
        "12|CANCELLED by 1000|0:15|node[3-4]|train|2026-11-21T08:05:00\n"
        "13|PENDING|0:0|None assigned|x|2026-11-21T08:05:00\n"
    )
    first, second = parse_accounting(text)
    assert (first.state, first.reason, first.signal, first.nodes) == (
        *("CANCELLED", "by 1000", 15, "node[3-4]"),
    )
    assert second.nodes == ""
    assert how_ended(first)[0] == "was cancelled by 1000"


def test_accounting_that_is_something_else_is_nothing() -> None:
    assert parse_accounting("Slurm accounting storage is disabled\n") == ()


@pytest.mark.parametrize(
    ("state", "code", "signal", "expected"),
    [
        ("COMPLETED", 0, 0, 0), ("FAILED", 3, 0, 3), ("FAILED", 0, 9, 137), ("TIMEOUT", 0, 0, 124),
        ("CANCELLED", 0, 0, 130), ("NODE_FAIL", None, None, 5), ("OUT_OF_MEMORY", 0, 0, 137),
        ("PREEMPTED", 0, 15, 143), ("GONE", None, None, 1), ("TIMEOUT", 0, 15, 124),
        ("NODE_FAIL", 0, 15, 5), ("OUT_OF_MEMORY", 0, 125, 137), ("CANCELLED", 0, 15, 143),
    ],
)  # fmt: skip
def test_the_exit_code_is_what_a_shell_would_say(
    state: str, code: int | None, signal: int | None, expected: int
) -> None:
    assert JobInfo("1", state, code=code, signal=signal).exit_code == expected


def test_what_a_nodes_daemon_writes_tells_why_a_start_ended() -> None:
    line = "slurmstepd-node1: error: *** JOB 2 ON node1 CANCELLED AT 2026-11-21T11:52:12 DUE TO %s"
    assert why_cut(line % "PREEMPTION ***") == ("2", "had to make room for another job")
    assert why_cut(line % "TIME LIMIT ***") == ("2", "reached its time limit")
    assert why_cut(line % "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***") == ("2", "lost a node")
    assert why_cut("*** JOB 2 ON node1 CANCELLED AT 2026-11-21T11:52:12 ***") is None


@pytest.mark.parametrize(
    ("said", "setting"),
    [
        ("invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid "
         "partition name specified", "partition"),
        ("Requested node configuration is not available", "gpus"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time"),
        ("Node count specification invalid", "nodes"),
        ("sbatch: error: Memory specification can not be satisfied\nsbatch: error: Batch job "
         "submission failed: Requested node configuration is not available", "mem"),
        ("Invalid feature specification", "constraint"),
        ("Invalid node name specified", "nodelist"),
        ("Requested reservation is invalid", "reservation"),
        ("Invalid job array specification", "array"),
        ("More processors requested than permitted", "cpus_per_task"),
        ("sbatch: unrecognized option '--nope'", "directives"),
        ("Invalid account or account/partition combination specified", "account"),
        ("Invalid qos specification", "qos"),
        ("Job violates accounting/QOS policy (job submit limit, ...)", "qos"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_setting(said: str, setting: str) -> None:
    assert setting in why_refused(said).settings


def test_a_refusal_that_nobody_knows_is_told_as_it_is() -> None:
    said = "sbatch: error: the moon is full\nsbatch: error: Batch job submission failed: No"
    assert why_refused(said).words == "the moon is full; Batch job submission failed: No"


@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
    ],
)
def test_a_silent_controller_is_no_refusal(said: str) -> None:
    assert is_down(said)


def test_a_reason_to_wait_is_in_words_with_slurms_own() -> None:
    assert why_waiting("Resources") == "the nodes it needs are busy; it is next (Resources)"
    unavailable = "ReqNodeNotAvail, UnavailableNodes:node3"
    assert why_waiting(unavailable).endswith(f"({unavailable})")
    assert why_waiting("QOSMaxGRESPerUser").startswith("a limit of the account")
    assert why_waiting("Whatever") == "Whatever"
