"""The GPUs of the machine that runs the tests, as one node that `transport: local` emulates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dslaunch.node import processes

HOST = "node1"
JOBS = Path(__file__).parent / "jobs"
EXAMPLES = Path(__file__).parents[2] / "examples"
LOOK = """
import json, torch
seen = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
print(json.dumps([{"name": d.name, "memory": d.total_memory, "uuid": str(d.uuid)} for d in seen]))
"""
VERSIONS = """
import torch
nccl = ".".join(map(str, torch.cuda.nccl.version()))
print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}")
"""
LISTED = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
CLUSTER = """\
name: gpu
transport: local
storage: {workdir: work, checkpoints: work/checkpoints}
nodes:
"""


@dataclass(frozen=True)
class Device:
    """A GPU as PyTorch describes it."""

    name: str
    memory: int
    """Bytes."""
    uuid: str


def output_of(command: list[str]) -> str | None:
    """Return what a program prints on standard output; None if it fails."""
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    except OSError:
        return None
    return None if done.returncode else done.stdout


def versions() -> str:
    """Return the versions of torch, CUDA and NCCL, as one line."""
    return (output_of([sys.executable, "-c", VERSIONS]) or "?").strip()


@dataclass(frozen=True)
class Run:
    """A run that has ended, as `dslaunch run --json` reports it."""

    outcome: dict[str, Any]
    lines: tuple[dict[str, Any], ...]

    @property
    def text(self) -> str:
        """Everything that the ranks and their launcher printed, and the outcome: for messages."""
        return "\n".join(line["text"] for line in self.lines) + f"\n{self.outcome}"

    def values(self, key: str) -> list[Any]:
        """Return what ranks printed as JSON objects with that key."""
        texts = [line["text"] for line in self.lines if line["text"].startswith("{")]
        return [told[key] for told in map(json.loads, texts) if key in told]


@dataclass
class Machine:
    """The node, and how dslaunch is called on it."""

    directory: Path
    environment: dict[str, str]
    state: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def describe(self, slots: int, hosts: str = HOST) -> None:
        """Write the cluster file; several hosts are this machine several times."""
        self._describe([f"{{host: '{hosts}', slots: {slots}}}"])

    def describe_shared(self, nodes: int) -> None:
        """Write a cluster file with nodes of one slot each, whose ranks share the first GPU.

        NCCL refuses two ranks on one GPU of a host. With a host identity for each node it connects
        them by the network, as it connects real nodes (NCCL's documentation, NCCL_HOSTID).
        """
        own = "env: {NCCL_HOSTID: HOST, NCCL_SOCKET_IFNAME: lo}"
        names = [f"node{number}" for number in range(1, nodes + 1)]
        self._describe(
            [f"{{host: {name}, slots: 1, {own.replace('HOST', name)}}}" for name in names]
        )

    def _describe(self, nodes: list[str]) -> None:
        text = CLUSTER + "".join(f"  - {node}\n" for node in nodes)
        (self.directory / "cluster.yaml").write_text(text)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start dslaunch."""
        command = [sys.executable, "-m", "dslaunch", *words]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            command, cwd=self.directory, env=self.environment, text=True, **pipes
        )
        self.started.append(process)
        return process

    def call(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Return what dslaunch prints; it must end with one of these exit codes."""
        process = self.start(*words)
        output, errors = process.communicate(timeout=540)
        assert process.returncode in codes, errors + output
        return output

    def run(self, job: Path, *args: str, options: tuple[str, ...] = ()) -> Run:
        """Run a job to its end, whatever that is."""
        (self.directory / job.name).write_text(job.read_text())
        process = self.start("run", "--json", *options, "cluster.yaml", job.name, *args)
        output, errors = process.communicate(timeout=180)
        events = [json.loads(line) for line in output.splitlines()]
        outcomes = [event for event in events if event["kind"] == "outcome"]
        assert outcomes, errors + output
        return Run(outcomes[-1], tuple(e for e in events if e["kind"] == "output"))

    def findings(self, *words: str) -> list[dict[str, Any]]:
        """Return the findings of a preflight, fit or not."""
        report = json.loads(self.call("preflight", "--json", "--all", *words, codes=(0, 4)))
        found: list[dict[str, Any]] = report["findings"]
        return found

    def left(self) -> list[int]:
        """Return the processes that belong to a run of this machine."""
        ids = {path.name.encode() for path in self.state.glob("runs/*")}
        tagged = {
            pid: processes.environment(pid).get(b"DSLAUNCH_RUN_ID") for pid in processes.pids()
        }
        return [pid for pid, run in tagged.items() if run in ids]


def memory_used() -> list[int]:
    """Return the memory in use on each GPU in MiB."""
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    return [int(line) for line in done.stdout.split()]
