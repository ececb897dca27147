"""What each phase of a run costs the launcher: called by many_nodes.py, on its control machine.

    python -m benchmarks.launch_phases CLUSTER_FILE JOB

The steps of a run, one after the other, each on all nodes before the next one begins. Prints JSON:
for each phase its name, processor seconds, seconds on the wall, and what it left in memory and what
it sent and received, in bytes.
"""

from __future__ import annotations

import gc
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from dslaunch import transport
from dslaunch.cluster.model import Cluster, Node
from dslaunch.cluster.select import select
from dslaunch.launch.facts import facts_pieces
from dslaunch.launch.job import Job
from dslaunch.launch.plan import plan_pieces
from dslaunch.launch.planner import make_plan
from dslaunch.node.frames import Output
from dslaunch.preflight import checks
from dslaunch.protocol.messages import NodeEvent
from dslaunch.run.agent_program import AgentStart
from dslaunch.run.agent_starter import close_all
from dslaunch.run.evidence import gather
from dslaunch.run.gate import QUICK, Gate
from dslaunch.run.inbox import Inbox
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.prepare import decide, inquiry
from dslaunch.run.session import Session
from dslaunch.run.start_message import start_ranks
from dslaunch.transport.future import done_with, wait_for

TIMEOUT = 60.0
IDLE = 2.0
"""Seconds in which nothing happens."""
IDLE_PHASE = f"{IDLE:.0f} s without events"
Measured = tuple[str, float, float, int, int]


class Meter:
    """Measures phases of this process."""

    def __init__(self) -> None:
        self.found: list[Measured] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what is done inside."""
        gc.collect()
        gc.disable()
        cpu, wall, kept, sent = time.process_time(), time.monotonic(), memory(), traffic()
        yield
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        self.found.append((name, cpu, wall, memory() - kept, traffic() - sent))
        gc.enable()


def memory() -> int:
    """Return the bytes of memory that only this process has (proc(5), smaps_rollup)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    private = (line.split() for line in lines if line.startswith("Private_"))
    return sum(int(size) * 1024 for _, size, *_ in private)


def traffic() -> int:
    """Return the bytes that all network interfaces have received and sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    counters = (line.partition(":")[2].split() for line in lines if "lo:" not in line)
    return sum(int(each[0]) + int(each[8]) for each in counters)


def main() -> None:
    """Run the job in phases."""
    cluster = Cluster.load(sys.argv[1])
    allocation, interrupts, meter = select(cluster), Interrupts(until=lambda: False), Meter()
    job = Job.on(cluster, sys.argv[2], ["10"])
    opened = transport.make(transport.choose(cluster.transport, cluster).name, cluster)
    run, inbox = f"bench-{secrets.token_hex(4)}", Inbox()

    def connected(node: Node) -> Session:
        return Session(
            node=node,
            connection=opened.connect(node),
            agent=AgentStart(run, node.host),
            inbox=inbox,
            transport=opened,
        )

    with meter.phase("SSH handshake"), ThreadPoolExecutor(cluster.ssh.fanout) as pool:
        sessions = list(pool.map(connected, cluster.nodes))
    with meter.phase("agent start"), ThreadPoolExecutor(cluster.ssh.fanout) as pool:
        list(pool.map(Session.begin, sessions))
        wait_for([session.hello for session in sessions], TIMEOUT)
    question = inquiry(cluster, allocation, job, Path.cwd())
    with meter.phase("questions and plan"):
        facts = gather(question, sessions, interrupts)
        decided, job, _ = decide(question, facts, job, cwd=Path.cwd(), sync=False)
        plan = make_plan(allocation, job, decided, cluster=cluster.name)
    checks.some(QUICK)  # imported before they are measured
    begun = {session.host: done_with(session) for session in sessions}
    with meter.phase("quick checks"):
        Gate(question, job, begun, Path.cwd()).passed(decided, interrupts, shipping=False)
    with meter.phase("record of plan and facts"), tempfile.TemporaryFile("w") as file:
        file.writelines(plan_pieces(plan))
        file.writelines(facts_pieces(facts))
    with meter.phase("start message"):
        start_ranks(sessions, plan, {}, notice=None, rehearsal=None)
    with meter.phase("output and events"):
        take_all(inbox, {session.host for session in sessions})
    with meter.phase(IDLE_PHASE):
        time.sleep(IDLE)
    with meter.phase("end"):
        close_all(sessions)
        opened.close()
    print(json.dumps(meter.found))


def take_all(inbox: Inbox, running: set[str]) -> None:
    """Take what arrives until all nodes are done."""
    while running:
        session, arrived = inbox.get(timeout=TIMEOUT)
        if isinstance(arrived, NodeEvent) and arrived.event == "done":
            running.discard(session.host)
        elif not isinstance(arrived, (Output, NodeEvent)):
            sys.exit(f"{session.host}: {arrived}")


if __name__ == "__main__":
    main()
