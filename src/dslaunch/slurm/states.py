"""What SLURM says of a job, in words: why it waits, how it ended, why it was refused. Pure.

States and reasons are those of squeue(1), "JOB STATE CODES" and "JOB REASON CODES", of SLURM 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
LIVING = (
    *WAITING, "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT",
)  # fmt: skip

_CODES = {
    "COMPLETED": 0, "TIMEOUT": 124, "DEADLINE": 124, "OUT_OF_MEMORY": 137, "NODE_FAIL": 5,
    "BOOT_FAIL": 5, "PREEMPTED": 143,
}  # fmt: skip
"""124 as of timeout(1), 137 as of the kernel's KILL, 143 as of TERM, 5 as `dslaunch run` has it."""
NEVER = "DependencyNeverSatisfied"
"""The reason of a job that waits in vain, or was ended for that (sbatch(1),
`--kill-on-invalid-dep`)."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One job, one task of an array, or one component of a heterogeneous job, as SLURM tells it."""

    job: str
    """Its own number."""
    state: str
    """Such as `RUNNING`; `GONE` when SLURM knows it no more."""
    reason: str = ""
    code: int | None = None
    signal: int | None = None
    nodes: str = ""
    """Folded; empty as long as there are none."""
    batch_host: str = ""
    restarts: int = 0
    name: str = ""
    submitted: str = ""
    output: str = ""
    array: str = ""
    """The array's number, of which this is a task."""
    task: str = ""
    """Its index, or several in SLURM's notation while they wait."""
    component: int = 0
    """Of a heterogeneous job; the first is 0."""

    @property
    def over(self) -> bool:
        """Whether it will not run any more."""
        return self.state not in LIVING

    @property
    def waiting(self) -> bool:
        """Whether it has not begun."""
        return self.state in WAITING

    @property
    def exit_code(self) -> int:
        """By the state where that says it all, as of a job that SLURM itself has ended: its own
        code is then the signal's, TERM, or 125 for memory. Else the job's code, 128 + N for a
        signal."""
        if self.state in _CODES:
            return _CODES[self.state]
        if self.code:
            return self.code
        if self.signal:
            return 128 + self.signal
        return 130 if self.state == "CANCELLED" and self.reason != NEVER else 1


_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=(.*?)(?=\s[A-Za-z][\w/:]*=|\s*$)")


def parse_job(line: str) -> JobInfo:
    """Read a line of `scontrol --oneliner show job`."""
    fields = dict(_FIELD.findall(line))
    code, number = _codes(fields.get("ExitCode", ""))
    return JobInfo(
        job=fields.get("JobId", ""),
        state=_state(fields.get("JobState", "")),
        reason=_given(fields.get("Reason", "")),
        code=code,
        signal=number,
        nodes=_given(fields.get("NodeList", "")),
        batch_host=_given(fields.get("BatchHost", "")),
        restarts=int(fields.get("Restarts") or 0),
        name=fields.get("JobName", ""),
        submitted=fields.get("SubmitTime", ""),
        output=_given(fields.get("StdOut", "")),
        array=fields.get("ArrayJobId", ""),
        task=fields.get("ArrayTaskId", ""),
        component=int(fields.get("HetJobOffset") or 0),
    )


def parse_accounting(text: str) -> tuple[JobInfo, ...]:
    """Read `sacct --parsable2 --format=JobIDRaw,State,ExitCode,NodeList,JobName,Submit`.

    Of a job that was requeued the last line counts. A state may be `CANCELLED by 1000`.
    """
    found: dict[str, JobInfo] = {}
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) < 6 or not cells[0].split("+")[0].isdigit():
            continue
        code, number = _codes(cells[2])
        nodes = "" if cells[3] == "None assigned" else cells[3]
        found[cells[0]] = JobInfo(
            job=cells[0],
            state=_state(cells[1]),
            reason=cells[1].partition(" ")[2],
            code=code,
            signal=number,
            nodes=nodes,
            name=cells[4],
            submitted=cells[5],
        )
    return tuple(found.values())


def _codes(text: str) -> tuple[int | None, int | None]:
    """`3:0` is a code and a signal."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (None, None)


def _state(text: str) -> str:
    return text.split(" ")[0].rstrip("+") or "UNKNOWN"


def _given(text: str) -> str:
    return "" if text in ("(null)", "None", "N/A") else text


# ---------------------------------------------------------------- why it waits

_REASONS: Mapping[str, str] = {
    "Resources": "the nodes it needs are busy; it is next",
    "Priority": "other jobs come first",
    "Dependency": "it waits for the jobs that it depends on",
    NEVER: "the job that it depends on ended otherwise; it will never start",
    "BeginTime": "its time to begin has not come, or it was requeued a moment ago",
    "JobHeldUser": "it is held: `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition starts no jobs now",
    "PartitionNodeLimit": "the partition does not give so many nodes",
    "PartitionTimeLimit": "the partition does not give so much time; ask for less",
    "PartitionConfig": "the partition cannot give what is asked for",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node has what is asked for",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the quality of service is not valid",
    "Reservation": "it waits for its reservation",
    "JobArrayTaskLimit": "so many tasks of the array as are allowed run already",
    "Licenses": "it waits for licenses",
    "launch failed requeued held": "it could not be started on a node, and is held",
    "JobLaunchFailure": "it could not be started on a node",
    "RaisedSignal": "a signal ended it",
}


def why_waiting(reason: str) -> str:
    """A reason of squeue in words; the unknown as SLURM has it."""
    plain = re.split(r"[,(]", reason)[0].strip()
    if plain in _REASONS:
        return f"{_REASONS[plain]} ({reason})"
    if re.match(r"QOS|Assoc|Max", plain):
        return f"a limit of the account or quality of service is reached ({reason})"
    return reason


# ---------------------------------------------------------------- how it ended

_ENDS: Mapping[str, tuple[str, str | None]] = {
    "COMPLETED": ("ended well", None),
    "FAILED": ("failed", None),
    "CANCELLED": ("was cancelled", None),
    "TIMEOUT": (
        "reached its time limit",
        "raise `slurm.time`, or let it save before: `slurm.signal` and `slurm.requeue`",
    ),
    "OUT_OF_MEMORY": (
        "was killed for its memory",
        "ask for more by `slurm.mem`, or whole nodes by `slurm.exclusive: true`",
    ),
    "NODE_FAIL": (
        "lost a node",
        "`slurm.requeue` starts it again by itself; `slurm.exclude` leaves the node out",
    ),
    "PREEMPTED": (
        "had to make room for another job",
        "`slurm.requeue` starts it again by itself",
    ),
    "BOOT_FAIL": ("did not start, since a node did not boot", None),
    "DEADLINE": ("was ended at its deadline", None),
    "REVOKED": ("was moved to another cluster", None),
    "GONE": (
        "is not known to SLURM any more",
        "it forgets jobs some minutes after their end; the output tells how it ended",
    ),
}


def how_ended(info: JobInfo) -> tuple[str, str | None]:
    """An ending in words, and what to do about it."""
    if info.reason == NEVER:
        return f"never started: the job that it depends on ended otherwise ({NEVER})", None
    words, hint = _ENDS.get(info.state, (f"ended as {info.state}", None))
    if info.state == "CANCELLED" and info.reason.startswith("by "):
        words = f"was cancelled {info.reason}"
    if info.state == "FAILED":
        words = f"failed: exit code {info.exit_code}"
    if info.reason.startswith("NonZeroExitCode") or not info.reason or info.state != "FAILED":
        return words, hint
    return f"{words} ({info.reason})", hint


_CUT = re.compile(r"\*\*\* JOB (\d+) ON \S+ CANCELLED AT \S+ DUE TO ([A-Z ]+)")
_CAUSES = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}


def why_cut(line: str) -> tuple[str, str] | None:
    """A job and why SLURM ended it, by what the node's daemon writes into the job's output (SLURM
    22.05, slurmstepd). SLURM says it nowhere else of a job that it puts back into the queue."""
    found = _CUT.search(line)
    state = next((s for words, s in _CAUSES.items() if found and words in found[2]), None)
    return (found[1], _ENDS[state][0]) if found and state else None


# ---------------------------------------------------------------- why it was refused


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why SLURM did not take a job."""

    words: str
    settings: tuple[str, ...] = ()
    """The keys of `slurm:` that are to blame."""
    hint: str | None = None
    down: bool = False
    """The controller did not answer: nothing is wrong with the job."""


_REFUSALS: tuple[tuple[str, Refusal], ...] = (
    (
        r"[Ii]nvalid partition(?: name)? specified",
        Refusal("there is no such partition", ("partition",), "`sinfo -s` lists them"),
    ),
    (
        r"[Ii]nvalid account or account/partition combination",
        Refusal(
            "this account may not use this partition",
            ("account", "partition"),
            "`sacctmgr show associations user=$USER` lists yours",
        ),
    ),
    (r"[Ii]nvalid qos", Refusal("there is no such quality of service for you", ("qos",))),
    (
        r"[Rr]equested time limit is invalid|[Tt]ime limit specification",
        Refusal(
            "the time limit is more than the partition gives, or none is given where one must be",
            ("time", "partition"),
            "`sinfo -o '%P %l'` shows how much each gives",
        ),
    ),
    (
        r"[Rr]equested node configuration is not available",
        Refusal(
            "no nodes of the partition have what is asked for",
            ("nodes", "partition", "gpus", "gpu_label", "cpus_per_task", "mem", "constraint"),
            "`sinfo -o '%P %D %c %m %G %f'` shows what nodes there are",
        ),
    ),
    (
        r"[Ii]nvalid generic resource|[Ii]nvalid Trackable RESource|gres .* (?:not|invalid)",
        Refusal(
            "GPUs are not asked for so at this site",
            ("gpus", "gpu_label"),
            "`sinfo -o %G` shows what the nodes have",
        ),
    ),
    (
        r"[Mm]emory specification can not be satisfied",
        Refusal("no node has so much memory", ("mem",), "`mem: 0` is all that a node has"),
    ),
    (r"[Nn]ode count specification invalid", Refusal("not so many nodes", ("nodes", "partition"))),
    (
        r"[Mm]ore processors requested than permitted|CPU count per node can not be satisfied",
        Refusal("no node has so many CPUs", ("cpus_per_task",)),
    ),
    (r"[Ii]nvalid feature specification", Refusal("no node has this feature", ("constraint",))),
    (
        r"reservation .*invalid|[Ii]nvalid reservation",
        Refusal("no such reservation", ("reservation",)),
    ),
    (r"[Ii]nvalid node name", Refusal("there is no such node", ("nodelist", "exclude"))),
    (r"[Jj]ob dependency problem", Refusal("there is no such job to wait for", ("dependency",))),
    (r"[Ii]nvalid job array specification", Refusal("the array is not valid", ("array",))),
    (
        r"group not permitted|[Aa]ccess/permission denied|not permitted to use this partition",
        Refusal("you may not use this", ("partition", "account", "qos", "reservation")),
    ),
    (
        r"violates accounting/QOS policy",
        Refusal("a limit of the account or quality of service is reached", ("account", "qos")),
    ),
    (
        r"[Uu]nrecognized option|[Ii]nvalid option",
        Refusal("sbatch has no such option", ("directives",)),
    ),
    (
        r"Unable to contact slurm controller|[Cc]onnection refused|[Ss]ocket timed out|"
        r"Zero Bytes were transmitted|Unable to establish controller|connect failure",
        Refusal(
            "SLURM's controller does not answer", (), "try again; `scontrol ping` asks it", True
        ),
    ),
    (
        r"Could not establish a configuration source",
        Refusal("there is no SLURM here", (), "call it where sbatch works, on a login node"),
    ),
)


def why_refused(said: str) -> Refusal:
    """What sbatch wrote to standard error, in words; the unknown as it is."""
    for pattern, refusal in _REFUSALS:
        if re.search(pattern, said):
            return refusal
    lines = [re.sub(r"^\w+: (?:error: |fatal: )?", "", line) for line in said.splitlines()]
    return Refusal("; ".join(filter(None, lines)) or "sbatch gave no reason")


def is_down(said: str) -> bool:
    """Whether a command failed only because the controller does not answer."""
    return why_refused(said).down
