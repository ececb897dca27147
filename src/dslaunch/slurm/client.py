"""The commands of SLURM: sbatch, squeue, sacct, scancel. The only place that calls them."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dslaunch import log
from dslaunch.errors import DslaunchError, ToolMissingError
from dslaunch.slurm.answers import (
    ACCOUNTING,
    FORMAT,
    InvalidAnswer,
    parse_accounting,
    parse_columns,
    parse_json,
)
from dslaunch.slurm.identity import SCRIPT, JobId, Whose, proven_by_starts, seen, whose
from dslaunch.slurm.query_failures import QueryFailure, UnknownNow, is_forgotten, without_accounting
from dslaunch.slurm.refusal import Refusal, read_said, why_refused
from dslaunch.slurm.states import FINAL, GONE, JobInfo, fields_of

_log = log.Log(__name__)
COMMAND_TIMEOUT = 60.0
"""Seconds for one command; SLURM's own give up sooner (slurm.conf, MessageTimeout)."""
FIRST_WITH_JSON = (23, 2)
"""The release since which `squeue --json` obeys `--jobs` (src/squeue/squeue.c)."""
OF_THE_COMMANDS = ("SQUEUE_", "SACCT_", "SCONTROL_", "SCANCEL_", "SLURM_CLUSTERS", "SLURM_BITSTR_")
"""Variables with which a user shapes what the commands print, or asks another cluster; not for
questions of ours (squeue(1), sacct(1), scontrol(1), scancel(1), "ENVIRONMENT VARIABLES")."""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


Run = Callable[[Sequence[str], str, Mapping[str, str]], Done]
"""Runs a command with a standard input and an environment. Raises ToolMissingError."""


class RefusedError(DslaunchError):
    """SLURM did not take the job."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"SLURM refuses the job: {refusal.words}", hint=refusal.hint)
        self.refusal = refusal


def run_command(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
    """Run a command of SLURM. Raises ToolMissingError, UnknownNow when it takes too long."""
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
            f"{argv[0]} is not here", hint="call it where SLURM's commands are, on a login node"
        ) from None
    except OSError as error:  # such as a process limit of this machine
        words = f"{argv[0]} cannot be started: {error.strerror}"
        raise UnknownNow(QueryFailure.BUSY, words) from None
    except subprocess.TimeoutExpired:
        words = f"{argv[0]} did not answer within {COMMAND_TIMEOUT:.0f} s"
        raise UnknownNow(QueryFailure.TIMEOUT, words) from None
    seconds = time.monotonic() - began
    _log.info("ran", argv=argv, code=done.returncode, seconds=seconds)
    # not as text: the columns of squeue are counted in bytes, and newlines may not change
    out, err = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
    return Done(done.returncode, out, err)


@dataclass(slots=True)
class Release:
    """Which SLURM answers, once it is known."""

    has_json: bool | None = None
    """Whether `squeue --json` can be asked for one job: before 23.02 it gives all jobs of the
    site. None: not known."""


@dataclass(frozen=True, slots=True)
class SlurmClient:
    """SLURM as its commands show it."""

    environ: Mapping[str, str]
    run: Run = run_command
    release: Release = field(default_factory=Release, compare=False)
    notice: Callable[[str], None] = lambda line: None
    """Told each line that sbatch writes to standard error though it succeeds: what the site has to
    say, and warnings."""

    def submit(self, script: str, environ: Mapping[str, str]) -> JobId:
        """Submit a script; give the job, as yet without its time. Raises RefusedError.

        The token is an argument of the script, which does not look at it.
        """
        token = f"dslaunch-{secrets.token_hex(8)}"
        argv = ["sbatch", "--parsable", *not_in_vain(script), SCRIPT, token]
        done = self.run(argv, script, environ)
        said = re.search(r"^([0-9]{1,10})(?:;([^\s;,]{1,255}))?$", done.out, re.M)
        if done.code or said is None:
            raise RefusedError(why_refused(done.err))
        self._hand_on(done.err)
        return JobId(said[1], said[2] or "", token=token)

    def submitted(self, job: JobId) -> tuple[JobId, tuple[JobInfo, ...]]:
        """What SLURM says of a job that was submitted this moment: the job with its time, and its
        records. Raises UnknownNow."""
        found = self._asked(job) or ()
        return seen(job, found), found

    def test(self, script: str, environ: Mapping[str, str]) -> str:
        """Ask what would become of a script; give the estimate. Raises RefusedError."""
        done = self.run(["sbatch", "--test-only"], script, environ)
        if done.code:
            raise RefusedError(why_refused(done.err))
        self._hand_on(done.err)
        estimate = "; ".join(read_said(done.err).estimate)
        return re.sub(r"^Job \d+ to start", "would start", estimate)

    def _hand_on(self, said: str) -> None:
        for line in read_said(said).notices:
            self.notice(line)

    def jobs(self, job: JobId) -> tuple[JobInfo, ...]:
        """Everything of a job: its tasks, its components; of other jobs nothing. Empty: SLURM
        forgot it, and its accounting has no record.

        Raises UnknownNow for all but an answer, also for one that may be of another job.
        """
        found = self._asked(job) or ()
        mine = tuple(info for info in found if self._is(job, info))
        return mine or self._accounted(job)

    def _is(self, job: JobId, info: JobInfo) -> bool:
        """Whether a record is of the job. Raises UnknownNow where that cannot be told."""
        answer = whose(job, info)
        if answer is not Whose.UNPROVEN:
            return answer is Whose.OURS
        if proven_by_starts(job, info, self._all_starts(job)):
            return True
        raise UnknownNow(
            QueryFailure.UNPROVEN,
            f"job {job} may be a requeue of this run's job, or another job that got its number",
        )

    def _asked(self, job: JobId) -> tuple[JobInfo, ...] | None:
        """What the controller has under a job's number, of whomever; None: nothing.

        Raises UnknownNow.
        """
        argv = ["squeue", "--noheader", "--all", "--states=all", *_of(job), f"--jobs={job.number}"]
        has_json = self._has_json()
        how = "--json" if has_json else f"--Format={FORMAT}"
        done = self.run([*argv, how], "", self.asking)
        if has_json and done.code and _cannot_give_json(done.err):
            self.release.has_json = False
            return self._asked(job)
        if done.code:
            if is_forgotten(done.err):
                return None
            raise UnknownNow.of(done.err)
        try:
            records = parse_json(done.out) if has_json else parse_columns(done.out)
        except InvalidAnswer as error:
            raise UnknownNow(QueryFailure.CUT_ANSWER, str(error)) from None
        mine = [info for info in records if job.number in (info.job, info.array, info.leader)]
        if not mine:
            raise UnknownNow(QueryFailure.CUT_ANSWER, "the answer of squeue does not have the job")
        return tuple(replace(info, cluster=job.cluster) for info in mine)

    def _has_json(self) -> bool:
        if self.release.has_json is None:
            done = self.run(["squeue", "--version"], "", self.asking)
            said = re.match(r"slurm(?:-wlm)? ([0-9]{2})\.([0-9]{2})", done.out)
            if said is None:
                return False
            self.release.has_json = (int(said[1]), int(said[2])) >= FIRST_WITH_JSON
        return self.release.has_json

    def nodes(self, folded: str) -> dict[str, dict[str, str]]:
        """What SLURM says of nodes, by their names; empty where it does not answer."""
        done = self.run(["scontrol", "--oneliner", "show", "node", folded], "", self.asking)
        records = map(fields_of, done.out.splitlines())
        return {record["NodeName"]: record for record in records if "NodeName" in record}

    def cancel(self, job: JobId, *, signal: str | None = None) -> None:
        """End a job, or signal its steps. Raises UnknownNow where it cannot be told whose job has
        the number, DslaunchError where it is none of ours that goes on, and where SLURM refuses."""
        found = self._asked(job) or ()
        if not any(self._is(job, info) and not info.over for info in found):
            raise DslaunchError(f"job {job} is not in the queue")
        how = [f"--signal={signal}"] if signal else []
        done = self.run(["scancel", *_of(job), *how, job.number], "", self.asking)
        if done.code:
            said = done.err.strip().removeprefix("scancel: error: ")
            raise DslaunchError(f"job {job} cannot be canceled: {said}")

    def starts(self, job: JobId) -> tuple[JobInfo, ...]:
        """Every start of a job, its tasks and components that the accounting has, the latest last;
        empty: it has none, or the site has no accounting. Raises UnknownNow."""
        counted: dict[str, int] = {}
        mine = []
        for start in self._all_starts(job):
            if whose(job, start) is Whose.OURS:
                restarts = counted.get(start.job, 0)
                counted[start.job] = restarts + 1
                mine.append(replace(start, restarts=restarts, cluster=job.cluster))
        return tuple(mine)

    def _all_starts(self, job: JobId) -> tuple[JobInfo, ...]:
        """Every start of whatever job that has or had the number. Raises UnknownNow."""
        delimiter = f"\x1f{secrets.token_hex(4)}\x1f"
        options = ("--allocations", f"--delimiter={delimiter}")
        try:
            done = self.sacct(job.number, job.cluster, ACCOUNTING, *options)
        except ToolMissingError:
            return ()
        if without_accounting(done.err):
            return ()
        if done.code:
            raise UnknownNow.of(done.err)
        try:
            return parse_accounting(done.out, delimiter)
        except InvalidAnswer as error:
            raise UnknownNow(QueryFailure.CUT_ANSWER, str(error)) from None

    def sacct(self, number: str, cluster: str, fields: str, *options: str) -> Done:
        """Ask the accounting about every start of a job. Raises ToolMissingError, UnknownNow."""
        of_cluster = [f"--clusters={cluster}"] if cluster else []
        command = ["sacct", "--noheader", "--parsable2", "--duplicates", *options, *of_cluster]
        return self.run([*command, f"--jobs={number}", f"--format={fields}"], "", self.asking)

    @property
    def asking(self) -> dict[str, str]:
        """The environment of questions: times as numbers, whatever the user has set."""
        kept = {
            name: value
            for name, value in self.environ.items()
            if not name.startswith(OF_THE_COMMANDS)
        }
        return kept | {"SLURM_TIME_FORMAT": "%s"}

    def _accounted(self, job: JobId) -> tuple[JobInfo, ...]:
        """How a job ended that the controller has forgotten: the last start of each part of it.

        Raises UnknownNow, also where the accounting has no end of it: a controller that lost its
        state, or one of a federation that does not answer, knows no job either
        (SLURM 22.05 to 24.11, api/job_info.c, `_load_fed_jobs`).
        """
        last = {start.job: start for start in self.starts(job)}
        if any(start.state not in FINAL for start in last.values()):
            raise UnknownNow(
                QueryFailure.NO_END,
                f"the controller does not know job {job}; it has no recorded end",
            )
        return tuple(last.values())


def _of(job: JobId) -> tuple[str, ...]:
    return (f"--clusters={job.cluster}",) if job.cluster else ()


def _cannot_give_json(said: str) -> bool:
    """Whether squeue lacks the plugin: serializer/json is a package of its own at some sites."""
    return re.search(r"(?i)serializer|unrecognized option|data_parser|json", said) is not None


def not_in_vain(script: str) -> tuple[str, ...]:
    """Options with which a job ends whose dependency cannot come true any more, instead of waiting
    for ever; unless the script says what is to become of it."""
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH ")]
    depends = any("--dependency" in line for line in lines)
    says = any("--kill-on-invalid-dep" in line for line in lines)
    return ("--kill-on-invalid-dep=yes",) if depends and not says else ()


def here(environ: Mapping[str, str] | None = None) -> SlurmClient:
    """SLURM on this machine."""
    return SlurmClient(dict(os.environ if environ is None else environ))


def gone(number: str) -> JobInfo:
    """A job that SLURM knows no more."""
    return JobInfo(number, GONE)
