"""Taking a node's memory away: a memory cgroup, below our own, for all processes of a node."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.testbed.vcluster.outside import pids_of
from tests.testbed.vcluster.state import Cluster, ClusterError, Node

LIMIT_FILES = ("memory.limit_in_bytes", "memory.max")
"""Of cgroup v1 and v2 (Linux, Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst)."""


def limit_memory(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    """Let a node's processes take so many bytes more; beyond, the kernel kills one of them.

    What they hold already stays charged to their old group. ClusterError says why it cannot be.
    """
    size = int(arguments[0])
    above = own_cgroup("memory")
    group = above / f"dslaunch-vcluster-{cluster.init_of(node)}"
    arguments[:] = [str(size), str(group)]
    try:
        group.mkdir()
        limit = next((group / name for name in LIMIT_FILES if (group / name).exists()), None)
        if limit is None:
            raise ClusterError(f"memory needs the memory controller, and {group} has none")
        limit.write_text(f"{size}\n")
        move_processes(pids_of(cluster.init_of(node)), group)
    except (OSError, ClusterError) as error:
        remove_group(group, above)
        why = f"memory needs a writable memory cgroup: {error}"
        raise ClusterError(str(error) if isinstance(error, ClusterError) else why) from error


def return_memory(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    """Undo it."""
    group = Path(arguments[1])
    remove_group(group, group.parent)


def own_cgroup(controller: str) -> Path:
    """Our control group with this controller, of cgroup v1 or v2. Raises ClusterError."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return Path(f"/sys/fs/cgroup/{controller}{path}")
        if not controllers and Path(f"/sys/fs/cgroup{path}/cgroup.controllers").exists():
            return Path(f"/sys/fs/cgroup{path}")
    raise ClusterError(f"there is no controller {controller!r} of cgroups")


def move_processes(pids: Iterator[int], group: Path) -> None:
    """Put processes into a group; those that have ended are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(f"{pid}\n")


def remove_group(group: Path, above: Path) -> None:
    """Move who is in it up, and remove it; the kernel needs a moment for those that ended."""
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError):
            move_processes(map(int, (group / "cgroup.procs").read_text().split()), above)
        try:
            os.rmdir(group)  # noqa: PTH106 - a cgroup is removed with its control files in it
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
