"""What must hold in a cluster file beyond the shape of its parts; and its nodes, one by one."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dslaunch.cluster.findings import Checked
from dslaunch.cluster.model import Node
from dslaunch.cluster.nodeset import LIMIT, expand, shortened
from dslaunch.cluster.schema import HOST_NAME, ClusterFile, NodeEntry
from dslaunch.cluster.yamltext import Document, Path
from dslaunch.errors import Problem

Secret = tuple[str, str | None]
"""A variable's name, and the file that has its value."""

_HOST = re.compile(HOST_NAME.pattern)
_FOR_ALL = ("user", "port", "identity_file", "jump")


@dataclass(slots=True)
class Nodes:
    """The nodes of a file, and what is wrong with their names and addresses."""

    document: Document
    nodes: list[Node] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    owners: dict[str, Path] = field(default_factory=dict)
    """Host or address (in its own key) -> where it was named first."""

    def add(self, file: ClusterFile, entry: NodeEntry, index: int) -> None:
        """Add the nodes of one entry."""
        where: Path = ("nodes", index)
        hosts = self._names((*where, "host"), entry.host, host_fault)
        addresses: tuple[str | None, ...] = (None,) * len(hosts)
        if entry.address is not None:
            addresses = self._names((*where, "address"), entry.address, address_fault)
            if hosts and addresses and len(addresses) != len(hosts):
                words = f"{len(addresses)} addresses for {len(hosts)} hosts"
                self.problem((*where, "address"), words)
        if len(self.nodes) + len(hosts) > LIMIT:
            self.problem((*where, "host"), f"there are more than {LIMIT:,} nodes")
            return
        settings = node_settings(file, entry)
        self.nodes += [
            Node(host=host, address=address, **settings)
            for host, address in zip(hosts, addresses, strict=False)
        ]

    def problem(self, path: Path, message: str) -> None:
        """Note that something is wrong at `path`."""
        self.problems.append(self.document.problem(path, message))

    def _names(self, path: Path, folded: str, fault: Any) -> tuple[str, ...]:
        try:
            names = expand(folded)
        except ValueError as error:
            self.problem(path, str(error))
            return ()
        bad = next(filter(None, map(fault, names)), None)
        if bad is not None:
            self.problem(path, bad)
            return ()
        self._claim(path, names)
        return names

    def _claim(self, path: Path, names: tuple[str, ...]) -> None:
        """Note whose the names are; say which are somebody's already, in one problem."""
        kind = path[-1]
        twice: list[str] = []
        for name in names:
            if self.owners.setdefault(f"{kind} {name}", path) is not path or name in twice:
                twice.append(name)
        if len(twice) == 0 and len(set(names)) < len(names):
            twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            first = self.owners[f"{kind} {twice[0]}"]
            line = self.document.place(first)[0]
            more = f" and {len(twice) - 1:,} more are" if len(twice) > 1 else " is"
            self.problem(path, f"{kind} {twice[0]!r}{more} there already, in line {line}")
