"""What a run of many nodes costs the machine that it is started from.

    python benchmarks/many_nodes.py [NODES...]

A virtual cluster with real sshd; one rank per node, quiet and talkative. Prints seconds until the
first rank spoke, until all had spoken, and to the end, and the launcher's processor time and peak
memory, per node. The goal: 64 nodes work, and memory does not grow with what the ranks print.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.testbed.vcluster import VirtualCluster, missing

JOB = """\
import sys
for i in range(int(sys.argv[1])):
    print("line", i, "of a training that says a lot", flush=i % 50 == 0)
"""
METER = """\
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print("METER", json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss]), flush=True)
"""


def main() -> None:
    """One cluster of the largest size; runs of each size on it."""
    if reason := missing():
        sys.exit(f"skipped: {reason}")
    sizes = [int(word) for word in sys.argv[1:]] or [4, 16, 64]
    directory = tempfile.mkdtemp(prefix="bench-")
    print(f"{'':24}{'first':>7}{'all':>7}{'end':>7}{'CPU s':>8}{'CPU ms/node':>13}{'peak MiB':>10}")
    with VirtualCluster(nodes=max(sizes), directory=directory) as cluster:
        cluster.put("control", "/root/p/job.py", JOB, 0o644)
        cluster.put("control", "/root/meter.py", METER, 0o644)
        for size in sizes:
            nodes = f"nodes: [{{host: 'node[1-{size}]', slots: 1}}]\n"
            text = (
                f"{nodes}python: {sys.executable}\nlauncher: direct\nstorage: {{workdir: work}}\n"
            )
            cluster.put("control", "/root/p/c.yaml", text, 0o644)
            for lines in (10, 5000, 50000):
                measure(cluster, size, lines)


def measure(cluster: VirtualCluster, size: int, lines: int) -> None:
    """One run, as one row."""
    run = [sys.executable, "-m", "dslaunch", "run", "c.yaml", "job.py", str(lines)]
    began = time.monotonic()
    first = last = 0.0
    speakers: set[str] = set()
    used: list[float] = [1, 0, 0]
    command = ["bash", "-c", 'exec "$@" 2>/dev/null', "-", sys.executable, "/root/meter.py", *run]
    with cluster.popen("control", command, cwd="/root/p") as running:
        for line in running.stdout:
            speaker, bar, _ = line.partition("│")
            if bar and speaker not in speakers:
                speakers.add(speaker)
                last = time.monotonic() - began
                first = first or last
            elif line.startswith("METER "):
                used = json.loads(line[6:])
        running.wait(60)
    if used[0] or len(speakers) != size:
        sys.exit(f"{size} nodes: exit code {used[0]}, {len(speakers)} ranks spoke")
    end, cpu = time.monotonic() - began, used[1]
    name = f"{size} nodes, {lines} lines"
    print(
        f"{name:24}{first:7.1f}{last:7.1f}{end:7.1f}{cpu:8.2f}{cpu / size * 1e3:13.0f}"
        f"{used[2] / 1024:10.0f}"
    )


if __name__ == "__main__":
    main()
