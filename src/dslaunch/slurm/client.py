"""The commands of SLURM: sbatch, scontrol, sacct, scancel. The only place that calls them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dslaunch.errors import DslaunchError, ToolMissingError
from dslaunch.slurm.states import (
    JobInfo,
    Refusal,
    is_down,
    parse_accounting,
    parse_job,
    why_refused,
)
from dslaunch.transport.srun import CONFIGURING

PATIENCE = 60.0
"""Seconds for one command; SLURM's own give up sooner (slurm.conf, MessageTimeout)."""
ACCOUNTING = "JobIDRaw,State,ExitCode,NodeList,JobName,Submit"


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

    def __init__(self, refusal: Refusal, said: str) -> None:
        super().__init__(f"SLURM refuses the job: {refusal.words}", hint=refusal.hint)
        self.refusal = refusal
        self.said = said


class DownError(DslaunchError):
    """The controller does not answer for now."""


def run_command(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
    """Run a command of SLURM. Raises ToolMissingError, DownError when it takes too long."""
    try:
        done = subprocess.run(
            argv, input=stdin, env=dict(environ), capture_output=True, text=True,
            errors="surrogateescape", timeout=PATIENCE, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise ToolMissingError(
            f"{argv[0]} is not here", hint="call it where SLURM's commands are, on a login node"
        ) from None
    except subprocess.TimeoutExpired:
        raise DownError(f"{argv[0]} did not answer within {PATIENCE:.0f} s") from None
    return Done(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True, slots=True)
class Client:
    """SLURM as its commands show it."""

    environ: Mapping[str, str]
    run: Run = run_command

    def submit(self, script: str, environ: Mapping[str, str]) -> str:
        """Submit a script; give the job's number. Raises RefusedError."""
        done = self.run(["sbatch", "--parsable", *not_in_vain(script)], script, environ)
        number = re.match(r"(\d+)", done.out)
        if done.code or number is None:
            raise RefusedError(why_refused(done.err), done.err.strip())
        return number[1]

    def test(self, script: str, environ: Mapping[str, str]) -> str:
        """Ask what would become of a script; give the estimate. Raises RefusedError."""
        done = self.run(["sbatch", "--test-only"], script, environ)
        if done.code:
            raise RefusedError(why_refused(done.err), done.err.strip())
        said = re.sub(r"(?m)^sbatch: ", "", done.err.strip())
        return re.sub(r"^Job \d+ to start", "would start", said)

    def jobs(self, number: str) -> tuple[JobInfo, ...]:
        """Everything that has this number: tasks, components. Empty: SLURM forgot it.

        Raises DownError as long as the controller does not answer.
        """
        done = self.run(["scontrol", "--oneliner", "show", "job", number], "", self.environ)
        if done.code == 0 and "JobId=" in done.out:
            lines = (line for line in done.out.splitlines() if line.startswith("JobId="))
            return tuple(map(parse_job, lines))
        if is_down(done.err):
            raise DownError(why_refused(done.err).words)
        return self._accounted(number)

    def down(self, nodes: str) -> tuple[str, ...]:
        """Which of the nodes, folded, SLURM takes for down."""
        done = self.run(["scontrol", "--oneliner", "show", "node", nodes], "", self.environ)
        found = re.findall(r"(?m)^NodeName=(\S+) .*? State=(\S+)", done.out)
        return tuple(name for name, state in found if "DOWN" in state or "*" in state)

    def cancel(self, number: str, *, signal: str | None = None) -> None:
        """End a job, or signal its steps. Raises DslaunchError."""
        how = [f"--signal={signal}"] if signal else []
        done = self.run(["scancel", *how, number], "", self.environ)
        if done.code:
            said = done.err.strip().removeprefix("scancel: error: ")
            raise DslaunchError(f"job {number} cannot be cancelled: {said}")

    def _accounted(self, number: str) -> tuple[JobInfo, ...]:
        """What the accounting says, at sites that have one (TorchX PR #1070)."""
        command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={number}"]
        try:
            done = self.run([*command, f"--format={ACCOUNTING}"], "", self.environ)
        except ToolMissingError:
            return ()
        return parse_accounting(done.out) if done.code == 0 else ()


def submit_environment(
    environ: Mapping[str, str], script: str, secrets: Mapping[str, str]
) -> dict[str, str]:
    """The environment of sbatch, which the job inherits: the caller's, with the secrets.

    Without what an allocation that we are in left there (SLURM_*: srun would take its sizes),
    and without what would silently win over the script's own `#SBATCH` lines (sbatch(1), "INPUT
    ENVIRONMENT VARIABLES").
    """
    said = {
        name.upper().replace("-", "_") for name in re.findall(r"(?m)^#SBATCH --([a-z-]+)", script)
    }
    kept = {
        name: value
        for name, value in environ.items()
        if name in CONFIGURING
        or not name.startswith(("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_"))
        or (name.startswith("SBATCH_") and name.removeprefix("SBATCH_") not in said)
    }
    return kept | dict(secrets)


def not_in_vain(script: str) -> tuple[str, ...]:
    """Options with which a job ends whose dependency cannot come true any more, instead of waiting
    for ever; unless the script says what is to become of it."""
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH ")]
    depends = any("--dependency" in line for line in lines)
    says = any("--kill-on-invalid-dep" in line for line in lines)
    return ("--kill-on-invalid-dep=yes",) if depends and not says else ()


def still_the_same(info: JobInfo, name: str, submitted: str) -> bool:
    """Whether a job is the one that was submitted, and not a later one of the same number.

    SLURM starts again at FirstJobId; a requeued job has a new time.
    """
    return info.name == name and (info.submitted == submitted or info.restarts > 0)


def here(environ: Mapping[str, str] | None = None) -> Client:
    """SLURM on this machine."""
    return Client(dict(os.environ if environ is None else environ))


def gone(number: str) -> JobInfo:
    """A job that SLURM knows no more."""
    return replace(JobInfo(number, "GONE"))
