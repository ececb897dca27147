"""Jobs on a virtual cluster's SLURM: what tests do at a login node's prompt."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.testbed.vcluster import CONTROL, NodeProcess, VirtualCluster
from tests.testbed.vcluster.api import Running, Text
from tests.testbed.vcluster.services import SERVICES, services_of
from tests.testbed.vcluster.slurm import ASKING, asking, await_idle, await_registered, members

PROGRAM = [sys.executable, "-m", "dslaunch"]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SHARED = "/shared"
"""Where jobs are submitted, so that their output is where every node and this machine see it."""


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted job."""

    cluster: VirtualCluster
    number: str

    def show(self) -> dict[str, str]:
        """The fields of `scontrol show job`: JobState, ExitCode, Reason, Restarts, BatchHost..."""
        command = ["scontrol", "--oneliner", "show", "job", self.number]
        said = self.cluster.run(CONTROL, command, check=True).stdout.splitlines()[0]
        return dict(re.findall(r"(\S+?)=(\S*)", said))

    @property
    def state(self) -> str:
        """Such as RUNNING, COMPLETED or NODE_FAIL."""
        return self.show()["JobState"]

    def wait(self, *states: str, within: float = 300) -> str:
        """Its state, once that is one of `states` (COMPLETED unless named). TimeoutError."""
        wanted = states or ("COMPLETED",)
        until(lambda: self.state in wanted, within, lambda: str(self.show()), pause=ASKING)
        return self.state

    def says(self, text: str, within: float = 300) -> None:
        """Wait until its output has a text. TimeoutError tells what it has instead."""
        until(lambda: text in self.output, within, lambda: self.output + str(self.show()))

    @property
    def output(self) -> str:
        """Standard output and error so far, if they are where SLURM puts them by default."""
        file = self.cluster.shared / f"slurm-{self.number}.out"
        return file.read_text() if file.exists() else ""


def until(
    true: Callable[[], bool], within: float, told: Callable[[], str] = str, *, pause: float = 0.05
) -> None:
    """Return once it is true; TimeoutError with what is `told` when it is not `within` seconds.
    `pause`: seconds between two looks."""
    deadline = time.monotonic() + within
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within:.0f} s: {told()}")
        time.sleep(pause)


@dataclass
class Site:
    """A directory that all nodes share, from which dslaunch is called."""

    cluster: VirtualCluster
    name: str

    @property
    def path(self) -> str:
        """As the nodes see it."""
        return f"/shared/{self.name}"

    @property
    def here(self) -> Path:
        """As this machine sees it."""
        return self.cluster.shared / self.name

    def describe(self, nodes: str = "{host: 'node[1-4]', slots: 1}", **slurm: str) -> None:
        """Write its cluster file."""
        wanted = {"exclusive": "false", "time": "10", "cpus_per_task": "1"} | slurm
        lines = [f"nodes: [{nodes}]", f"python: {sys.executable}", "launcher: direct"]
        lines += ["network: {interface: eth0}", f"storage: {{workdir: {self.path}}}", "slurm:"]
        lines += [f"  {name}: {value}" for name, value in wanted.items()]
        (self.here / "c.yaml").write_text("\n".join(lines) + "\n")

    def write(self, name: str, text: str) -> None:
        """Put a script into it."""
        (self.here / name).write_text(text)

    def env(self, said: str = "said") -> dict[str, str]:
        """What dslaunch is told. Each file of standard error has its own directory of runs."""
        state = "state" if said == "said" else f"state-{said}"
        return {"DSLAUNCH_STATE": f"{self.path}/{state}", "LC_ALL": "C.UTF-8"}

    def run(self, *words: str, timeout: float = 240, **env: str) -> Text:
        """`dslaunch` with these words, waited for."""
        return self.cluster.run(
            CONTROL, [*PROGRAM, *words], cwd=self.path, env=self.env() | env, timeout=timeout
        )

    def start(self, *words: str, said: str = "said") -> Running:
        """`dslaunch` with these words, not waited for; the file `said` is its standard error."""
        shell = ["sh", "-c", f'exec "$@" 2>{said}', "sh", *PROGRAM, *words]
        return self.cluster.popen(CONTROL, shell, cwd=self.path, env=self.env(said))

    @property
    def said(self) -> str:
        """What a started one has told so far."""
        return self.read("said")

    def read(self, name: str) -> str:
        """A file of it; empty: not there yet."""
        file = self.here / name
        return file.read_text() if file.exists() else ""

    def submitted(self, said: str = "said") -> str:
        """The number of the job that a started one has submitted, once it has."""
        until(lambda: bool(self.runs("run.json", said)), 300, lambda: self.read(said))
        return str(self.runs("run.json", said)[-1]["slurm"]["job"])

    def outcome(self, said: str = "said") -> dict[str, Any]:
        """The outcome of the last followed run, with the codes of docs/reference/codes.md."""
        return self.runs("result.json", said)[-1]

    def verdict(self, said: str = "said") -> dict[str, Any]:
        """What is known of the only job of the last followed run, with its code."""
        (found,) = self.outcome(said)["jobs"]
        return dict(found)

    def runs(self, name: str, said: str = "said") -> list[dict[str, Any]]:
        """The files of that name in the directories of runs, the oldest first."""
        state = Path(self.env(said)["DSLAUNCH_STATE"]).name
        files = (self.here / state / "runs").glob(f"*/{name}")
        return [json.loads(file.read_text()) for file in sorted(files, key=_last_change)]

    def tells_more(self, act: Callable[[], object], within: float = 300) -> None:
        """Act, and wait until a started one has told something about it. TimeoutError."""
        before = self.said
        act()
        until(lambda: self.said != before, within, lambda: self.said)

    def tells_of_nodes(self, hosts: str, within: float = 300) -> None:
        """Wait until a started one has told which nodes its job has: it asks now and then, so that
        this may come after the job's first output. TimeoutError."""
        until(lambda: hosts in self.said, within, lambda: self.said)

    def number(self) -> str:
        """The number of the only job that has written something."""
        (out,) = self.here.glob("*.out")
        return re.findall(r"\d+", out.name)[0]

    def detached(self, *words: str) -> str:
        """Submit and leave; give the job's number."""
        done = self.run("slurm", "--detach", "c.yaml", *words)
        assert done.returncode == 0, done.stderr
        return self.submitted()

    def output(self, number: str) -> str:
        """What a job has written so far."""
        files = sorted(self.here.glob(f"*-{number}*.out"))
        return "".join(file.read_text() for file in files)

    def says(self, number: str, *texts: str, within: float = 300) -> None:
        """Wait until its output has all of these."""
        until(
            lambda: all(text in self.output(number) for text in texts),
            within,
            lambda: self.output(number),
        )


def _last_change(file: Path) -> float:
    return file.stat().st_mtime


def parameters(text: str) -> float:
    """What a training says of its parameters at the end."""
    return float(re.findall(r"sum of parameters (-?[0-9.]+)", text)[0])


def submit(cluster: VirtualCluster, script: str, *options: str, user: str | None = None) -> Job:
    """`sbatch OPTIONS` with the script's lines after `#!/bin/bash`. ClusterError: refused."""
    command = ["sbatch", "--parsable", *options]
    lines = f"#!/bin/bash\n{script}\n"
    done = cluster.run(CONTROL, command, stdin=lines, user=user, check=True, cwd=SHARED)
    return Job(cluster, done.stdout.strip())


def settle(cluster: VirtualCluster) -> None:
    """Cancel every job, heal every node, and return once SLURM takes all of them for free."""
    cluster.heal()
    started = revive(cluster)
    for controller in controllers(cluster):
        for user in {"root", cluster.user}:
            cluster.run(CONTROL, [*controller, "scancel", f"--user={user}"], check=True)
    await_idle(cluster.cluster)
    end_orphans(cluster)
    if any(name.startswith("slurmctld") for name in started):
        forget_launches(cluster)


def revive(cluster: VirtualCluster) -> list[str]:
    """Let every daemon of the control machine run that should: continued, else started. Return
    the names of those that were started."""
    dead = stopped_services(cluster)
    for name in dead:
        cluster.service(CONTROL, name, "start")
    await_answers(cluster)
    return dead


def await_answers(cluster: VirtualCluster) -> None:
    """Wait until every controller answers, and slurmdbd knows where it listens. TimeoutError,
    ClusterError."""

    def all_answer() -> bool:
        pings = [[*controller, "scontrol", "ping"] for controller in controllers(cluster)]
        return all(cluster.run(CONTROL, ping).returncode == 0 for ping in pings)

    until(all_answer, 300, pause=ASKING)
    await_registered(cluster.cluster)


def controllers(cluster: VirtualCluster) -> list[tuple[str, ...]]:
    """The command prefixes that ask each SLURM cluster."""
    slurm = cluster.cluster.settings.slurm
    assert slurm is not None
    return [asking(member) for member in members(cluster.cluster, slurm)]


def control_services(cluster: VirtualCluster) -> list[str]:
    """SLURM's daemons of the control machine, in the order in which they start."""
    state = cluster.cluster
    return [name for name in services_of(state, state.node(CONTROL)) if name != "sshd"]


CONTINUE = 'for f; do kill -CONT "$(cat "$f")" 2>/dev/null || echo "$f"; done'
"""Continues the daemons of these PID files; prints the files of those that do not run."""


def stopped_services(cluster: VirtualCluster) -> list[str]:
    """Continue the control machine's daemons that are paused; the names of those not running."""
    names = {SERVICES[name].pid_file: name for name in control_services(cluster)}
    done = cluster.run(CONTROL, ["sh", "-c", CONTINUE, "sh", *names], user="root", check=True)
    return [names[file] for file in done.stdout.split()]


def forget_launches(cluster: VirtualCluster) -> None:
    """Have every node forget which jobs it has launched.

    A controller that dies before it saves its state gives their numbers again. A node to which no
    controller has said that a job is over refuses to launch another one of its number, and is
    drained for it: "Duplicate jobid".
    """
    for node in cluster.seen():
        if node != CONTROL:
            cluster.service(node, "slurmd", "restart")
    await_idle(cluster.cluster)


def end_orphans(cluster: VirtualCluster, within: float = 5) -> None:
    """Kill the steps, and what they started, that still run `within` seconds after SLURM took
    their nodes for free.

    A controller that dies between a job's launch and its next save of state takes the job for
    pending afterwards; once cancelled, slurmctld leaves what a node then reports of it alone as
    newly completed, until the node's next registration.
    """
    with contextlib.suppress(TimeoutError):
        until(lambda: not _with_steps(cluster), within)
    for node in _with_steps(cluster):
        pids = [str(pid) for pid in _steps(cluster.processes(node))]
        cluster.run(node, ["sh", "-c", 'kill -KILL "$@"', "sh", *pids], user="root")


def _with_steps(cluster: VirtualCluster) -> list[str]:
    seen = cluster.seen().items()
    return [name for name, found in seen if any(_is_step(process.argv) for process in found)]


def _steps(processes: list[NodeProcess]) -> set[int]:
    """The steps' daemons and all their descendants."""
    below = {process.pid for process in processes if _is_step(process.argv)}
    while more := {process.pid for process in processes if process.parent in below} - below:
        below |= more
    return below


def _is_step(argv: tuple[str, ...]) -> bool:
    return bool(argv) and argv[0].startswith("slurmstepd:")
