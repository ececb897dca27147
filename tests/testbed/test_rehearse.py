"""`dslaunch rehearse` over real sshd, on nodes that share no storage."""

from __future__ import annotations

import json

import pytest

from tests.local.test_rehearsals_local import TRAINING
from tests.testbed.project import Project

NODES = "nodes: [{host: 'node[1-2]', slots: 1}]"
TIMEOUT = 240
"""Seconds for one command, most of them for importing torch."""


@pytest.mark.torch
@pytest.mark.long  # over SSH it does what runs and local rehearsals do, too
def test_a_rehearsal_over_ssh_measures_the_job_and_leaves_nothing(project: Project) -> None:
    project.write("train.py", TRAINING)
    project.describe(NODES)
    command = project.command("rehearse", "--json", "c.yaml", "train.py")
    done = project.cluster.run("control", command, cwd=project.path, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "would-run"
    assert result["outcome"]["reason"] == {"code": "rehearsed", "steps": 2}
    assert (result["measured"]["steps"], result["measured"]["world"]) == (2, 2)
    assert [each["code"] for each in result["findings"]] == ["rehearsal.checkpoint-incomplete"]
    assert project.nothing_is_left()
