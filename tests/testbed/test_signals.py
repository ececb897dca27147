"""`dslaunch signal` over real sshd and on a real SLURM: only the ranks get it, each once."""

from __future__ import annotations

import re

import pytest

from tests.testbed.project import Project
from tests.testbed.scheduler import Site, until
from tests.testbed.test_control import dslaunch

SAVES = """\
import os, signal, time
rank, asked = os.environ["RANK"], []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
print("ready", rank, flush=True)
for _ in range(6000):
    if asked:
        print("saved", rank, len(asked), flush=True)
        asked.clear()
        if os.path.exists("enough"):
            break
    time.sleep(0.02)
"""
LOOK = 1.0
"""Seconds between two looks by a program that takes about as long."""


def test_ranks_of_a_detached_run_save_at_a_signal(project: Project) -> None:
    project.write("job.py", SAVES)
    done = project.run("--detach", "--nodes", "2", "--slots", "1", "c.yaml", "job.py")
    assert done.returncode == 0, done.stderr
    run = project.outcome()["run"]

    def printed(word: str) -> list[str]:
        output = dslaunch(project, "logs", run).stdout
        return sorted(re.findall(rf"(?:{word}) [\d ]+", output))

    try:
        both = ["ready 0", "ready 1"]
        until(lambda: printed("ready") == both, 300, lambda: str(printed("ready")), pause=LOOK)
        sent = dslaunch(project, "signal", run, "USR1")
        assert sent.stdout == "sent SIGUSR1 to 2 ranks: 0-1\n", sent.stderr
        until(lambda: printed("saved") == ["saved 0 1", "saved 1 1"], 300, pause=LOOK)
        refused = dslaunch(project, "signal", run, "USR2", "--ranks", "0")
        assert (refused.returncode, "handler" in refused.stderr) == (1, True)
    finally:
        dslaunch(project, "stop", run, "c.yaml", "--grace", "0")


@pytest.mark.parametrize("supervised", ["false", pytest.param("true", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "launcher",
    ["direct", pytest.param("torchrun", marks=(pytest.mark.torch, pytest.mark.long))],
)
def test_ranks_of_a_slurm_job_save_at_a_signal(site: Site, supervised: str, launcher: str) -> None:
    site.describe(supervised=supervised)
    site.write("saves.py", SAVES)
    words = ["slurm", "c.yaml", "-N", "2", "-l", launcher, "saves.py"]
    with site.start(*words) as running:
        number = site.submitted()
        site.says(number, "ready 0", "ready 1")
        sent = site.run("signal", number, "USR1")
        assert sent.stdout == "sent SIGUSR1 to 2 ranks: 0-1\n", sent.stderr
        site.says(number, "saved 0 1", "saved 1 1")
        refused = site.run("signal", number, "USR2")
        assert (refused.returncode, "handler" in refused.stderr) == (1, True)
        site.write("enough", "")
        site.run("signal", number, "USR1")
        running.communicate(timeout=300)
    assert running.popen.returncode == 0, site.said
