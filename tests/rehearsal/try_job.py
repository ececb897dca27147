"""Run a job of the rehearsal with its launcher alone, on this machine.

`python -m tests.rehearsal.try_job NAME...` starts each job as two nodes would: two launchers, each
in a directory of its own (one for both if the job shares it), connected by the loopback interface.
It prints the end of the output of each node, and what dslaunch says of it. `--all` checks every job
instead and prints one line for each: does it do what its entry says?
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from msgspec.structs import replace

from dslaunch.run.endings import diagnose
from tests.ports import free_port
from tests.rehearsal.jobs import (
    NODES,
    SCRIPT,
    BrokenJob,
    Job,
    Outcome,
    broken_jobs,
    sound_jobs,
)

ADDRESS = "127.0.0.1"
GRACE = 20
"""Seconds that a node may outlive the first one that failed."""
LOST = frozenset({"collective-sizes", "gloo-closed", "native-crash"})
"""Endings of ranks that have lost each other."""
_BY_LAUNCHER = re.compile(r"^(?:[EWI]\d{4} |\[\d{4}-\d\d-\d\d |\[rank\d+\]:\[?[EWI]\d{4})")
_LAUNCHERS_REPORT = re.compile(
    r"failed \(exitcode: |Sending process \d+ closing|Killing subprocess"
)
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")


@dataclass(frozen=True, slots=True)
class NodeResult:
    """How a node's launcher ended."""

    exit_code: int | None
    """None: it was still running at the limit, or after another node had failed."""
    lines: tuple[str, ...]

    @property
    def by_ranks(self) -> tuple[str, ...]:
        """The lines before those that the launcher writes when a rank has failed."""
        return tuple(takewhile(lambda line: not _LAUNCHERS_REPORT.search(line), self.lines))


@dataclass(frozen=True, slots=True)
class Trial:
    """How a job ended."""

    nodes: tuple[NodeResult, ...]
    seconds: float

    @property
    def failed(self) -> bool:
        return any(node.exit_code for node in self.nodes)

    @property
    def succeeded(self) -> bool:
        return all(node.exit_code == 0 for node in self.nodes)

    def codes(self) -> tuple[str | None, ...]:
        """Return the code of the known ending of each node that failed."""
        return tuple(diagnose(node.by_ranks).code for node in self.nodes if node.exit_code)


def run(job: Job, limit: float) -> Trial:
    """Run a job until its nodes have ended, or for `limit` seconds."""
    with tempfile.TemporaryDirectory(prefix="jobs-") as scratch:
        directories = [Path(scratch) / f"node{node}" for node in range(NODES)]
        if job.shared:
            directories = [Path(scratch) / "shared"] * NODES
        for directory in set(directories):
            _write(job, directory)
        commands = _commands(job, Path(scratch))
        outputs = [Path(scratch) / f"node{node}.log" for node in range(NODES)]
        begin = time.monotonic()
        with _started(commands, directories, outputs) as processes:
            _wait(processes, begin + limit)
            codes = [process.poll() for process in processes]
        seconds = time.monotonic() - begin
        lines = [path.read_text("utf-8", "replace").splitlines() for path in outputs]
    nodes = zip(codes, lines, strict=True)
    return Trial(tuple(NodeResult(code, tuple(text)) for code, text in nodes), seconds)


def _write(job: Job, directory: Path) -> None:
    for name, text in {SCRIPT: job.script, **job.files}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def _commands(job: Job, scratch: Path) -> tuple[tuple[str, ...], ...]:
    """Return the command of each node."""
    port = free_port()
    hostfile = scratch / "hostfile"
    hosts = [f"node{node} slots={job.slots}\n" for node in range(NODES)]
    hostfile.write_text("".join(hosts))
    return tuple((*_launcher(job, node, port, hostfile), *job.args) for node in range(NODES))


def _launcher(job: Job, node: int, port: int, hostfile: Path) -> tuple[str, ...]:
    program = (*job.launcher_args, SCRIPT)
    match job.launcher:
        case "torchrun":
            return (
                *_module("torch.distributed.run"),
                f"--nnodes={NODES}",
                f"--nproc-per-node={job.slots}",
                f"--node-rank={node}",
                f"--master-addr={ADDRESS}",
                f"--master-port={port}",
                *program,
            )
        case "deepspeed":
            return (
                *_module("deepspeed.launcher.runner"),
                f"--hostfile={hostfile}",
                "--no_ssh",
                f"--node_rank={node}",
                f"--master_addr={ADDRESS}",
                f"--master_port={port}",
                *program,
            )
        case "accelerate":
            return (
                *_module("accelerate.commands.launch"),
                f"--num_processes={NODES * job.slots}",
                f"--num_machines={NODES}",
                f"--machine_rank={node}",
                f"--main_process_ip={ADDRESS}",
                f"--main_process_port={port}",
                "--gpu_ids=all",
                "--multi_gpu",
                "--same_network",
                *program,
            )
    # `direct` starts one rank: jobs of two slots use another launcher
    variables = {
        "RANK": node,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": NODES,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": node,
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": port,
    }
    settings = [f"{name}={value}" for name, value in variables.items()]
    return ("env", *settings, sys.executable, "-u", *program)


def _module(name: str) -> tuple[str, ...]:
    return (sys.executable, "-u", "-m", name)


@contextmanager
def _started(
    commands: Sequence[Sequence[str]], directories: Sequence[Path], outputs: Sequence[Path]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the nodes; kill what is left of them in the end."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command, directory, output in zip(commands, directories, outputs, strict=True):
            with output.open("wb") as file:
                process = subprocess.Popen(
                    command,
                    cwd=directory,
                    env=_environment(directory),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            processes.append(process)
        yield processes
    finally:
        for process in processes:
            _kill(process.pid)
            process.wait()


def _environment(directory: Path) -> Mapping[str, str]:
    # as dslaunch sets it on nodes without GPUs; without it Accelerate's ranks train alone
    more = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HOME": str(directory / ".home")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **more, "PATH": path}


def _kill(leader: int) -> None:
    """Kill the descendants of a launcher: torch's start sessions of their own."""
    for pid in (*_descendants(leader), leader):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _descendants(pid: int) -> Iterator[int]:
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = tasks.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            yield from _descendants(int(child))
            yield int(child)


def _wait(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> None:
    """Wait until all have ended; for a short time only after one has failed."""
    failed = False
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if None not in codes:
            return
        if any(codes) and not failed:
            failed = True
            deadline = min(deadline, time.monotonic() + GRACE)
        time.sleep(0.1)


def agrees(broken: BrokenJob | None, trial: Trial) -> list[str]:
    """Return how the trial contradicts the job's entry."""
    if broken is None:
        return [] if trial.succeeded else ["a sound job failed or hung"]
    mistakes = []
    if broken.outcome is Outcome.DIES and not trial.failed:
        mistakes.append("did not fail")
    if broken.outcome is Outcome.WRONG and not trial.succeeded:
        mistakes.append("did not succeed")
    # gloo ends ranks that are in different collectives, where other backends wait
    is_lost = trial.failed and set(trial.codes()) <= LOST
    if broken.outcome is Outcome.HANGS and (trial.failed or trial.succeeded) and not is_lost:
        mistakes.append("did not hang")
    if broken.outcome is Outcome.DIES and not broken.expect & set(trial.codes()):
        mistakes.append(f"known endings: {trial.codes()}")
    written = {_stable(line) for node in trial.nodes for line in node.lines}
    if broken.alone and _stable(broken.alone) not in written:
        mistakes.append("`alone` was not written")
    return mistakes


def _stable(line: str) -> str:
    """Return a line without the directories, numbers and addresses, which differ by trial."""
    text = _RANK_PREFIX.sub("", line.strip()).strip()
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/jobs-\w+/\w+/", "", text)
    return re.sub(r"0x[0-9a-f]+|\d+", "0", text)


def telling(trial: Trial) -> str:
    """Return the last line of a failed rank that is probably its reason."""
    for node in trial.nodes:
        found = diagnose(node.by_ranks)
        if node.exit_code and not found.secondary and found.what:
            return f"{found.code}: {found.what}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal.try_job")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a job, or a part of its name")
    parser.add_argument("--all", action="store_true", help="check every job, one line each")
    parser.add_argument("--direct", action="store_true", help="start the ranks without a launcher")
    parser.add_argument("--limit", type=float, default=60, help="seconds for each job (60)")
    parser.add_argument("--lines", type=int, default=25, help="last lines of a node to print (25)")
    options = parser.parse_args()
    bad = 0
    for job, broken in _chosen(options.names, every=options.all and not options.names):
        if any(importlib.util.find_spec(package) is None for package in job.requires):
            print(f"skipped  {job.name}: requires {', '.join(job.requires)}")
            continue
        trial = run(_direct(job) if options.direct else job, options.limit)
        mistakes = agrees(broken, trial)
        bad += bool(mistakes)
        if not options.all:
            _print_output(trial, options.lines)
        state = "BAD " if mistakes else "good"
        exits = [node.exit_code for node in trial.nodes]
        said = "; ".join(mistakes) or telling(trial)
        print(f"{state} {trial.seconds:5.1f} s  {job.name}  exits {exits}  {said}", flush=True)
    return min(bad, 1)


def _chosen(names: Sequence[str], *, every: bool) -> list[tuple[Job, BrokenJob | None]]:
    """Return the jobs whose name contains one of `names`; sound ones without an entry."""
    jobs: list[tuple[Job, BrokenJob | None]] = [(each.job, each) for each in broken_jobs()]
    jobs += [(job, None) for job in sound_jobs()]
    return [each for each in jobs if every or any(name in each[0].name for name in names)]


def _direct(job: Job) -> Job:
    """Return a job that starts its rank on each node without a launcher, if it can."""
    plain = job.slots == 1 and job.launcher in ("torchrun", "accelerate")
    return replace(job, launcher="direct") if plain and not job.launcher_args else job


def _print_output(trial: Trial, count: int) -> None:
    for number, node in enumerate(trial.nodes):
        print(f"---- node {number}, exit code {node.exit_code}")
        shown = [line for line in node.by_ranks if not _BY_LAUNCHER.search(line)]
        print("\n".join(shown[-count:]))


if __name__ == "__main__":
    sys.exit(main())
