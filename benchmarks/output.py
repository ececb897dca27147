"""A million lines from 16 ranks on four nodes: whether any is lost, and how fast they come.

    python benchmarks/output.py [LINES]

Emulated nodes (no SSH) and, where there can be a virtual cluster, real sshd. The peers are `ssh` to
each node in a loop, which neither records nor prefixes, and whose lines run into each other: how
many, is counted; and pdsh and clush, which prefix and do not record. Needs what the sshd tests
need.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
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


RANKS = f"""\
node=$(hostname)
first=$(( (${{node#node}} - 1) * {SLOTS} ))
for slot in $(seq 0 {SLOTS - 1}); do
    RANK=$(( first + slot )) {sys.executable} job.py "$1" &
done
wait
"""
"""Starts the ranks of a node."""
CLUSH = str(Path(sys.executable).with_name("clush"))
LINE = re.compile(r"(?:.*│|node\d+: )?rank (\d+) line (\d+) of a training that says a lot")
"""What the job prints, after a prefix or none."""


@dataclass(frozen=True, slots=True)
class Came:
    """What came of all that the ranks wrote, and in which time."""

    lost: int
    """Lines that did not come whole."""
    torn: int
    """Lines that were not written: made of pieces of several."""
    swapped: int
    """Whole lines that came next after a later one of the same rank."""
    each: int
    seconds: float

    def row(self, name: str) -> str:
        """As printed."""
        total = self.each * NODES * SLOTS
        rate = f"{total / self.seconds / 1e3:7.0f} thousand lines a second"
        wrong = f"{self.lost:,} lost, {self.torn:,} torn, {self.swapped:,} out of order"
        return f"{name:22} {self.seconds:6.1f} s  {rate}  {wrong}"


def main() -> None:
    """Measure, check, print; exit with 1 if dslaunch lost, tore or swapped a line."""
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    each = total // (NODES * SLOTS)
    print(f"{total:,} lines from {NODES * SLOTS} ranks on {NODES} nodes")
    ours = [emulated(each)]
    if reason := missing():
        print(f"over sshd: skipped: {reason}")
    else:
        with VirtualCluster(nodes=NODES, directory=tempfile.mkdtemp(prefix="bench-")) as cluster:
            ours.append(over_ssh(cluster, each))
    if any(came.lost or came.torn or came.swapped for came in ours):
        sys.exit(1)


def emulated(each: int) -> Came:
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
            text = run.stdout.read()
    came = checked(text, each, time.monotonic() - began)
    print(came.row("dslaunch, emulated"))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"  the launcher's peak memory: {used.ru_maxrss / 1024:.0f} MiB")
    processor = (used.ru_utime + used.ru_stime) / (each * NODES * SLOTS)
    print(f"  launcher, agents and ranks, from the start: {processor * 1e6:.1f} us of CPU a line")
    return came


def over_ssh(cluster: VirtualCluster, each: int) -> Came:
    """Real sshd, and the peers; losses of the peers are reported and do not count."""
    cluster.put("control", "/root/c.yaml", describe(""), 0o644)
    cluster.put("*", "/root/job.py", JOB, 0o644)
    cluster.put("*", "/root/ranks.sh", RANKS, 0o644)
    loop = " ".join(
        f"ssh node{rank // SLOTS + 1} RANK={rank} {sys.executable} job.py {each} &"
        for rank in range(NODES * SLOTS)
    )
    own = launch(cluster, f"exec {sys.executable} -m dslaunch run c.yaml job.py {each}", each)
    print(own.row("dslaunch, sshd"))
    peers = {
        "ssh in a loop": f"{loop} wait",
        "pdsh": f"exec pdsh -R ssh -w node[1-{NODES}] sh ranks.sh {each}",
        "clush": f"exec {CLUSH} -w node[1-{NODES}] sh ranks.sh {each}",
    }
    for name, script in peers.items():
        peer = launch(cluster, script, each)
        print(peer.row(name))
        print(f"  dslaunch takes {own.seconds / peer.seconds:.2f} times as long")
    return own


def launch(cluster: VirtualCluster, script: str, each: int) -> Came:
    """Run it on the control machine."""
    began = time.monotonic()
    command = ["bash", "-c", f"({script}) 2>/dev/null"]
    with cluster.popen("control", command, cwd="/root") as run:
        text = run.stdout.read()
    return checked(text, each, time.monotonic() - began)


def describe(more: str) -> str:
    """The cluster file."""
    nodes = f"nodes: [{{host: 'node[1-{NODES}]', slots: {SLOTS}}}]\n"
    return f"{nodes}python: {sys.executable}\nlauncher: direct\nstorage: {{workdir: work}}\n{more}"


def checked(text: str, each: int, seconds: float) -> Came:
    """Count what is whole and in order: afterwards, since that takes longer than to receive it."""
    last = dict.fromkeys(range(NODES * SLOTS), -1)
    whole = torn = swapped = 0
    for line in text.removesuffix("\n").split("\n"):
        match = LINE.fullmatch(line)
        rank, number = (int(match[1]), int(match[2])) if match else (-1, 0)
        if rank not in last or number >= each:
            torn += 1
            continue
        whole += 1
        swapped += number <= last[rank]
        last[rank] = number
    return Came(each * NODES * SLOTS - whole, torn, swapped, each, seconds)


if __name__ == "__main__":
    main()
