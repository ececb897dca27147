"""How a run over SSH stands, by what its nodes report and what this machine has recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dslaunch.errors import NodeFailure, UsageError
from dslaunch.run.local_runs import LocalRun
from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import State
from dslaunch.run.ssh_run import SshRun
from dslaunch.run.status import NodeStatus, Reports, RunStatus

RECORD = RunRecord(
    program="job.py",
    cluster="pod",
    launcher="direct",
    hosts=("n1", "n2"),
    world_size=4,
    detached=False,
    attempt=1,
    agents="run+1",
    started=1.0,
)
DETACHED = RECORD.model_copy(update={"detached": True})
AWAY = {"n2": NodeFailure("n2", "timeout", "no answer in time")}
INTERRUPTED = Outcome("interrupted", 130, EndReason(EndCode.INTERRUPTED))
LOST = Outcome("failed", 3, EndReason(EndCode.NODE_LOST, "n3"))
FAILED = Outcome("failed", 3, EndReason(EndCode.RANK_FAILED, "n2", 1, exit_code=3))


def local(record: RunRecord = RECORD, *, living: bool = False, result: Outcome | None = None):
    """A run that was started here."""
    return LocalRun("run", Path("/runs/run"), record, living, result)


def reported(state: State) -> RunStatus:
    """A run as its nodes report it, who know it by the name of its attempt."""
    nodes = {"n1": NodeStatus("ended", (0, 1)), "n2": NodeStatus("ended", (2, 3))}
    return RunStatus("run+1", state, RECORD.model_copy(update={"program": ""}), nodes)


@pytest.mark.parametrize(
    ("run", "state", "may_continue"),
    [
        (local(), State.UNKNOWN, False),
        (local(living=True), State.ACTIVE, True),
        (local(result=Outcome("ok", 0, EndReason(EndCode.SUCCEEDED))), State.SUCCEEDED, False),
        (local(result=FAILED), State.FAILED, False),
        (
            local(result=INTERRUPTED),
            State.STOPPED,
            False,
        ),
        (local(DETACHED), State.UNKNOWN, False),
    ],
)
def test_a_run_that_no_node_reports_stands_as_it_was_recorded(
    run: LocalRun, state: State, may_continue: bool
) -> None:
    found = SshRun.recorded(run).summary(Reports())
    assert (found.run, found.state, found.record) == ("run", state, run.record)
    assert (found.may_continue, found.unknown) == (may_continue, None)
    assert found.as_data()["state"] == state.value


def test_what_nodes_report_comes_before_the_record() -> None:
    run = SshRun.recorded(local(living=True))
    found = run.summary(Reports({"run+1": reported(State.RUNNING)}))
    assert (found.run, found.state, found.record) == ("run", State.RUNNING, RECORD)
    assert set(found.nodes) == {"n1", "n2"}


def test_a_recorded_end_says_more_than_the_nodes_do() -> None:
    run = SshRun.recorded(local(result=FAILED))
    told = replace(reported(State.FAILED), result=LOST)
    assert run.summary(Reports({"run+1": told})).result == FAILED


def test_a_detached_run_is_unknown_while_a_node_of_it_does_not_answer() -> None:
    found = SshRun.recorded(local(DETACHED)).summary(Reports(failures=AWAY))
    assert (found.state, found.may_continue) == (State.UNKNOWN, True)
    assert found.unknown is not None
    assert (found.unknown.code, found.unknown.hosts) == ("no-answer", ("n2",))


def test_a_detached_run_whose_cluster_is_not_known_is_unknown() -> None:
    found = SshRun.recorded(local(DETACHED)).summary(Reports(unasked={"run": UsageError("torn")}))
    assert (found.state, found.may_continue) == (State.UNKNOWN, True)
    assert found.unknown is not None
    assert found.unknown.code == "no-cluster"


def test_a_detached_run_that_ended_on_some_nodes_may_live_on_others() -> None:
    reports = Reports({"run+1": reported(State.SUCCEEDED)}, AWAY)
    found = SshRun.recorded(local(DETACHED)).summary(reports)
    assert found.state is State.SUCCEEDED
    assert found.unknown is not None


def test_nodes_are_asked_about_runs_that_only_they_know() -> None:
    assert SshRun.recorded(local(result=FAILED)).cluster_to_ask() is None
    for run in (local(living=True), local(DETACHED)):
        with pytest.raises(UsageError):  # there is no such directory
            SshRun.recorded(run).cluster_to_ask()
