"""Random faults at random moments, and what must hold whatever happens.

`python -m tests.testbed.chaos --seed 7 --runs 40` makes 40 runs on a virtual cluster; each depends
on the seed and its number alone, so that `--only 13` repeats one. It ends with 1 at the first run
that breaks a promise, and says which.

In each run one or two faults are injected. Whatever they are: the run ends in time; its exit code
is 0 exactly if nothing fatal happened; the message names the node or the process that was hit;
every rank's log is a whole beginning of what it wrote, and all of it after a good end; nobody sees
a traceback; after `clean` nothing of the run is left, neither processes nor files; and a bystander,
a process of the same user, lives.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.testbed.project import Project
from tests.testbed.test_own_processes import programs
from tests.testbed.vcluster import VirtualCluster
from tests.testbed.vcluster.api import Running
from tests.testbed.vcluster.state import ClusterError

JOB = """\
import sys, time
for i in range(int(sys.argv[1])):
    print("line", i, flush=True)
    time.sleep(0.02)
"""
BYSTANDER = ("sleep", "100000")
LINES = 250
NODES = "nodes: [{host: 'node[1-3]', slots: 2}]"
RANKS = 2
"""On each node."""
BOUND = 100.0
"""Seconds from the start until the end of a run, on a loaded machine."""
OK, INTERRUPTED, UNREACHABLE, KILLED = 0, 130, 5, 137


class BrokenPromise(Exception):
    """What must always hold did not."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a node, or to the launcher."""

    name: str
    inject: Callable[[Project, str, Running], None]
    code: int = OK
    """The exit code of a run to which only this happens."""
    words: str = ""
    """A pattern that standard error then shows; {node} is the node."""


def _signal(name: str, *which: str) -> Callable[[Project, str, Running], None]:
    """Send a signal to our own programs on a node."""

    def inject(project: Project, node: str, running: Running) -> None:
        found = programs(project, node)
        pids = [str(found[each].pid) for each in which if each in found]
        if pids:
            project.cluster.run(node, ["kill", f"-{name}", *pids], user="root")

    return inject


def _kill_rank(project: Project, node: str, running: Running) -> None:
    ranks = [p for p in project.cluster.processes(node) if "RANK" in p.environ]
    if ranks:
        project.cluster.run(node, ["kill", "-KILL", str(ranks[0].pid)], user="root")


def _drop_session(project: Project, node: str, running: Running) -> None:
    script = "kill -KILL $(pgrep -f '[s]shd: root@notty')"
    project.cluster.run(node, ["sh", "-c", script], user="root")


def _to_launcher(number: signal.Signals) -> Callable[[Project, str, Running], None]:
    return lambda project, node, running: running.send_signal(number)


def _disturb(*words: str | float) -> Callable[[Project, str, Running], None]:
    def inject(project: Project, node: str, running: Running) -> None:
        with contextlib.suppress(ClusterError):  # it has this fault already
            project.cluster.fault(node, *map(str, words))

    return inject


FAULTS = (
    Fault("rank killed", _kill_rank, 128 + 9, r"rank \d+ on {node} failed first"),
    Fault(
        "agent killed", _signal("KILL", "agent"), UNREACHABLE,
        "the agent on {node} was killed by SIGKILL",
    ),
    Fault(
        "agent asked to end", _signal("TERM", "agent"), UNREACHABLE,
        "the agent on {node} was killed by SIGTERM",
    ),
    Fault("guardian killed", _signal("KILL", "guardian"), UNREACHABLE, "the guardian on {node}"),
    Fault("agent and guardian killed", _signal("KILL", "guardian", "agent"), UNREACHABLE, "{node}"),
    Fault("bridge killed", _signal("KILL", "bridge")),
    Fault("agent stopped", _signal("STOP", "agent")),
    Fault("guardian stopped", _signal("STOP", "guardian")),
    Fault("agent and guardian stopped", _signal("STOP", "agent", "guardian")),
    Fault("session dropped", _drop_session),
    Fault("sshd stopped", _disturb("sshd-down")),
    Fault("10 % of packets lost", _disturb("loss", 10)),
    Fault(
        "interrupted", _to_launcher(signal.SIGINT), INTERRUPTED, "interrupted|stopping all nodes"
    ),
    Fault("launcher killed", _to_launcher(signal.SIGKILL), KILLED),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done in one run, made of the seed and the run's number alone."""

    options: tuple[str, ...]
    transport: str
    faults: tuple[tuple[float, str, Fault], ...]
    """Seconds after the first line of output, the node, and what happens to it."""

    def __str__(self) -> str:
        done = ", ".join(f"{fault.name} on {node} at {at:.1f} s" for at, node, fault in self.faults)
        return f"{self.transport}, {' '.join(self.options)}: {done}"


def make_plan(seed: int, number: int, nodes: Sequence[str]) -> Plan:
    """Draw a run."""
    draw = random.Random(f"{seed}-{number}")
    options = (
        "--grace",
        "2",
        "--heartbeat-timeout",
        str(draw.choice((3, 4))),
        "--reconnect-timeout",
        "12",
    )
    faults = [
        (draw.uniform(0, 4), draw.choice(list(nodes)), draw.choice(FAULTS))
        for _ in range(draw.choice((1, 1, 2)))
    ]
    names = {fault.name for _, _, fault in faults}
    if {"sshd stopped"} < names:  # then a dropped session cannot come back
        faults = [each for each in faults if each[2].name != "sshd stopped"]
    ordered = tuple(sorted(faults, key=lambda each: each[0]))
    return Plan(options, draw.choice(("fabric", "openssh")), ordered)


def perform(project: Project, plan: Plan) -> None:
    """Make one run. Raises BrokenPromise."""
    project.write("job.py", JOB)
    project.describe(NODES, transport=plan.transport)
    bystanders = {node: project.cluster.popen(node, BYSTANDER) for node in project.cluster.names}
    try:
        _perform(project, plan)
        for node, bystander in bystanders.items():
            _hold(bystander.popen.poll() is None, f"the bystander on {node} lives")
    finally:
        for bystander in bystanders.values():
            bystander.kill()


def _perform(project: Project, plan: Plan) -> None:
    from tests.testbed.test_faults import Watched

    before = _files(project)
    began = time.monotonic()
    with project.start(*plan.options, "c.yaml", "job.py", str(LINES)) as running:
        watched = Watched(running)
        watched.wait_for("line 0$")
        first = time.monotonic()
        happened = []
        for at, node, fault in plan.faults:
            _sleep(first + at - time.monotonic())
            if running.popen.poll() is not None:
                break
            fault.inject(project, node, running)
            happened.append((node, fault))
        code = watched.end(BOUND)
    _hold(time.monotonic() - began < BOUND, f"it ends within {BOUND:.0f} s")
    project.cluster.heal()
    _check_end(code, watched.text(), happened)
    _check_logs(project, watched.text(), whole=code == OK)
    project.cluster.run("control", project.command("clean", "c.yaml"), cwd=project.path)
    _wait_for_the_end(project)
    project.cluster.run("control", project.command("clean", "c.yaml"), cwd=project.path)
    made = _files(project) - before
    _hold(not made, f"no file is left: {sorted(made)[:9]}")


def _check_end(code: int, text: str, happened: Sequence[tuple[str, Fault]]) -> None:
    _hold("Traceback" not in text, f"nobody sees a traceback:\n{text[-3000:]}")
    fatal = [(node, fault) for node, fault in happened if fault.code != OK]
    # what comes in the last moments may find a run that is over
    allowed = {fault.code for _, fault in fatal} | {OK} if fatal else {OK}
    names = [f"{fault.name} on {node}" for node, fault in happened]
    _hold(code in allowed, f"code {code} in {allowed} after {names}:\n{text[-3000:]}")
    if code == OK and fatal:
        _hold("all ranks exited successfully" in text, f"a good end is a good end:\n{text[-3000:]}")
    told = [fault.words.format(node=node) for node, fault in fatal if fault.code == code]
    if told and code not in (OK, KILLED) and all(told):
        _hold(any(re.search(words, text) for words in told), f"{told} is named:\n{text[-3000:]}")


def _check_logs(project: Project, text: str, *, whole: bool) -> None:
    found = re.search(r"^  run +(/\S+)$", text, re.MULTILINE)
    if found is None:
        return
    for rank in range(RANKS * len(project.cluster.names)):
        log = f"{found[1]}/logs/node{rank // RANKS + 1}.{rank}.log"
        words = project.cluster.run("control", ["cat", log], user="root").stdout.splitlines()
        numbers = [int(word[1]) for line in words if len(word := line.split()) == 2]
        _hold(numbers == list(range(len(numbers))), f"each line of rank {rank} is there once")
        _hold(not whole or len(numbers) == LINES, f"all lines of rank {rank} are there")


def _wait_for_the_end(project: Project) -> None:
    """All processes of the run end within the time in which nodes give up a launcher."""
    deadline = time.monotonic() + 40
    while True:
        seen = {node: project.cluster.processes(node) for node in project.cluster.names}
        left = [p for found in seen.values() for p in found if p.argv != BYSTANDER]
        if not left:
            return
        _hold(time.monotonic() < deadline, f"no process is left: {left}")
        _sleep(0.3)


def _files(project: Project) -> set[str]:
    """Files in /tmp of all nodes; the place of our runs itself stays."""
    found = set()
    for node in project.cluster.names:
        listed = project.cluster.run(
            node, ["find", "/tmp", "-xdev", "-mindepth", "1"], user="root"
        ).stdout
        found |= {f"{node}:{name}" for name in listed.splitlines()}
    return {name for name in found if not re.fullmatch(r"node\d+:/tmp/dslaunch-\d+", name)}


def _hold(holds: bool, promise: str) -> None:
    if not holds:
        raise BrokenPromise(promise)


def _sleep(seconds: float) -> None:
    time.sleep(max(0.0, seconds))


def main() -> None:
    """Make the runs; leave with 1 at the first broken promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--only", type=int, help="the number of one run, to repeat it")
    asked = parser.parse_args()
    numbers = range(asked.runs) if asked.only is None else [asked.only]
    with VirtualCluster(nodes=3) as cluster:
        for number in numbers:
            plan = make_plan(asked.seed, number, cluster.names)
            project = Project(cluster, f"/root/chaos-{number}")
            began = time.monotonic()
            try:
                perform(project, plan)
            except (BrokenPromise, AssertionError) as broken:
                sys.exit(f"run {number} of seed {asked.seed} ({plan}): {broken}")
            print(f"{number}: {time.monotonic() - began:.0f} s: {plan}", flush=True)


if __name__ == "__main__":
    main()
