"""A million lines from 16 ranks on four nodes: whether any is lost, how fast they come, and for how
much processor time.

    python -m benchmarks.output [LINES] [--rounds N]

Virtual nodes with real sshd. The peers are `ssh` for each rank in a loop, which neither records nor
prefixes, and whose lines run into each other: how many, is counted; and pdsh and clush, which
prefix and do not record. All take turns, with lines of several kinds. Lines a second are counted
from the first line to the end; the processor time is that of the program that receives them with
its `ssh`, and that of the nodes with their ranks and sshd. The table has medians.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import IO

from tests.testbed.vcluster import VirtualCluster

from benchmarks.virtual_nodes import DSLAUNCH, PYTHON, cluster_text, metered, used, virtual_nodes
from benchmarks.virtual_nodes import nodes_cpu as cpu_of_nodes

NODES, SLOTS = 4, 4
NODE_NAMES = [f"node{number}" for number in range(1, NODES + 1)]
KINDS = {
    "short lines": "of a training that says a lot",
    "200 bytes": "of a training that says a lot".ljust(180, "."),
    "4 colors": "\x1b[32mof a\x1b[0m training \x1b[1;31mthat says\x1b[0m a lot",
    "CRLF": "of a training that says a lot\r",
}
"""What follows `rank 3 line 17 `, by the name of the kind."""
JOB = """\
import os, sys
rank, count, text = int(os.environ.get("RANK", 0)), int(sys.argv[1]), os.environb[b"TEXT"]
for first in range(0, count, 50):
    numbers = range(first, min(first + 50, count))
    lines = [b"rank %d line %d %s\\n" % (rank, number, text) for number in numbers]
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()
"""
RANKS = f"""\
. ./text.sh
node=$(hostname)
first=$(( (${{node#node}} - 1) * {SLOTS} ))
for slot in $(seq 0 {SLOTS - 1}); do
    RANK=$(( first + slot )) {PYTHON} job.py "$1" &
done
wait
"""
"""Starts the ranks of a node."""
CLUSH = f"{PYTHON.rpartition('/')[0]}/clush"
COLOR = re.compile(r"\x1b\[[0-9;]*m")


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


@dataclass(frozen=True, slots=True)
class Measured:
    """What one program took for all lines of one kind."""

    rate: float
    """Lines in a second."""
    program: float
    """Microseconds of its CPU for each line."""
    nodes: float
    """The same of all nodes."""
    faults: Faults


def main() -> None:
    """Measure, check, print; exit with 1 if dslaunch lost, tore or swapped a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("lines", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    each = arguments.lines // (NODES * SLOTS)
    print(f"{each * NODES * SLOTS:,} lines from {NODES * SLOTS} ranks on {NODES} nodes")
    found: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    with virtual_nodes(NODES) as cluster:
        cluster.put("control", "/root/c.yaml", description())
        cluster.put("*", "/root/job.py", JOB)
        cluster.put("*", "/root/ranks.sh", RANKS)
        for _ in range(arguments.rounds):
            for kind, text in KINDS.items():
                for name, script in scripts(each, text).items():
                    measured = measure(cluster, script, text, each)
                    found[kind, name].append(measured)
                    print(f"{kind}, {name}: {measured}", flush=True)
    show(found)
    ours = [each for (_, name), rows in found.items() if "dslaunch" in name for each in rows]
    if any(each.faults != Faults(lost=0, torn=0, swapped=0) for each in ours):
        sys.exit(1)


def scripts(each: int, text: str) -> dict[str, str]:
    """Return the shell commands to compare, by the name of the program."""
    loop = " ".join(
        f"ssh node{rank // SLOTS + 1} '. ./text.sh; RANK={rank} {PYTHON} job.py {each}' &"
        for rank in range(NODES * SLOTS)
    )
    run = f". ./text.sh; exec {' '.join(DSLAUNCH)} run --env TEXT"
    return {
        "dslaunch": f"{run} c.yaml job.py {each}",
        "ssh in a loop": f"{loop} wait",
        "pdsh": f"exec pdsh -R ssh -w node[1-{NODES}] sh ranks.sh {each}",
        "clush": f"exec {CLUSH} -w node[1-{NODES}] sh ranks.sh {each}",
    }


def description() -> str:
    """Return the cluster file."""
    return cluster_text(NODES, SLOTS, python=PYTHON, launcher="direct", storage={"workdir": "work"})


def measure(cluster: VirtualCluster, script: str, text: str, each: int) -> Measured:
    """Run one program on lines with this text."""
    octal = "".join(f"\\{byte:03o}" for byte in text.encode())
    cluster.put("*", "/root/text.sh", f"TEXT=$(printf '{octal}')\nexport TEXT\n")
    before = cpu_of_nodes(cluster, NODE_NAMES)
    command = metered(["sh", "-c", f"{{ {script}; }} 2>/dev/null"])
    with cluster.popen("control", command, cwd="/root") as run:
        received = receive(run.stdout)
    total = each * NODES * SLOTS
    on_nodes = cpu_of_nodes(cluster, NODE_NAMES) - before
    # the records of many runs would fill the disk of the virtual machine
    cluster.run("control", ["rm", "-rf", "/root/.local/state/dslaunch"], check=True)
    return Measured(
        rate=round(total / (received.end - received.first)),
        program=round(used(cluster).cpu / total * 1e6, 2),
        nodes=round(on_nodes / total * 1e6, 2),
        faults=faults_of(received.text, text, each),
    )


def receive(stream: IO[str]) -> Received:
    """Read all output, and note when it comes."""
    began = time.monotonic()
    line = stream.readline()
    first = time.monotonic() - began
    text = line + stream.read()
    return Received(text, first=first, end=time.monotonic() - began)


def faults_of(received: str, text: str, each: int) -> Faults:
    """Count what is whole and in order: afterwards, since that takes longer than to receive it."""
    plain = re.escape(COLOR.sub("", text).rstrip("\r"))
    line_pattern = re.compile(rf"(?:.*│|node\d+: )?rank (\d+) line (\d+) {plain}\r?")
    last = dict.fromkeys(range(NODES * SLOTS), -1)
    whole = torn = swapped = 0
    for line in COLOR.sub("", received).removesuffix("\n").split("\n"):
        match = line_pattern.fullmatch(line)
        rank, number = (int(match[1]), int(match[2])) if match else (-1, 0)
        if rank not in last or number >= each:
            torn += 1
            continue
        whole += 1
        swapped += number <= last[rank]
        last[rank] = number
    return Faults(lost=each * NODES * SLOTS - whole, torn=torn, swapped=swapped)


def show(found: Mapping[tuple[str, str], list[Measured]]) -> None:
    """Print the medians as a table in Markdown."""
    print("| lines | program | lines/s | CPU of the program, us/line | of the nodes | wrong |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    for (kind, name), rows in found.items():
        rate = median(each.rate for each in rows)
        program = median(each.program for each in rows)
        nodes = median(each.nodes for each in rows)
        faults = rows[-1].faults
        wrong = f"{faults.lost:,} lost, {faults.torn:,} torn, {faults.swapped:,} out of order"
        print(f"| {kind} | {name} | {rate:,.0f} | {program:.1f} | {nodes:.1f} | {wrong} |")


if __name__ == "__main__":
    main()
