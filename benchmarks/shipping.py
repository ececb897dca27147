"""What it takes to ship code to many nodes over links of limited rate.

    python -m benchmarks.shipping [--size MIB] [--rate MBIT] [--flat] [NODES...]

A virtual cluster with real sshd; every link, also that of the launching machine, has the same rate
in both directions (tbf of tc). All nodes share the processors of this machine: the rate must be so
low that encryption is no bottleneck. The processor time of this whole machine is shown beside the
seconds; it must be less than the seconds times the processors. The code is one file of random
bytes. `run` is measured from the last connected node to the last one that has unpacked it. The
goal: 64 nodes take at most twice as long as one.

With `--flat` also scp and rsync in a loop and pdcp where they are installed, and `run` without
logins between the nodes, so that the launcher sends everything; for the second of the numbers of
nodes.

The disks of the nodes are memory: each needs twice the size, the machine 13 GiB for 64 nodes and
100 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

from tests.testbed.vcluster import VirtualCluster

from benchmarks.virtual_nodes import (
    DSLAUNCH,
    PYTHON,
    cluster_text,
    measured,
    sent_bytes,
    virtual_nodes,
)

SPANS = """\
import json, sys
events = [json.loads(line) for line in open(sys.argv[1] + "/events.jsonl")]
began = max(event["time"] for event in events if event["kind"] == "connected")
ended = max(event["time"] for event in events if event["kind"] == "shipped")
print(json.dumps([ended - began, sum(event["kind"] == "resent" for event in events)]))
"""
PEERS = {
    "scp": "for n in $(seq $1); do scp -q /root/p/data.dat node$n:/root/; done",
    "rsync": "for n in $(seq $1); do rsync -W /root/p/data.dat node$n:/root/; done",
    "pdcp": "pdcp -R ssh -w node[1-$1] /root/p/data.dat /root/",
}


def main() -> None:
    """One cluster of the largest size; all measurements on it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--size", type=int, default=200, help="MiB")
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s of every link")
    parser.add_argument("--flat", action="store_true")
    asked = parser.parse_args()
    sizes = sorted(asked.nodes)
    print(f"{asked.size} MiB, {asked.rate} Mbit/s: {wire_seconds(asked.size, asked.rate):.1f} s")
    print(f"{'':22}{'nodes':>6}{'seconds':>9}{'ratio':>7}{'CPU s':>8}{'sent MiB':>10}")
    with virtual_nodes(sizes[-1], disk=f"{2 * asked.size + 64}m") as cluster:
        script = f"mkdir -p p; head -c {asked.size}M /dev/urandom >p/data.dat; echo >p/train.py"
        cluster.run("control", ["sh", "-c", script], check=True)
        cluster.fault("*", "rate", f"{asked.rate}mbit")
        one = None
        for size in sizes:
            seconds = ship(cluster, "run", size, one)
            one = one or seconds
        if asked.flat:
            size = sizes[min(1, len(sizes) - 1)]
            peers(cluster, size)
            for node in cluster.names[:size]:
                cluster.run(node, ["sh", "-c", "rm ~/.ssh/id_*"], check=True)
            ship(cluster, "run, nodes without keys", size, one)


def wire_seconds(mebibytes: int, megabits: int) -> float:
    """Return what the payload takes on one link."""
    return mebibytes * 2**20 * 8 / (megabits * 1e6)


def ship(cluster: VirtualCluster, name: str, size: int, one: float | None) -> float:
    """Ship to the first nodes; return the seconds."""
    workdir = f"/root/{os.urandom(4).hex()}"
    text = cluster_text(size, python=PYTHON, launcher="direct", storage={"workdir": workdir})
    cluster.put("control", "/root/c.yaml", text)
    cluster.put("control", "/root/spans.py", SPANS)
    command = [*DSLAUNCH, "run", "--no-preflight", "c.yaml", "p/train.py"]
    sent, cpu = sent_bytes(cluster), cpu_seconds()
    measured(cluster, command)
    cpu, sent = cpu_seconds() - cpu, sent_bytes(cluster) - sent
    newest = "python3 /root/spans.py $(ls -td ~/.local/state/dslaunch/runs/* | head -n 1)"
    spans = cluster.run("control", ["sh", "-c", newest], check=True).stdout
    seconds, resent = json.loads(spans)
    row(name, size, seconds, one or seconds, cpu, sent)
    if resent and "without" not in name:
        print("  not all nodes handed the code on")
    for node in cluster.names[:size]:  # the disks of the nodes are memory
        cluster.run(node, ["sh", "-c", "rm -rf /root/[0-9a-f]*"], check=True)
    return float(seconds)


def peers(cluster: VirtualCluster, size: int) -> None:
    """Copy the same file to as many nodes with common tools."""
    one: dict[str, float] = {}
    for name, script in PEERS.items():
        if shutil.which(name) is None:
            print(f"{name}: not installed")
            continue
        for count in (1, size):
            sent, cpu = sent_bytes(cluster), cpu_seconds()
            seconds = measured(cluster, ["sh", "-c", script, "sh", str(count)]).seconds
            one.setdefault(name, seconds)
            cpu, sent = cpu_seconds() - cpu, sent_bytes(cluster) - sent
            row(name, count, seconds, one[name], cpu, sent)
            for node in cluster.names[:count]:
                cluster.run(node, ["rm", "-f", "/root/data.dat"], check=True)


def row(name: str, nodes: int, seconds: float, one: float, cpu: float, sent: int) -> None:
    """Print one measurement. `one`: the seconds of one node."""
    print(
        f"{name:22}{nodes:6}{seconds:9.1f}{seconds / one:7.2f}{cpu:8.1f}{sent / 2**20:10.0f}",
        flush=True,
    )


def cpu_seconds() -> float:
    """Return the processor time of this whole machine, other programs included (proc(5))."""
    ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
