"""What commands that contact no node cost with many nodes.

    python -m benchmarks.offline_scale [NODES...]

Prints processor seconds and peak memory of each command for 100, 1,000 and 10,000 nodes with 8
slots, and the growth of the processor time between the two largest sizes, less that of the
smallest: 1.0 is linear, 2.0 quadratic. The goal: linear, and below 2 s for 10,000 nodes. The nodes
of a run have 8 ranks each, whose events are all recorded. Preflights replay two recordings: in one
most nodes answer alike; in the other, of nodes with 8 GPUs and 8 InfiniBand adapters, no two do.
The answers of 10,000 nodes take four minutes and 3 GB of memory to make.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

SIZES = (100, 1_000, 10_000)
RUN = "1123-100000-train-0001"
FORMATS = ("accelerate", "elastic", "env", "hostfile", "mpirun", "plan", "torchrun")
COMMANDS = {
    **{f"render {name}": f"render {name} many.yaml" for name in FORMATS},
    "render deepspeed": "render deepspeed many.yaml",
    "render include": "render include many.yaml",
    "nodes": "nodes many.yaml",
    "nodes --json": "nodes --json many.yaml",
    "validate": "validate many.yaml",
    "run --dry-run": "run --dry-run many.yaml train.py",
    "  -l direct": "run --dry-run -l direct many.yaml train.py",
    "slurm --render": "slurm --render many.yaml train.py",
    "init --hostfile": "init --hostfile hostfile -o -",
    "ps": "ps",
    "status": f"status {RUN}",
    "status --json": f"status --json {RUN}",
    "logs": f"logs {RUN}",
    "report": f"report {RUN} -o report.html",
    "topo": "topo topologies.txt",
    "topo --json": "topo --json topologies.txt",
    "topo --svg": "topo topologies.txt --svg topology.svg",
    "diff": f"diff {RUN} {RUN}",
    "estimate": "estimate --params 7e9 --largest-layer 1e8 --cluster many.yaml --gpu-memory 80GB",
    "estimate --facts": "estimate --params 7e9 --largest-layer 1e8 --facts alike.json",
    "config lint": "config lint ds_config.json --cluster many.yaml",
    "slurm lint": "slurm lint job.sh",
    "preflight --from": "preflight --from alike.json",
    "preflight --html": "preflight --from alike.json --html page.html",
    "preflight --junit": "preflight --from alike.json --junit junit.xml",
    "preflight, differing": "preflight --from differing.json",
    "  --all": "preflight --from differing.json --all",
    "  --json": "preflight --from differing.json --json",
    "  --save": "preflight --from differing.json --save saved.json",
    "  net.bandwidth": "preflight --from bandwidth.json",
}
EXPECTED = {0, 3, 4}
"""Exit codes: also of a list of nodes that is too long for an argument, and of unfit nodes."""


def prepare(directory: Path, count: int) -> None:
    """Write what the commands read."""
    from tests import dgx_nodes, many_nodes

    directory.mkdir()
    (directory / "many.yaml").write_text(many_nodes.cluster_text(count))
    (directory / "hostfile").write_text(many_nodes.hostfile_text(count))
    (directory / "train.py").write_text("")
    (directory / "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 1}')
    (directory / "job.sh").write_text(
        f"#!/bin/bash\n#SBATCH --nodes={count}\n#SBATCH --nodelist=n[00001-{count:05}]\n"
        "srun torchrun --nnodes=$SLURM_NNODES train.py\n"
    )
    (directory / "topologies.txt").write_text(many_nodes.topology_text(count))
    many_nodes.recording(count).save(directory / "alike.json")
    dgx_nodes.recording(count).save(directory / "differing.json")
    dgx_nodes.recording(count, "net.bandwidth").save(directory / "bandwidth.json")
    runs = directory / "state" / "runs"
    runs.mkdir(mode=0o700, parents=True)
    (directory / "state").chmod(0o700)
    many_nodes.write_run(runs / RUN, count)


def measure(directory: Path, command: str) -> tuple[float, float]:
    """Return processor seconds and peak MiB of one command. Raises SystemExit if it fails."""
    words = [sys.executable, "-m", "dslaunch", *command.split()]
    environment = {**os.environ, "DSLAUNCH_STATE": str(directory / "state")}
    with subprocess.Popen(
        words,
        cwd=directory,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in EXPECTED:
        raise SystemExit(f"{command}: exit code {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def growth(sizes: list[int], times: list[float]) -> str:
    """Return the exponent between the two largest sizes."""
    base, *rest = times
    if len(rest) < 2 or min(rest[-2:]) - base < 0.01:
        return ""
    factor = (rest[-1] - base) / (rest[-2] - base)
    return f"{math.log(factor) / math.log(sizes[-1] / sizes[-2]):.1f}"


def main() -> None:
    """Measure all commands and print one row for each, as soon as it is known."""
    sizes = [int(word) for word in sys.argv[1:]] or list(SIZES)
    heads = [f"{f'{count} CPU s':>13}{'MiB':>6}" for count in sizes]
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directories = {count: Path(name) / str(count) for count in sizes}
        for count, directory in directories.items():
            # by another process: a child begins with the peak memory of its parent
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                pool.submit(prepare, directory, count).result()
        print(f"{'':20}{''.join(heads)}{'growth':>8}")
        for command, words in COMMANDS.items():
            each = [measure(directory, words) for directory in directories.values()]
            cells = "".join(f"{seconds:13.2f}{memory:6.0f}" for seconds, memory in each)
            exponent = growth(sizes, [seconds for seconds, _ in each])
            print(f"{command:20}{cells}{exponent:>8}", flush=True)


if __name__ == "__main__":
    main()
