"""The fault table's other column: `deepspeed --hostfile` with pdsh under the same faults.

python -m tests.testbed.peers    measures all and writes tests/testbed/peers.json
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.testbed.faulttable import LIMIT, OUT_OF_MEMORY
from tests.testbed.project import Project
from tests.testbed.test_faults import JOB, Watched, break_it
from tests.testbed.vcluster import VirtualCluster

FAULTS = (
    "node powered off", "network cut, silent", "network reset", "connection dropped and back",
    "rank killed", OUT_OF_MEMORY, "rank crashed", "ranks stopped", "launcher killed",
)  # fmt: skip
PATIENCE = 60.0


def main() -> None:
    """Measure each fault, or those that are named, on a fresh cluster."""
    kept = Path(__file__).with_name("peers.json")
    rows = json.loads(kept.read_text())["rows"] if kept.exists() else []
    known = {row["fault"]: row for row in rows}
    today = datetime.now(UTC).date().isoformat()
    known |= {fault: measure(fault) | {"date": today} for fault in sys.argv[1:] or FAULTS}
    rows = [known[fault] for fault in FAULTS]
    versions = f"{version('deepspeed')}, pdsh, torch {version('torch').partition('+')[0]}"
    text = json.dumps({"versions": versions, "rows": rows}, indent=1)
    kept.write_text(f"{text}\n")


def measure(fault: str) -> dict[str, object]:
    """One run with one fault in its middle."""
    with VirtualCluster(nodes=4, directory=tempfile.mkdtemp(prefix="peer-")) as cluster:
        project = Project(cluster, "/root/p")
        cluster.put("*", "/root/p/job.py", JOB, 0o644)
        hosts = "".join(f"node{i} slots=2\n" for i in range(1, 5))
        cluster.put("control", "/root/p/hostfile", hosts, 0o644)
        binary = Path(sys.executable).with_name("deepspeed")
        call = "deepspeed --no_local_rank --hostfile hostfile job.py 2000"
        script = f"PATH={binary.parent}:$PATH exec {call}"
        with cluster.popen("control", ["bash", "-c", script], cwd="/root/p") as running:
            watched = Watched(running)
            watched.wait_for("line 9", times=4)  # pdsh runs lines of two ranks together
            began = time.monotonic()
            before = len(watched.lines)
            if fault == OUT_OF_MEMORY:  # not sooner: torch alone takes more than that
                cluster.fault("node2", "memory", LIMIT)
            break_it(project, fault, running)
            code, over = wait(watched, began)
            row = {"fault": fault, "code": code, "over": over, "said": said(watched, before)}
            threading.Event().wait(max(0.0, began + PATIENCE - time.monotonic()))
            row |= {"left": left(project)}
            cluster.crash("control")  # what the launcher left there would keep its pipes open
            return row


def wait(watched: Watched, began: float) -> tuple[int | None, float | None]:
    """Its exit code and when it ended, None if it did not within the patience."""
    while watched.running.popen.poll() is None:
        if time.monotonic() - began > PATIENCE:
            return None, None
        threading.Event().wait(0.1)
    return watched.running.wait(1), round(time.monotonic() - began, 1)


def said(watched: Watched, before: int) -> str:
    """The first line after the fault that is no rank's own."""
    later = [line for _, _, line in watched.lines[before:]]
    # pdsh tears the ranks' lines apart and runs them together
    words = [x for x in later if re.sub(r"^node\d:|line|up|\d|\s", "", x)]
    return words[0][:100].replace("|", "/") if words else "nothing"


def left(project: Project) -> str:
    """How many ranks live on which nodes."""
    alive = [n for n in project.cluster.names if project.cluster.cluster.nodes[n].alive]
    counts = {
        node: sum("RANK" in p.environ for p in project.cluster.processes(node)) for node in alive
    }
    found = [f"{count} on {node}" for node, count in counts.items() if count]
    return ", ".join(found) or "none"


if __name__ == "__main__":
    main()
