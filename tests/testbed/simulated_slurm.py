"""A SLURM that is simulated: it answers the commands that dslaunch calls, as four releases do.

`Slurm.run` takes the place of `dslaunch.slurm.client.run_command`. Its time is `Slurm.now`, and it
has the faults of sites: munge, controllers and slurmdbd that are stopped, a standby controller, an
RPC rate limit, an answer that is cut. Jobs of other users have the same numbers on another cluster,
and after a controller has lost its state on the same one. An option or command that it does not
know is an AssertionError: it would otherwise answer what SLURM never says.

`test_slurm_simulation` compares its answers with those of the real SLURM 22.05. The shapes of
23.11, 24.11 and 25.05 are those of SLURM's data_parser v0.0.40, v0.0.42 and v0.0.43.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from msgspec import structs

from dslaunch.slurm.client import Done

LOCAL, OTHER = "vcluster", "other"
OURS, STRANGER, ROOT = 2001, 2002, 0
RUNNING, PENDING, SUSPENDED, COMPLETED = "RUNNING", "PENDING", "SUSPENDED", "COMPLETED"
FINAL = frozenset((
    COMPLETED, "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "DEADLINE", "BOOT_FAIL",
))  # fmt: skip
INVALID = "Invalid job id specified"
SUBMITTED_FROM_STANDARD_INPUT = "(null)"


class Fault(Enum):
    """What is wrong with the site; the value is what SLURM's commands say then."""

    MUNGE = "Protocol authentication error"
    CONTROLLER = "Unable to contact slurm controller (connect failure)"
    STANDBY = "Slurm backup controller in standby mode"
    BUSY = "Resource temporarily unavailable"
    TIMEOUT = "Socket timed out on send/recv operation"
    RATE_LIMIT = "RPC rate limit exceeded too many times"
    UNKNOWN_TEXT = "Plugin initialization failed (code 17)"
    DATABASE = "Connection refused"
    CUT = "(the answer is cut)"


@dataclass(frozen=True, slots=True)
class Release:
    """What differs between releases of SLURM."""

    name: str
    json_of_scontrol: bool
    """`scontrol --json`, since 23.02."""
    typed_numbers: bool
    """Numbers of JSON are `{"set": true, "infinite": false, "number": 5}`, states are lists."""
    selects_jobs: bool
    """`squeue --json --jobs=N` answers with these jobs only."""


RELEASES = (
    Release("22.05.8", json_of_scontrol=False, typed_numbers=False, selects_jobs=False),
    Release("23.11.4", json_of_scontrol=True, typed_numbers=True, selects_jobs=True),
    Release("24.11.1", json_of_scontrol=True, typed_numbers=True, selects_jobs=True),
    Release("25.05.0", json_of_scontrol=True, typed_numbers=True, selects_jobs=True),
)


@dataclass(slots=True)
class Job:
    """A job that SLURM knows."""

    number: int
    cluster: str
    user: int
    submitted: int
    name: str = "train"
    command: str = SUBMITTED_FROM_STANDARD_INPUT
    output: str = "/dev/null"
    comment: str = ""
    nodes: str = "node[1-2]"
    state: str = PENDING
    flags: tuple[str, ...] = ()
    reason: str = "None"
    code: int = 0
    signal: int = 0
    killed_by: int | None = None
    restarts: int = 0
    started: int = 0
    ended: int = 0
    held: bool = False
    eligible: int = 0
    """When it may start."""
    lasts: int = 60
    """Seconds from a start to its own end."""
    ends_as: tuple[str, int] = (COMPLETED, 0)
    """State and exit code of its own end."""

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in FINAL


@dataclass(slots=True)
class Slurm:
    """Two clusters under one slurmdbd, or one without accounting."""

    release: Release
    accounting: bool = True
    now: float = 1_700_000_000.0
    min_job_age: float = 300.0
    faults: set[Fault] = field(default_factory=set)
    jobs: list[Job] = field(default_factory=list)
    """Those that the controllers know."""
    records: list[Job] = field(default_factory=list)
    """Those that slurmdbd knows: one for each start, as it is or was."""
    touched: list[Job] = field(default_factory=list)
    """Those that a command has cancelled, signaled or changed."""
    next_number: int = 105
    """Of every cluster: each counts for itself, and they may have come as far."""
    directory: str = "/tmp"
    """Where jobs are submitted."""
    begins: Callable[[Job], None] = lambda job: None
    """Called when a job begins, and when it ends by itself: it writes its output."""
    ends: Callable[[Job], None] = lambda job: None

    # ------------------------------------------------------------ time

    def pass_time(self, seconds: float) -> None:
        """Let jobs begin and end."""
        self.now += seconds
        for job in self.jobs:
            if job.state == PENDING and not job.held and job.eligible <= self.now:
                job.state, job.reason, job.started = RUNNING, "None", int(self.now)
                self.begins(job)
            elif job.state == RUNNING and self.now >= job.started + job.lasts:
                self.end(job, *job.ends_as)
                self.ends(job)
        forgotten = [
            job for job in self.jobs if job.over and self.now > job.ended + self.min_job_age
        ]
        self.jobs = [job for job in self.jobs if job not in forgotten]

    # ------------------------------------------------------------ what happens to jobs

    def add(self, job: Job) -> Job:
        """Take a job into the queue."""
        self.jobs.append(job)
        self.records.append(job)
        return job

    def end(self, job: Job, state: str, code: int = 0, by: int | None = None) -> None:
        """A job ends."""
        job.state, job.code, job.ended, job.killed_by = state, code, int(self.now), by
        job.reason = "NonZeroExitCode" if state == "FAILED" else "None"
        job.flags = ()

    def requeue(self, job: Job) -> None:
        """A job goes back into the queue; slurmdbd keeps the start that was cut."""
        past = replace(job, state="REQUEUED", ended=int(self.now))
        self.records = [past if record is job else record for record in self.records]
        job.state, job.started, job.ended, job.code = PENDING, 0, 0, 0
        job.restarts += 1
        job.submitted = int(self.now)
        job.eligible = int(self.now) + 5
        job.reason = "BeginTime"
        self.records.append(job)

    def hold(self, job: Job, by: int) -> None:
        """A job that waits goes on waiting; of one that runs only the reason changes."""
        job.held = True
        job.reason = "JobHeldAdmin" if by == ROOT else "JobHeldUser"

    def release_job(self, job: Job) -> None:
        """A held job may begin."""
        job.held = False
        job.reason = "None"

    def lose_state(self, job: Job) -> None:
        """The controller forgets a job; slurmdbd takes it for canceled when it hears of that."""
        self.jobs.remove(job)
        lost = replace(job, state="CANCELLED", ended=int(self.now), killed_by=ROOT)
        self.records = [lost if record is job else record for record in self.records]

    # ------------------------------------------------------------ commands

    def run(self, argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        """Answer a command."""
        command, *words = argv
        commands = {
            "sbatch": self._sbatch,
            "scontrol": self._scontrol,
            "squeue": self._squeue,
            "sacct": self._sacct,
            "scancel": self._scancel,
        }
        assert command in commands, f"{command} is not simulated: {argv}"
        asked = _parse(words)
        asked.stdin, asked.environ = stdin, environ
        done = self._broken(command, asked) or commands[command](asked)
        if Fault.CUT in self.faults and command != "sbatch" and done.out:
            return structs.replace(done, out=done.out[: len(done.out) // 2])
        return done

    def _broken(self, command: str, asked: _Asked) -> Done | None:
        """What a command says whose daemons do not answer."""
        if asked.has("version"):
            return None
        if Fault.DATABASE in self.faults and (command == "sacct" or asked.names_cluster):
            return Done(1, "", _database_down(command))
        if command == "sacct" and Fault.MUNGE not in self.faults:
            return None
        found = [fault for fault in Fault if fault in self.faults and fault not in _HARMLESS]
        if not found:
            return None
        if command == "squeue" and asked.has("json") and not self.release.typed_numbers:
            return Done(0, _json(self.release, [], [_LOAD_JOBS_FAILED]), "")
        prefix = _MUNGE_LINES.format(command=command) if found[0] is Fault.MUNGE else ""
        return Done(1, "", f"{prefix}{_ERRORS[command].format(command, found[0].value)}\n")

    def _sbatch(self, asked: _Asked) -> Done:
        known = {"parsable", "clusters", "kill-on-invalid-dep", "comment"}
        asked.must_be(known, words=2)  # the script's name, and an argument
        cluster = asked.option("clusters") or asked.environ.get("SBATCH_CLUSTERS") or ""
        number = self.next_number
        self.next_number += 1
        job = Job(
            number=number,
            cluster=cluster or LOCAL,
            user=OURS,
            submitted=int(self.now),
            eligible=int(self.now) + 2,
            output=f"{self.directory}/train-{number}.out",
            comment=asked.option("comment"),
            command=" ".join(asked.words) or SUBMITTED_FROM_STANDARD_INPUT,
        )
        self.add(job)
        return Done(0, f"{number};{cluster}\n" if cluster else f"{number}\n", "")

    def _scontrol(self, asked: _Asked) -> Done:
        asked.must_be({"oneliner", "json", "clusters"}, words=3)
        verb, what, number = asked.words
        assert (verb, what) in {("show", "job"), ("show", "node")}, asked.words
        if asked.has("json") and not self.release.json_of_scontrol:
            said = "scontrol: unrecognized option '--json'\n"
            return Done(1, "", f'{said}Try "scontrol --help" for more information\n')
        if what == "node":
            return Done(0, "NodeName=node1 State=IDLE \n", "")
        found = [job for job in self._of(asked) if str(job.number) == number]
        if asked.has("json"):
            errors = [] if found else [_INVALID_JOB]
            return Done(0 if found else 1, _json(self.release, self._described(found), errors), "")
        if not found:
            return Done(1, "", f"slurm_load_jobs error: {INVALID}\n")
        return Done(0, "".join(_line(job, asked.environ) for job in found), "")

    def _squeue(self, asked: _Asked) -> Done:
        known = {"all", "json", "jobs", "clusters", "noheader", "states", "Format", "version"}
        asked.must_be(known, words=0)
        if asked.has("version"):
            return Done(0, f"slurm-wlm {self.release.name}\n", "")
        wanted = asked.option("jobs").split(",") if asked.has("jobs") else []
        found = [job for job in self._of(asked) if not wanted or str(job.number) in wanted]
        asks_for_all = asked.has("json") and not self.release.selects_jobs
        if len(wanted) == 1 and not found and not asks_for_all:
            return Done(1, "", f"slurm_load_jobs error: {INVALID}\n")
        if asked.has("json"):
            listed = self._of(asked) if asks_for_all else found
            return Done(0, _json(self.release, self._described(listed), []), "")
        listed = [job for job in found if not job.over or asked.option("states") == "all"]
        rows = [_columns(job, asked) for job in listed]
        return Done(0, "".join(f"{row}\n" for row in rows), "")

    def _sacct(self, asked: _Asked) -> Done:
        known = {
            *("noheader", "parsable2", "allocations", "duplicates", "jobs", "format"),
            *("clusters", "delimiter"),
        }
        asked.must_be(known, words=0)
        if not self.accounting:
            return Done(1, "", "Slurm accounting storage is disabled\n")
        cluster = asked.option("clusters") or LOCAL
        wanted = asked.option("jobs").split(",")
        found = [
            job for job in self.records if job.cluster == cluster and str(job.number) in wanted
        ]
        found.sort(key=lambda job: job.submitted)
        found = found if asked.has("duplicates") else found[-1:]
        fields = asked.option("format").split(",")
        delimiter = asked.option("delimiter") or "|"
        rows = [
            delimiter.join(_CELLS[name](job, asked.environ) for name in fields) for job in found
        ]
        return Done(0, "".join(f"{row}\n" for row in rows), "")

    def _scancel(self, asked: _Asked) -> Done:
        asked.must_be({"signal", "clusters", "batch", "full"}, words=1)
        found = [job for job in self._of(asked) if str(job.number) == asked.words[0]]
        for job in found:
            self.touched.append(job)
            if not asked.has("signal") and not job.over:
                self.end(job, "CANCELLED", by=OURS)
        return Done(0, "", "")  # also for a job that is not there

    def _of(self, asked: _Asked) -> list[Job]:
        """The jobs of the cluster that is asked."""
        cluster = asked.option("clusters") or asked.environ.get("SLURM_CLUSTERS") or LOCAL
        return [job for job in self.jobs if job.cluster == cluster]

    def _described(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        return [_described(job, self.release) for job in jobs]


# ---------------------------------------------------------------- arguments

_WITH_VALUE = frozenset(("clusters", "jobs", "format", "signal", "states", "comment"))
_SHORT = {
    "M": "clusters", "j": "jobs", "o": "oneliner", "n": "noheader", "P": "parsable2",
    "X": "allocations", "D": "duplicates", "h": "noheader",
}  # fmt: skip


@dataclass(slots=True)
class _Asked:
    """The arguments of a command."""

    options: dict[str, str]
    words: list[str]
    stdin: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name in self.options

    def option(self, name: str) -> str:
        return self.options.get(name, "")

    @property
    def names_cluster(self) -> bool:
        """Whether slurmdbd is needed to find the cluster."""
        return self.has("clusters")

    def must_be(self, known: set[str], words: int) -> None:
        """AssertionError for what is not simulated."""
        unknown = set(self.options) - known
        assert not unknown, f"options that are not simulated: {sorted(unknown)}"
        assert len(self.words) <= words, f"words that are not simulated: {self.words}"


def _parse(words: Sequence[str]) -> _Asked:
    asked = _Asked({}, [])
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            takes_next = name in _WITH_VALUE and not given
            asked.options[name] = left.pop(0) if takes_next else value
        elif word.startswith("-"):
            name = _SHORT[word[1]]
            value = word[2:] or (left.pop(0) if name in _WITH_VALUE else "")
            asked.options[name] = value
        else:
            asked.words.append(word)
    return asked


# ---------------------------------------------------------------- errors

_HARMLESS = frozenset((Fault.DATABASE, Fault.CUT))
"""For the controller's answers."""
_MUNGE_LINES = """\
{command}: error: If munged is up, restart with --num-threads=10
{command}: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file \
or directory (Did you start munged?)
{command}: error: slurm_send_node_msg: auth_g_create: REQUEST_JOB_INFO has authentication error
"""
_ERRORS = {
    "scontrol": "slurm_load_jobs error: {1}",
    "squeue": "slurm_load_jobs error: {1}",
    "scancel": "scancel: error: Kill job error on job id 105: {1}",
    "sbatch": "sbatch: error: Batch job submission failed: {1}",
    "sacct": "sacct: error: Problem talking to the database: {1}",
}
_LOAD_JOBS_FAILED = {
    "description": "Failed while looking for jobs", "error_number": -1,
    "error": "Unspecified error", "source": "slurm_load_jobs",
}  # fmt: skip
_INVALID_JOB = {
    "description": "Failure to load job", "error_number": 2017, "error": INVALID,
    "source": "_print_job",
}  # fmt: skip


def _database_down(command: str) -> str:
    lines = [
        "slurm_persist_conn_open_without_init: failed to open persistent connection to "
        "host:control:6819: Connection refused",
        "Sending PersistInit msg: Connection refused",
    ]
    if command == "sacct":
        lines.append("Problem talking to the database: Connection refused")
    else:
        lines += [
            "DBD_GET_CLUSTERS failure: Connection refused",
            "Problem talking to database",
            "There is a problem talking to the database: Connection refused.  Only local cluster "
            "communication is available, remove --cluster from your command line or contact your "
            "admin to resolve the problem.",
        ]
    return "".join(f"{command}: error: {line}\n" for line in lines)


# ---------------------------------------------------------------- text


def _time(moment: int, environ: Mapping[str, str]) -> str:
    """A time as SLURM_TIME_FORMAT and TZ want it."""
    if not moment:
        return "Unknown"
    if environ.get("SLURM_TIME_FORMAT") == "%s":
        return str(moment)
    offset = {"Asia/Tokyo": 9, "America/New_York": -5}.get(environ.get("TZ", ""), 0)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment + 3600 * offset))


def _line(job: Job, environ: Mapping[str, str]) -> str:
    """A job as `scontrol --oneliner show job` has it."""
    state = "COMPLETING" if "COMPLETING" in job.flags else job.state
    has_nodes = job.started > 0
    fields = {
        "JobId": job.number,
        "JobName": job.name,
        "UserId": f"user{job.user}({job.user})",
        "GroupId": f"user{job.user}({job.user})",
        "MCS_label": "N/A",
        "Priority": 0 if job.held else 4294901759,
        "Nice": 0,
        "Account": "root",
        "QOS": "normal",
        "JobState": state,
        "Reason": job.reason,
        "Dependency": "(null)",
        "Requeue": 1,
        "Restarts": job.restarts,
        "BatchFlag": 1,
        "Reboot": 0,
        "ExitCode": f"{job.code}:{job.signal}",
        "RunTime": "00:00:01",
        "TimeLimit": "365-00:00:00",
        "TimeMin": "N/A",
        "SubmitTime": _time(job.submitted, environ),
        "EligibleTime": _time(job.eligible, environ),
        "StartTime": _time(job.started, environ),
        "EndTime": _time(_end(job), environ),
        "Deadline": "N/A",
        "Partition": "main",
        "NodeList": job.nodes if has_nodes else "",
        **({"BatchHost": "node1"} if has_nodes else {}),
        "NumNodes": 2,
        "Licenses": "(null)",
        "Command": job.command,
        "WorkDir": os.path.dirname(job.output) or "/",  # noqa: PTH120  text of another machine
        **({"Comment": job.comment} if job.comment else {}),
        "StdErr": job.output,
        "StdIn": "/dev/null",
        "StdOut": job.output,
        "Power": "",
    }
    return " ".join(f"{name}={value}" for name, value in fields.items()) + " \n"


def _state_of_accounting(job: Job, environ: Mapping[str, str]) -> str:
    by = f" by {job.killed_by}" if job.killed_by is not None else ""
    return f"{job.state}{by}"


_CELLS: Mapping[str, Callable[[Job, Mapping[str, str]], str]] = {
    "JobID": lambda job, environ: str(job.number),
    "JobIDRaw": lambda job, environ: str(job.number),
    "JobName": lambda job, environ: job.name,
    "State": _state_of_accounting,
    "ExitCode": lambda job, environ: f"{job.code}:{job.signal}",
    "NodeList": lambda job, environ: job.nodes if job.started else "None assigned",
    "Submit": lambda job, environ: _time(job.submitted, environ),
    "Start": lambda job, environ: _time(job.started, environ),
    "End": lambda job, environ: _time(job.ended, environ),
    "UID": lambda job, environ: str(job.user),
    "User": lambda job, environ: f"user{job.user}",
    "Cluster": lambda job, environ: job.cluster,
    "Restarts": lambda job, environ: str(job.restarts),
    "Reason": lambda job, environ: job.reason,
    "Comment": lambda job, environ: job.comment,
    "SubmitLine": lambda job, environ: f"sbatch --parsable {job.command}",
}


def _columns(job: Job, asked: _Asked) -> str:
    """A job as `squeue --Format` has it: columns of bytes, of which too long values are cut."""
    cells = []
    for field_ in asked.option("Format").split(","):
        name, _, width = field_.partition(":")
        value = str(_COLUMNS[name](job, asked.environ)).encode()
        cells.append(value[: int(width)].ljust(int(width)).decode(errors="surrogateescape"))
    return "".join(cells)


_COLUMNS: Mapping[str, Callable[[Job, Mapping[str, str]], object]] = {
    "jobid": lambda job, environ: job.number,
    "arrayjobid": lambda job, environ: job.number,
    "arraytaskid": lambda job, environ: "N/A",
    "hetjobid": lambda job, environ: "N/A",
    "hetjoboffset": lambda job, environ: "N/A",
    "state": lambda job, environ: _plain_state(job),
    "exit_code": lambda job, environ: job.code << 8 | job.signal,
    "restartcnt": lambda job, environ: job.restarts,
    "submittime": lambda job, environ: _time(job.submitted, environ),
    "starttime": lambda job, environ: _time(job.started, environ) if job.started else "N/A",
    "endtime": lambda job, environ: _time(_end(job), environ) if job.started else "N/A",
    "userid": lambda job, environ: job.user,
    "batchhost": lambda job, environ: "node1" if job.started else "n/a",
    "reason": lambda job, environ: job.reason,
    "nodelist": lambda job, environ: job.nodes if job.started else "",
    "command": lambda job, environ: job.command,
    "stdout": lambda job, environ: job.output,
    "stderr": lambda job, environ: job.output,
    "name": lambda job, environ: job.name,
    "username": lambda job, environ: f"user{job.user}",
}


def _end(job: Job) -> int:
    """The end, or for a job that runs the latest one."""
    return job.ended or (job.started + 365 * 86400 if job.started else 0)


# ---------------------------------------------------------------- JSON


def _json(
    release: Release, jobs: list[dict[str, Any]], errors: Sequence[Mapping[str, object]]
) -> str:
    major, minor, micro = release.name.split(".")
    numbers = {"major": major, "minor": minor, "micro": micro}
    if release.typed_numbers:
        meta = {"plugin": {"type": "", "data_parser": "data_parser/v0.0.40"}}
        meta |= {"slurm": {"version": numbers, "release": release.name, "cluster": LOCAL}}
    else:
        old_numbers = {name: int(number) for name, number in numbers.items()}
        meta = {"plugin": {"type": "openapi/v0.0.38", "name": "Slurm OpenAPI v0.0.38"}}
        meta |= {"Slurm": {"version": old_numbers, "release": release.name}}
    said = {"meta": meta, "errors": list(errors), "jobs": jobs}
    said |= {"warnings": []} if release.typed_numbers else {}
    return json.dumps(said, indent=2) + "\n"


def _number(release: Release, value: int) -> object:
    return {"set": True, "infinite": False, "number": value} if release.typed_numbers else value


def _unset(release: Release) -> object:
    unset = {"set": False, "infinite": False, "number": 0}
    return unset if release.typed_numbers else None


def _exit_code(job: Job, release: Release) -> dict[str, Any]:
    """As accounting has it in all releases, and the controller since 23.02."""
    status = "ERROR" if job.code else "SUCCESS"
    if not release.typed_numbers:
        return {"status": status, "return_code": job.code}
    signal = {"id": _unset(release), "name": ""}
    return {"status": [status], "return_code": _number(release, job.code), "signal": signal}


def _described(job: Job, release: Release) -> dict[str, Any]:
    """A job as the controller has it: `squeue --json`, `scontrol --json show job`."""
    typed = release.typed_numbers
    return {
        "account": "root",
        "array_job_id": _number(release, 0),
        "array_task_id": _unset(release),
        "array_task_string": "",
        "batch_host": "node1" if job.started else "",
        "cluster": job.cluster,
        "command": "" if job.command == SUBMITTED_FROM_STANDARD_INPUT else job.command,
        "comment": job.comment,
        "current_working_directory": os.path.dirname(job.output) or "/",  # noqa: PTH120
        "end_time": _number(release, _end(job)),
        "exit_code": _exit_code(job, release) if typed else job.code << 8 | job.signal,
        "het_job_id": _number(release, 0),
        "het_job_id_set": "",
        "het_job_offset": _number(release, 0),
        "job_id": job.number,
        "job_state": [job.state, *job.flags] if typed else _plain_state(job),
        "name": job.name,
        "nodes": job.nodes if job.started else "",
        "partition": "main",
        "requeue": True,
        "restart_cnt": job.restarts,
        "standard_error": job.output,
        "standard_input": "/dev/null",
        "standard_output": job.output,
        "start_time": _number(release, job.started),
        "state_description": "",
        "state_reason": job.reason,
        "submit_time": _number(release, job.submitted),
        "user_id": job.user,
        "user_name": f"user{job.user}",
    }


def _plain_state(job: Job) -> str:
    return "COMPLETING" if "COMPLETING" in job.flags else job.state
