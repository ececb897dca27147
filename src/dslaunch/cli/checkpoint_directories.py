"""The checkpoint directory of a command line: on all nodes, on one, or on this machine."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.cli.options import find_cluster, open_cluster
from dslaunch.cli.positional import FILE_ENDINGS, two_files
from dslaunch.cli.usage_errors import empty_value
from dslaunch.cluster.nodeset import fold
from dslaunch.errors import NodeError, SelectionError, UsageError
from dslaunch.run.checkpoint_stores import LocalStore, open_places
from dslaunch.run.checkpoints import look
from dslaunch.run.follow import nothing_reached

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node
    from dslaunch.run.checkpoint_stores import CheckpointStore
    from dslaunch.run.checkpoints import Holdings
    from dslaunch.run.reach import ReachedNodes


def split(words: list[str] | None, cluster: Path | None) -> tuple[Path | None, str | None]:
    """Return the cluster file and the directory, both optional; `cluster` is that of `--cluster`.

    Raises UsageError.
    """
    given = list(words or [])
    file = cluster
    if given and given[0].endswith(FILE_ENDINGS):
        file = Path(given.pop(0))
        if cluster is not None:
            raise two_files(file, cluster)
    if "" in given:
        raise empty_value("DIR")
    if len(given) > 1:
        raise UsageError(f"expected 1 directory, found {len(given)}: {' '.join(given)}")
    return file, given[0] if given else None


def on_nodes(cluster: Cluster, directory: str | None) -> str:
    """Return the directory on the nodes; a relative one starts at the working directory there."""
    workdir = cluster.storage.workdir or str(Path.cwd())
    if directory is None:
        return cluster.storage.checkpoints or workdir
    if directory.startswith("~"):
        return directory
    return posixpath.normpath(posixpath.join(workdir, directory))


@contextlib.contextmanager
def all_nodes(
    words: list[str] | None,
    needed: Callable[[Cluster], Container[str]] | None = None,
    *,
    file: Path | None = None,
    is_target: bool = False,
) -> Iterator[tuple[Cluster, str, Holdings, ReachedNodes]]:
    """Yield the cluster, the directory, what its nodes have there, and the connections to them.

    `needed` returns the hosts to connect to: an unreachable node that is not needed costs no time.
    A directory that the words name must exist on one node, unless it `is_target`; that of the
    cluster file is made by the first run. Raises ConfigError, NodeError.
    """
    file, named = split(words, file)
    cluster = open_cluster(find_cluster(file))
    directory = on_nodes(cluster, named)
    hosts = [node.host for node in cluster.nodes] if needed is None else needed(cluster)
    asked = [node for node in cluster.nodes if node.host in hosts]
    with open_places(cluster, asked) as (places, reached):
        if not places:
            raise nothing_reached(reached, directory)
        holdings = look(places, reached, directory)
        holdings.check_readable(directory, may_be_missing=named is None or is_target)
        yield cluster, directory, holdings, reached


@contextlib.contextmanager
def one_place(
    text: str, nodes: Mapping[str, CheckpointStore]
) -> Iterator[tuple[CheckpointStore, str]]:
    """Yield the store and path of a local directory, or of `HOST:DIRECTORY`."""
    host, colon, path = text.partition(":")
    if colon and host in nodes:
        yield nodes[host], path
        return
    with ThreadPoolExecutor(8) as pool:
        yield LocalStore(pool), str(Path(text).expanduser().absolute())


def only(stack: contextlib.ExitStack, cluster: Cluster, host: str) -> CheckpointStore:
    """Return the store of one node. Raises NodeError."""
    places, reached = stack.enter_context(open_places(cluster, [node_named(cluster, host)]))
    if not places:
        raise NodeError(tuple(reached.failures.values()))
    return places[0]


def node_named(cluster: Cluster, host: str) -> Node:
    """Return the node of this name. Raises SelectionError."""
    for node in cluster.nodes:
        if node.host == host:
            return node
    known = fold(each.host for each in cluster.nodes)
    raise SelectionError(f"--on {host}: not in cluster {cluster.name}", hint=f"nodes: {known}")
