"""What a user of SLURM must see: scenarios as data for `test_slurm_scenarios`.

`python -m tests.testbed.slurm_scenarios RECORDED.jsonl` prints docs/reference/slurm-scenarios.md
from what the tests have recorded.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

PAIR = "two clusters, accounting"
"""SLURM 22.05: `vcluster` with job_submit.lua and without GRES, and `other`; one slurmdbd."""
GPUS = "GPUs, no accounting"
"""SLURM 22.05: four nodes with four GPUs each, two types; no slurmdbd."""
IDENTITY, STATE, VERDICT = "Which job", "Its state", "How it ended"
SITE, INSIDE, SCRIPT = "The site's words and rules", "Inside the job", "The script"
TOPICS = (IDENTITY, STATE, VERDICT, SITE, INSIDE, SCRIPT)

OK, FAILED, USAGE, INVALID, LOST, TOOL, TIMED_OUT, INTERRUPTED = 0, 1, 2, 3, 5, 6, 124, 130
COMPLETED, RUNNING, CANCELLED, PENDING = "COMPLETED", "RUNNING", "CANCELLED", "PENDING"
NO_JOB = ""
LONG = frozenset((
    # a test of test_slurm.py and two of test_slurm_supervised.py
    "`init --slurm`: types of GPUs are labels",
    "--supervised: a rank exits with 3",
    "--supervised: ranks run to their end",
    "directives: --clusters=other: followed to its end",
    "federation: followed to its end",
    "federation: `stop`",
    "requeued and held, then released",
    "a later start forgotten by the controller: `attach`",
    "slurmdbd stopped for 6 s: a local job is followed",
    "controller hangs for 6 s: followed to its end",
    "forgotten by the controller, no accounting: `attach`",
    "forgotten by the controller, no accounting: `status`",
    "one task of an array fails and is forgotten: `attach`",
    "canceled by its user",
))  # fmt: skip
Row = dict[str, object]
"""What was seen of one scenario, as recorded in JSON."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing that happens, and what a user must see of it."""

    name: str
    """What is done and what happens, for people; `test_slurm_scenarios` plays it by this name."""
    topic: str
    site: str
    code: int
    """Exit code of the command."""
    state: str = NO_JOB
    """The job's state afterwards, as scontrol or sacct has it; empty: nothing is queued."""
    says: str = ""
    """A regular expression that the command's output must match, where words are the behavior."""
    alone: bool = False
    """Whether it breaks the site for others meanwhile."""

    @property
    def long(self) -> bool:
        """Whether another scenario or test, which takes less time, shows most of it."""
        return self.name in LONG


def _pair(topic: str, *rows: tuple[str, int, str] | tuple[str, int, str, str]) -> list[Scenario]:
    return [Scenario(row[0], topic, PAIR, *row[1:]) for row in rows]


def _gpus(topic: str, *rows: tuple[str, int, str] | tuple[str, int, str, str]) -> list[Scenario]:
    return [Scenario(row[0], topic, GPUS, *row[1:]) for row in rows]


def _alone(site: str, topic: str, *rows: tuple[str, int, str, str]) -> list[Scenario]:
    return [Scenario(row[0], topic, site, *row[1:], alone=True) for row in rows]


SCENARIOS = (
    # ------------------------------------------------------------ which job
    *_pair(
        IDENTITY,
        ("SBATCH_CLUSTERS=other: followed to its end", OK, COMPLETED),
        ("directives: --clusters=other: followed to its end", OK, COMPLETED),
        ("SBATCH_CLUSTERS=other: `stop`; a local job has the same number", OK, CANCELLED),
        ("SBATCH_CLUSTERS=other: `status`", OK, RUNNING, r'"state": "running"'),
        ("SBATCH_CLUSTERS=other: `logs`", OK, RUNNING, r"up 0"),
        ("SBATCH_CLUSTERS=other: `ps`", OK, RUNNING, r"running"),
        ("renamed while it runs", OK, COMPLETED),
        ("job_name: lr=3e-4 bs=8", OK, COMPLETED),
        ("job_name: a JobState=FAILED b", OK, COMPLETED),
        ("directives: --job-name=other", OK, COMPLETED),
        ("`stop` with another TZ", OK, CANCELLED),
        ("`stop` with SLURM_TIME_FORMAT=relative", OK, CANCELLED),
        ("`stop` with a beginning of the job's number", USAGE, RUNNING),
        ("`status latest` after an older run's record was touched", OK, RUNNING),
    ),
    *_alone(
        PAIR,
        IDENTITY,
        ("federation: followed to its end", OK, COMPLETED, ""),
        ("federation: `stop`", OK, CANCELLED, ""),
    ),
    *_alone(
        GPUS,
        IDENTITY,
        ("number used again after a controller lost its state: `stop`", USAGE, PENDING, ""),
        ("number used again after a controller lost its state: followed", OK, PENDING, ""),
    ),
    # ------------------------------------------------------------ its state
    *_pair(
        STATE,
        ("held by an administrator, then released", OK, COMPLETED, r"JobHeldAdmin"),
        ("requeued while it runs", OK, COMPLETED),
        ("requeued and held, then released", OK, COMPLETED),
        ("suspended, then resumed", OK, COMPLETED),
        ("`stop` of a job that has ended", USAGE, COMPLETED),
        ("`ps` of a running job shows its own nodes", OK, RUNNING, r"node2"),
        ("waits for a job: the reason is shown", OK, COMPLETED, r"Dependency"),
        ("forgotten by the controller: `attach` asks the accounting", 3, "FAILED"),
        ("a later start forgotten by the controller: `attach`", 3, "FAILED"),
    ),
    *_alone(
        PAIR,
        STATE,
        ("munge stopped for 6 s: followed to its end", OK, COMPLETED, ""),
        ("munge stopped: `ps`", OK, RUNNING, r"unknown"),
        ("munge stopped: `stop`", FAILED, RUNNING, ""),
        ("slurmdbd stopped for 6 s: a local job is followed", OK, COMPLETED, ""),
        ("slurmdbd stopped for 6 s: another cluster's job is followed", OK, COMPLETED, ""),
        ("controller stopped: followed to its end", OK, COMPLETED, ""),
        ("controller stopped: `ps`", OK, RUNNING, r"unknown"),
        ("controller stopped: `status`", OK, RUNNING, r"unknown"),
        ("controller stopped: `stop`", FAILED, RUNNING, ""),
        ("controller stopped: `slurm --check`", FAILED, NO_JOB, ""),
        ("controller hangs for 6 s: followed to its end", OK, COMPLETED, ""),
    ),
    *_alone(
        GPUS,
        STATE,
        ("forgotten by the controller, no accounting: `attach`", 3, NO_JOB, ""),
        ("forgotten by the controller, no accounting: `status`", OK, NO_JOB, r'"failed"'),
    ),
    # ------------------------------------------------------------ how it ended
    *_pair(
        VERDICT,
        ("a rank exits with 3", 3, "FAILED", r"rank 1"),
        ("a rank exits with 3: `status`", OK, "FAILED", r'"rank": 1'),
        ("rank 1 fails in the first start, rank 0 in the second", 3, "FAILED", r"rank 0"),
        ("one task of an array fails", 3, "FAILED", r"_1"),
        ("one task of an array fails and is forgotten: `attach`", 3, "FAILED", r"_1"),
        ("canceled by root", INTERRUPTED, CANCELLED, r"root|UID 0|uid 0|by 0"),
        ("canceled by its user", INTERRUPTED, CANCELLED),
        ("the output file cannot be opened", FAILED, "FAILED", r"/no/such"),
        ("the job that it depends on fails", FAILED, CANCELLED, r"[Dd]epend"),
        ("`attach` to a job that then fails", 3, "FAILED", r"rank 1"),
        ("`stacks` of a running job", OK, RUNNING, r"rank"),
        ("`stop --grace 5`: ranks exit with 0 on TERM", OK, COMPLETED),
        ("Ctrl-C", INTERRUPTED, CANCELLED),
        ("its follower is killed: `attach`", OK, COMPLETED),
        ("time limit", TIMED_OUT, "TIMEOUT"),
        ("a rank takes more memory than the job has", 137, "FAILED", r"[Mm]emory|memory"),
    ),
    # ------------------------------------------------------------ the site's words and rules
    *_pair(
        SITE,
        ("job_submit.lua has a notice", OK, COMPLETED, r"812 of 1000 node hours"),
        ("job_submit.lua has a notice: `--check`", OK, NO_JOB, r"812 of 1000 node hours"),
        (
            "job_submit.lua refuses",
            FAILED,
            NO_JOB,
            r"(?s)Apply for an account: https://hpc\.example\.org",
        ),
        ("job_submit.lua refuses: `--check`", FAILED, NO_JOB, r"Apply for an account"),
        ("--set partition=nope", FAILED, NO_JOB, r"--set partition"),
        ("directives: --partition=nope", FAILED, NO_JOB, r"directives"),
        ("partition: nope", FAILED, NO_JOB, r"c\.yaml:\d+:\d+: slurm\.partition: nope"),
        ("directives: --error=err.txt: a rank exits with 3", 3, "FAILED", r"rank 1"),
        ("directives: --cpus-per-task=2 wins over cpus_per_task: 1", OK, COMPLETED, r"cpus 2"),
        ("directives: --exclusive and --oversubscribe", OK, COMPLETED),
        ("directives: --export=NONE with secrets", INVALID, NO_JOB, r"--export"),
        ("the script is missing", INVALID, NO_JOB, r"missing\.py"),
        ("the interpreter is missing", INVALID, NO_JOB, r"/no/such/python"),
        ("the file of `activate` is missing", INVALID, NO_JOB, r"/no/such/activate"),
        ("the DeepSpeed config is missing", INVALID, NO_JOB, r"nope\.json"),
        ("comment: of ours", OK, COMPLETED, r"Comment=of ours"),
        ("srun: [--cpu-bind=none]", OK, COMPLETED),
        ("mem: 1GB", OK, COMPLETED),
        ("signal: TERM@120", OK, COMPLETED),
        ("an unknown key that SLURM has: burst_buffer", INVALID, NO_JOB, r"directives"),
        ("setup and teardown", OK, COMPLETED, r"(?s)set up.*torn down"),
        ("shell: bash -l", OK, COMPLETED),
        ("`init --slurm` without GRES", OK, NO_JOB, r"gpus: none"),
    ),
    *_gpus(
        SITE,
        ("`init --slurm`: types of GPUs are labels", OK, NO_JOB, r"a100"),
        ("more GPUs than a node has", FAILED, NO_JOB, r"slots|gpus"),
    ),
    # ------------------------------------------------------------ inside the job
    *_gpus(
        INSIDE,
        ("salloc --gpus-per-node=2: `run --slurm`", OK, NO_JOB, r"cuda 0,1"),
        ("--supervised: a rank exits with 3", 3, "FAILED", r"rank 1"),
        ("--supervised: ranks run to their end", OK, COMPLETED),
        ("a rank exits with 0 on TERM, before the time limit", OK, COMPLETED),
    ),
    # ------------------------------------------------------------ the script
    *_pair(
        SCRIPT,
        ("--render: what made it", OK, NO_JOB, r"dslaunch \d+\.\d+"),
        ("--render: no `bash -c` over two lines", OK, NO_JOB, r"(?m)^srun|srun"),
        ("the job's output names its nodes", OK, COMPLETED, r"node\[1-2\]|node1[, ]node2"),
    ),
)  # fmt: skip


# ---------------------------------------------------------------- the page

HEAD = """\
# What SLURM does, and what you see of it

Generated by `python -m tests.testbed.slurm_scenarios` from a run of the tests ({dates}) with a real
SLURM 22.05 on virtual nodes: munge, slurmctld, slurmd, slurmdbd and MariaDB. Two sites: "{pair}"
are `vcluster`, which has a job_submit.lua and no GRES, and `other`, both under one slurmdbd, with a
controller that forgets jobs after 10 s; "{gpus}" are four nodes with four GPUs each, of two types.

The command is `dslaunch slurm` and follows the job, unless another one is named. The state is the
job's afterwards, as SLURM has it.
"""
TABLE = """
## {topic}

| scenario | site | exit code | job's state |
|---|---|---|---|
"""


def page(rows: list[Row]) -> str:
    """The tables as Markdown. Raises ValueError unless every scenario was played once and came to
    what must be."""
    by_name = {str(row["name"]): row for row in rows}
    wrong = [one.name for one in SCENARIOS if not holds(one, by_name.get(one.name))]
    if wrong or len(rows) != len(SCENARIOS):
        raise ValueError(f"{len(rows)} rows for {len(SCENARIOS)} scenarios; not as told: {wrong}")
    days = sorted({str(row["date"]) for row in rows})
    dates = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    parts = [HEAD.format(dates=dates, pair=PAIR, gpus=GPUS)]
    for topic in TOPICS:
        parts.append(TABLE.format(topic=topic))
        found = [scenario for scenario in SCENARIOS if scenario.topic == topic]
        parts += [_row(scenario, by_name[scenario.name]) for scenario in found]
    return "".join(parts)


def holds(scenario: Scenario, seen: Row | None) -> bool:
    """Whether what was seen is what must be."""
    if seen is None:
        return False
    as_expected = (seen["code"], seen["state"]) == (scenario.code, scenario.state)
    return as_expected and re.search(scenario.says, str(seen["text"])) is not None


def _row(scenario: Scenario, seen: Row) -> str:
    state = seen["state"] or "not submitted"
    cells = (scenario.name, scenario.site, seen["code"], state)
    return f"| {' | '.join(str(cell) for cell in cells)} |\n"


def main() -> None:
    """Print the page."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    sys.stdout.write(page(rows))


if __name__ == "__main__":
    main()
