"""Load a cluster file as a `Cluster`; report every problem at once, each with its position."""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster import model
from dslaunch.cluster.hostfile import HINT, parse_hostfile
from dslaunch.cluster.mistakes import Mistake, MistakeCode, mistake
from dslaunch.cluster.named_hosts import nodes_text
from dslaunch.cluster.other_files import INIT, recognized
from dslaunch.errors import ConfigError, Problem
from dslaunch.texts import closest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dslaunch.cluster.rules import KnownNames
    from dslaunch.cluster.schema import ClusterFile
    from dslaunch.cluster.slurm_section import SlurmSection
    from dslaunch.cluster.yamltext import YamlDocument

LARGEST = 16 * 2**20
"""Maximum size of a file in bytes; 100,000 nodes listed one by one are about 4 MiB."""
_OWN_SLURM = tuple(name for name in model.Slurm.__struct_fields__ if name != "options")
MOST_PROBLEMS = 100
"""Maximum number of reported problems of one file."""


def load_cluster(path: Path) -> model.Cluster:
    """Read and check a cluster file. Raises ConfigError with every problem."""
    return parse_cluster(read_text(path), str(path))


def parse_cluster(text: str, file: str) -> model.Cluster:
    """Check a cluster file's text; `file` is its name in messages. Raises ConfigError."""
    source = model.ClusterSource(file, text)
    return replace(parse(text, file).cluster, source=source)


class Parsed(Struct, frozen=True):
    """A valid cluster file."""

    cluster: model.Cluster
    document: YamlDocument
    text: str


def parse(text: str, file: str) -> Parsed:
    """Check a cluster file's text; `file` is its name in messages. Raises ConfigError."""
    from dslaunch.cluster import rules, schema, validation, yamltext

    try:
        document = yamltext.parse(text, file, verbatim=schema.VERBATIM)
    except ConfigError as error:
        is_mapping = error.problems[0].rule != MistakeCode.NO_MAPPING.value
        unknown = _with_lines(text, error.problems, hint=None if is_mapping else INIT)
        raise _other_file(text, None, file) or unknown from None
    other = _other_file(text, document.data, file)
    if other is not None:
        raise other
    checked = validation.check(document)
    found = rules.expand_nodes(document, checked)
    contradictions = rules.contradictions(document, checked, found.nodes)
    problems = [*document.problems, *checked.problems, *found.problems, *contradictions]
    if problems or checked.file is None:
        hint = _nodes_hint(document.data) or _slots_hint(problems)
        raise _with_lines(text, _first(_each_place_once(problems)), hint=hint)
    return Parsed(_cluster(checked.file, found.nodes, file), document, text)


def check_names(parsed: Parsed, names: KnownNames) -> None:
    """Check the names of launchers, checks and thresholds in a valid cluster file.

    Raises ConfigError. Separate from `parse`, because it must import every check.
    """
    from dslaunch.cluster import rules

    problems = tuple(rules.unknown_names(parsed.document, names))
    if problems:
        raise _with_lines(parsed.text, problems)


def _other_file(text: str, data: object, file: str) -> ConfigError | None:
    """Return the error for a file of another kind; None: it is not recognized as one."""
    found = recognized(text, data, file)
    if found is None:
        return None
    problem = mistake(MistakeCode.OTHER_FILE, kind=found.kind).at(file)
    within = _mistakes_in_hostfile(text, file) if found.is_hostfile else ()
    convert = found.hint.format(file=shlex.quote(file))
    hint = f"{HINT}\nthen {convert}" if within else convert
    return ConfigError((problem, *within), hint=hint)


def _mistakes_in_hostfile(text: str, file: str) -> tuple[Problem, ...]:
    """Return what `dslaunch init --hostfile` would find wrong; a host alone is no mistake here."""
    try:
        parse_hostfile(text, file, slots=1)
    except ConfigError as error:
        return _first(list(error.problems))
    return ()


def _nodes_hint(data: dict[str, Any]) -> str | None:
    """Return how to write the nodes of an invalid file; None: they are as they should be, or
    unknown."""
    nodes = nodes_text(data)
    if nodes is not None:
        return f"write `{nodes}`, with the number of GPUs of each node as `slots`"
    above = [key for key, value in data.items() if isinstance(value, dict) and "nodes" in value]
    if above and "nodes" not in data:
        return f"move the keys below {above[0]!r} to the beginning of the line, and remove that key"
    return None


def _slots_hint(problems: Iterable[Problem]) -> str | None:
    """Return what to write where nodes have no slots; None: all have."""
    missing = (each.path for each in problems if each.rule == MistakeCode.MISSING_KEY.value)
    is_missing = any(path.endswith("].slots") for path in missing)
    return "set `slots` of each node to the number of its GPUs" if is_missing else None


def _with_lines(text: str, problems: tuple[Problem, ...], hint: str | None = None) -> ConfigError:
    """Add the lines of the text to the problems, except lines that may contain a secret."""
    lines = text.removeprefix("\ufeff").split("\n")

    def shown(problem: Problem) -> Problem:
        number = problem.line
        secret = problem.path.startswith("secrets") or "env" in re.split(r"\W+", problem.path)
        if secret or not 0 < number <= len(lines):
            return problem
        return replace(problem, source=lines[number - 1].rstrip("\r"))

    return ConfigError(tuple(map(shown, problems)), hint=hint)


def read_text(path: Path) -> str:
    """Read a text file, which may be anything. Raises ConfigError."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            found = "a directory" if stat.S_ISDIR(status.st_mode) else "a device or a pipe"
            raise _unreadable(path, mistake(MistakeCode.NOT_A_FILE, found=found))
        if status.st_size > LARGEST:
            found_size = mistake(MistakeCode.TOO_LARGE, size=status.st_size, limit=LARGEST)
            raise _unreadable(path, found_size)
        return _decoded(path, path.read_bytes())
    except FileNotFoundError:
        raise _unreadable(path, mistake(MistakeCode.MISSING_FILE), _instead_of(path)) from None
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        unreadable = mistake(MistakeCode.UNREADABLE, error=str(reason).lower())
        raise _unreadable(path, unreadable) from None


def _instead_of(path: Path) -> str:
    """Return the hint for a cluster file that does not exist."""
    if str(path) == "-":
        return "a cluster file is not read from standard input; name a file"
    near = _nearest_file(path)
    return f"did you mean {near}?" if near else "`dslaunch init` writes one"


def _nearest_file(path: Path) -> Path | None:
    """Return the file in the same directory whose name is most similar, if any."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except (OSError, ValueError):
        return None
    # `c.yml` is similar to `c.yaml`, however short the name is
    same_stem = [name for name in names if Path(name).stem == path.stem and _is_yaml(name)]
    by_stem = {Path(name).stem: name for name in names if _is_yaml(name)}
    if same_stem:
        return path.with_name(same_stem[0])
    stem = closest(path.stem, by_stem)
    return path.with_name(by_stem[stem]) if stem else None


def _is_yaml(name: str) -> bool:
    return name.endswith((".yaml", ".yml", ".json"))


def _decoded(path: Path, data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _unreadable(path, mistake(MistakeCode.UTF_16), "save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        found = mistake(MistakeCode.NOT_UTF_8, byte=data[error.start])
        raise ConfigError((found.at(str(path), (line, column)),)) from None


def _unreadable(path: Path, found: Mistake, hint: str | None = None) -> ConfigError:
    return ConfigError((found.at(str(path)),), hint=hint)


def _each_place_once(problems: list[Problem]) -> list[Problem]:
    """Keep the first problem at each position; the others are consequences of it."""
    first: dict[tuple[int, int, str], Problem] = {}
    faults = {(p.line, p.column) for p in problems if not p.path}
    for problem in problems:
        if problem.path and (problem.line, problem.column) in faults:
            continue
        first.setdefault((problem.line, problem.column, problem.message), problem)
    return list(first.values())


def _first(problems: list[Problem]) -> tuple[Problem, ...]:
    """Keep the first problems of a file that has too many."""
    problems = sorted(problems)
    kept, more = problems[:MOST_PROBLEMS], problems[MOST_PROBLEMS:]
    if more:
        count = mistake(MistakeCode.MORE_PROBLEMS, count=len(more))
        kept.append(count.at(more[0].file, (more[0].line, more[0].column)))
    return tuple(kept)


def _ports(value: int | str) -> tuple[int, int] | None:
    """Return the first and the last port of a port or a range."""
    if value == "auto":
        return None
    first, _, last = str(value).partition("-")
    return int(first), int(last or first)


def _cluster(file: ClusterFile, nodes: list[model.Node], name: str) -> model.Cluster:
    from dslaunch.cluster.rules import secrets

    ssh, network, storage = file.ssh, file.network, file.storage
    return model.Cluster(
        name=file.name or _name_of(name),
        nodes=tuple(nodes),
        transport=file.transport,
        ssh=model.Ssh(
            connect_timeout=float(ssh.connect_timeout),
            fanout=ssh.fanout,
            tree_fanout=ssh.tree_fanout,
            config_file=ssh.config_file,
        ),
        network=model.Network(
            interface=None if network.interface == "auto" else network.interface,
            master_port=None if network.master_port == "auto" else network.master_port,
            control_port=_ports(network.control_port),
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
        launcher_args=tuple(file.launcher_args),
        ranks=file.ranks,
        slurm=slurm_settings(file.slurm),
        preflight=model.Preflight(
            tuple(file.preflight.skip),
            tuple(file.preflight.severity.items()),
            tuple((name, tuple(own.items())) for name, own in file.preflight.limits.items()),
        ),
        progress=tuple(file.progress),
        job=_job(file),
    )


def _job(file: ClusterFile) -> model.JobDefaults | None:
    job = file.job
    if job is None:
        return None
    return model.JobDefaults(job.script, job.module, tuple(job.args), tuple(job.env.items()))


def slurm_settings(section: SlurmSection) -> model.Slurm:
    """Return the settings; unknown ones are passed to sbatch."""
    values = {name: getattr(section, name) for name in section.KEYS}
    given = {name: value for name, value in values.items() if value is not None}
    own = {name: given.pop(name) for name in _OWN_SLURM if name in given}
    for name in ("setup", "teardown", "srun", "directives"):
        own[name] = tuple(own[name])
    if "requeue" in own:
        own["requeue"] = None if own["requeue"] == "site" else int(own["requeue"])
    if "restarts" in own:
        own["restarts"] = int(own["restarts"])
    if section.supervised is not None:
        own["supervised"] = section.supervised == "true"
    if "shell" in own:
        own["shell"] = own["shell"] if own["shell"].startswith("/") else f"/bin/{own['shell']}"
    if section.container is not None:
        from dslaunch.cluster.container_section import container_of

        own["container"] = container_of(section.container)
    return model.Slurm(options=tuple(given.items()), **own)


def _name_of(file: str) -> str:
    """Return a cluster's name from its file's: `/site/pod a.yaml` is `pod-a`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem).strip("-._") or "cluster"
