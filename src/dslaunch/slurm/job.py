"""One job from here: submitted, recorded like any other run, followed, judged, cancelled."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslaunch.cluster.nodeset import fold
from dslaunch.errors import DslaunchError, UsageError
from dslaunch.run.launch import cluster_json, new_run_id, open_record, read_secrets
from dslaunch.run.outcome import Outcome
from dslaunch.run.record import ABOUT, CLUSTER, RESULT, Record, runs_directory
from dslaunch.run.watch import Watch
from dslaunch.slurm.client import Client, gone, still_the_same, submit_environment
from dslaunch.slurm.follow import Following
from dslaunch.slurm.output import Layout
from dslaunch.slurm.states import NEVER, JobInfo, how_ended

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.render.sbatch import Batch
    from dslaunch.run.state import Local

SCRIPT = "job.sbatch"


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that SLURM has taken."""

    number: str
    name: str
    submitted: str
    """When, as SLURM writes it; empty: it did not say."""
    output: str
    """Its file, likewise."""
    layout: Layout
    directory: Path
    """The run directory."""

    def same(self, info: JobInfo) -> bool:
        """Whether SLURM speaks of this job, and not of a later one of the same number."""
        return not self.submitted or still_the_same(info, self.name, self.submitted)


def layout_of(batch: Batch) -> Layout:
    """How the tasks of a script's step become ranks."""
    from dslaunch.render.sbatch import grouped

    groups = tuple((group.nodes, group.slots) for group in grouped(batch))
    launcher = batch.launch.job.launcher
    return Layout(groups, launcher == "direct", launcher == "elastic")


def submit(
    client: Client, script: str, batch: Batch, cluster: Cluster, environ: Mapping[str, str]
) -> tuple[Submitted, Record]:
    """Submit a script and write down what is needed to find the job again.

    Raises RefusedError, UsageError for a missing secret or an output directory that cannot be.
    """
    from dslaunch.render.sbatch import job_name

    job, layout = batch.launch.job, layout_of(batch)
    secrets = read_secrets(job.secrets, environ)
    make_output_directory(batch)
    number = client.submit(script, submit_environment(environ, script, secrets))
    record = open_record(runs_directory(environ) / new_run_id(job))
    info = _first(client, number)
    made = Submitted(number, job_name(batch), info.submitted, info.output, layout, record.directory)
    about = {
        "program": job.program,
        "cluster": cluster.name,
        "launcher": job.launcher,
        "hosts": list(batch.launch.allocation.hosts),
        "world_size": sum(nodes * slots for nodes, slots in layout.groups),
        "detached": False,
        "attempt": 0,
        "agents": record.directory.name,
        "started": time.time(),
        "pid": os.getpid(),
        "from": socket.gethostname(),
        "slurm": {
            "job": number,
            "name": made.name,
            "submitted": made.submitted,
            "output": info.output,
            "groups": layout.groups,
            "direct": layout.direct,
            "elastic": layout.elastic,
        },
    }
    record.write(ABOUT, json.dumps(about) + "\n")
    record.write(CLUSTER, cluster_json(cluster))
    record.write(SCRIPT, script)
    return made, record


def _first(client: Client, number: str) -> JobInfo:
    """What SLURM says right after the submission, if it says anything."""
    try:
        return next(iter(client.jobs(number)), gone(number))
    except DslaunchError:
        return gone(number)


def make_output_directory(batch: Batch) -> None:
    """Make the directory of the output: without it a job fails and leaves no word.

    What SLURM fills in (`%x`) cannot be made, and what is not on this machine's disks need not be.
    Raises UsageError.
    """
    output = batch.slurm.output
    if output is None:
        return
    path = Path(batch.launch.decided.workdir).expanduser() / output
    parent = path.parent
    if "%" in str(parent) or not _beginning(parent).is_dir():
        return
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"slurm.output: {parent} cannot be made: {error.strerror}") from None


def _beginning(path: Path) -> Path:
    """The first directory of a path below the root: `/lustre`."""
    return Path(*path.parts[:2])


# ---------------------------------------------------------------- follow


def follow(
    client: Client,
    made: Submitted,
    watch: Watch,
    tell: Callable[[str], None],
    *,
    until: Callable[[], bool],
) -> Outcome | None:
    """Follow a job to its end; None when `until` says that it is enough."""
    following = following_of(client, made, watch, tell)
    ended = following.to_the_end(until=until)
    return None if ended is None else judge(ended, watch, _lost(client, ended))


def _lost(client: Client, jobs: tuple[JobInfo, ...]) -> str:
    """The node that a job lost, folded with others; empty: none, or SLURM does not say."""
    nodes = next((info.nodes for info in jobs if info.state == "NODE_FAIL"), "")
    try:
        return fold(client.down(nodes)) if nodes else ""
    except DslaunchError:
        return ""


def judge(jobs: tuple[JobInfo, ...], watch: Watch, lost: str = "") -> Outcome:
    """How a job ended, and the first cause as far as its output tells; `lost`: a node of it."""
    worst = max(jobs, key=lambda info: (info.state != "COMPLETED", info.exit_code))
    words, hint = how_ended(worst)
    name = f"job {worst.array or worst.job}" + (f"_{worst.task}" if worst.array else "")
    nodes = f" of {worst.nodes}" if worst.nodes and worst.state == "NODE_FAIL" else ""
    nodes += f": {lost} is down" if nodes and lost else ""
    again = f", at start {worst.restarts + 1}" if worst.restarts else ""
    message = f"{name} {words}{nodes}{again}"
    if worst.state == "COMPLETED":
        return Outcome("ok", 0, message=message)
    if worst.state == "CANCELLED" and worst.reason != NEVER:
        return Outcome("interrupted", 130, message=message)
    seen = watch.outcome()
    if seen.cause is None or worst.state != "FAILED":
        return Outcome("failed", worst.exit_code, message=message, hint=hint)
    # srun ends with the highest code, which is that of the ranks it ended itself
    return replace(seen, message=f"{name} failed; {seen.message}")


# ---------------------------------------------------------------- the same, later


def submitted(run: Local) -> Submitted | None:
    """The job of a recorded run; None: the run is not SLURM's."""
    about: Any = run.about.get("slurm")
    if not isinstance(about, dict):
        return None
    groups = tuple((int(nodes), int(slots)) for nodes, slots in about["groups"])
    layout = Layout(groups, bool(about["direct"]), bool(about["elastic"]))
    return Submitted(
        about["job"], about["name"], about["submitted"], about["output"], layout, run.directory
    )


def stand(client: Client, made: Submitted) -> tuple[JobInfo, ...]:
    """How a recorded job stands. Raises DownError.

    The end is written down once it is seen, since SLURM forgets it.
    """
    jobs = tuple(info for info in client.jobs(made.number) if made.same(info))
    if jobs and all(info.over for info in jobs):
        note_end(made.directory, judge(jobs, Watch(Nowhere())))
    return jobs or (gone(made.number),)


def note_end(directory: Path, outcome: Outcome) -> None:
    """Write a run's result, unless it is there."""
    path = directory / RESULT
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(outcome), indent=2) + "\n", "utf-8")


class Nowhere:
    """A screen that shows nothing."""

    def line(self, line: object) -> None:
        """Nothing."""

    def event(self, event: object) -> None:
        """Nothing."""


def following_of(
    client: Client, made: Submitted, watch: Watch, tell: Callable[[str], None] = lambda words: None
) -> Following:
    """What follows a submitted job."""
    return Following(
        client, made.number, made.layout, watch, tell, same=made.same, output=made.output
    )
