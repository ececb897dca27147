"""How long dslaunch makes you wait, against `deepspeed --help`, in one run.

    python benchmarks/startup.py [ROUNDS]

The programs take turns, so that what else the machine does hits all of them; the best time of each
counts. Prints wall and processor milliseconds, and what part of `deepspeed --help` each is. The
goal: `dslaunch render hostfile` takes at most an eighth. A Python process of a run is armed, so
that it can say what it is doing; that may cost 2 ms.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dslaunch.node import rank_hooks

CLUSTER = Path(__file__).parent.parent / "clusters" / "two-nodes.yaml"
BASE = "deepspeed --help"


def commands(directory: str) -> dict[str, list[str]]:
    """What is measured; without DeepSpeed only dslaunch."""
    beside = Path(sys.executable).parent
    variables = rank_hooks.arm(directory, {})
    armed = [f"{name}={value}" for name, value in variables.items()]
    dslaunch = [sys.executable, "-m", "dslaunch"]
    found = {
        "python -c pass": ["env", sys.executable, "-c", "pass"],
        "python -c pass, armed": ["env", *armed, sys.executable, "-c", "pass"],
        "dslaunch --version": [*dslaunch, "--version"],
        "dslaunch --help": [*dslaunch, "--help"],
        "dslaunch validate": [*dslaunch, "validate", str(CLUSTER)],
        "dslaunch render hostfile": [*dslaunch, "render", "hostfile", str(CLUSTER)],
    }
    deepspeed = shutil.which("deepspeed", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    return {**found, BASE: [deepspeed, "--help"]} if deepspeed else found


def measure(argv: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of one call, with all its children. Raises if it fails."""
    before, start = processor_seconds(), time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start, processor_seconds() - before


def processor_seconds() -> float:
    """What all our children have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure in turns and print the best of each."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as directory:
        asked = commands(directory)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in asked}
        for _ in range(rounds):
            for name, argv in asked.items():
                times[name].append(measure(argv))
    best = {name: [min(column) for column in zip(*times[name], strict=True)] for name in asked}
    print(f"{'':26}{'wall ms':>8}{'cpu ms':>8}{'wall':>8}{'cpu':>8}")
    for name, (wall, cpu) in best.items():
        parts = [f"1/{best[BASE][i] / best[name][i]:.1f}" for i in (0, 1)] if BASE in best else []
        print(f"{name:26}{wall * 1e3:8.0f}{cpu * 1e3:8.0f}" + "".join(f"{p:>8}" for p in parts))


if __name__ == "__main__":
    main()
