"""A client of SLURM, by its commands: sbatch, squeue, sacct, scancel, scontrol."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from dslaunch import log
from dslaunch.errors import DslaunchError, ErrorCode, ToolMissingError
from dslaunch.run.view import ignore
from dslaunch.slurm.answers import (
    ACCOUNTING,
    FORMAT,
    SlurmAnswerError,
    parse_accounting,
    parse_columns,
    parse_json,
)
from dslaunch.slurm.identity import SCRIPT, JobId, Whose, proven_by_starts, seen, whose
from dslaunch.slurm.query_failures import QueryError, QueryFailure, is_forgotten, without_accounting
from dslaunch.slurm.refusal import Refusal, parse_messages, parse_refusal
from dslaunch.slurm.scontrol import NodeRecord, node_records
from dslaunch.slurm.states import FINAL, GONE, JobInfo

_log = log.Log(__name__)
COMMAND_TIMEOUT = 60.0
"""Seconds for one command; SLURM's own timeout is shorter (slurm.conf, MessageTimeout)."""
FIRST_WITH_JSON = (23, 2)
"""The first release in which `squeue --json` applies `--jobs` (src/squeue/squeue.c)."""
COMMAND_VARIABLES = (
    "SQUEUE_",
    "SACCT_",
    "SCONTROL_",
    "SCANCEL_",
    "SLURM_CLUSTERS",
    "SLURM_BITSTR_",
)
"""Variables that change the output of the commands, or the cluster that they ask; unset for our
queries (squeue(1), sacct(1), scontrol(1), scancel(1), "ENVIRONMENT VARIABLES")."""


class Done(Struct, frozen=True):
    """The result of a command."""

    code: int
    out: str
    err: str


Run = Callable[[Sequence[str], str, Mapping[str, str]], Done]
"""Runs a command with standard input and an environment. Raises ToolMissingError."""


class RefusedError(DslaunchError):
    """SLURM refused the job."""

    class_code = ErrorCode.SLURM_REFUSED

    def __init__(self, refusal: Refusal, message: str | None = None) -> None:
        text = f"SLURM refused the job: {refusal.text}"
        super().__init__(message or text, hint=refusal.hint)
        self.refusal = refusal


def run_command(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
    """Run a command of SLURM. Raises ToolMissingError, and QueryError for a timeout."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            argv,
            input=stdin.encode("utf-8", "surrogateescape"),
            env=dict(environ),
            capture_output=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except FileNotFoundError:
        raise ToolMissingError(
            f"{argv[0]} not found",
            hint="run dslaunch on a host with SLURM's commands, such as a login node",
        ) from None
    except OSError as error:  # for example a process limit of this machine
        raise QueryError(
            QueryFailure.COMMAND_NOT_STARTED, command=argv[0], error=str(error.strerror)
        ) from None
    except subprocess.TimeoutExpired:
        raise QueryError(
            QueryFailure.COMMAND_TIMEOUT, command=argv[0], seconds=round(COMMAND_TIMEOUT)
        ) from None
    seconds = time.monotonic() - began
    _log.info("ran", argv=argv, code=done.returncode, seconds=seconds)
    # not in text mode: columns of squeue are counted in bytes, and newlines must stay
    out, err = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
    return Done(done.returncode, out, err)


class Release(Struct):
    """The release of SLURM, once it is known."""

    has_json: bool | None = None
    """Whether `squeue --json` can query one job: before 23.02 it prints all jobs of the site.
    None: not known."""


class SlurmClient(Struct, frozen=True):
    """SLURM on this machine, queried by its commands."""

    environ: Mapping[str, str]
    run: Run = run_command
    release: Release = field(default_factory=Release)
    notice: Callable[[str], object] = ignore
    """Receives each line that a successful sbatch writes to standard error: messages of the site
    and warnings."""

    def submit(self, script: str, environ: Mapping[str, str]) -> JobId:
        """Submit a script; return the job, without its submission time. Raises RefusedError.

        The token is an argument of the script, which ignores it.
        """
        token = f"dslaunch-{secrets.token_hex(8)}"
        argv = ["sbatch", "--parsable", *kill_on_invalid_dependency(script), SCRIPT, token]
        done = self.run(argv, script, environ)
        printed = re.search(r"^([0-9]{1,10})(?:;([^\s;,]{1,255}))?$", done.out, re.M)
        if done.code or printed is None:
            raise RefusedError(parse_refusal(done.err))
        self._forward_notices(done.err)
        return JobId(printed[1], printed[2] or "", token=token)

    def submitted(self, job: JobId) -> tuple[JobId, tuple[JobInfo, ...]]:
        """Return a job that was just submitted, with its submission time, and its records.

        Raises QueryError."""
        found = self._asked(job) or ()
        return seen(job, found), found

    def test(self, script: str, environ: Mapping[str, str]) -> str:
        """Validate a script by sbatch; return the estimated start. Raises RefusedError."""
        done = self.run(["sbatch", "--test-only"], script, environ)
        if done.code:
            raise RefusedError(parse_refusal(done.err))
        self._forward_notices(done.err)
        estimate = "; ".join(parse_messages(done.err).estimate)
        return re.sub(r"^Job \d+ to start", "would start", estimate)

    def _forward_notices(self, stderr: str) -> None:
        for line in parse_messages(stderr).notices:
            self.notice(line)

    def jobs(self, job: JobId) -> tuple[JobInfo, ...]:
        """Return the records of a job: itself, its tasks, its components. Empty: neither the
        controller nor the accounting knows it.

        Raises QueryError without an answer, and for an answer that may be about another job.
        """
        found = self._asked(job) or ()
        mine = tuple(info for info in found if self._is(job, info))
        return mine or self._accounted(job)

    def _is(self, job: JobId, info: JobInfo) -> bool:
        """Return whether a record is of the job. Raises QueryError if that is unknown."""
        answer = whose(job, info)
        if answer is not Whose.UNPROVEN:
            return answer is Whose.OURS
        if proven_by_starts(job, info, self._all_starts(job)):
            return True
        raise QueryError(QueryFailure.UNPROVEN, job=str(job))

    def _asked(self, job: JobId) -> tuple[JobInfo, ...] | None:
        """Return the controller's records with a job's number, of any job; None: there are none.

        Raises QueryError.
        """
        argv = ["squeue", "--noheader", "--all", "--states=all", *_of(job), f"--jobs={job.number}"]
        has_json = self._has_json()
        how = "--json" if has_json else f"--Format={FORMAT}"
        done = self.run([*argv, how], "", self.asking)
        if has_json and done.code and _lacks_json(done.err):
            self.release.has_json = False
            return self._asked(job)
        if done.code:
            if is_forgotten(done.err):
                return None
            raise QueryError.of(done.err)
        try:
            records = parse_json(done.out) if has_json else parse_columns(done.out)
        except SlurmAnswerError:
            raise QueryError(QueryFailure.CUT_ANSWER, command="squeue") from None
        mine = [info for info in records if job.number in (info.job, info.array, info.leader)]
        if not mine:
            raise QueryError(QueryFailure.JOB_MISSING, command="squeue")
        return tuple(replace(info, cluster=job.cluster) for info in mine)

    def _has_json(self) -> bool:
        if self.release.has_json is None:
            done = self.run(["squeue", "--version"], "", self.asking)
            printed = re.match(r"slurm(?:-wlm)? ([0-9]{2})\.([0-9]{2})", done.out)
            if printed is None:
                return False
            version = int(printed[1]), int(printed[2])
            self.release.has_json = version >= FIRST_WITH_JSON
        return self.release.has_json

    def nodes(self, folded: str) -> dict[str, NodeRecord]:
        """Return the records of nodes, by their names; empty if SLURM does not answer."""
        done = self.scontrol("--oneliner", "show", "node", folded)
        return node_records(done.out)

    def scontrol(self, *words: str) -> Done:
        """Run scontrol for the cluster of this machine. Raises ToolMissingError, QueryError."""
        return self.run(["scontrol", *words], "", self.asking)

    def cancel(self, job: JobId, *, signal: str | None = None) -> None:
        """Cancel a job, or signal its steps. Raises QueryError if it is unknown which job has the
        number, DslaunchError if it is not in the queue, and if SLURM refuses."""
        found = self._asked(job) or ()
        if not any(self._is(job, info) and not info.over for info in found):
            raise DslaunchError(f"job {job} is not in the queue")
        how = [f"--signal={signal}"] if signal else []
        done = self.run(["scancel", *_of(job), *how, job.number], "", self.asking)
        if done.code:
            error = done.err.strip().removeprefix("scancel: error: ")
            raise DslaunchError(f"job {job} cannot be canceled: {error}")

    def starts(self, job: JobId) -> tuple[JobInfo, ...]:
        """Return the starts of a job, its tasks and components in the accounting, the latest last;
        empty: there are none, or the site has no accounting. Raises QueryError."""
        counted: dict[str, int] = {}
        mine = []
        for start in self._all_starts(job):
            if whose(job, start) is Whose.OURS:
                restarts = counted.get(start.job, 0)
                counted[start.job] = restarts + 1
                mine.append(replace(start, restarts=restarts, cluster=job.cluster))
        return tuple(mine)

    def _all_starts(self, job: JobId) -> tuple[JobInfo, ...]:
        """Return the starts of all jobs that have or had the number. Raises QueryError."""
        delimiter = f"\x1f{secrets.token_hex(4)}\x1f"
        options = ("--allocations", f"--delimiter={delimiter}")
        try:
            done = self.sacct(job.number, job.cluster, ACCOUNTING, *options)
        except ToolMissingError:
            return ()
        if without_accounting(done.err):
            return ()
        if done.code:
            raise QueryError.of(done.err)
        try:
            return parse_accounting(done.out, delimiter)
        except SlurmAnswerError:
            raise QueryError(QueryFailure.CUT_ANSWER, command="sacct") from None

    def sacct(self, number: str, cluster: str, fields: str, *options: str) -> Done:
        """Query the accounting for all starts of a job. Raises ToolMissingError, QueryError."""
        of_cluster = [f"--clusters={cluster}"] if cluster else []
        command = ["sacct", "--noheader", "--parsable2", "--duplicates", *options, *of_cluster]
        return self.run([*command, f"--jobs={number}", f"--format={fields}"], "", self.asking)

    @property
    def asking(self) -> dict[str, str]:
        """The environment of queries: times as numbers, independent of the user's settings."""
        kept = {
            name: value
            for name, value in self.environ.items()
            if not name.startswith(COMMAND_VARIABLES)
        }
        return kept | {"SLURM_TIME_FORMAT": "%s"}

    def _accounted(self, job: JobId) -> tuple[JobInfo, ...]:
        """Return the end of a job that the controller has forgotten: the last start of each part.

        Raises QueryError, also if the accounting has no end of it: a controller that lost its
        state, or a federation with a controller that does not answer, knows no job either
        (SLURM 22.05 to 24.11, api/job_info.c, `_load_fed_jobs`).
        """
        last = {start.job: start for start in self.starts(job)}
        if any(start.state not in FINAL for start in last.values()):
            raise QueryError(QueryFailure.NO_END, job=str(job))
        return tuple(last.values())


def _of(job: JobId) -> tuple[str, ...]:
    return (f"--clusters={job.cluster}",) if job.cluster else ()


def _lacks_json(stderr: str) -> bool:
    """Return whether squeue lacks the plugin serializer/json, a separate package at some sites."""
    return re.search(r"(?i)serializer|unrecognized option|data_parser|json", stderr) is not None


def kill_on_invalid_dependency(script: str) -> tuple[str, ...]:
    """Return the option that cancels a job whose dependency can never be satisfied, which stays
    pending otherwise; none if the script has the option."""
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH ")]
    depends = any("--dependency" in line for line in lines)
    is_set = any("--kill-on-invalid-dep" in line for line in lines)
    return ("--kill-on-invalid-dep=yes",) if depends and not is_set else ()


def here(environ: Mapping[str, str] | None = None) -> SlurmClient:
    """Return a client of SLURM on this machine."""
    return SlurmClient(dict(os.environ if environ is None else environ))


def gone(number: str) -> JobInfo:
    """Return the record of a job that SLURM no longer knows."""
    return JobInfo(number, GONE)
