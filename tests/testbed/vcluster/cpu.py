"""Limiting a node's CPU time: a control group, below our own, for all processes of a node."""

from __future__ import annotations

from pathlib import Path

from tests.testbed.vcluster.memory import move_processes, own_cgroup, remove_group
from tests.testbed.vcluster.outside import pids_of
from tests.testbed.vcluster.state import Cluster, ClusterError, Node

PERIOD = 100_000
"""Microseconds (Linux, Documentation/scheduler/sched-bwc.rst)."""


def limit_cpu(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    """Let a node's processes have a share of one CPU, in percent. ClusterError: it cannot be."""
    quota = int(arguments[0]) * PERIOD // 100
    above = own_cgroup("cpu")
    group = above / f"dslaunch-vcluster-cpu-{cluster.init_of(node)}"
    arguments[:] = [arguments[0], str(group)]
    try:
        group.mkdir()
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota} {PERIOD}\n")
        else:
            (group / "cpu.cfs_period_us").write_text(f"{PERIOD}\n")
            (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        move_processes(pids_of(cluster.init_of(node)), group)
    except OSError as error:
        remove_group(group, above)
        raise ClusterError(f"cpu needs a writable cpu cgroup: {error}") from error


def free_cpu(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    """Undo it."""
    group = Path(arguments[1])
    remove_group(group, group.parent)
