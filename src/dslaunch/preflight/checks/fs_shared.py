"""Whether the directories of a job are one for all nodes: tested with marks, not believed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dslaunch.preflight.check import (
    Asked,
    Check,
    Finding,
    Flow,
    NodeAnswers,
    Nodes,
    Question,
    Round,
    Scope,
    UnansweredError,
)
from dslaunch.preflight.checks._machine import NETWORK_TYPES, path_question
from dslaunch.preflight.unanswered import UnansweredReason, reason_of
from dslaunch.protocol.survey import PathStatus


def _name(scope: Scope, host: str) -> str:
    return f".dslaunch-{scope.token}-{host}"


def _mark(scope: Scope, host: str) -> Question:
    argument = {"paths": list(scope.directories), "name": _name(scope, host)}
    return Question("mark", argument, 15)


def _seen(scope: Scope) -> Question:
    names = [_name(scope, node.host) for node in scope.nodes]
    return Question("marks", {"paths": list(scope.directories), "names": names}, 15)


def _flow(scope: Scope) -> Flow:
    last = {node.host: _last(scope, node.host) for node in scope.nodes}
    kinds = {path: path_question(path) for path in scope.directories}
    nodes = yield Round({node.host: kinds for node in scope.nodes}, last=last)
    able = [host for host, a in nodes.items() if _may_ask(a)]
    nodes = yield Round({host: {"mark": _mark(scope, host)} for host in able})
    seen = {host: {"seen": _seen(scope)} for host in able if host in nodes}
    nodes = yield Round(seen)
    return _compare(scope, nodes)


def _may_ask(a: NodeAnswers) -> bool:
    """Return whether there are directories, and none with a timeout, which `fs.hung` reports."""
    reasons = [a.reason(path_question(path)) for path in a.scope.directories]
    return bool(reasons) and UnansweredReason.TIMEOUT not in reasons


def _last(scope: Scope, host: str) -> Asked:
    argument = {_name(scope, host): list(scope.directories)}
    return {"unmark": Question("unmark", argument, 3)} if scope.directories else {}


def _compare(scope: Scope, nodes: Nodes) -> Iterator[Finding]:
    for path in scope.directories:
        missing = {host: a for host, a in nodes.items() if _missing(a, path)}
        there = {host: a for host, a in nodes.items() if host not in missing}
        if missing and _is_created(path, there, scope):
            words = f"{path} does not exist yet: a run creates it"
            yield Finding("info", words, hosts=tuple(missing))
        else:
            there = dict(nodes)
        sees = {host: _sees(a, path) for host, a in there.items()}
        yield from (names for names in sees.values() if isinstance(names, Finding))
        seen = {host: names for host, names in sees.items() if not isinstance(names, Finding)}
        if seen:
            yield from _judge(path, seen, scope)


def _is_created(path: str, there: Mapping[str, NodeAnswers], scope: Scope) -> bool:
    """Return whether a run creates a directory where it is missing: not where a mount may be.

    `there`: the nodes that have it, each on a local disk, as far as they know.
    """
    if not there:
        return True
    if scope.cluster.storage.shared:
        return False
    return all(_is_local(a, path) for a in there.values())


def _is_local(a: NodeAnswers, path: str) -> bool:
    """Return whether a directory is known to be on a disk of the node itself."""
    found: PathStatus | None = a.found(path_question(path))
    mount = found["mount"] if found is not None else None
    if mount is None:
        return False
    return mount["type"] not in NETWORK_TYPES and not mount["type"].startswith("fuse")


def _missing(a: NodeAnswers, path: str) -> bool:
    made = a.found(_mark(a.scope, a.host)) or {}
    return reason_of(made.get(path) or "") is UnansweredReason.MISSING


def _sees(a: NodeAnswers, path: str) -> frozenset[str] | Finding:
    """Return the nodes whose marks this node sees, or a finding why that is unknown."""
    try:
        error = a.value(_mark(a.scope, a.host))[path]
        found = a.value(_seen(a.scope))[path]
    except UnansweredError as why:
        return Finding("unknown", f"{path}: {why}", hosts=(a.host,))
    if error is not None:
        expected, fix = "a writable directory", f"create {path} on this node, and make it writable"
        return Finding(
            "fail", f"{path}: {error}", expected, fix, f"touch {path}/x", hosts=(a.host,)
        )
    hosts = {_name(a.scope, node.host): node.host for node in a.scope.nodes}
    return frozenset(hosts[name] for name in found if name in hosts)


def _judge(path: str, sees: dict[str, frozenset[str]], scope: Scope) -> Iterator[Finding]:
    hosts, everybody = tuple(sees), frozenset(sees)
    stated = scope.cluster.storage.shared
    alone = all(names & everybody == {host} for host, names in sees.items())
    if len(hosts) == 1:
        return
    if all(everybody <= names for names in sees.values()):
        yield Finding("pass", f"{path} is shared", hosts=hosts)
    elif alone and stated is not True:
        yield Finding("info", f"{path} is local to each node", hosts=hosts)
    else:
        most = max((names & everybody for names in sees.values()), key=len)
        odd = tuple(h for h in hosts if h not in most) if len(most) > 1 else hosts
        found = f"{path} is not the directory that the other nodes share"
        yield Finding(
            "fail", found if odd != hosts else f"{path} is not shared", "shared", hosts=odd
        )


CHECK = Check(
    title="shared directories are shared and writable",
    tier="gate",
    why=(
        "DeepSpeed writes shards of a checkpoint on every node. If a directory is "
        "shared by some nodes only, or is unexpectedly local, the checkpoint cannot "
        "be loaded."
    ),
    fix=(
        "mount the file system on the node; or set `storage.shared: false`, and "
        "dslaunch makes DeepSpeed use node-local storage"
    ),
    see="findmnt -T .",
    source="DeepSpeed 0.19 checkpoint.use_node_local_storage",
    flow=_flow,
)
