"""Virtual clusters for tests, and the proof that a test left nothing running in them."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex

import pytest

from tests.testbed.project import Project
from tests.testbed.scheduler import EXAMPLES, Site, parameters, settle
from tests.testbed.vcluster import VirtualCluster, missing

WITNESS = """\
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "VALUE", "TOKEN")
print(json.dumps([sys.argv[1:], [os.environ.get(name) for name in names]]))
"""
RESUMES = """\
import os, signal, sys, time
done = "saved-" + os.environ["RANK"]
if os.path.exists(done):
    print("resumed", os.environ["RANK"], flush=True)
    sys.exit(0)
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
print("training", os.environ["RANK"], flush=True)
while not got:
    time.sleep(0.05)
open(done, "w").close()
sys.exit(1)
"""
SLEEPS = "import os, time\nprint('up', os.environ['RANK'], flush=True)\ntime.sleep(1000)\n"
JOB_SUBMIT = """\
function slurm_job_submit(job, partitions, uid)
  if job.comment == "refuse me" then
    slurm.log_user("Apply for an account: https://hpc.example.org/accounts")
    return slurm.ERROR
  end
  slurm.log_user("Your group has used 812 of 1000 node hours.")
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""
"""A site's job_submit.lua: it has something to say of every job, and refuses some."""
MIN_JOB_AGE = 5
SLURM_GPUS = ("node[12]=gpu:a100:4", "node[34]=gpu:h100:4")
CLUSTERS = {"slurm_pair", "session_cluster4", "cluster4", "virtual_cluster", "slurm_cluster"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if CLUSTERS & fixtures:
            item.add_marker(pytest.mark.sshd)
        if "can_have_slurm" in fixtures:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def can_have_clusters() -> None:
    """Skip where there can be no virtual cluster, with the reason and what to install."""
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def session_cluster4(
    can_have_clusters: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VirtualCluster]:
    with VirtualCluster(nodes=4, directory=tmp_path_factory.mktemp("cluster4")) as cluster:
        yield cluster


@pytest.fixture
def cluster4(session_cluster4: VirtualCluster) -> Iterator[VirtualCluster]:
    """Four nodes and the control machine, healthy; afterwards healed, and free of processes.

    Tests share its disks: use `/tmp` names of your own, or `virtual_cluster` for fresh ones.
    """
    yield session_cluster4
    session_cluster4.heal()
    assert session_cluster4.leftovers() == {}


@pytest.fixture
def project(cluster4: VirtualCluster, request: pytest.FixtureRequest) -> Iterator[Project]:
    """A directory on the control machine of `cluster4`, with a cluster file of its nodes."""
    name = re.sub(r"\W+", "-", request.node.name)[:60]
    made = Project(cluster4, f"/root/{name}")
    made.describe()
    yield made
    for node in cluster4.names:
        cluster4.run(node, ["rm", "-rf", "/root/work"], user="root")


@pytest.fixture
def virtual_cluster(
    can_have_clusters: None, tmp_path: Path
) -> Iterator[Callable[..., VirtualCluster]]:
    """Start a cluster of the test's own: `virtual_cluster(nodes=2, nics=2)`."""
    with ExitStack() as stack:

        def start(nodes: int = 2, **options: object) -> VirtualCluster:
            directory = tmp_path / f"cluster{len(started)}"
            started.append(VirtualCluster(nodes, directory, **options))
            return stack.enter_context(started[-1])

        started: list[VirtualCluster] = []
        yield start
        for cluster in started:
            cluster.heal()
            assert cluster.leftovers() == {}


@pytest.fixture(scope="session")
def can_have_slurm(can_have_clusters: None) -> None:
    """Skip where SLURM's daemons are not installed, with the packages to install."""
    if reason := missing(slurm=True):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def module_slurm_cluster(
    can_have_slurm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VirtualCluster]:
    # of each file its own: SLURM 22.05 may not get back all GPUs of steps after what tests do to it
    directory = tmp_path_factory.mktemp("slurm")
    with VirtualCluster(nodes=4, directory=directory, slurm=True, gres=SLURM_GPUS) as cluster:
        yield cluster


@pytest.fixture
def slurm_cluster(module_slurm_cluster: VirtualCluster) -> Iterator[VirtualCluster]:
    """Four nodes under a real SLURM, each with four GPUs by name: a100 on node1 and node2, h100
    on node3 and node4. Afterwards without jobs, healed, and free of processes.

    Submit on `control`; `scheduler.submit` does, from /shared. Partitions: main; short, of ten
    minutes at most; urgent, whose jobs requeue those of the others.
    """
    yield module_slurm_cluster
    settle(module_slurm_cluster)
    assert module_slurm_cluster.leftovers() == {}


@pytest.fixture(scope="session")
def session_slurm_pair(
    can_have_slurm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VirtualCluster]:
    if reason := missing(slurm=True, accounting=True):
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("pair")
    job_submit = directory.with_name(f"{directory.name}-job_submit.lua")
    job_submit.write_text(JOB_SUBMIT)
    options = {"other_cluster": "node3", "job_submit": job_submit, "min_job_age": MIN_JOB_AGE}
    options |= {"slurmd_timeout": 60}  # munge may be stopped without the loss of nodes
    with VirtualCluster(3, directory, slurm=True, accounting=True, **options) as cluster:
        yield cluster


@pytest.fixture
def slurm_pair(session_slurm_pair: VirtualCluster) -> Iterator[VirtualCluster]:
    """Two SLURM clusters under one slurmdbd: `vcluster`, node1 and node2, which the commands ask
    unless told, and `other`, node3. No GRES. `vcluster` has a job_submit.lua, and its controller
    forgets a job some 10 s after its end. Afterwards without jobs, and free of processes.
    """
    yield session_slurm_pair
    settle(session_slurm_pair)
    assert session_slurm_pair.leftovers() == {}


@pytest.fixture
def site(slurm_cluster: VirtualCluster, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A directory that all nodes share, with a cluster file and some scripts."""
    name = re.sub(r"\W+", "-", request.node.name)[:50]
    made = Site(slurm_cluster, f"{name}-{token_hex(2)}")
    made.here.mkdir(mode=0o777)
    made.describe()
    made.write("witness.py", WITNESS)
    made.write("resumes.py", RESUMES)
    made.write("sleeps.py", SLEEPS)
    yield made


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> float:
    """What one process gets that trains on the same data; it trains once for all workers."""
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent
    output = directory / "alone.txt"
    with (directory / "alone.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists():
            output.write_text(train_alone(tmp_path_factory.mktemp("alone")))
    return parameters(output.read_text())


def train_alone(path: Path) -> str:
    """Train the example with one process; return what it prints."""
    env = {
        **os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }  # fmt: skip
    command = [sys.executable, str(EXAMPLES / "train_ddp.py"), "--steps", "20"]
    done = subprocess.run(command, env=env, cwd=path, text=True, capture_output=True, check=True)
    return done.stdout
