"""From a cluster file to a `Cluster`; every problem of the file at once, each with its place."""

from __future__ import annotations

import difflib
import re
import stat
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslaunch.cluster import model
from dslaunch.cluster.nodeset import expand
from dslaunch.cluster.yamltext import Document, parse
from dslaunch.cluster.yamltext import Path as Location
from dslaunch.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from dslaunch.cluster.schema import ClusterFile, JobSection, NodeEntry

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")
VERBATIM = ("env", "env_from", "labels", "slurm", "args", "name", "host", "address")
"""Keys below which a scalar is the text that was written: `NCCL_IB_TIMEOUT: 022` stays 022."""
LARGEST = 16 * 2**20
"""Bytes of a file; 100,000 nodes written out one by one are about 4 MiB."""
_DEFAULTS = ("user", "port", "identity_file", "jump")


def load_cluster(path: Path) -> model.Cluster:
    """Read and check a cluster file. Raises ConfigError."""
    return parse_cluster(read_text(path), str(path))


def parse_cluster(text: str, file: str) -> model.Cluster:
    """Check a cluster file's text; `file` is the name for messages. Raises ConfigError."""
    from pydantic import ValidationError

    from dslaunch.cluster.schema import ClusterFile

    document = parse(text, file, verbatim=VERBATIM)
    problems = list(document.problems)
    try:
        described = ClusterFile.model_validate(document.data)
    except ValidationError as error:
        problems += _schema_problems(document, error, ClusterFile)
        raise ConfigError(tuple(problems)) from None
    nodes, faults = expand_nodes(document, described)
    problems += [*faults, *_contradictions(document, described, nodes)]
    if problems:
        raise ConfigError(tuple(problems))
    return _cluster(described, nodes, file)


def read_text(path: Path) -> str:
    """Read a file that may be anything. Raises ConfigError in words."""

    def refuse(message: str, hint: str | None = None) -> ConfigError:
        return ConfigError((Problem(str(path), 0, 0, "", message),), hint=hint)

    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise refuse("is a directory, not a file" if path.is_dir() else "is no file")
        if status.st_size > LARGEST:
            raise refuse(f"has {status.st_size:,} bytes; a cluster file has less than {LARGEST:,}")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise refuse("there is no such file", "`dslaunch init` writes one") from None
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is {error.object[error.start]:#x}"
        raise refuse(f"is not UTF-8 text: {what}") from None
    except (OSError, ValueError) as error:
        raise refuse(f"cannot be read: {error}") from None


# ---------------------------------------------------------------- the schema's findings


def _schema_problems(
    document: Document, error: ValidationError, root: type[BaseModel]
) -> Iterator[Problem]:
    for finding in error.errors(include_url=False):
        location: Location = finding["loc"]
        kind = finding["type"]
        if kind == "too_short" and finding["input"]:
            continue  # pydantic counts only the entries that are right
        if kind == "extra_forbidden":
            names = _fields(root, location[:-1])
            message = f"unknown key `{location[-1]}`{did_you_mean(str(location[-1]), names)}"
            yield document.problem(location, message)
        elif kind == "missing":
            yield document.problem(location, "is missing")
        else:
            yield document.problem(location, _words(finding))


def _words(finding: Any) -> str:
    from dslaunch.cluster.yamltext import described as kind

    if finding["type"] == "value_error":
        return str(finding["ctx"]["error"])
    if finding["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"expected a mapping, got {kind(finding['input'])}"
    if finding["type"] in ("tuple_type", "list_type"):
        return f"expected a list, got {kind(finding['input'])}"
    if finding["type"] == "too_short":
        return "is empty"
    message = str(finding["msg"]).removeprefix("Input ")
    return f"{message}, got {kind(finding['input'])}"


def _fields(section: type[BaseModel], location: Location) -> list[str]:
    """The keys that may stand at a place: `nodes[2]` is an entry of nodes."""
    from dslaunch.cluster import schema

    inside: dict[str, type[BaseModel]] = {
        "nodes": schema.NodeEntry,
        "ssh": schema.SshSection,
        "network": schema.NetworkSection,
        "storage": schema.StorageSection,
        "job": schema.JobSection,
    }
    target = inside.get(str(location[0]), section) if location else section
    return list(target.model_fields)


def did_you_mean(word: str, words: list[str]) -> str:
    """`, did you mean `x`?`, or nothing."""
    close = difflib.get_close_matches(word, words, 1)
    return f", did you mean `{close[0]}`?" if close else ""


# ---------------------------------------------------------------- nodes


def expand_nodes(
    document: Document, described: ClusterFile
) -> tuple[list[model.Node], list[Problem]]:
    """Every node by itself, defaults applied, and what is wrong with hosts and addresses."""
    nodes: list[model.Node] = []
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for index, entry in enumerate(described.nodes):
        where: Location = ("nodes", index)
        hosts, addresses, faults = _names(document, entry, where)
        problems += faults
        twice = [host for host in hosts if host in first]
        if twice or len(set(hosts)) < len(hosts):
            again = twice[0] if twice else next(h for h in hosts if hosts.count(h) > 1)
            other = f"nodes[{first[again]}]" if twice else "this entry"
            problems.append(document.problem((*where, "host"), f"{again!r} is in {other} already"))
        first |= dict.fromkeys(hosts, index)
        settings = _settings(described, entry)
        nodes += [
            model.Node(host=host, address=address, **settings)
            for host, address in zip_longest(hosts, addresses[: len(hosts)])
        ]
    return nodes, problems


def _names(
    document: Document, entry: NodeEntry, where: Location
) -> tuple[tuple[str, ...], tuple[str, ...], list[Problem]]:
    problems = []
    try:
        hosts = expand(entry.host)
        bad = next((host for host in hosts if not _HOST.fullmatch(host)), None)
        if bad is not None:
            raise ValueError(f"{bad!r} is no host name; user and port have keys of their own")
    except ValueError as error:
        problems.append(document.problem((*where, "host"), str(error)))
        hosts = ()
    if entry.address is None:
        return hosts, (), problems
    try:
        addresses = expand(entry.address)
        if hosts and len(addresses) != len(hosts):
            raise ValueError(f"{len(addresses)} addresses for {len(hosts)} hosts")
        if len(set(addresses)) < len(addresses):
            raise ValueError("the same address for several hosts")
    except ValueError as error:
        problems.append(document.problem((*where, "address"), str(error)))
        addresses = ()
    return hosts, addresses, problems


def _settings(described: ClusterFile, entry: NodeEntry) -> dict[str, Any]:
    """What all nodes of an entry have in common; the file's defaults where it is silent."""
    settings: dict[str, Any] = {
        name: getattr(entry, name)
        if getattr(entry, name) is not None
        else getattr(described.ssh, name)
        for name in _DEFAULTS
    }
    own = entry.python is not None or entry.activate is not None
    source = entry if own else described
    return settings | {
        "slots": _slots(entry.slots),
        "python": source.python,
        "activate": source.activate,
        "env": tuple(entry.env.items()),
        "labels": tuple(entry.labels.items()),
        "spare": entry.spare,
    }


# ---------------------------------------------------------------- contradictions


def _contradictions(
    document: Document, described: ClusterFile, nodes: list[model.Node]
) -> Iterator[Problem]:
    places: list[tuple[Location, ClusterFile | NodeEntry]] = [((), described)]
    places += [(("nodes", i), entry) for i, entry in enumerate(described.nodes)]
    for where, holder in places:
        if holder.python is not None and holder.activate is not None:
            yield document.problem(
                (*where, "activate"), "`python` and `activate` exclude each other"
            )
    if nodes and all(node.spare for node in nodes):
        yield document.problem(("nodes",), "all nodes are spares")
    if described.job is not None and (described.job.script is None) == (
        described.job.module is None
    ):
        yield document.problem(("job",), "needs `script` or `module`, and only one of them")
    plain = set(described.env)
    for index, (name, _) in enumerate(_secrets(described)):
        if name in plain:
            yield document.problem(
                ("secrets", index), f"{name} is in `env` as well, in plain sight"
            )
    yield from _same_addresses(document, nodes)


def _same_addresses(document: Document, nodes: list[model.Node]) -> Iterator[Problem]:
    owner: dict[str, str] = {}
    for node in nodes:
        if node.address is None:
            continue
        other = owner.setdefault(node.address, node.host)
        if other != node.host:
            words = f"{other} and {node.host} have the same address {node.address}"
            yield document.problem(("nodes",), words)


def _cluster(described: ClusterFile, nodes: list[model.Node], file: str) -> model.Cluster:
    ssh, network, storage, job = described.ssh, described.network, described.storage, described.job
    return model.Cluster(
        name=described.name or Path(file).stem,
        nodes=tuple(nodes),
        transport=described.transport,
        ssh=model.Ssh(ssh.connect_timeout, ssh.fanout, ssh.config_file),
        network=model.Network(_given(network.interface), _given(network.master_port)),
        storage=model.Storage(
            _given(storage.shared), storage.workdir, storage.checkpoints, storage.node_local
        ),
        env=tuple(described.env.items()),
        env_from=tuple(described.env_from),
        secrets=tuple(model.SecretSource(name, source) for name, source in _secrets(described)),
        launcher=described.launcher,
        slurm=tuple((name, str(value)) for name, value in described.slurm.items()),
        job=_job(job) if job else None,
    )


def _slots(given: Any) -> tuple[int, ...]:
    return tuple(range(given)) if isinstance(given, int) else tuple(sorted(given))


def _secrets(described: ClusterFile) -> list[tuple[str, str | None]]:
    return [
        (secret, None) if isinstance(secret, str) else next((n, f.file) for n, f in secret.items())
        for secret in described.secrets
    ]


def _given(value: Any) -> Any:
    return None if value == "auto" else value


def _job(job: JobSection) -> model.JobDefaults:
    env = tuple(job.env.items())
    return model.JobDefaults(job.script, job.module, tuple(job.args), env)
