"""Another user of real nodes, over real sshd, takes all names that a user's runs have there."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.testbed.project import SLEEPER, Project
from tests.testbed.vcluster import VirtualCluster

TAKEN = [f"{above}/dslaunch-0" for above in ("/tmp", "/var/tmp", "/dev/shm")]
NODES = "nodes: [{host: 'node[1-2]', slots: 1}]"
KINDS = {
    "directory": "mkdir -m 777 {}",
    "link": "ln -s /tmp/theirs {}",
    "file": "touch {}",
    "fifo": "mkfifo {}",
}


LONG = KINDS.keys() - {"link"}
"""A link leads elsewhere; what else may lie there is further cases of that."""


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.long if kind in LONG else ()) for kind in sorted(KINDS)
    ]
)
def squatted(cluster4: VirtualCluster, request: pytest.FixtureRequest) -> Iterator[Project]:
    """A project of root, and nodes on which an ordinary user was there first."""
    made = Project(cluster4, "/root/squatted")
    made.describe(NODES)
    take = "; ".join(KINDS[request.param].format(path) for path in TAKEN)
    for node in ("node1", "node2"):
        remove = ["sh", "-c", f"rm -rf {' '.join(TAKEN)} /tmp/theirs"]
        cluster4.run(node, remove, user="root", check=True)
        script = ["sh", "-c", f"mkdir -p /tmp/theirs; {take}"]
        cluster4.run(node, script, user=cluster4.user, check=True)
    yield made
    for node in ("node1", "node2"):
        cluster4.run(node, remove, user="root", check=True)
        cluster4.run(node, ["sh", "-c", "rm -rf /root/work /tmp/dslaunch-0-*"], user="root")


def test_a_run_starts_is_seen_and_stopped_where_all_names_are_taken(squatted: Project) -> None:
    squatted.write("job.py", f"{SLEEPER}time.sleep(300)")
    with squatted.start("--grace", "1", "c.yaml", "job.py") as running:
        assert running.popen.stdout is not None
        shown = sorted(running.popen.stdout.readline() for _ in range(2))
        assert shown == ["node1:0│up 0\n", "node2:1│up 1\n"]
        command = [sys.executable, "-m", "dslaunch", "stop", "latest", "--grace", "1"]
        cluster = squatted.cluster
        stopped = cluster.run("control", command, cwd=squatted.path)
        assert stopped.returncode == 0, stopped.stderr
        running.communicate(timeout=300)
    assert cluster.leftovers(within=150) == {}
    for node in ("node1", "node2"):
        assert cluster.run(node, ["ls", "/tmp/theirs"], user="root").stdout == ""
