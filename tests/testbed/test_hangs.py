"""Trainings that hang on the virtual cluster, and what is said of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.further_hangs import (
    FURTHER,
    MANY_SLOTS,
    MARK,
    SLOTS,
    recorded,
    section,
)
from tests.testbed.hangs import CASES, FORMING, JOB, LIMIT, NETWORK, Case, odd
from tests.testbed.project import Project
from tests.testbed.reported_hangs import REPORTED, Reported
from tests.testbed.test_faults import Watched

pytestmark = pytest.mark.torch
RECORD = "DSLAUNCH_HANGS"
"""Names a file to which each case adds a line of JSON."""
IN_TIME = 60.0
"""Seconds from the hang to the verdict, at most, where this is recorded."""
ALL_BUT_SSH = "1024-65535"
PAGE = Path(__file__).resolve().parents[2] / "docs/reference/hangs.md"


USUAL = next(case for case in CASES if case.how == "lock")
"""For every run of the tests, with 4 ranks: none of them uses a CPU until the verdict."""


def parameter(case: Case, ranks: int) -> object:
    """One case with 4 ranks is for every run of the tests; the others are long."""
    marks = () if ranks == 4 else (pytest.mark.long,)
    return pytest.param(case, ranks, id=f"{case.how}-{ranks}", marks=marks)


PARAMETERS = [
    parameter(USUAL, 4),
    *(parameter(case, 8) for case in (*CASES, NETWORK, FORMING)),
    *(parameter(case, 64) for case in (*CASES, NETWORK, FORMING)),
]


@pytest.mark.parametrize(("case", "ranks"), PARAMETERS)
def test_a_hang_ends_with_the_rank_that_the_others_wait_for(
    project: Project, case: Case, ranks: int
) -> None:
    nodes = 2 if ranks == 4 else 4
    project.write("train.py", JOB)
    project.describe(f"nodes: [{{host: 'node[1-{nodes}]', slots: {ranks // nodes}}}]")
    hung_node = f"node{odd(ranks) // (ranks // nodes) + 1}"
    with project.start("--hang-timeout", f"{LIMIT:g}", "c.yaml", "train.py", case.how) as running:
        watched = Watched(running)
        watched.wait_for("│up", times=ranks)
        if case in (NETWORK, FORMING):
            project.cluster.fault(hung_node, "block", ALL_BUT_SSH)
        began = time.time()
        for node in project.cluster.names:
            project.cluster.run(node, ["touch", "work/cut"])
        code = watched.end(300)
    project.cluster.heal()
    assert code == 1, watched.text()
    reason = project.outcome()["reason"]
    hang = reason["hang"]
    assert (reason["code"], hang["code"]) == ("hang", case.code), watched.text()
    if case in (NETWORK, FORMING):
        assert all(hung_node in pair for pair in hang["unreachable"]), watched.text()
        assert len(hang["unreachable"]) > 1
    elif not case.all_ranks:
        assert hang["ranks"] == [[hung_node, odd(ranks)]], watched.text()
    if case.function:
        assert (hang["place"]["file"], hang["place"]["function"]) == ("train.py", case.function)
    stopping = next(each for each in project.events() if each["kind"] == "stopping")
    after = stopping["time"] - began
    assert project.all_nodes_confirmed()
    if RECORD in os.environ:
        assert after < IN_TIME
        row = {
            "date": datetime.now(UTC).date().isoformat(),
            "how": case.how,
            "ranks": ranks,
            "code": hang["code"],
            "after": round(after, 1),
            "said": project.outcome()["message"],
        }
        with Path(os.environ[RECORD]).open("a") as file:
            file.write(json.dumps(row) + "\n")


def reports() -> Iterator[object]:
    """Yield each reported hang with the number of ranks of a node."""
    for each in (*REPORTED, *FURTHER):
        for slots in (SLOTS, MANY_SLOTS) if each.also_with_64 else (SLOTS,):
            yield pytest.param(each, slots, id=f"{each.name}-{each.nodes * slots}")


@pytest.mark.long
@pytest.mark.parametrize(("reported", "slots"), [*reports()])
def test_a_hang_that_users_reported_names_the_ranks_that_cause_it(
    project: Project, reported: Reported, slots: int
) -> None:
    program = reported.prefix + reported.program
    project.write("train.py", program)
    nodes = f"nodes: [{{host: 'node[1-{reported.nodes}]', slots: {slots}}}]"
    project.describe(nodes, launcher=reported.launcher)
    # a script that imports more of PyTorch makes no progress for long on a loaded machine
    done = project.run("--hang-timeout", f"{2 * LIMIT:g}", "c.yaml", "train.py", timeout=400)
    outcome = project.outcome()
    hang = outcome["reason"].get("hang", {})
    ranks = [rank for _, rank in hang.get("ranks", ())]
    if RECORD in os.environ:
        row = {"reported": reported.name, "slots": slots, "code": hang.get("code"), "ranks": ranks}
        row |= {"seconds": outcome["reason"].get("seconds"), "hang": hang}
        row |= {"said": outcome["message"], "what": outcome["what"]}
        with Path(os.environ[RECORD]).open("a") as file:
            file.write(json.dumps(row) + "\n")
    if not reported.codes:
        assert outcome["reason"]["code"] == "rank-failed", done.stderr
        exited = [rank for _, rank in outcome["reason"].get("exited", ())]
        assert exited == list(reported.ranks), done.stderr
        return
    assert hang.get("code") in reported.codes, done.stderr
    assert sorted(ranks) == list(reported.ranks), done.stderr
    if MARK in program:
        assert hang["place"]["file"] == "train.py", done.stderr
        assert program.splitlines()[hang["place"]["line"] - 1].endswith(MARK), done.stderr


def test_the_section_of_the_page_is_made_from_what_was_recorded() -> None:
    assert section(recorded()) in PAGE.read_text()


def status(project: Project) -> dict[str, Any]:
    """Return the state of the last run."""
    command = project.command("status", "latest", "--json")
    found: dict[str, Any] = json.loads(project.cluster.run("control", command).stdout)
    return found


def detach(project: Project, kind: str, program: str = JOB, nodes: int = 2) -> None:
    """Start a detached run of four ranks, one of which will hang."""
    project.write("train.py", program)
    project.describe(f"nodes: [{{host: 'node[1-{nodes}]', slots: {4 // nodes}}}]")
    hang_timeout = ("--hang-timeout", f"{LIMIT:g}")
    done = project.run("--detach", *hang_timeout, "c.yaml", "train.py", kind)
    assert done.returncode == 0, done.stderr


@pytest.mark.longest
def test_a_detached_run_that_hangs_names_the_rank_that_the_others_wait_for(
    project: Project,
) -> None:
    detach(project, "not-entered")  # which takes no CPU from the other tests
    assert project.cluster.leftovers(within=150) == {}
    result = status(project)["result"]
    reason = result["reason"]
    assert reason["code"] == "hang", result
    assert reason["seconds"] > LIMIT
    hang = reason["hang"]
    assert (hang["code"], hang["ranks"]) == ("not-entered", [["node2", odd(4)]])
    assert (hang["operation"], hang["waiting"]) == ("all_reduce", [0, 1, 2])
    assert hang["place"]["function"] == "save_checkpoint"
    assert set(result["stacks"]) == {"node1", "node2"}


@pytest.mark.long
def test_the_end_of_a_detached_run_that_hangs_is_explained_to_who_follows_it(
    project: Project,
) -> None:
    detach(project, "stopped")
    attach = project.command("attach", "latest", "--json")
    followed = project.cluster.run("control", attach, cwd=project.path, timeout=240)
    assert followed.returncode == 1, followed.stderr
    assert f"rank {odd(4)} on node2 is stopped" in followed.stderr + followed.stdout


ONE_NODE_RETURNS = """\
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
group = dist.new_group([2, 3])
dist.all_reduce(torch.ones(1))
if dist.get_rank() < 2:
    os._exit(0)
def save_checkpoint():
    time.sleep(1000)
if dist.get_rank() == 3:
    save_checkpoint()
dist.all_reduce(torch.ones(1), group=group)
"""


@pytest.mark.long
def test_a_hang_of_a_detached_run_is_found_after_the_first_node_has_ended(
    project: Project,
) -> None:
    detach(project, "", ONE_NODE_RETURNS)
    assert project.cluster.leftovers(within=150) == {}
    reason = status(project)["result"]["reason"]
    assert (reason["code"], reason["hang"]["code"]) == ("hang", "not-entered"), reason
    assert reason["hang"]["ranks"] == [["node2", 3]]
    assert reason["hang"]["place"]["function"] == "save_checkpoint"


@pytest.mark.long
def test_nodes_of_a_detached_run_that_cannot_connect_are_named(project: Project) -> None:
    detach(project, NETWORK.how, nodes=4)
    wait_until_all_are_up(project)
    with apart(project, "node3", "node2"):
        # the first node still has contact with both
        assert project.cluster.leftovers(within=150) == {}
    reason = status(project)["result"]["reason"]
    assert (reason["code"], reason["hang"]["code"]) == ("hang", "network"), reason
    assert sorted(reason["hang"]["unreachable"]) == [["node2", "node3"], ["node3", "node2"]]


def wait_until_all_are_up(project: Project) -> None:
    """Wait until the four ranks of the last run, which is detached, have begun to train."""
    deadline = time.monotonic() + 300
    logs = project.command("logs", "latest")
    while project.cluster.run("control", logs, cwd=project.path).stdout.count("│up") < 4:
        assert time.monotonic() < deadline


@contextmanager
def apart(project: Project, one: str, other: str) -> Iterator[None]:
    """Drop all packets between two nodes."""
    rules = (
        "add table inet apart; "
        "add chain inet apart input { type filter hook input priority 0; }; "
        f"add rule inet apart input ip saddr {project.cluster.address(other)} drop"
    )
    project.cluster.run(one, ["nft", rules], user="root", check=True)
    try:
        yield
    finally:
        project.cluster.run(one, ["nft", "delete", "table", "inet", "apart"], user="root")


STARVED = """\
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
until = time.monotonic() + SECONDS
while dist.get_rank() == 1 and time.monotonic() < until:
    pass
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.long  # it imports torch with less than half of a CPU, and waits for twice the timeout
def test_a_rank_that_computes_for_long_on_a_node_without_cpu_time_does_not_hang(
    project: Project,
) -> None:
    # it waits for a CPU for 0.7 of the time, so that less than the timeout counts
    project.write("train.py", STARVED.replace("SECONDS", str(2 * LIMIT)))
    project.describe("nodes: [{host: 'node[1-2]', slots: 1}]")
    project.cluster.fault("node2", "cpu", "30")
    done = project.run("--hang-timeout", f"{LIMIT:g}", "c.yaml", "train.py", timeout=400)
    project.cluster.heal()
    assert done.returncode == 0, done.stderr


RESTARTS = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
attempt, host = int(os.environ["DSLAUNCH_RESTART_COUNT"]), os.uname().nodename
print("attempt", attempt, "on", host, flush=True)
for step in range(3):
    dist.all_reduce(torch.ones(1))
if not attempt and host == "node2":
    os.kill(os.getpid(), 19)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.long
def test_a_restart_after_a_hang_leaves_out_the_node_of_the_stopped_rank(project: Project) -> None:
    project.write("train.py", RESTARTS)
    project.describe("nodes: [{host: 'node[1-3]', slots: 1}]")
    words = ("--hang-timeout", f"{LIMIT:g}", "--restarts", "1", "--min-nodes", "2")
    done = project.run(*words, "c.yaml", "train.py")
    assert done.returncode == 0, done.stderr
    (restart,) = [event for event in project.events() if event["kind"] == "restarting"]
    after = restart["restart"]["after"]
    assert (after["code"], after["hang"]["code"]) == ("hang", "stopped")
    assert after["hang"]["ranks"] == [["node2", 1]]
    again = [line.split()[-1] for line in done.stdout.splitlines() if "attempt 1" in line]
    assert sorted(again) == ["node1", "node3"]


WAITS = """\
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    time.sleep(75)
for _ in range(100):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.15)
"""


@pytest.mark.long
def test_a_stall_is_shown_once_and_does_not_end_the_run(project: Project) -> None:
    project.write("train.py", WAITS)
    project.describe("nodes: [{host: 'node[1-2]', slots: 1}]")
    done = project.run("c.yaml", "train.py", timeout=240)
    assert done.returncode == 0, done.stderr
    told = [each for each in project.events() if each["kind"] in ("stalled", "continued")]
    assert [each["kind"] for each in told] == ["stalled", "continued"]
    hang = told[0]["hang"]
    assert (hang["code"], hang["ranks"], hang["waiting"]) == ("not-entered", [["node2", 1]], [0])
    assert done.stderr.count("no collective has completed for") == 1
