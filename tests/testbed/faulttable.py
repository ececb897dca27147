"""Every fault at every moment, and what dslaunch must do then: data for `test_faults`.

`python -m tests.testbed.faulttable RECORDED.jsonl` prints docs/reference/faults.md from what the
tests have recorded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGSEGV

CONNECT, START, MIDDLE, ENDING = "connecting", "starting", "mid-run", "ending"
PHASES = (CONNECT, START, MIDDLE, ENDING)
OK, FAILED, UNREACHABLE, INTERRUPTED = 0, 1, 5, 130
OUT_OF_MEMORY = "rank out of memory"
"""Really: all processes of its node share a memory cgroup of LIMIT bytes, and the rank takes more
than that, so that the kernel kills it."""
LIMIT = 256 << 20
Parameters = Mapping[str, object]
"""Parameters that the reason of the end must have; docs/reference/codes.md explains them."""
RANK_KILLED = {"code": "rank-failed", "host": "node2", "rank": 2, "signal": SIGKILL}
RANK_OUT_OF_MEMORY = {**RANK_KILLED, "oom": True}
RANK_CRASHED = {"code": "rank-failed", "host": "node2", "rank": 2, "signal": SIGSEGV}
AGENT_KILLED = {"code": "process-killed", "host": "node2", "process": "agent", "signal": SIGKILL}
NODES = ("node1", "node2", "node3", "node4")
NOT_REACHED = {"code": "not-started", "problem": "nodes"}
NODE_LOST = {"code": "node-lost", "host": "node2"}
CHECK_FAILED = {"code": "not-started", "checks": [["node2", "fs.free"]]}
Row = dict[str, object]
"""What was measured of one case, as recorded in JSON."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the nodes are reached, and their order: each has two ranks."""

    transport: str
    hosts: tuple[str, ...]

    def description(self, connect_timeout: int) -> dict[str, str]:
        """The lines of the cluster file about it."""
        nodes = ", ".join(f"{{host: {host}, slots: 2}}" for host in self.hosts)
        ssh = f"{{connect_timeout: {connect_timeout}, tree_fanout: 2}}"
        return {"nodes": f"nodes: [{nodes}]", "transport": self.transport, "ssh": ssh}

    def host_of(self, rank: int) -> str:
        """The node of a rank."""
        return self.hosts[rank // 2]

    def first_rank_of(self, host: str) -> int:
        """The first rank of a node."""
        return 2 * self.hosts.index(host)


FLAT = Layout("auto", NODES)
TREE = Layout("tree", ("node2", "node1", "node3", "node4"))
"""node2 is the parent of node1, and node3 that of node4."""
LAYOUTS = (FLAT, TREE)


@dataclass(frozen=True, slots=True)
class Case:
    """One fault at one moment."""

    fault: str
    phase: str
    code: int
    reason: Parameters = field(default_factory=dict)
    """Why the run must end; empty: the fault is no reason, and the run continues."""
    unconfirmed: tuple[str, ...] = ()
    """Nodes that cannot confirm that all processes of the run have exited."""
    bound: float = 30.0
    """Seconds from the fault until the reason is known, where this is recorded for the page."""
    loses_contact: bool = False
    """Whether a node or the launcher is lost, which takes the timeouts for that."""

    @property
    def name(self) -> str:
        """For pytest."""
        return f"{self.fault}, {self.phase}".replace(" ", "-")

    def reason_in(self, layout: Layout) -> Parameters:
        """Return the reason where the nodes are in this order."""
        if "rank" not in self.reason:
            return self.reason
        return {**self.reason, "rank": layout.first_rank_of("node2")}


def _lost(fault: str, bound: float = 25) -> list[Case]:
    """A node that is gone: refused before the start, lost later, named when it cannot confirm."""
    return [
        Case(fault, CONNECT, UNREACHABLE, NOT_REACHED, bound=20, loses_contact=True),
        Case(fault, START, UNREACHABLE, NODE_LOST, ("node2",), bound, loses_contact=True),
        Case(fault, MIDDLE, UNREACHABLE, NODE_LOST, ("node2",), bound, loses_contact=True),
        Case(
            fault,
            ENDING,
            INTERRUPTED,
            {"code": "interrupted"},
            ("node2",),
            bound,
            loses_contact=True,
        ),
    ]


def _harmless(fault: str, *phases: str) -> list[Case]:
    """The run goes on, or ends as it was asked to."""
    return [Case(fault, phase, INTERRUPTED if phase == ENDING else OK) for phase in phases]


CASES = (
    *_lost("node powered off"),
    *_lost("network cut, silent"),
    *_lost("network cut, link down"),
    *_lost("network reset"),
    *_harmless("20 % of packets lost", CONNECT, START, MIDDLE, ENDING),
    *_harmless("300 ms delay", CONNECT, START, MIDDLE, ENDING),
    Case("sshd stopped", CONNECT, UNREACHABLE, {**NOT_REACHED, "failures": [["node2", "refused"]]}),
    *_harmless("sshd stopped", START, MIDDLE, ENDING),
    Case("sshd hung", CONNECT, UNREACHABLE, NOT_REACHED, loses_contact=True),
    *_harmless("sshd hung", START, MIDDLE, ENDING),
    *_harmless("connection dropped and back", START, MIDDLE, ENDING),
    Case("node's disk full", CONNECT, 4, CHECK_FAILED),
    *_harmless("node's disk full", START, MIDDLE, ENDING),
    *_harmless("/dev/shm full", CONNECT, MIDDLE),
    *_harmless("launcher's disk full", MIDDLE, ENDING),
    *_harmless("clock an hour ahead", CONNECT),
    *_harmless("own name is 127.0.1.1", CONNECT),
    Case("rank killed", START, 137, RANK_KILLED, bound=5),
    Case("rank killed", MIDDLE, 137, RANK_KILLED, bound=5),
    *_harmless("rank killed", ENDING),
    Case(OUT_OF_MEMORY, START, 137, RANK_OUT_OF_MEMORY, bound=10),
    Case(OUT_OF_MEMORY, MIDDLE, 137, RANK_OUT_OF_MEMORY, bound=10),
    *_harmless(OUT_OF_MEMORY, ENDING),
    Case("rank crashed", MIDDLE, 139, RANK_CRASHED, bound=5),
    Case("ranks stopped", MIDDLE, FAILED, {"code": "hang"}, bound=15),
    Case("agent killed", START, UNREACHABLE, AGENT_KILLED, bound=10),
    Case("agent killed", MIDDLE, UNREACHABLE, AGENT_KILLED, bound=10),
    *_harmless("agent killed", ENDING),
    Case("launcher killed", START, 137, loses_contact=True),
    Case("launcher killed", MIDDLE, 137, loses_contact=True),
    Case("launcher killed", ENDING, 137, loses_contact=True),
    Case("launcher stopped", MIDDLE, UNREACHABLE, {"code": "node-lost"}, NODES, loses_contact=True),
)


# ---------------------------------------------------------------- the page

HEAD = """\
# What happens when something breaks

Generated by `python -m tests.testbed.faulttable` from a run of the tests ({dates}): four virtual
nodes with real sshd, two ranks each, one fault on one node, `--grace 3`, and where a node is lost
`--heartbeat-timeout 3 --reconnect-timeout 4`. "Noticed" is the time from the fault until the
launcher stops the run, "over" the time to its end; with the defaults (`--heartbeat-timeout 15
--reconnect-timeout 20`) an unresponsive node is noticed after at most 39 s. In each case all
processes of the run had exited, and the log of every rank was complete up to the fault. A
rank out of memory is one that the kernel really killed: its node's processes share a cgroup with a
limit, and it took more.

| fault | while | exit code | noticed | over | words |
|---|---|---|---|---|---|
"""
TREE_HEAD = """
## The same over a tree

`transport: tree` ({dates}): the launcher logs in to node2 and node3, these to node1 and node4. The
faulty node, node2, is a parent: in each case its child is reached another way, and none of the
child's ranks is lost. Other programs used the processors too, which adds seconds to each start.

| fault | while | exit code | noticed | over | words |
|---|---|---|---|---|---|
"""
PEER_HEAD = """
## The same with DeepSpeed's launcher and pdsh

`deepspeed --hostfile` {versions} ({dates}), the same nodes and job, the fault in the middle of the
run; ended by hand where it did not end within a minute.

| fault | exit code | over | ranks left a minute later | words |
|---|---|---|---|---|
"""


def page(rows: list[Row], versions: str, peers: list[Row]) -> str:
    """The table as Markdown."""
    parts = []
    for layout, head in ((FLAT, HEAD), (TREE, TREE_HEAD)):
        measured = [row for row in rows if row["transport"] == layout.transport]
        by_name = {(row["fault"], row["phase"]): row for row in measured}
        ours = [by_name[case.fault, case.phase] for case in CASES]
        parts += [head.format(dates=dates(ours)), *map(_row, ours)]
    peer_head = PEER_HEAD.format(versions=versions, dates=dates(peers))
    return "".join([*parts, peer_head, *map(_peer_row, peers)])


def dates(rows: list[Row]) -> str:
    """When these were measured: a day, or the first and the last."""
    days = sorted({str(row["date"]) for row in rows})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _row(row: Row) -> str:
    noticed = "continues" if row["noticed"] is None else f"{row['noticed']} s"
    cells = (row["fault"], row["phase"], row["code"], noticed, f"{row['over']} s", row["said"])
    return f"| {' | '.join(str(cell) for cell in cells)} |\n"


def _peer_row(row: Row) -> str:
    over = "never" if row["over"] is None else f"{row['over']} s"
    code = "none" if row["code"] is None else row["code"]
    cells = (row["fault"], code, over, row["left"], row["said"])
    return f"| {' | '.join(str(cell) for cell in cells)} |\n"


def main() -> None:
    """Print the page."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    peers = json.loads(Path(__file__).with_name("peers.json").read_text())
    sys.stdout.write(page(rows, peers["versions"], peers["rows"]))


if __name__ == "__main__":
    main()
