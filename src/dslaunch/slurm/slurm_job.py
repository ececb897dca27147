"""A job for SLURM: its script, what would prevent its submission, and the submission."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from dslaunch.cluster.select import Selection, check_min_nodes, select
from dslaunch.errors import PlanError
from dslaunch.launch.assume import assume
from dslaunch.render.batch import Batch, Origin
from dslaunch.render.launch import Launch
from dslaunch.render.sbatch import notes, sbatch
from dslaunch.run.ds_config import config_errors, refuse, warnings
from dslaunch.run.job_files import find_source, similar_name
from dslaunch.run.job_program import located
from dslaunch.run.local_runs import local_runs
from dslaunch.run.prepare import find_configs_in_code, localize_config
from dslaunch.run.run_inputs import FILE as INPUTS
from dslaunch.run.run_inputs import RunInputs, config_of_arguments, job_inputs
from dslaunch.slurm.client import RefusedError, SlurmClient
from dslaunch.slurm.directive_settings import apply_directives, unusable
from dslaunch.slurm.environment import (
    WithheldSecrets,
    submit_environment,
    variables_used,
    withheld_secrets,
)
from dslaunch.slurm.known_runs import handles
from dslaunch.slurm.lint import ScriptLint, lint_script
from dslaunch.slurm.missing import Missing, missing, missing_here
from dslaunch.slurm.settings import Sources, blamed, overridden
from dslaunch.slurm.submit import submit
from dslaunch.slurm.supervision import Supervision, supervise

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.launch.decisions import Decision
    from dslaunch.launch.job import Job
    from dslaunch.notes import Note
    from dslaunch.run.handle import RunHandle
    from dslaunch.run.run_directory import RunDirectory
    from dslaunch.slurm.job import Submitted


class SlurmRequest(Struct, frozen=True):
    """The settings of a job for SLURM."""

    selection: Selection
    cwd: Path
    """The directory on this machine that the job comes from."""
    settings: tuple[str, ...] = ()
    """`KEY=VALUE`: overrides of keys of `slurm:` in the cluster file."""
    supervision: Supervision = field(default_factory=Supervision)
    min_nodes: int | None = None
    template: Path | None = None
    """A template of the script; None: that of dslaunch."""
    origin: Origin | None = None
    """The origin that the script names."""
    force: bool = False
    """Whether to submit it despite missing files or errors in the DeepSpeed config."""


class SlurmJob(Struct, frozen=True):
    """A job for SLURM that is planned and not submitted."""

    script: str
    """The batch script, as sbatch gets it."""
    notes: tuple[Note, ...]
    """Notes on the script, for users."""
    warnings: tuple[Decision, ...]
    """Errors of the DeepSpeed config that are overridden, and what was found in the code."""
    batch: Batch
    """What the script was rendered from."""
    cluster: Cluster
    client: SlurmClient
    sources: Sources
    force: bool
    inputs: Callable[[], RunInputs]
    """Returns what the job is started from, as the user gave it, for its record."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it would fail once it runs, as far as this machine can tell: missing files, and
        secrets that sbatch would keep from it."""
        withheld = self._withheld()
        return (*missing_files(self.batch), *([str(withheld)] if withheld else []))

    def check(self) -> tuple[str, ...]:
        """Raise PlanError with all problems; return those that are overridden by `force`."""
        problems, withheld = self.problems, self._withheld() is not None
        if problems and (withheld or not self.force):
            override = "use --workdir DIR to run it elsewhere, or --force to submit it unchanged"
            raise PlanError("\n".join(problems), hint=None if withheld else override)
        return problems

    def lint(self) -> ScriptLint:
        """Return what is wrong with the script: a template or a directive may contain errors."""
        return lint_script(self.script, "the script", lambda directory: True)

    def test(self) -> str:
        """Ask SLURM whether it would accept the job, and return when it would start; empty: SLURM
        gives no estimate. Raises RefusedError, ToolMissingError."""
        environment = submit_environment(self.client.environ, self.script, {})
        try:
            return self.client.test(self.script, environment)
        except RefusedError as error:
            raise self._explained(error) from None

    def submit(self) -> RunHandle:
        """Submit the job, and return its handle.

        Raises PlanError as `check` does, RefusedError, UsageError for a missing secret,
        ToolMissingError.
        """
        self.check()
        made, record = self.start()
        record.let_go()
        run = local_runs(self.client.environ).exactly(made.directory.name)
        assert run is not None  # it was just written
        (handle,) = handles([run], self.client)
        return handle

    def start(self) -> tuple[Submitted, RunDirectory]:
        """Submit the job unchecked, and return it with its record, which the caller holds."""
        environ = self.client.environ
        inputs = self.inputs()
        try:
            made, record = submit(self.client, self.script, self.batch, self.cluster, environ)
        except RefusedError as error:
            raise self._explained(error) from None
        record.write(INPUTS, inputs.as_json())
        return made, record

    def _withheld(self) -> WithheldSecrets | None:
        """Return the secrets that sbatch would not pass to the job."""
        names = [secret.name for secret in self.batch.launch.job.secrets]
        return withheld_secrets(names, self.script, self.client.environ)

    def _explained(self, error: RefusedError) -> RefusedError:
        """Return the error of a refusal: the cause, where the options were set, and the messages of
        sbatch: those of SLURM and of the site."""
        variables = variables_used(submit_environment(self.client.environ, self.script, {}))
        refusal, sources = error.refusal, replace(self.sources, variables=variables)
        lines = [
            f"SLURM refused the job: {refusal.headline}",
            *blamed(refusal.options, sources),
            *(f"sbatch: {message}" for message in refusal.messages if message != refusal.headline),
        ]
        return RefusedError(refusal, "\n".join(lines))


def prepare_job(cluster: Cluster, job: Job, request: SlurmRequest, client: SlurmClient) -> SlurmJob:
    """Return the job, ready to be submitted. SLURM is not queried.

    Raises UsageError, SelectionError, PlanError, and without `force` PlanError for errors in the
    DeepSpeed config.
    """
    job = replace(located(job, request.cwd), min_nodes=request.min_nodes)
    batch, found, ignored = _batch(cluster, job, request)
    check_min_nodes(request.min_nodes, batch.launch.allocation)
    batch = supervise(batch, cluster, job, request.supervision, force=request.force)
    return SlurmJob(
        script=sbatch(batch, request.template),
        notes=(*ignored, *notes(batch)),
        warnings=found,
        batch=batch,
        cluster=cluster,
        client=client,
        inputs=partial(_inputs, job, request.cwd, batch),
        sources=Sources(
            cluster=cluster.source,
            settings=request.settings,
            words=_options_of_sbatch(request.selection),
        ),
        force=request.force,
    )


def _batch(
    cluster: Cluster, job: Job, request: SlurmRequest
) -> tuple[Batch, tuple[Decision, ...], tuple[Note, ...]]:
    """Return the launch as a batch job, its warnings, and notes on directives that are ignored."""
    cwd, chosen = request.cwd, request.selection
    allocation = select(cluster, chosen)
    decided = assume(cluster, allocation, str(cwd))
    shared, count = cluster.storage.shared, len(allocation.placements)
    code = find_configs_in_code(job, cwd, decided.workdir, shared=shared if count > 1 else None)
    localized, files, _ = localize_config(
        job, cwd, shared=shared, node_count=count, options=code.options
    )
    errors = config_errors(job, cwd, allocation, code.files)
    if not request.force:
        refuse(errors)
    wanted = overridden(cluster.slurm, request.settings)
    ignored = tuple(unusable(wanted.directives))
    if chosen.nodes is not None:
        wanted = replace(wanted, nodes=None)
    launch = Launch(cluster.name, allocation, localized, replace(decided, files=files))
    batch = Batch(
        launch,
        apply_directives(wanted),
        port=cluster.network.master_port,
        pinned=bool(chosen.include),
        excluded=_left_out(cluster, chosen),
        origin=request.origin,
    )
    return batch, (*warnings(errors), *code.decisions), ignored


def _inputs(job: Job, cwd: Path, batch: Batch) -> RunInputs:
    """Return what a job is started from. `job`: as the user gave it."""
    decided = batch.launch.decided
    try:
        source = find_source(job, cwd, decided.workdir)
    except PlanError:  # too large to ship, but nothing is shipped here
        source = None
    return job_inputs(job, cwd, source, config_of_arguments(job, cwd, decided.files))


def _left_out(cluster: Cluster, chosen: Selection) -> tuple[str, ...]:
    """Return the nodes of which --exclude names all slots."""
    if not chosen.exclude:
        return ()
    left = set(select(cluster, Selection(exclude=chosen.exclude)).hosts)
    return tuple(n.host for n in cluster.nodes if not n.spare and n.host not in left)


def _options_of_sbatch(chosen: Selection) -> Mapping[str, str]:
    """Return the given options, by the option of sbatch that each sets."""
    given = {
        "nodes": ("--nodes", chosen.nodes),
        "nodelist": ("--include", chosen.include),
        "exclude": ("--exclude", chosen.exclude),
        "gres": ("--slots", chosen.slots),
    }
    return {name: f"{option} {value}" for name, (option, value) in given.items() if value}


def missing_files(batch: Batch) -> tuple[str, ...]:
    """Return a line for each file that the job needs and that is missing on this machine."""
    found = missing(batch, missing_here(batch.launch.decided.workdir))
    return tuple(map(_missing_text, found))


def _missing_text(one: Missing) -> str:
    alike = similar_name(one.path)
    hint = f"; did you mean {alike}?" if alike else ""
    whole = one.name == str(one.path)
    place = "" if whole else f" in {one.path.parent}, where the job runs"
    return f"{one.need} {one.name!r} does not exist{place}{hint}"
