"""From a cluster file to a `Cluster`; every problem of the file at once, each with its place."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.cluster import model
from dslaunch.errors import ConfigError, Problem

if TYPE_CHECKING:
    from dslaunch.cluster.schema import ClusterFile
    from dslaunch.cluster.slurm_section import SlurmSection

LARGEST = 16 * 2**20
"""Bytes of a file; 100,000 nodes written out one by one are about 4 MiB."""
_OWN_SLURM = tuple(field.name for field in fields(model.Slurm) if field.name != "options")
TOLD = 100
"""The most problems of one file that are told."""


def load_cluster(path: Path) -> model.Cluster:
    """Read and check a cluster file. Raises ConfigError with everything that is wrong."""
    return parse_cluster(read_text(path), str(path))


def parse_cluster(text: str, file: str) -> model.Cluster:
    """Check a cluster file's text; `file` is its name in messages. Raises ConfigError."""
    from dslaunch.cluster import findings, rules, schema, yamltext

    document = yamltext.parse(text, file, verbatim=schema.VERBATIM)
    checked = findings.check(document)
    found = rules.expand_nodes(document, checked)
    contradictions = rules.contradictions(document, checked, found.nodes)
    problems = [*document.problems, *checked.problems, *found.problems, *contradictions]
    if problems or checked.file is None:
        raise ConfigError(_first(_each_place_once(problems)))
    return _cluster(checked.file, found.nodes, file)


def read_text(path: Path) -> str:
    """Read a text file that may be anything at all. Raises ConfigError."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            what = "a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise _unreadable(path, f"is {what}, expected a YAML file")
        if status.st_size > LARGEST:
            raise _unreadable(path, f"has {status.st_size:,} bytes, at most {LARGEST:,} are read")
        return _decoded(path, path.read_bytes())
    except FileNotFoundError:
        hint = "`dslaunch init` writes one"
        raise _unreadable(path, "there is no such file", hint) from None
    except (OSError, ValueError) as error:
        words = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise _unreadable(path, f"cannot be read: {str(words).lower()}") from None


def _decoded(path: Path, data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _unreadable(path, "is UTF-16 text, expected UTF-8", "save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        words = f"byte {data[error.start]:#04x} is not UTF-8; is this a text file?"
        raise ConfigError((Problem(str(path), line, column, "", words),)) from None


def _unreadable(path: Path, message: str, hint: str | None = None) -> ConfigError:
    return ConfigError((Problem(str(path), 0, 0, "", message),), hint=hint)


def _each_place_once(problems: list[Problem]) -> list[Problem]:
    """Keep the first problem at each place: what follows from a bad key is not news."""
    first: dict[tuple[int, int, str], Problem] = {}
    faults = {(p.line, p.column) for p in problems if not p.path}
    for problem in problems:
        if problem.path and (problem.line, problem.column) in faults:
            continue
        first.setdefault((problem.line, problem.column, problem.message), problem)
    return list(first.values())


def _first(problems: list[Problem]) -> tuple[Problem, ...]:
    """Keep the first problems of a file in which something is wrong again and again."""
    problems = sorted(problems)
    told, more = problems[:TOLD], problems[TOLD:]
    if more:
        words = f"from here on there are {len(more):,} more problems"
        told.append(replace(more[0], path="", message=words))
    return tuple(told)


def _cluster(file: ClusterFile, nodes: list[model.Node], name: str) -> model.Cluster:
    from dslaunch.cluster.rules import secrets

    ssh, network, storage = file.ssh, file.network, file.storage
    return model.Cluster(
        name=file.name or _name_of(name),
        nodes=tuple(nodes),
        transport=file.transport,
        ssh=model.Ssh(float(ssh.connect_timeout), ssh.fanout, ssh.config_file),
        network=model.Network(
            interface=None if network.interface == "auto" else network.interface,
            master_port=None if network.master_port == "auto" else network.master_port,
        ),
        storage=model.Storage(
            None if storage.shared == "auto" else storage.shared,
            storage.workdir,
            storage.checkpoints,
            storage.node_local,
        ),
        env=tuple(file.env.items()),
        env_from=tuple(file.env_from),
        secrets=tuple(secret for _, secret in secrets(file)),
        launcher=file.launcher,
        slurm=slurm_settings(file.slurm),
        preflight=model.Preflight(
            tuple(file.preflight.skip),
            tuple(file.preflight.severity.items()),
            tuple((name, tuple(own.items())) for name, own in file.preflight.limits.items()),
        ),
        job=_job(file),
    )


def _job(file: ClusterFile) -> model.JobDefaults | None:
    job = file.job
    if job is None:
        return None
    return model.JobDefaults(job.script, job.module, tuple(job.args), tuple(job.env.items()))


def slurm_settings(section: SlurmSection) -> model.Slurm:
    """Give the settings; those that are not of our own making are handed on to sbatch."""
    given = section.model_dump(exclude_none=True)
    own = {name: given.pop(name) for name in _OWN_SLURM if name in given}
    for name in ("setup", "directives"):
        own[name] = tuple(own[name])
    own |= {name: int(own[name]) for name in ("nodes", "requeue") if name in own}
    if section.container is not None:
        box = section.container
        mounts, options = tuple(box.mounts), tuple(box.options)
        own["container"] = model.Container(box.runtime, box.image, mounts, options)
    return model.Slurm(options=tuple(given.items()), **own)


def _name_of(file: str) -> str:
    """Give a cluster's name from its file's: `/site/pod a.yaml` is `pod-a`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem).strip("-._") or "cluster"
