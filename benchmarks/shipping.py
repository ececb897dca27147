"""What it takes to ship code to many nodes over links of limited rate.

    python benchmarks/shipping.py [--size MIB] [--rate MBIT] [--flat] [NODES...]

A virtual cluster with real sshd; every link, also that of the launching machine, has the same rate
in both directions (tbf of tc). All nodes share the processors of this machine: the rate must be so
low that encryption is no bottleneck. The processor time of this whole machine is shown beside the
seconds; it must be less than the seconds times the processors. The code is one file of random
bytes. `run` is measured from the last connected node to the last one that has unpacked it.

With `--flat` also scp and rsync in a loop and pdcp where they are installed, and `run` without
logins between the nodes, so that the launcher sends everything; for the second of the numbers of
nodes.

The disks of the nodes are memory: each needs three times the size.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.testbed.vcluster import VirtualCluster, missing

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
    if reason := missing():
        sys.exit(f"skipped: {reason}")
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--size", type=int, default=200, help="MiB")
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s of every link")
    parser.add_argument("--flat", action="store_true")
    asked = parser.parse_args()
    sizes = sorted(asked.nodes)
    print(f"{asked.size} MiB, {asked.rate} Mbit/s: {wire_seconds(asked.size, asked.rate):.1f} s")
    print(f"{'':22}{'nodes':>6}{'seconds':>9}{'ratio':>7}{'CPU s':>8}{'sent MiB':>10}")
    directory = tempfile.mkdtemp(prefix="bench-")
    room = f"{3 * asked.size + 64}m"
    with VirtualCluster(nodes=sizes[-1], directory=directory, disk=room) as cluster:
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
    text = (
        f"nodes: [{{host: 'node[1-{size}]', slots: 1}}]\npython: {sys.executable}\n"
        f"launcher: direct\nstorage: {{workdir: /root/{os.urandom(4).hex()}}}\n"
    )
    cluster.put("control", "/root/c.yaml", text, 0o644)
    cluster.put("control", "/root/spans.py", SPANS, 0o644)
    command = [sys.executable, "-m", "dslaunch", "run", "--no-preflight", "../c.yaml", "train.py"]
    sent, cpu = sent_bytes(cluster), cpu_seconds()
    done = cluster.run("control", command, cwd="/root/p", timeout=900)
    if done.returncode:
        sys.exit(done.stderr)
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
            sent, cpu, began = sent_bytes(cluster), cpu_seconds(), time.monotonic()
            cluster.run("control", ["sh", "-c", script, "sh", str(count)], check=True, timeout=900)
            seconds = time.monotonic() - began
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


def sent_bytes(cluster: VirtualCluster) -> int:
    """Return the bytes that the control machine has sent (proc(5), /proc/net/dev)."""
    text = cluster.run("control", ["cat", "/proc/net/dev"], check=True).stdout
    return int(text.partition("eth0:")[2].split()[8])


if __name__ == "__main__":
    main()
