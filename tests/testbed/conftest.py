"""Virtual clusters for tests, and the proof that a test left nothing running in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.testbed.scheduler import settle
from tests.testbed.vcluster import VirtualCluster, missing

SLURM_GPUS = ("node[12]=gpu:a100:4", "node[34]=gpu:h100:4")
CLUSTERS = {"session_cluster4", "cluster4", "virtual_cluster", "slurm_cluster"}


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


@pytest.fixture(scope="session")
def session_slurm_cluster(
    can_have_slurm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VirtualCluster]:
    directory = tmp_path_factory.mktemp("slurm")
    with VirtualCluster(nodes=4, directory=directory, slurm=True, gres=SLURM_GPUS) as cluster:
        yield cluster


@pytest.fixture
def slurm_cluster(session_slurm_cluster: VirtualCluster) -> Iterator[VirtualCluster]:
    """Four nodes under a real SLURM, each with four GPUs by name: a100 on node1 and node2, h100
    on node3 and node4. Afterwards without jobs, healed, and free of processes.

    Submit on `control`; `scheduler.submit` does, from /shared. Partitions: main; short, of ten
    minutes at most; urgent, whose jobs requeue those of the others.
    """
    yield session_slurm_cluster
    settle(session_slurm_cluster)
    assert session_slurm_cluster.leftovers() == {}
