"""`dslaunch checkpoint` and resuming, with the real DeepSpeed on nodes that share no storage."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.testbed.test_control import dslaunch
from tests.testbed.test_runs import EXAMPLES, Project, project, wait_for
from tests.testbed.vcluster.api import Text

__all__ = ["project"]
pytestmark = [pytest.mark.torch, pytest.mark.deepspeed]
NODES = "nodes: [{host: 'node[1-3]', slots: 1}, {host: node4, slots: 1, spare: true}]"
TRAIN = ("train.py", "--deepspeed_config", "ds.json", "--steps", "40", "--save_every", "6")
REPLACED = ("-i", "node1@node3@node4")


@pytest.fixture
def training(project: Project) -> Iterator[Project]:
    """A project with the DeepSpeed example; three nodes and a spare."""
    project.write("train.py", (EXAMPLES / "train_deepspeed.py").read_text())
    project.describe(NODES)
    yield project
    project.cluster.heal()
    project.cluster.run("control", ["rm", "-rf", project.path])


def configure(project: Project, stage: int, **more: object) -> None:
    """Its DeepSpeed config."""
    config = json.loads((EXAMPLES / "ds_config.json").read_text())
    project.write("ds.json", json.dumps(config | {"zero_optimization": {"stage": stage}} | more))


def checkpoint(project: Project, *words: str) -> Text:
    """`dslaunch checkpoint` with these words, which must succeed."""
    done = dslaunch(project, "checkpoint", *words)
    assert done.returncode == 0, done.stderr
    return done


def weights(project: Project, directory: str) -> dict[str, object]:
    """What DeepSpeed's converter makes of a directory of the nodes, by dslaunch's commands."""
    import io

    import torch

    checkpoint(project, "gather", "c.yaml", directory, "--to", f"all-{directory}")
    checkpoint(project, "consolidate", f"all-{directory}", "--to", f"fp32-{directory}")
    path = f"{project.path}/fp32-{directory}/pytorch_model.bin"
    command = project.cluster.command("control", ["cat", path])
    data = subprocess.run(command, capture_output=True, check=True).stdout
    return torch.load(io.BytesIO(data), weights_only=True)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_training_that_lost_a_node_and_its_disk_ends_as_if_nothing_had_happened(
    training: Project, stage: int
) -> None:
    import torch

    configure(training, stage)
    calm = training.run("c.yaml", *TRAIN, "--save", "calm")
    assert calm.returncode == 0, calm.stderr
    one = weights(training, "calm")
    with training.start(
        *("--reconnect", "2", "--grace", "1", "c.yaml", *TRAIN, "--save", "ck", "--pause", "0.3")
    ) as running:
        wait_for(running, "saved ck/step6", times=1)
        safe = checkpoint(training, "gather", "c.yaml", "ck", "--tag", "step6", "--to", "safe")
        assert "step6 is in safe" in safe.stdout
        training.cluster.crash("node2")
        _, err = running.communicate(timeout=60)
        # which of the two is noticed first: that the node is gone, or what its peers die of
        assert running.popen.returncode in (1, 5), err
    again = (*TRAIN, "--save", "ck", "--resume")
    refused = training.run(*REPLACED, "c.yaml", *again)
    assert refused.returncode == 3, refused.stderr
    assert "cannot be resumed on these nodes" in refused.stderr
    assert "node4 (ranks 2) lacks" in refused.stderr
    done = checkpoint(training, "spread", "c.yaml", "ck", "--from", "safe", *REPLACED)
    assert "step6 is on node1, node3, node4" in done.stdout
    resumed = training.run(*REPLACED, "c.yaml", *again)
    assert resumed.returncode == 0, resumed.stderr
    assert len(re.findall(r"rank \d resumes ck/step6/\S+ at step 6", resumed.stdout)) == 3
    training.cluster.heal()
    other = weights(training, "ck")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
