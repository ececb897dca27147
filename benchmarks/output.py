"""A million lines from 16 ranks on four nodes: whether any is lost, and how fast they come.

    python -m benchmarks.output [LINES]

Emulated nodes (no SSH) and virtual nodes with real sshd. The peers are `ssh` for each rank in a
loop, which neither records nor prefixes, and whose lines run into each other: how many, is counted;
and pdsh and clush, which prefix and do not record. Lines a second are counted from the first line
to the end; the processor time is that of the program that receives them, and of its `ssh`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.virtual_nodes import DSLAUNCH, PYTHON, cluster_text, metered, used, virtual_nodes

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
    RANK=$(( first + slot )) {PYTHON} job.py "$1" &
done
wait
"""
"""Starts the ranks of a node."""
CLUSH = str(Path(PYTHON).with_name("clush"))
LINE = re.compile(r"(?:.*│|node\d+: )?rank (\d+) line (\d+) of a training that says a lot")
"""What the job prints, after a prefix or none."""


@dataclass(frozen=True, slots=True)
class Received:
    """The output of a program, and when it came."""

    text: str
    first: float
    """Seconds until the first line."""
    end: float


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with the lines that came."""

    lost: int
    """Lines that did not come whole."""
    torn: int
    """Lines that were not written: made of pieces of several."""
    swapped: int
    """Whole lines that came next after a later one of the same rank."""


def main() -> None:
    """Measure, check, print; exit with 1 if dslaunch lost, tore or swapped a line."""
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    each = total // (NODES * SLOTS)
    print(f"{total:,} lines from {NODES * SLOTS} ranks on {NODES} nodes")
    print(f"{'':20}{'first s':>9}{'end s':>7}{'lines/s':>11}{'CPU us/line':>13}")
    received = emulated(each)
    require_whole(report("dslaunch, emulated", received, each, cpu=None))
    over_ssh(each)


def emulated(each: int) -> Received:
    """All nodes on this machine."""
    with tempfile.TemporaryDirectory() as home:
        directory = Path(home)
        (directory / "job.py").write_text(JOB)
        (directory / "c.yaml").write_text(describe(transport="local"))
        with subprocess.Popen(
            [*DSLAUNCH, "run", "c.yaml", "job.py", str(each)],
            cwd=home,
            env=os.environ | {"DSLAUNCH_STATE": f"{home}/state"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as run:
            assert run.stdout is not None
            return receive(run.stdout)


def over_ssh(each: int) -> None:
    """Virtual nodes: dslaunch and its peers, whose faults are reported and do not count."""
    loop = " ".join(
        f"ssh node{rank // SLOTS + 1} RANK={rank} {PYTHON} job.py {each} &"
        for rank in range(NODES * SLOTS)
    )
    scripts = {
        "dslaunch": f"exec {' '.join(DSLAUNCH)} run c.yaml job.py {each}",
        "ssh in a loop": f"{loop} wait",
        "pdsh": f"exec pdsh -R ssh -w node[1-{NODES}] sh ranks.sh {each}",
        "clush": f"exec {CLUSH} -w node[1-{NODES}] sh ranks.sh {each}",
    }
    with virtual_nodes(NODES) as cluster:
        cluster.put("control", "/root/c.yaml", describe())
        cluster.put("*", "/root/job.py", JOB)
        cluster.put("*", "/root/ranks.sh", RANKS)
        for name, script in scripts.items():
            command = metered(["sh", "-c", f"{{ {script}; }} 2>/dev/null"])
            with cluster.popen("control", command, cwd="/root") as run:
                received = receive(run.stdout)
            faults = report(name, received, each, cpu=used(cluster).cpu)
            if name == "dslaunch":
                require_whole(faults)


def describe(**more: object) -> str:
    """Return the cluster file."""
    return cluster_text(
        NODES, SLOTS, python=PYTHON, launcher="direct", storage={"workdir": "work"}, **more
    )


def receive(stream: IO[str]) -> Received:
    """Read all output, and note when it comes."""
    began = time.monotonic()
    line = stream.readline()
    first = time.monotonic() - began
    text = line + stream.read()
    return Received(text, first=first, end=time.monotonic() - began)


def report(name: str, received: Received, each: int, *, cpu: float | None) -> Faults:
    """Print a row; return what is wrong with the lines. `cpu`: seconds; None: not measured."""
    total = each * NODES * SLOTS
    faults = faults_of(received.text, each)
    rate = total / (received.end - received.first)
    cost = "-" if cpu is None else f"{cpu / total * 1e6:.1f}"
    wrong = f"{faults.lost:,} lost, {faults.torn:,} torn, {faults.swapped:,} out of order"
    seconds = f"{received.first:9.1f}{received.end:7.1f}"
    print(f"{name:20}{seconds}{rate:11,.0f}{cost:>13}  {wrong}", flush=True)
    return faults


def require_whole(faults: Faults) -> None:
    """Raise SystemExit if a line is missing or wrong."""
    if faults != Faults(lost=0, torn=0, swapped=0):
        sys.exit(1)


def faults_of(text: str, each: int) -> Faults:
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
    return Faults(lost=each * NODES * SLOTS - whole, torn=torn, swapped=swapped)


if __name__ == "__main__":
    main()
