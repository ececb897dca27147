"""A job stays the same job: renamed, requeued, held, asked from another shell, in bad minutes."""

from __future__ import annotations

import json

import pytest

from tests.testbed.scheduler import Site, submit, until
from tests.testbed.vcluster import CONTROL
from tests.testbed.vcluster.slurm import ASKING


def control(site: Site, *words: str) -> str:
    """What scontrol says."""
    return site.cluster.run(CONTROL, ["scontrol", *words], check=True).stdout


def state(site: Site, run: str = "latest", **env: str) -> str:
    """How a run stands, as `dslaunch status` has it."""
    done = site.run("status", run, "--json", **env)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["state"])


@pytest.mark.longest
def test_a_job_that_was_renamed_and_requeued_unseen_is_still_ours(site: Site) -> None:
    """Nobody follows it meanwhile, and every question comes from another kind of shell."""
    site.describe("{host: node1, slots: 1}", requeue="2")
    number = site.detached("sleeps.py")
    site.says(number, "up 0")
    control(site, "update", f"jobid={number}", "name=a JobState=FAILED b\nJobId=5")
    shell = {"TZ": "Asia/Tokyo", "SLURM_TIME_FORMAT": "relative", "SQUEUE_STATES": "PENDING"}
    assert state(site, **shell) == "running"
    assert "up 0" in site.run("logs", number, **shell).stdout
    control(site, "requeuehold", number)
    until(lambda: state(site) == "waiting", 300, pause=ASKING)
    assert "node1" not in site.run("ps").stdout
    control(site, "release", number)
    until(lambda: state(site) == "running", 300, pause=ASKING)
    assert "node1" in site.run("ps").stdout
    stopped = site.run("stop", number, **shell)
    assert stopped.returncode == 0, stopped.stderr
    until(lambda: state(site) == "stopped", 300, pause=ASKING)


def test_a_word_that_begins_like_a_job_stops_no_other_job(site: Site) -> None:
    site.describe("{host: node1, slots: 1}")
    number = site.detached("sleeps.py")
    run = json.loads(site.run("ps", "--json").stdout)[0]["run"]
    foreign = submit(site.cluster, "sleep 1000", "--nodelist=node2")
    for word in (foreign.number, run[:3], f"{number}9", f"{number}_0"):
        assert site.run("stop", word).returncode == 2
    foreign.wait("RUNNING")
    assert state(site) in ("running", "waiting")
    assert site.run("stop", number).returncode == 0


@pytest.mark.long
def test_a_running_job_outlasts_the_loss_of_authentication_and_of_the_controller(
    site: Site,
) -> None:
    site.describe("{host: node1, slots: 1}")
    with site.start("slurm", "c.yaml", "sleeps.py") as running:
        number = site.submitted()
        site.says(number, "up 0")
        site.tells_of_nodes("node1")
        # what the follower tells is that it cannot ask, then that it can again: each once
        site.tells_more(lambda: site.cluster.service(CONTROL, "munged", "stop"))
        site.tells_more(lambda: site.cluster.service(CONTROL, "munged", "start"))
        site.tells_more(lambda: site.cluster.service(CONTROL, "slurmctld", "stop"))
        assert site.run("stop", number).returncode == 1
        (run,) = json.loads(site.run("ps", "--json").stdout)
        assert (run["state"], run["unknown"]) == ("unknown", "no-contact")
        lines = len(site.said.splitlines())
        site.tells_more(lambda: site.cluster.service(CONTROL, "slurmctld", "start"))
        assert len(site.said.splitlines()) == lines + 1
        stopped = site.run("stop", number)
        assert stopped.returncode == 0, stopped.stderr + site.said + control(site, "show", "job")
        running.communicate(timeout=300)
    assert running.popen.returncode == 130, site.said
