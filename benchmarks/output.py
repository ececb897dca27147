"""A million lines from 16 ranks on four nodes: whether any is lost, and how fast they come.

    python benchmarks/output.py [LINES]

Emulated nodes (no SSH) and, where there can be a virtual cluster, real sshd. The peer is `ssh` to
each node in a loop, which neither records, orders nor prefixes. Needs what the sshd tests need.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.testbed.vcluster import VirtualCluster, missing

NODES, SLOTS = 4, 4
JOB = """\
import os, sys
rank, count = int(os.environ.get("RANK", 0)), int(sys.argv[1])
for i in range(count):
    print("rank", rank, "line", i, "of a training that says a lot", flush=i % 50 == 0)
"""


def main() -> None:
    """Measure, check, print."""
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    each = total // (NODES * SLOTS)
    print(f"{total:,} lines from {NODES * SLOTS} ranks on {NODES} nodes")
    emulated(each)
    if reason := missing():
        print(f"over sshd: skipped: {reason}")
        return
    with VirtualCluster(nodes=NODES, directory=tempfile.mkdtemp(prefix="bench-")) as cluster:
        over_ssh(cluster, each)


def emulated(each: int) -> None:
    """All nodes on this machine."""
    with tempfile.TemporaryDirectory() as home:
        directory = Path(home)
        (directory / "job.py").write_text(JOB)
        (directory / "c.yaml").write_text(describe("transport: local\n"))
        env = os.environ | {"DSLAUNCH_STATE": f"{home}/state"}
        command = [sys.executable, "-m", "dslaunch", "run", "c.yaml", "job.py", str(each)]
        began = time.monotonic()
        with subprocess.Popen(command, cwd=home, env=env, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            check(run.stdout, each)
        tell("dslaunch, emulated", each, time.monotonic() - began)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"  the launcher's peak memory: {used.ru_maxrss / 1024:.0f} MiB")


def over_ssh(cluster: VirtualCluster, each: int) -> None:
    """Real sshd, and the peer."""
    cluster.put("control", "/root/c.yaml", describe(""), 0o644)
    cluster.put("*", "/root/job.py", JOB, 0o644)
    loop = " ".join(
        f"ssh node{rank // SLOTS + 1} RANK={rank} {sys.executable} job.py {each} &"
        for rank in range(NODES * SLOTS)
    )
    launches = {
        "dslaunch, sshd": f"exec {sys.executable} -m dslaunch run c.yaml job.py {each}",
        "ssh in a loop": f"{loop} wait",
    }
    for name, script in launches.items():
        began = time.monotonic()
        with cluster.popen(
            "control", ["bash", "-c", f"({script}) 2>/dev/null"], cwd="/root"
        ) as run:
            check(run.stdout, each)
        tell(name, each, time.monotonic() - began)


def describe(more: str) -> str:
    """The cluster file."""
    nodes = f"nodes: [{{host: 'node[1-{NODES}]', slots: {SLOTS}}}]\n"
    return f"{nodes}python: {sys.executable}\nlauncher: direct\nstorage: {{workdir: work}}\n{more}"


def check(lines: Iterable[str], each: int) -> None:
    """Every rank's lines, all and in order."""
    seen: dict[str, int] = {}
    for line in lines:
        words = line.rpartition("│")[2].split()
        if words[:1] == ["rank"]:
            if int(words[3]) != seen.get(words[1], 0):
                sys.exit(f"rank {words[1]}: line {words[3]} after {seen.get(words[1], 0)} lines")
            seen[words[1]] = int(words[3]) + 1
    if list(seen.values()) != [each] * NODES * SLOTS:
        sys.exit(f"lines are missing: {seen}")


def count(lines: Iterable[str], each: int) -> None:
    """As many lines as all ranks wrote."""
    if (found := sum(1 for _ in lines)) != each * NODES * SLOTS:
        sys.exit(f"{found} lines came")


def tell(name: str, each: int, seconds: float) -> None:
    """One row."""
    total = each * NODES * SLOTS
    print(f"{name:22} {seconds:6.1f} s  {total / seconds / 1e3:7.0f} thousand lines a second")


if __name__ == "__main__":
    main()
