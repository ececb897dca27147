"""Verdicts on jobs of a real SLURM, whose site has no accounting."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.testbed.scheduler import Site, until
from tests.testbed.vcluster import CONTROL
from tests.testbed.vcluster.slurm import ASKING

TWO = "{host: 'node[1-2]', slots: 1}"
FAILS_TWICE = """\
import os, sys, time
start = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
if start == 0 and os.environ["RANK"] == "0":
    sys.exit(3)
if start == 1 and os.environ["RANK"] == "1":
    raise ValueError("no such data")
time.sleep(60)
"""
GREEDY = """\
import os, time
time.sleep(1)
kept = bytearray(400 << 20) if os.environ["RANK"] == "1" else b""
time.sleep(60)
"""
BY_TASK = "import os, sys\nprint('here')\nsys.exit(int(os.environ['SLURM_ARRAY_TASK_ID']) * 3)\n"


def verdicts(site: Site, **env: str) -> list[dict[str, Any]]:
    """The verdicts of `status --json`, once the run is over."""
    found: dict[str, Any] = {}

    def over() -> bool:
        found.update(json.loads(site.run("status", "latest", "--json", **env).stdout))
        return found["result"] is not None

    until(over, 300, lambda: json.dumps(found), pause=ASKING)
    return list(found["result"]["jobs"])


def test_the_last_start_of_a_requeued_job_has_the_root_cause(site: Site) -> None:
    site.describe(TWO, requeue="1")
    site.write("fails.py", FAILS_TWICE)
    number = site.detached("fails.py")
    until(lambda: "Exited with exit code 3" in site.output(number), 300)
    site.cluster.run(CONTROL, ["scontrol", "requeue", number])
    attached = site.run("attach", "latest")
    assert attached.returncode == 1, attached.stderr
    assert "ValueError: no such data" in attached.stderr
    (verdict,) = verdicts(site)
    assert (verdict["code"], verdict["exit_code"], verdict["start"]) == ("failed", 1, 2)
    assert verdict["root_cause"]["rank"] == 1


def test_an_array_fails_with_its_task_and_its_lines_name_it(site: Site) -> None:
    site.describe("{host: node1, slots: 1}", array="0-2")
    site.write("task.py", BY_TASK)
    done = site.run("slurm", "--json", "c.yaml", "task.py")
    assert done.returncode == 6, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    number = site.submitted()
    tasks = {line["task"] for line in told if line["kind"] == "output" and line["text"] == "here"}
    assert tasks == {f"{number}_{task}" for task in range(3)}
    (outcome,) = [line for line in told if line["kind"] == "outcome"]
    ends = {job["task"]: (job["code"], job["exit_code"]) for job in outcome["jobs"]}
    assert ends == {
        f"{number}_0": ("succeeded", 0),
        f"{number}_1": ("failed", 3),
        f"{number}_2": ("failed", 6),
    }
    assert len(list(site.here.glob("task-*_*.out"))) == 3


def test_an_output_that_no_node_can_open_is_named(site: Site) -> None:
    path = f"/tmp/{site.name}/out"  # dslaunch makes the directory, but on the login node alone
    site.describe(TWO, output=path)
    done = site.run("slurm", "c.yaml", "witness.py")
    assert done.returncode == 1, done.stderr
    (verdict,) = verdicts(site)
    assert verdict["code"] == "output-not-opened"
    assert (verdict["path"], verdict["node"]) == (path, "node1")


def test_the_rank_that_exceeded_its_memory_is_named(site: Site) -> None:
    site.describe(TWO, mem="200")
    site.write("greedy.py", GREEDY)
    done = site.run("slurm", "c.yaml", "greedy.py")
    assert done.returncode == 137, done.stderr
    (verdict,) = verdicts(site)
    assert (verdict["code"], verdict["node"], verdict["ranks"]) == ("out-of-memory", "node2", [1])


def test_a_job_that_slurm_forgot_keeps_its_own_verdict(site: Site) -> None:
    site.describe(TWO)
    site.write("fails.py", "import os, sys\nsys.exit(7 if os.environ['RANK'] == '1' else 0)\n")
    number = site.detached("fails.py")
    written = site.here / f"fails-{number}.out.verdict.json"
    until(lambda: '"exit_code": 7' in site.read(written.name), 300)
    assert oct(written.stat().st_mode & 0o777) == "0o600"
    (site.here / "forgetful").mkdir()
    site.write("forgetful/squeue", FORGETFUL)
    (site.here / "forgetful/squeue").chmod(0o755)
    path = f"{site.path}/forgetful:{os.environ['PATH']}"
    (verdict,) = verdicts(site, PATH=path)
    assert (verdict["code"], verdict["exit_code"], verdict["nodes"]) == ("failed", 7, "node[1-2]")
    cause = verdict["root_cause"]
    assert (cause["host"], cause["rank"]) == ("node2", 1)


FORGETFUL = """\
#!/bin/sh
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
"""
"""What squeue does once a job is older than MinJobAge."""
