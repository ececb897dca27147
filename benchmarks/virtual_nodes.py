"""A virtual cluster with real sshd, and what a command on its control machine uses."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.testbed.vcluster import VirtualCluster, missing

PYTHON = sys.executable
DSLAUNCH = (PYTHON, "-m", "dslaunch")
LONGEST = 900
"""Seconds for one command."""
_METER, _USED = "/root/meter.py", "/root/used.json"
_METER_TEXT = f"""\
import json, resource, subprocess, sys, time
began = time.monotonic()
code = subprocess.run(sys.argv[1:]).returncode
seconds = time.monotonic() - began
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open("{_USED}", "w") as file:
    json.dump([seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024], file)
sys.exit(code)
"""


@dataclass(frozen=True, slots=True)
class Used:
    """What a command has used."""

    seconds: float
    """On the wall."""
    cpu: float
    """Processor seconds of it and its children."""
    peak: float
    """MiB of memory of the largest of these processes."""


@contextmanager
def virtual_nodes(count: int, **options: object) -> Iterator[VirtualCluster]:
    """Start a virtual cluster; it is gone at the end. Raises SystemExit where there can be none.

    `options`: see `VirtualCluster`.
    """
    if reason := missing():
        print(f"skipped: {reason}")
        sys.exit(0)
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        VirtualCluster(count, directory, **options) as cluster,
    ):
        cluster.put("control", _METER, _METER_TEXT)
        yield cluster


def cluster_text(nodes: int, slots: int = 1, **more: object) -> str:
    """Return a cluster file of the first nodes."""
    text = f"nodes: [{{host: 'node[1-{nodes}]', slots: {slots}}}]\n"
    return text + "".join(f"{key}: {json.dumps(value)}\n" for key, value in more.items())


def metered(command: Sequence[str]) -> list[str]:
    """Return a command that runs this one on the control machine, and notes what it uses."""
    return [PYTHON, _METER, *command]


def used(cluster: VirtualCluster) -> Used:
    """Return what the last command has used that was `metered`."""
    text = cluster.run("control", ["cat", _USED], check=True).stdout
    return Used(*json.loads(text))


def measured(
    cluster: VirtualCluster, command: Sequence[str], *, env: Mapping[str, str] | None = None
) -> Used:
    """Run a command on the control machine. Raises SystemExit if it fails."""
    done = cluster.run("control", metered(command), cwd="/root", env=env, timeout=LONGEST)
    if done.returncode:
        words = (done.stdout + done.stderr)[-2000:]
        sys.exit(f"exit code {done.returncode}: {' '.join(command)}\n{words}")
    return used(cluster)


def sent_bytes(cluster: VirtualCluster) -> int:
    """Return the bytes that the control machine has sent (proc(5), /proc/net/dev)."""
    text = cluster.run("control", ["cat", "/proc/net/dev"], check=True).stdout
    return int(text.partition("eth0:")[2].split()[8])


def nodes_cpu(cluster: VirtualCluster, nodes: Sequence[str]) -> float:
    """Return the processor seconds of nodes so far, also of processes that have exited: their
    parents have them among those of their children (proc(5), /proc/PID/stat)."""
    ticks = 0
    for node in nodes:
        text = cluster.run(node, ["sh", "-c", "cat /proc/[0-9]*/stat"]).stdout
        for line in text.splitlines():
            after_name = line.rpartition(")")[2].split()
            ticks += sum(map(int, after_name[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
