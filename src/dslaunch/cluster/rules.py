"""Rules about several keys of a cluster file, and the expansion of its node entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from msgspec import Struct, field

from dslaunch.cluster.container_section import container_of
from dslaunch.cluster.mistakes import Mistake, MistakeCode, mistake
from dslaunch.cluster.model import Node, SecretSource
from dslaunch.cluster.names import address_fault, host_fault, plain_address
from dslaunch.cluster.nodeset import LIMIT, InvalidNodeSet, expand
from dslaunch.cluster.progress_format import fault
from dslaunch.cluster.runtimes import inexpressible
from dslaunch.cluster.schema import ClusterFile, NodeEntry
from dslaunch.cluster.validation import Checked
from dslaunch.cluster.yamltext import Path, YamlDocument
from dslaunch.errors import Problem
from dslaunch.texts import closest

_FOR_ALL = ("user", "port", "identity_file", "jump")


class Nodes(Struct):
    """The nodes of a file, and the problems of their names and addresses."""

    document: YamlDocument
    nodes: list[Node] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    owners: dict[tuple[str, str], Path] = field(default_factory=dict)
    """`host` or `address`, and the name -> the path of its first use."""

    def add(self, file: ClusterFile, entry: NodeEntry, index: int) -> bool:
        """Add the nodes of one entry; False: too many nodes in total."""
        where: Path = ("nodes", index)
        hosts = self._names((*where, "host"), entry.host, host_fault)
        addresses: tuple[str | None, ...] = (None,) * len(hosts)
        if entry.address is not None:
            addresses = self._names((*where, "address"), entry.address, address_fault)
            if hosts and addresses and len(addresses) != len(hosts):
                self.problem(
                    (*where, "address"),
                    mistake(MistakeCode.ADDRESS_COUNT, hosts=len(hosts), addresses=len(addresses)),
                )
        if len(self.nodes) + len(hosts) > LIMIT:
            self.problem((*where, "host"), mistake(MistakeCode.TOO_MANY_NODES, limit=LIMIT))
            return False
        settings = node_settings(file, entry)
        self.nodes += [
            Node(host=host, address=address, **settings)
            for host, address in zip(hosts, addresses, strict=False)
        ]
        return True

    def problem(self, path: Path, found: Mistake) -> None:
        """Record a problem at `path`."""
        self.problems.append(self.document.problem(path, found))

    def _names(
        self, path: Path, folded: str, fault: Callable[[str], Mistake | None]
    ) -> tuple[str, ...]:
        try:
            names = expand(folded)
        except InvalidNodeSet as error:
            self.problem(path, error.mistake)
            return ()
        faults = [(name, found) for name in names if (found := fault(name)) is not None]
        if faults:
            first = faults[0][1]
            self.problem(path, first.with_values(more=len(faults) - 1))
        wrong = {name for name, _ in faults}
        self._claim(path, tuple(name for name in names if name not in wrong))
        return names

    def _claim(self, path: Path, names: tuple[str, ...]) -> None:
        """Record the use of names; report duplicates once per entry."""
        kind = str(path[-1])
        twice = []
        for name in names:
            key = kind, plain_address(name)
            if key in self.owners:
                twice.append(name)
            else:
                self.owners[key] = path
        if twice:
            line = self.document.place(self.owners[kind, plain_address(twice[0])])[0]
            code = MistakeCode.DUPLICATE_HOST if kind == "host" else MistakeCode.DUPLICATE_ADDRESS
            self.problem(path, mistake(code, name=twice[0], more=len(twice) - 1, line=line))


def expand_nodes(document: YamlDocument, checked: Checked) -> Nodes:
    """Return the nodes, each with the settings of its entry and the defaults of the file."""
    found = Nodes(document)
    if checked.file is not None:
        for index, entry in zip(checked.indexes, checked.file.nodes, strict=True):
            if not found.add(checked.file, entry, index):
                break
    return found


def node_settings(file: ClusterFile, entry: NodeEntry) -> dict[str, Any]:
    """Return the settings of all nodes of an entry; missing ones come from the file."""
    settings = {}
    for name in _FOR_ALL:
        own = getattr(entry, name)
        settings[name] = getattr(file.ssh, name) if own is None else own
    has_interpreter = entry.python is not None or entry.activate is not None
    source = entry if has_interpreter else file
    return settings | {
        "slots": _slots(entry.slots),
        "python": source.python,
        "activate": source.activate,
        "env": tuple(entry.env.items()),
        "labels": tuple(entry.labels.items()),
        "spare": entry.spare,
    }


def _slots(given: int | list[int]) -> tuple[int, ...]:
    """Return the indexes of the slots, ascending; given is their number, or a list of them."""
    return _first_slots(given) if isinstance(given, int) else tuple(sorted(given))


@cache
def _first_slots(count: int) -> tuple[int, ...]:
    return tuple(range(count))


def contradictions(
    document: YamlDocument, checked: Checked, nodes: list[Node]
) -> Iterator[Problem]:
    """Yield the conflicts between keys."""
    file = checked.file
    if file is None:
        return
    entries: list[tuple[Path, NodeEntry]] = [
        (("nodes", index), entry) for index, entry in zip(checked.indexes, file.nodes, strict=True)
    ]
    for path, found in (
        *_two_interpreters(file, entries),
        *_repeated_slots(entries),
        *_spares_only(nodes, checked),
        *_job(file, checked),
        *_open_secrets(file, entries),
        *_container(file),
        *_progress(file),
    ):
        yield document.problem(path, found)


def secrets(file: ClusterFile) -> Iterator[tuple[int, SecretSource]]:
    """Return the secrets, each with the index of its item in the list."""
    for index, item in enumerate(file.secrets):
        if isinstance(item, str):
            yield index, SecretSource(item)
        else:
            for name, source in item.items():
                yield index, SecretSource(name, source.file)


_Placed = tuple[Path, Mistake]


def _two_interpreters(
    file: ClusterFile, entries: list[tuple[Path, NodeEntry]]
) -> Iterator[_Placed]:
    whole: list[tuple[Path, ClusterFile | NodeEntry]] = [((), file), *entries]
    for where, holder in whole:
        if holder.python is not None and holder.activate is not None:
            yield (*where, "activate"), mistake(MistakeCode.TWO_INTERPRETERS)


def _repeated_slots(entries: list[tuple[Path, NodeEntry]]) -> Iterator[_Placed]:
    for where, entry in entries:
        if isinstance(entry.slots, list) and len(set(entry.slots)) < len(entry.slots):
            twice = next(s for i, s in enumerate(entry.slots) if s in entry.slots[:i])
            yield (*where, "slots"), mistake(MistakeCode.DUPLICATE_SLOT, slot=twice)


def _spares_only(nodes: list[Node], checked: Checked) -> Iterator[_Placed]:
    if nodes and not checked.problems and all(node.spare for node in nodes):
        yield ("nodes",), mistake(MistakeCode.ONLY_SPARES)


def _job(file: ClusterFile, checked: Checked) -> Iterator[_Placed]:
    if file.job is None:
        return
    if file.job.script is not None and file.job.module is not None:
        yield ("job", "module"), mistake(MistakeCode.SCRIPT_AND_MODULE)
    elif file.job.script is None and file.job.module is None and not checked.problems:
        yield ("job",), mistake(MistakeCode.NO_PROGRAM)


def _container(file: ClusterFile) -> Iterator[_Placed]:
    section = file.slurm.container
    if section is not None:
        for path, found in inexpressible(container_of(section)):
            yield ("slurm", "container", *path), found


def _progress(file: ClusterFile) -> Iterator[_Placed]:
    for index, pattern in enumerate(file.progress):
        found = fault(pattern)
        if found is not None:
            yield ("progress", index), found


def _open_secrets(file: ClusterFile, entries: list[tuple[Path, NodeEntry]]) -> Iterator[_Placed]:
    """Yield secrets that are listed twice, or also set in plain text."""
    hidden: set[str] = set()
    for index, secret in secrets(file):
        if secret.name in hidden:
            yield ("secrets", index), mistake(MistakeCode.DUPLICATE_SECRET, name=secret.name)
        hidden.add(secret.name)
    for index, name in enumerate(file.env_from):
        if name in hidden:
            yield ("env_from", index), mistake(MistakeCode.EXPOSED_SECRET, name=name)
    environments: list[tuple[Path, Iterable[str]]] = [(("env",), file.env)]
    environments += [((*where, "env"), entry.env) for where, entry in entries if entry.env]
    if file.job:
        environments.append((("job", "env"), file.job.env))
    for where, names in environments:
        for name in names:
            if name in hidden:
                yield (*where, name), mistake(MistakeCode.EXPOSED_SECRET, name=name)


class KnownNames(Struct, frozen=True):
    """Names that other parts of the program define."""

    launchers: tuple[str, ...]
    checks: Mapping[str, tuple[str, ...]]
    """Every check with its thresholds."""


def unknown_names(document: YamlDocument, names: KnownNames) -> Iterator[Problem]:
    """Yield unknown names of launchers, checks and thresholds in a valid file."""
    launcher = document.data.get("launcher")
    if isinstance(launcher, str) and launcher not in names.launchers:
        found = _unknown(MistakeCode.UNKNOWN_LAUNCHER, launcher, names.launchers)
        yield document.problem(("launcher",), found)
    section = document.data.get("preflight") or {}
    for index, word in enumerate(section.get("skip") or ()):
        families = {name.partition(".")[0] for name in names.checks}
        if str(word) not in families | set(names.checks):
            found = _unknown(MistakeCode.UNKNOWN_CHECK, str(word), names.checks)
            yield document.problem(("preflight", "skip", index), found)
    for key in ("severity", "limits"):
        for name in section.get(key) or {}:
            if name not in names.checks:
                found = _unknown(MistakeCode.UNKNOWN_CHECK, name, names.checks)
                yield document.problem(("preflight", key, name), found)
    for name, limits in (section.get("limits") or {}).items():
        has = names.checks.get(name)
        for word in limits if has is not None else ():
            if has is not None and word not in has:
                path: Path = ("preflight", "limits", name, word)
                found = _unknown(MistakeCode.UNKNOWN_THRESHOLD, word, has, check=name)
                yield document.problem(path, found)


def _unknown(code: MistakeCode, word: str, names: Iterable[str], **values: str) -> Mistake:
    known = tuple(names)
    return mistake(code, name=word, similar=closest(word, known), known=known, **values)
