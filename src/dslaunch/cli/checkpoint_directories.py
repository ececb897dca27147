"""Directories of checkpoints that a command line names: on all nodes, on one, or here."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.cli.options import find_cluster, open_cluster
from dslaunch.cli.positional import FILE_ENDINGS
from dslaunch.errors import NodeError, UsageError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node
    from dslaunch.run.checkpoint_stores import CheckpointStore
    from dslaunch.run.checkpoints import Holdings
    from dslaunch.run.reach import ReachedNodes


def split(words: list[str] | None) -> tuple[Path | None, str | None]:
    """The cluster file and the directory, either of which may be left out."""
    given = list(words or [])
    file = Path(given.pop(0)) if given and given[0].endswith(FILE_ENDINGS) else None
    if len(given) > 1:
        raise UsageError(f"one directory is wanted, found {' '.join(given)}")
    return file, given[0] if given else None


def opened(words: list[str] | None) -> tuple[Cluster, str]:
    """The cluster, and the directory on its nodes."""
    file, directory = split(words)
    cluster = open_cluster(find_cluster(file))
    return cluster, on_nodes(cluster, directory)


def on_nodes(cluster: Cluster, directory: str | None) -> str:
    """The directory as the job on the nodes means it."""
    workdir = cluster.storage.workdir or str(Path.cwd())
    if directory is None:
        return cluster.storage.checkpoints or workdir
    if directory.startswith("~"):
        return directory
    return posixpath.normpath(posixpath.join(workdir, directory))


@contextlib.contextmanager
def all_nodes(
    words: list[str] | None, needed: Callable[[Cluster], Container[str]] | None = None
) -> Iterator[tuple[Cluster, str, Holdings, ReachedNodes]]:
    """The cluster, the directory, what its nodes have there, and the connections to them.

    `needed` says which nodes, so that one that is lost and not needed is not waited for.
    """
    from dslaunch.run.checkpoint_stores import open_places
    from dslaunch.run.checkpoints import look
    from dslaunch.run.follow import nothing_reached

    cluster, directory = opened(words)
    hosts = [node.host for node in cluster.nodes] if needed is None else needed(cluster)
    asked = [node for node in cluster.nodes if node.host in hosts]
    with open_places(cluster, asked) as (places, reached):
        if not places:
            raise nothing_reached(reached, directory)
        yield cluster, directory, look(places, reached, directory), reached


@contextlib.contextmanager
def one_place(
    text: str, nodes: Mapping[str, CheckpointStore]
) -> Iterator[tuple[CheckpointStore, str]]:
    """A directory here, or `HOST:DIRECTORY`."""
    from concurrent.futures import ThreadPoolExecutor

    from dslaunch.run.checkpoint_stores import LocalStore

    host, colon, path = text.partition(":")
    if colon and host in nodes:
        yield nodes[host], path
        return
    with ThreadPoolExecutor(8) as pool:
        yield LocalStore(pool), str(Path(text).expanduser().absolute())


def only(stack: contextlib.ExitStack, cluster: Cluster, host: str) -> CheckpointStore:
    """One node, or NodeError."""
    from dslaunch.run.checkpoint_stores import open_places

    places, reached = stack.enter_context(open_places(cluster, [node_named(cluster, host)]))
    if not places:
        raise NodeError(tuple(reached.failures.values()))
    return places[0]


def node_named(cluster: Cluster, host: str) -> Node:
    """The node of that name. Raises UsageError."""
    for node in cluster.nodes:
        if node.host == host:
            return node
    raise UsageError(f"--on {host}: no such node", hint=", ".join(n.host for n in cluster.nodes))
