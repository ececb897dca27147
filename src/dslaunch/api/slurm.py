"""Jobs for SLURM, and sbatch scripts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dslaunch.api.arguments import PathText, directory, several
from dslaunch.registry import plugin_faults
from dslaunch.run.timeouts import check_timeout
from dslaunch.run.view import ignore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from dslaunch.cluster.model import Cluster
    from dslaunch.launch.job import Job
    from dslaunch.slurm.lint import ScriptLint
    from dslaunch.slurm.settings import SlurmSetting
    from dslaunch.slurm.slurm_job import SlurmJob


@plugin_faults()
def slurm_job(
    cluster: Cluster,
    job: Job,
    *,
    include: str = "",
    exclude: str = "",
    nodes: int | None = None,
    slots: int | None = None,
    labels: Sequence[str] = (),
    settings: Mapping[str, SlurmSetting] | None = None,
    template: PathText | None = None,
    supervised: bool | None = None,
    restarts: int | None = None,
    min_nodes: int | None = None,
    hang_timeout: float | None = None,
    preflight: bool = True,
    force: bool = False,
    cwd: PathText | None = None,
    environ: Mapping[str, str] | None = None,
    on_notice: Callable[[str], object] = ignore,
) -> SlurmJob:
    """Return the job for SLURM: its script, and what would stop it. Nothing is submitted.

    Raises UsageError, SelectionError, PlanError.
    """
    from dslaunch.cluster.select import Selection
    from dslaunch.slurm.client import here
    from dslaunch.slurm.settings import setting_texts
    from dslaunch.slurm.slurm_job import SlurmRequest, prepare_job
    from dslaunch.slurm.supervision import Supervision

    check_timeout("hang_timeout", hang_timeout)
    request = SlurmRequest(
        selection=Selection(include, exclude, nodes, slots, several("labels", labels)),
        cwd=directory(cwd),
        settings=setting_texts(settings or {}),
        supervision=Supervision(
            supervised=supervised,
            restarts=restarts,
            hang_timeout=hang_timeout,
            preflight=preflight,
        ),
        min_nodes=min_nodes,
        template=None if template is None else Path(template),
        force=force,
    )
    return prepare_job(cluster, job, request, replace(here(environ), notice=on_notice))


@plugin_faults()
def lint_script(
    script: PathText,
    *,
    text: str | None = None,
    cwd: PathText | None = None,
    ignore: Collection[str] = (),
) -> ScriptLint:
    """Return what is wrong, risky and right in an sbatch script. It is neither run nor submitted.

    With `text`, that is the script, and `script` its name in messages. `cwd` is where it would be
    submitted. Raises UsageError for an unknown rule, ConfigError for an unreadable file.
    """
    from dslaunch.lint.suppression import check_rules
    from dslaunch.lint.user_text import read_file
    from dslaunch.slurm import lint
    from dslaunch.slurm.rules import rules
    from dslaunch.slurm.syntax import syntax_fault

    check_rules(ignore, rules().names)
    source = read_file(Path(script)) if text is None else text
    where = directory(cwd)

    def exists(name: str) -> bool:
        return (where / name).is_dir()

    return lint.lint_script(source, str(script), exists, syntax_fault(source), ignore)
