"""What one attempt is started from, collected before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.run.code_configs import local_file, place_of
from dslaunch.run.run_inputs import (
    RecordedConfig,
    RunInputs,
    config_of_arguments,
    config_of_file,
    job_inputs,
    with_report,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dslaunch.launch.plan import File
    from dslaunch.preflight.judge import Report
    from dslaunch.run.evidence import Inquiry
    from dslaunch.run.job_files import Shipment
    from dslaunch.run.request import RunRequest


def attempt_inputs(
    request: RunRequest,
    question: Inquiry,
    *,
    files: Iterable[File],
    shipments: Sequence[Shipment],
    report: Report | None,
) -> RunInputs:
    """Return what an attempt is started from.

    `files`: those that the plan puts into the run directories of the nodes; `report`: the findings
    of the checks before the start, None without checks.
    """
    job, cwd = request.job, request.cwd
    options = [named.option for named in question.configs if named.option is not None]
    configs = config_of_arguments(job, cwd, files, options)
    configs += _configs_of_code(request, question, shipments)
    return with_report(job_inputs(job, cwd, question.source, configs), report)


def _configs_of_code(
    request: RunRequest, question: Inquiry, shipments: Sequence[Shipment]
) -> list[RecordedConfig]:
    """Return the configs that the code names, with the texts that are shipped in their place."""
    workdir, source = question.directories[0], question.source
    changed: dict[str, str] = {}
    for shipment in shipments:
        changed |= shipment.changed
    found: dict[str, RecordedConfig] = {}
    for named in question.configs:
        path = local_file(named, source, request.cwd, workdir)
        if named.option is not None or path is None:
            continue
        name = named.path or str(path)
        used = changed.get(place_of(named, source, workdir) or "")
        found |= {each.path: each for each in config_of_file(name, path, used)}
    return list(found.values())
