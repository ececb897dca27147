"""How long dslaunch makes you wait, against `deepspeed --help` and `torchx --version`, in one run.

    python -m benchmarks.startup [ROUNDS]

The programs take turns, so that what else the machine does hits all of them; the best time of each
counts. Prints wall and processor milliseconds, and what part of `deepspeed --help` each is. The
goals: `dslaunch render hostfile` takes at most an eighth of it, and no longer than `torchx
--version`; `dslaunch run` opens its first connection to a node within 250 ms. A Python process of a
run is armed, so that it can say what it is doing; that may cost 2 ms. DeepSpeed and TorchX are
looked for beside this Python and in PATH, and left out where they are not installed.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dslaunch.node import rank_hooks

CLUSTER = Path(__file__).parent.parent / "clusters" / "two-nodes.yaml"
BASE = "deepspeed --help"
DSLAUNCH = [sys.executable, "-m", "dslaunch"]
Times = tuple[float, float]
"""Wall and processor seconds."""


def commands(directory: str) -> dict[str, list[str]]:
    """What is measured; of other programs those that are installed."""
    beside = Path(sys.executable).parent
    variables = rank_hooks.arm(directory, {})
    armed = [f"{name}={value}" for name, value in variables.items()]
    found = {
        "python -c pass": ["env", sys.executable, "-c", "pass"],
        "python -c pass, armed": ["env", *armed, sys.executable, "-c", "pass"],
        "dslaunch --version": [*DSLAUNCH, "--version"],
        "dslaunch --help": [*DSLAUNCH, "--help"],
        "dslaunch validate": [*DSLAUNCH, "validate", str(CLUSTER)],
        "dslaunch render hostfile": [*DSLAUNCH, "render", "hostfile", str(CLUSTER)],
    }
    for peer in ("torchx --version", BASE):
        name, option = peer.split()
        program = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ['PATH']}")
        if program is not None:
            found[peer] = [program, option]
    return found


def measure(argv: list[str]) -> Times:
    """Return the times of one call, with all its children. Raises if it fails."""
    before, start = processor_seconds(), time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start, processor_seconds() - before


def processor_seconds() -> float:
    """What all our children have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def first_connection(directory: str) -> Times:
    """Return the times of `dslaunch run` until it connects to the SSH port of a node."""
    job = Path(directory, "job.py")
    job.touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        cluster = Path(directory, "cluster.yaml")
        port = server.getsockname()[1]
        cluster.write_text(f"nodes: [{{host: 127.0.0.1, slots: 1, port: {port}}}]\n")
        command = [*DSLAUNCH, "run", str(cluster), str(job)]
        start = time.perf_counter()
        with subprocess.Popen(
            command,
            env=os.environ | {"DSLAUNCH_STATE": directory},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as run:
            connection, _ = server.accept()
            wall, processor = time.perf_counter() - start, processor_seconds_of(run.pid)
            run.kill()
            connection.close()
    return wall, processor


def processor_seconds_of(pid: int) -> float:
    """What a running process has used."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def main() -> None:
    """Measure in turns and print the best of each."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as directory:
        measures: dict[str, Callable[[], Times]] = {
            name: partial(measure, argv) for name, argv in commands(directory).items()
        }
        measures["dslaunch run, connecting"] = partial(first_connection, directory)
        times: dict[str, list[Times]] = {name: [] for name in measures}
        for _ in range(rounds):
            for name, measured in measures.items():
                times[name].append(measured())
    best = {name: [min(column) for column in zip(*times[name], strict=True)] for name in times}
    print(f"{'':26}{'wall ms':>8}{'cpu ms':>8}{'wall':>8}{'cpu':>8}")
    for name, (wall, cpu) in best.items():
        parts = [f"1/{best[BASE][i] / best[name][i]:.1f}" for i in (0, 1)] if BASE in best else []
        print(f"{name:26}{wall * 1e3:8.0f}{cpu * 1e3:8.0f}" + "".join(f"{p:>8}" for p in parts))


if __name__ == "__main__":
    main()
