"""The fault table: every fault at every moment, on the virtual cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.testbed.faulttable import (
    CASES,
    CONNECT,
    ENDING,
    FLAT,
    LAYOUTS,
    LIMIT,
    MIDDLE,
    OUT_OF_MEMORY,
    PHASES,
    START,
    Case,
    Layout,
)
from tests.testbed.project import Project
from tests.testbed.vcluster.api import Running

JOB = """\
import os, select, signal, sys
def sleep(seconds):  # not time.sleep, which the library that fakes the clock breaks
    select.select([], [], [], seconds)
def bye(*_):
    print("ending", flush=True)
    sleep(2)
    sys.exit(0)
def eat(*_):
    eaten = []
    while True:
        eaten.append(b"x" * 10_000_000)
signal.signal(signal.SIGTERM, bye)
signal.signal(signal.SIGUSR1, eat)
print("up", flush=True)
sleep(1)
for i in range(int(sys.argv[1])):
    print("line", i, flush=True)
    sleep(0.05)
"""
PAGE = Path(__file__).resolve().parents[2] / "docs/reference/faults.md"
RECORD = "DSLAUNCH_FAULTS"
"""Names a file to which each case adds a line of JSON."""
HEARTBEAT, HANG, REFUSAL = (3, 4, 4) if RECORD in os.environ else (20, 20, 40)
"""Timeouts in seconds, the last one that of a connection. The page is recorded on an idle machine;
on a busy one, nodes and ranks that have no fault may need more."""
LIMITS = ("--heartbeat-timeout", str(HEARTBEAT), "--reconnect-timeout", "4")
"""Where contact is lost."""
SHOWN_ELSEWHERE = {
    "network cut, link down": "network cut, silent",
    "network reset": "node powered off",
    "300 ms delay": "20 % of packets lost",
    "sshd hung": "sshd stopped",
    "/dev/shm full": "node's disk full",
    "rank killed": "test_runs.py",
    "rank crashed": "test_runs.py",
    "launcher killed": "test_own_processes.py",
    "connection dropped and back": "test_control.py",
    "clock an hour ahead": "test_control.py",
    "own name is 127.0.1.1": "test_control.py",
    "agent killed": "test_own_processes.py",
}
"""Further faults of a kind: the fault, or the file of tests, that `make test` has of this kind."""


@dataclass
class Watched:
    """A launcher whose output is read as it comes."""

    running: Running
    lines: list[tuple[float, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        streams = (("out", self.running.stdout), ("err", self.running.stderr))
        self.readers = [threading.Thread(target=self._read, args=pair) for pair in streams]
        for reader in self.readers:
            reader.start()

    def _read(self, name: str, stream: Iterator[str]) -> None:
        with contextlib.suppress(ValueError):  # closed because the program never ended
            for line in stream:
                self.lines.append((time.monotonic(), name, line.rstrip("\n")))

    def seen(self, pattern: str, stream: str, since: float = 0) -> tuple[float, str] | None:
        """When a line came that matches, and the line."""
        for when, name, line in list(self.lines):
            if name == stream and when >= since and re.search(pattern, line):
                return when, line
        return None

    def wait_for(self, pattern: str, stream: str = "out", times: int = 1) -> None:
        """Wait until as many lines match."""
        deadline = time.monotonic() + 300
        while sum(n == stream and bool(re.search(pattern, t)) for _, n, t in self.lines) < times:
            assert time.monotonic() < deadline, self.text()
            assert self.running.popen.poll() is None, self.text()
            threading.Event().wait(0.02)

    def end(self, timeout: float) -> int:
        """Wait for its end; the exit code as a shell tells it."""
        code = self.running.wait(timeout)
        for reader in self.readers:
            reader.join(60)
        return code

    def text(self) -> str:
        return "\n".join(line for _, _, line in self.lines)


# ---------------------------------------------------------------- faults


def rank_pids(project: Project) -> list[str]:
    """The processes of node2's ranks, in rank order."""
    found = [p for p in project.cluster.processes("node2") if "RANK" in p.environ]
    return [str(p.pid) for p in sorted(found, key=lambda p: int(p.environ["RANK"]))]


def agent_pid(project: Project) -> int:
    """The agent of node2: the parent of its ranks."""
    ranks = [p for p in project.cluster.processes("node2") if "RANK" in p.environ]
    [agent] = {rank.parent for rank in ranks}
    return agent


def on_node2(project: Project, script: str) -> None:
    project.cluster.run("node2", ["sh", "-c", script], user="root", check=True)


def break_it(project: Project, fault: str, launcher: Running | None) -> None:
    """Inject the fault."""
    cluster = project.cluster
    simple: dict[str, Callable[[], None]] = {
        "node powered off": lambda: cluster.crash("node2"),
        "network cut, silent": lambda: cluster.fault("node2", "cut", "drop"),
        "network cut, link down": lambda: cluster.fault("node2", "cut"),
        "network reset": lambda: cluster.fault("node2", "block", "1-65535", "reject"),
        "20 % of packets lost": lambda: cluster.fault("node2", "loss", 20),
        "300 ms delay": lambda: cluster.fault("node2", "delay", 300),
        "sshd stopped": lambda: cluster.fault("node2", "sshd-down"),
        "sshd hung": lambda: cluster.fault("node2", "sshd-hang"),
        "node's disk full": lambda: cluster.fault("node2", "disk-full", "/"),
        "/dev/shm full": lambda: cluster.fault("node2", "disk-full", "/dev/shm"),
        "launcher's disk full": lambda: cluster.fault("control", "disk-full", "/"),
        "clock an hour ahead": lambda: cluster.fault("node2", "skew", "+3600"),
        "own name is 127.0.1.1": lambda: on_node2(
            project, "cp /etc/hosts /etc/hosts.was; sed 's/^.* node2.*$/127.0.1.1 node2/' "
            "/etc/hosts.was > /etc/hosts"
        ),
        "connection dropped and back": lambda: on_node2(
            project, "kill -KILL $(pgrep -f '[s]shd: root@notty')"
        ),
        "rank killed": lambda: on_node2(project, f"kill -KILL {rank_pids(project)[0]}"),
        OUT_OF_MEMORY: lambda: on_node2(project, f"kill -USR1 {rank_pids(project)[0]}"),
        "rank crashed": lambda: on_node2(project, f"kill -SEGV {rank_pids(project)[0]}"),
        "ranks stopped": lambda: stop_all_ranks(project),
        "agent killed": lambda: on_node2(project, f"kill -KILL {agent_pid(project)}"),
    }  # fmt: skip
    if fault in simple:
        simple[fault]()
        return
    assert launcher is not None
    number = {"launcher killed": signal.SIGKILL, "launcher stopped": signal.SIGSTOP}[fault]
    launcher.send_signal(number)


def stop_all_ranks(project: Project) -> None:
    for node in project.cluster.names:
        pids = [str(p.pid) for p in project.cluster.processes(node) if "RANK" in p.environ]
        project.cluster.run(node, ["kill", "-STOP", *pids], user="root", check=True)


def mend(project: Project, fault: str, launcher: Running) -> None:
    """Undo what `heal` does not know of."""
    if fault == "own name is 127.0.1.1":
        on_node2(project, "cat /etc/hosts.was > /etc/hosts")
    if fault == "launcher stopped":
        wait_until_alone(project)
        launcher.popen.send_signal(signal.SIGCONT)  # nsenter(1) stops with its child
        launcher.send_signal(signal.SIGCONT)


def wait_until_alone(project: Project) -> None:
    """Wait until no rank is left: the nodes have noticed that their launcher does nothing."""
    deadline = time.monotonic() + 300
    nodes = project.cluster.names
    while any("RANK" in p.environ for node in nodes for p in project.cluster.processes(node)):
        assert time.monotonic() < deadline
        threading.Event().wait(0.3)


# ---------------------------------------------------------------- the tests


def test_the_page_has_a_row_for_every_case() -> None:
    text = PAGE.read_text("utf-8")
    rows = re.findall(rf"^\| ([^|]+) \| ({'|'.join(PHASES)}) \| (\d+) \|", text, re.MULTILINE)
    assert rows == [(case.fault, case.phase, str(case.code)) for case in CASES] * len(LAYOUTS)


def parameter(case: Case, layout: Layout) -> object:
    """A case. One fault of each kind at one moment is for every run of the tests; the others are
    long, as all are over a tree: `test_tree` has a parent that does not answer."""
    first = next(other for other in CASES if other.fault == case.fault)
    usual = next((c for c in CASES if (c.fault, c.phase) == (case.fault, MIDDLE)), first)
    is_kept = case is usual and layout is FLAT and case.fault not in SHOWN_ELSEWHERE
    marks = () if is_kept else (pytest.mark.long,)
    return pytest.param(case, layout, id=f"{case.name}, {layout.transport}", marks=marks)


@pytest.mark.parametrize(
    ("case", "layout"), [parameter(case, layout) for layout in LAYOUTS for case in CASES]
)
def test_a_fault_is_detected_and_reported_and_no_process_remains(
    project: Project, case: Case, layout: Layout
) -> None:
    project.write("job.py", JOB)
    is_refused = case.loses_contact and case.phase == CONNECT
    project.describe(**layout.description(connect_timeout=REFUSAL if is_refused else 60))
    options = ["--grace", "3", *(LIMITS if case.loses_contact else ())]
    if case.fault == "ranks stopped":
        options += ["--hang-timeout", str(HANG)]
    long = case.code != 0
    if case.phase == CONNECT:
        break_it(project, case.fault, None)
    if case.fault == OUT_OF_MEMORY:
        project.cluster.fault("node2", "memory", LIMIT)
    began = time.time()
    with project.start(*options, "c.yaml", "job.py", "20000" if long else "100") as running:
        watched = Watched(running)
        if case.phase != CONNECT:
            reach(watched, case.phase, layout)
            began = time.time()
            break_it(project, case.fault, running)
        if case.fault == "launcher stopped":
            mend(project, case.fault, running)
        code = watched.end(300)
    over = time.time() - began
    if case.fault != "launcher stopped":
        mend(project, case.fault, running)
    assert code == case.code, watched.text()
    project.cluster.heal()
    noticed = over
    if case.reason:
        check_reason(case, layout, project, watched)
        noticed = noticed_after(project, began, over)
    if case.phase != CONNECT:
        check_logs(project, layout, least=6 if case.phase in (MIDDLE, ENDING) else 0)
    assert project.cluster.leftovers(within=150) == {}
    if RECORD in os.environ:
        assert not case.reason or noticed < case.bound
        said = project.outcome()["message"] if case.reason else ""
        write_row(case, layout, code, noticed if case.reason else None, over, said)


def reach(watched: Watched, phase: str, layout: Layout) -> None:
    """Wait until the run is there."""
    if phase == START:
        watched.wait_for("up", times=3)
        watched.wait_for(f"node2:{layout.first_rank_of('node2')}│up")
    else:
        watched.wait_for("line 5$", times=8)
    if phase == ENDING:
        watched.running.send_signal(signal.SIGINT)
        watched.wait_for("ending", times=1)
    assert phase in (START, MIDDLE, ENDING)


def check_reason(case: Case, layout: Layout, project: Project, watched: Watched) -> None:
    """The run ended for the reason of the case, which names the node."""
    outcome = project.outcome()
    reason, wanted = outcome["reason"], case.reason_in(layout)
    found = {name: reason.get(name) for name in wanted}
    assert found == wanted, watched.text()
    assert set(case.unconfirmed) == set(outcome["unconfirmed"]), watched.text()
    assert {host for host, _ in reason.get("failures", [])} <= {"node2"}, watched.text()


def noticed_after(project: Project, began: float, over: float) -> float:
    """Return after how many seconds the launcher began to end the run: after `over` if nothing
    was started, or if it was being ended already."""
    if "directory" not in project.outcome():
        return over
    stopping = [event["time"] for event in project.events() if event["kind"] == "stopping"]
    return next((when - began for when in stopping if when >= began), over)


def check_logs(project: Project, layout: Layout, least: int) -> None:
    """Every rank's log is a whole beginning of what it wrote, of so many lines at least."""
    directory = project.directory()
    logs = [f"{directory}/logs/{layout.host_of(rank)}.{rank}.log" for rank in range(8)]
    text = project.cluster.run("control", ["grep", "-H", "^line", *logs], user="root").stdout
    for log in logs:
        lines = re.findall(rf"^{re.escape(log)}:line (\d+)$", text, re.MULTILINE)
        assert [int(number) for number in lines] == list(range(len(lines)))
        assert len(lines) >= least


def write_row(
    case: Case, layout: Layout, code: int, noticed: float | None, over: float, said: str
) -> None:
    """Record what was measured, for the page."""
    row = {
        "date": datetime.now(UTC).date().isoformat(),
        "transport": layout.transport,
        "fault": case.fault,
        "phase": case.phase,
        "code": code,
        "noticed": None if noticed is None else round(noticed, 1),
        "over": round(over, 1),
        "said": said,
    }
    with Path(os.environ[RECORD]).open("a") as file:
        file.write(json.dumps(row) + "\n")
