"""What a run was started from: recorded with it, so that it can be explained and compared later.

One JSON file per attempt in the run directory, private to this user. A plan says what each node
does; this says what the user gave, and what was found on the nodes before the start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter

from dslaunch import log
from dslaunch.deepspeed.storage import find_config, parse
from dslaunch.errors import ConfigError
from dslaunch.json_text import json_literal
from dslaunch.launch.plan import DS_CONFIG
from dslaunch.protocol.values import InvalidAnswer, Several
from dslaunch.protocol.values import parse as validated
from dslaunch.run.job_files import read_small
from dslaunch.run.recorded_values import Pair, Recorded, Text
from dslaunch.run.run_directory import read_begin
from dslaunch.run.secret_names import masked_tree

if TYPE_CHECKING:
    from dslaunch.launch.job import Job
    from dslaunch.launch.plan import File
    from dslaunch.preflight.check import Finding
    from dslaunch.preflight.judge import Report
    from dslaunch.run.job_files import JobFiles

FILE = "inputs.json"
LARGEST = 64 << 20
"""Bytes that are read of the file; 5,000 files of code take about 0.6 MB."""
MOST_FINDINGS = 500
LARGEST_CONFIG = 64 * 1024
"""Characters of a DeepSpeed config that are recorded."""
MOST_ARGS = 10_000


class RecordedConfig(Recorded):
    """A DeepSpeed config of the job. Values of secrets are masked."""

    path: Text
    """As the arguments or the code name it."""
    given: Text
    """The user's text."""
    used: Text | None = None
    """The text that the nodes got; None: the user's, unchanged."""


class RecordedFinding(Recorded):
    """A finding of the checks before the start."""

    level: Text
    check: Text
    hosts: Several[Text]
    found: Text
    expected: Text = ""
    fix: Text = ""


class RecordedVersions(Recorded):
    """Nodes with the same versions."""

    hosts: Several[Text]
    versions: dict[Text, Text]
    """Name -> version."""


class RunInputs(Recorded):
    """What a run was started from."""

    format: Literal[1] = 1
    kind: Text
    """`script`, `module` or `command`."""
    program: Text
    args: Several[Text] = ()
    launcher: Text = ""
    launcher_args: Several[Text] = ()
    directory: Text = ""
    """The working directory on the machine that started it."""
    env: Several[Pair] = ()
    """The job's variables, without those that differ from node to node."""
    secrets: Several[Pair] = ()
    """Names of secret variables, and the file of each; empty: the caller's environment."""
    code: Text | None = None
    """The directory of the job's files on the machine that started it; None: no files of it."""
    files: Several[Pair] = ()
    """Path and SHA-256 of each of them."""
    configs: Several[RecordedConfig] = ()
    checked: bool = False
    """Whether the checks before the start ran."""
    passed: int = 0
    """How many of them passed on all nodes."""
    findings: Several[RecordedFinding] = ()
    versions: Several[RecordedVersions] = ()

    def as_json(self) -> str:
        """Return the text of the file."""
        return self.model_dump_json() + "\n"


_INPUTS: TypeAdapter[RunInputs] = TypeAdapter(RunInputs)


def job_inputs(
    job: Job, directory: Path, source: JobFiles | None, configs: Iterable[RecordedConfig]
) -> RunInputs:
    """Return what is known of a job before any node is asked. `job`: as the user gave it."""
    return RunInputs(
        kind=job.kind,
        program=job.program,
        args=tuple(word for word in job.args[:MOST_ARGS] if isinstance(word, str)),
        launcher=job.launcher,
        launcher_args=job.launcher_args,
        directory=str(directory),
        env=tuple((dict(job.env) | dict(job.overrides)).items()),
        secrets=tuple((secret.name, secret.file or "") for secret in job.secrets),
        code=None if source is None else str(source.local),
        files=() if source is None else source.digests,
        configs=tuple(configs),
    )


def with_report(inputs: RunInputs, report: Report | None) -> RunInputs:
    """Return the inputs with the findings and versions of the checks before the start."""
    if report is None:
        return inputs
    from dslaunch.preflight.software import versions

    shown = [finding for finding in report.findings if finding.level not in ("pass", "skip")]
    return inputs.model_copy(
        update={
            "checked": True,
            "passed": report.count("pass"),
            "findings": tuple(map(_recorded_finding, shown[:MOST_FINDINGS])),
            "versions": _by_versions(versions(report.facts)),
        }
    )


def _recorded_finding(finding: Finding) -> RecordedFinding:
    return RecordedFinding(
        level=finding.level,
        check=finding.check,
        hosts=finding.hosts,
        found=finding.found,
        expected=finding.expected,
        fix=finding.fix,
    )


def _by_versions(of_nodes: Mapping[str, Mapping[str, str]]) -> tuple[RecordedVersions, ...]:
    """Return the nodes grouped by equal versions."""
    hosts_of: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for host, versions in of_nodes.items():
        hosts_of.setdefault(tuple(versions.items()), []).append(host)
    return tuple(
        RecordedVersions(hosts=tuple(hosts), versions=dict(versions))
        for versions, hosts in hosts_of.items()
        if versions
    )


# ---------------------------------------------------------------- DeepSpeed configs


def config_of_arguments(
    job: Job, directory: Path, files: Iterable[File], options: Sequence[str] = ()
) -> list[RecordedConfig]:
    """Return the config among the arguments, with the text that the nodes get in `files`.

    `options`: those of the script's own that name a config.
    """
    found = find_config(job.args, options)
    if found is None:
        return []
    used = next((file.text for file in files if file.name == DS_CONFIG), None)
    path = os.path.join(directory, found.path)  # noqa: PTH118 - an absolute path wins
    return config_of_file(found.path, Path(path), used)


def config_of_file(name: str, path: Path, used: str | None) -> list[RecordedConfig]:
    """Return a config that is a file of this machine; empty: it is not here or no text."""
    text = read_small(path)
    if text is None or len(text) > LARGEST_CONFIG:
        return []
    return [
        RecordedConfig(
            path=name,
            given=masked_config(text),
            used=None if used is None else masked_config(used),
        )
    ]


def masked_config(text: str) -> str:
    """Return a config as indented JSON without secrets; what cannot be parsed is returned without
    the secrets of the run."""
    text = log.masked(text)
    try:
        tree = parse(text, "config")
    except ConfigError:
        return text
    # in the file a secret may be written with escapes
    without_secrets = log.masked_values(masked_tree(tree))
    return json_literal(without_secrets, indent=2)


# ---------------------------------------------------------------- reading


def read_inputs(path: Path) -> RunInputs | None:
    """Return what a run was started from; None: not recorded, damaged or of another version."""
    try:
        return validated(_INPUTS, json.loads(read_begin(path, LARGEST)))
    except (OSError, ValueError, RecursionError, InvalidAnswer):
        return None
