"""Runs that nobody watches, connections that break, nodes that are lost: over real sshd."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import pytest

from tests.testbed.project import NODES, SLEEPER, Project, wait_for
from tests.testbed.vcluster import VirtualCluster
from tests.testbed.vcluster.api import Running, Text

COUNTER = (
    "import os, sys, time\nrank = int(os.environ['RANK'])\n"
    "for i in range(int(sys.argv[1])):\n"
    "    print('line', i, flush=True)\n    time.sleep(0.05)\n"
)


def dslaunch(project: Project, *words: str, cwd: str | None = None, **where: object) -> Text:
    """Any command of dslaunch on the control machine."""
    command = project.command(*words)
    return project.cluster.run("control", command, cwd=cwd or project.path, timeout=300, **where)


@pytest.fixture
def detached(project: Project) -> Iterator[tuple[Project, str]]:
    """A run that goes on by itself, and its name."""
    project.write("job.py", f"{SLEEPER}time.sleep(300)")
    done = project.run("--detach", "c.yaml", "job.py")
    assert done.returncode == 0, done.stderr
    run = project.outcome()["run"]
    yield project, run
    dslaunch(project, "stop", run, "c.yaml", "--grace", "0")
    for node in project.cluster.names:
        project.cluster.run(node, ["rm", "-rf", "/root/.local/state/dslaunch"])


def states(project: Project, *words: str, **where: object) -> dict[str, str]:
    """Run -> state, as `ps` says."""
    done = dslaunch(project, "ps", "c.yaml", "--json", *words, **where)
    return {run["run"]: run["state"] for run in json.loads(done.stdout)}


def status(project: Project, run: str = "latest") -> dict[str, Any]:
    """What `status` says of a run."""
    found: dict[str, Any] = json.loads(dslaunch(project, "status", run, "--json").stdout)
    return found


def replacements(project: Project) -> list[tuple[str, str | None]]:
    """The lost nodes of the only restart, each with the spare that took its place."""
    (event,) = [event for event in project.events() if event["kind"] == "restarting"]
    return [(each["lost"], each["spare"]) for each in event["restart"]["replaced"]]


# ---------------------------------------------------------------- detached


def test_a_detached_run_is_listed_shown_and_stopped_on_two_machines(
    detached: tuple[Project, str],
) -> None:
    """The machine that started it and another one with the same file, which knows nothing else."""
    project, run = detached
    elsewhere = {"env": {"DSLAUNCH_STATE": "/tmp/empty-state"}}
    assert states(project, **elsewhere)[run] == "running"
    found = status(project, run)
    assert (found["run"], found["state"]) == (run, "running")
    third = found["nodes"]["node3"]
    assert (third["state"], third["ranks"]) == ("running", [4, 5])
    assert sorted(dslaunch(project, "logs", run).stdout.splitlines())[0] == "node1:0│up 0"
    assert "up 3" in dslaunch(project, "logs", run[:9], "c.yaml", "-r", "3", **elsewhere).stdout
    stopped = json.loads(dslaunch(project, "stop", run[:9], "c.yaml", "--json", **elsewhere).stdout)
    assert stopped["ended"] == ["node1", "node2", "node3", "node4"]
    assert stopped["not_confirmed"] == []
    assert states(project, "--all")[run] == "stopped"
    reason = status(project, run)["result"]["reason"]
    assert reason["code"] == "stopped"
    assert reason["by"].startswith("root@")
    assert project.cluster.leftovers() == {}


def test_a_detached_run_ends_everywhere_when_one_rank_fails(project: Project) -> None:
    project.write("job.py", f"{SLEEPER}time.sleep(5 if rank == 5 else 300)\nsys.exit(9)")
    done = project.run("--detach", "--grace", "2", "c.yaml", "job.py")
    assert done.returncode == 0, done.stderr
    assert project.cluster.leftovers(within=150) == {}
    reason = status(project)["result"]["reason"]
    assert reason == {"code": "rank-failed", "host": "node3", "rank": 5, "exit_code": 9}
    attached = dslaunch(project, "logs", "latest", "--rank", "5")
    assert attached.stdout == "node3:5│up 5\n"


def test_a_detached_run_ends_when_a_node_of_it_is_lost(project: Project) -> None:
    project.write("job.py", f"{SLEEPER}time.sleep(300)")
    done = project.run("--detach", "--grace", "1", "--reconnect-timeout", "3", "c.yaml", "job.py")
    assert done.returncode == 0, done.stderr
    project.cluster.crash("node3")
    try:
        assert project.cluster.leftovers(within=150) == {}
        found = status(project)
        assert found["nodes"]["node3"]["state"] == "unreachable"
        assert found["result"]["reason"]["code"] == "node-ended"
    finally:
        project.cluster.boot("node3")


def test_a_running_run_can_be_followed_to_its_end(project: Project) -> None:
    ends = "while not os.path.exists('may-end'):\n    time.sleep(0.1)\n"
    project.write("job.py", COUNTER + ends)
    assert project.run("--detach", "c.yaml", "job.py", "160").returncode == 0
    attach = project.command("attach", "latest", "--ranks", "7", "--tail", "all")
    with project.cluster.popen("control", attach, cwd=project.path) as running:
        seen = wait_for(running, "line 9", times=1)
        project.cluster.put("node*", "/root/work/may-end", "")
        out, err = running.communicate(timeout=300)
    assert running.popen.returncode == 0, err
    assert (seen + out).splitlines() == [f"node4:7│line {i}" for i in range(160)]


def test_secrets_are_not_in_what_a_detached_run_keeps(project: Project) -> None:
    secret = "".join(("s3cr3t", "-", "value", "-of-", "this-test"))
    project.write("job.py", f"{SLEEPER}print(os.environ['TOKEN'], flush=True)\ntime.sleep(5)")
    project.describe(secrets="[TOKEN]")
    done = project.run("--detach", "c.yaml", "job.py", env={"TOKEN": secret})
    assert done.returncode == 0, done.stderr
    for node in project.cluster.names:
        kept = project.cluster.run(node, ["grep", "-rl", secret, "/root/.local", "/root/work"])
        assert kept.stdout == ""
    assert "***" in dslaunch(project, "logs", "latest").stdout
    assert project.cluster.leftovers(within=150) == {}


# ---------------------------------------------------------------- connections that break


# test_own_processes.py drops connections of the other transport, again and again
FABRIC = pytest.param("fabric", marks=pytest.mark.long)


@pytest.mark.parametrize("transport", [FABRIC, "openssh"])
def test_a_run_continues_after_a_reconnect(project: Project, transport: str) -> None:
    project.write("job.py", COUNTER)
    project.describe(transport=transport)
    with project.start("c.yaml", "job.py", "200") as running:
        wait_for(running, "line 5", times=8)
        project.cluster.run("node2", ["sh", "-c", CUT_SSH], user="root", check=True)
        _, err = running.communicate(timeout=300)
    assert running.popen.returncode == 0, err
    again = [event["host"] for event in project.events() if event["kind"] == "back"]
    assert again == ["node2"]
    log = dslaunch(project, "logs", "latest").stdout
    for rank in range(8):
        numbers = re.findall(rf"^node\d:{rank}│line (\d+)$", log, re.MULTILINE)
        assert numbers == [str(number) for number in range(200)]
    assert project.nothing_is_left()


CUT_SSH = "for p in $(pgrep -f '[s]shd: root@notty'); do kill -KILL $p; done"


# ---------------------------------------------------------------- restarts


def end_without(project: Project, running: Running, node: str) -> tuple[str, str]:
    """Crash a node, wait for the run's end, and return its output and standard error. Boot the node
    again."""
    project.cluster.crash(node)
    try:
        return running.communicate(timeout=300)
    finally:
        project.cluster.boot(node)


def test_a_spare_takes_the_place_of_a_lost_node(project: Project) -> None:
    nodes = "nodes: [{host: 'node[1-3]', slots: 1}, {host: node4, slots: 1, spare: true}]"
    project.describe(nodes)
    script = (
        "count = os.environ['DSLAUNCH_RESTART_COUNT']\nprint('count', count, flush=True)\n"
        "time.sleep(300 if count == '0' else 0)\n"
    )
    project.write("job.py", SLEEPER + script)
    options = ("--restarts", "1", "--reconnect-timeout", "2", "--grace", "1")
    with project.start(*options, "c.yaml", "job.py") as running:
        wait_for(running, "count 0", times=3)
        out, err = end_without(project, running, "node2")
    assert running.popen.returncode == 0, err
    assert replacements(project) == [("node2", "node4")]
    assert {"node1:0│count 1", "node4:1│count 1", "node3:2│count 1"} <= set(out.splitlines())


@pytest.mark.long  # as a supervised job does in test_slurm_supervised.py
def test_a_run_continues_with_fewer_nodes_if_min_nodes_allows_it(project: Project) -> None:
    script = (
        "count = os.environ['DSLAUNCH_RESTART_COUNT']\nprint('world', os.environ['WORLD_SIZE'])\n"
    )
    project.write(
        "job.py", f"{SLEEPER}{script}sys.stdout.flush()\ntime.sleep(300 if count == '0' else 0)"
    )
    options = ("--restarts", "1", "--min-nodes", "3", "--reconnect-timeout", "2", "--grace", "1")
    with project.start(*options, "c.yaml", "job.py") as running:
        wait_for(running, "world 8", times=8)
        out, err = end_without(project, running, "node2")
    assert running.popen.returncode == 0, err
    assert replacements(project) == [("node2", None)]
    assert out.count("world 6") == 6


def test_a_run_is_not_restarted_with_too_few_nodes(project: Project) -> None:
    project.write("job.py", f"{SLEEPER}time.sleep(300)")
    options = ("--restarts", "1", "--reconnect-timeout", "2", "--grace", "1")
    with project.start(*options, "c.yaml", "job.py") as running:
        wait_for(running, "up", times=8)
        _, err = end_without(project, running, "node2")
    assert running.popen.returncode == 5, err
    code, host, not_restarted = project.reason("code", "host", "not_restarted")
    assert (code, host) == ("node-lost", "node2")
    assert not_restarted


def test_what_a_lost_node_still_runs_is_cleaned_when_it_is_back(project: Project) -> None:
    project.write("job.py", f"{SLEEPER}time.sleep(300)")
    with project.start("--reconnect-timeout", "2", "--grace", "1", "c.yaml", "job.py") as running:
        wait_for(running, "up", times=8)
        # cut off, so that the launcher finds nobody there, and cannot end what is left
        project.cluster.fault("node2", "cut", "drop")
        # agent, guardian and bridge, so that none can act on the end of another
        kill = "all=$(pgrep -f '[s]ys.stdin.buffer'); kill -STOP $all; kill -KILL $all"
        project.cluster.run("node2", ["sh", "-c", kill], user="root")
        _, err = running.communicate(timeout=300)
        assert running.popen.returncode == 5
    assert project.outcome()["unconfirmed"] == ["node2"], err
    assert len(project.cluster.processes("node2")) >= 2
    project.cluster.heal()
    done = dslaunch(project, "clean", "c.yaml", "--json")
    assert len(json.loads(done.stdout)["node2"]["killed"]) == 2, done.stdout + done.stderr
    assert project.cluster.leftovers() == {}


def test_a_stop_from_another_machine_is_shown_to_followers(project: Project) -> None:
    project.write("job.py", f"{SLEEPER}time.sleep(300)")
    with project.start("c.yaml", "job.py") as running:
        wait_for(running, "up", times=8)
        (run,) = states(project)
        assert dslaunch(project, "stop", run, "--grace", "1").returncode == 0
        _, err = running.communicate(timeout=300)
        assert running.popen.returncode == 130
    code, who = project.reason("code", "by")
    assert code == "stopped", err
    assert who.startswith("root@")
    assert project.nothing_is_left()


def test_a_suspended_launcher_is_not_suspended(project: Project) -> None:
    project.write("job.py", COUNTER)
    with project.start("c.yaml", "job.py", "40") as running:
        wait_for(running, "line 2", times=8)
        running.send_signal(signal.SIGTSTP)
        out, _ = running.communicate(timeout=300)
    assert running.popen.returncode == 0
    assert out.count("line 39") == 8
    assert NODES


ELASTIC = """\
import datetime, os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
rank, world = dist.get_rank(), dist.get_world_size()
print("begin", rank, "of", world, flush=True)
for step in range(600 if world == 3 else 10):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
print("end", rank, "of", world, flush=True)
"""


@pytest.mark.longest
@pytest.mark.torch
def test_an_elastic_run_continues_without_a_lost_node(
    virtual_cluster: Callable[..., VirtualCluster],
) -> None:
    # as Debian has it: every node's own name is 127.0.1.1 to itself
    cluster = virtual_cluster(nodes=3, loopback_hostname=True)
    project = Project(cluster, "/root/p")
    project.write("job.py", ELASTIC)
    project.describe("nodes: [{host: 'node[1-3]', slots: 1}]", launcher="elastic")
    options = ("--min-nodes", "2", "--restarts", "5", "--grace", "1", "--reconnect-timeout", "2")
    with project.start(*options, "c.yaml", "job.py") as running:
        wait_for(running, "begin", times=3)
        cluster.crash("node3")
        # torch meets again twice, each time for up to half a minute and with all its imports
        out, err = running.communicate(timeout=300)
    assert running.popen.returncode == 0, out + err
    assert project.reason("code", "nodes") == ("enough-succeeded", 2)
    assert project.outcome()["unconfirmed"] == ["node3"]
    assert out.count("end 0 of 2") == out.count("end 1 of 2") == 1


def test_a_terminal_that_is_closed_ends_the_run(project: Project) -> None:
    project.write("job.py", f"{SLEEPER}time.sleep(300)")
    command = project.command("run", "--grace", "1", "c.yaml", "job.py")
    where = {"cwd": project.path, "terminal": True}
    with project.cluster.popen("control", command, **where) as running:
        assert running.terminal is not None
        shown = b""
        while shown.count(b"up ") < 8:
            shown += os.read(running.terminal, 4096)
        os.close(running.terminal)
        running.terminal = None
        running.wait(300)
    assert project.nothing_is_left()


FIFTH_FAILS_FIRST = """\
import fcntl, os, select, sys
rank, lives = int(os.environ["RANK"]), sys.argv[1]
def sleep(seconds):  # not time.sleep, which the library that fakes the clock breaks
    select.select([], [], [], seconds)
if rank == 5:
    file = open(lives + ".new", "w")
    fcntl.flock(file, fcntl.LOCK_EX)  # until this process is dead, however busy the machine is
    os.rename(file.name, lives)
    os._exit(15)
while not os.path.exists(lives):
    sleep(0.02)
fcntl.flock(open(lives), fcntl.LOCK_SH)
sleep(3)
os._exit(rank + 10)
"""


def test_clocks_that_differ_do_not_swap_cause_and_effect(project: Project) -> None:
    project.cluster.fault("node1", "skew", "-120")
    project.cluster.fault("node3", "skew", "+120")
    project.write("job.py", FIFTH_FAILS_FIRST)
    done = project.run("--grace", "0", "c.yaml", "job.py", f"/shared/{token_hex(8)}")
    found = project.reason("code", "host", "rank", "exit_code")
    assert found == ("rank-failed", "node3", 5, 15)
    assert done.returncode == 15
