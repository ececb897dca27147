"""Whether the directories of a job are one for all nodes: tested with marks, not believed."""

from __future__ import annotations

from collections.abc import Iterator

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
from dslaunch.preflight.checks._machine import path_question
from dslaunch.preflight.unanswered import UnansweredReason, reason_of


def _name(scope: Scope, host: str) -> str:
    return f".dslaunch-{scope.token}-{host}"


def _mark(scope: Scope, host: str) -> Question:
    argument = {"paths": list(scope.directories), "name": _name(scope, host)}
    return Question("mark", argument, 15)


def _seen(scope: Scope) -> Question:
    names = [_name(scope, node.host) for node in scope.nodes]
    return Question("marks", {"paths": list(scope.directories), "names": names}, 15)


def _flow(nodes: Nodes) -> Flow:
    able = [host for host, a in nodes.items() if _may_ask(a)]
    nodes = yield Round({host: {"mark": _mark(nodes[host].scope, host)} for host in able})
    seen = {host: {"seen": _seen(nodes[host].scope)} for host in able if host in nodes}
    nodes = yield Round(seen)
    return _compare(nodes)


def _may_ask(a: NodeAnswers) -> bool:
    """Whether there are directories, and none that `fs.hung` is known to say does not answer."""
    reasons = [a.reason(path_question(path)) for path in a.scope.directories]
    return bool(reasons) and UnansweredReason.TIMEOUT not in reasons


def _last(scope: Scope, host: str) -> Asked:
    argument = {"paths": list(scope.directories), "name": _name(scope, host)}
    return {"unmark": Question("unmark", argument, 3)} if scope.directories else {}


def _compare(nodes: Nodes) -> Iterator[Finding]:
    for path in next(iter(nodes.values())).scope.directories:
        if all(_missing(a, path) for a in nodes.values()):
            yield Finding("info", f"{path} is not there yet: a run makes it", hosts=tuple(nodes))
            continue
        sees = {host: _sees(a, path) for host, a in nodes.items()}
        yield from (names for names in sees.values() if isinstance(names, Finding))
        seen = {host: names for host, names in sees.items() if not isinstance(names, Finding)}
        if seen:
            yield from _judge(path, seen, nodes)


def _missing(a: NodeAnswers, path: str) -> bool:
    made = a.found(_mark(a.scope, a.host)) or {}
    return reason_of(made.get(path) or "") is UnansweredReason.MISSING


def _sees(a: NodeAnswers, path: str) -> frozenset[str] | Finding:
    """The nodes whose marks this node sees; or why that cannot be said."""
    try:
        error = a.value(_mark(a.scope, a.host))[path]
        found = a.value(_seen(a.scope))[path]
    except UnansweredError as why:
        return Finding("unknown", f"{path}: {why}", hosts=(a.host,))
    if error is not None:
        expected, fix = "a directory that can be written", f"make {path} there, and writable"
        return Finding(
            "fail", f"{path}: {error}", expected, fix, f"touch {path}/x", hosts=(a.host,)
        )
    hosts = {_name(a.scope, node.host): node.host for node in a.scope.nodes}
    return frozenset(hosts[name] for name in found if name in hosts)


def _judge(path: str, sees: dict[str, frozenset[str]], nodes: Nodes) -> Iterator[Finding]:
    hosts, everybody = tuple(sees), frozenset(sees)
    stated = next(iter(nodes.values())).scope.cluster.storage.shared
    alone = all(names & everybody == {host} for host, names in sees.items())
    if len(hosts) == 1:
        return
    if all(everybody <= names for names in sees.values()):
        yield Finding("pass", f"{path} is shared", hosts=hosts)
    elif alone and stated is not True:
        yield Finding("info", f"{path} is each node's own", hosts=hosts)
    else:
        most = max((names & everybody for names in sees.values()), key=len)
        odd = tuple(h for h in hosts if h not in most) if len(most) > 1 else hosts
        found = f"{path} is not the directory that the others share"
        yield Finding(
            "fail", found if odd != hosts else f"{path} is not shared", "shared", hosts=odd
        )


CHECK = Check(
    title="directories that should be shared are, and can be written",
    tier="gate",
    why="DeepSpeed writes shards of a checkpoint on every node. Where a directory is shared by "
    "some nodes and not by others, or not at all and nobody knows, the checkpoint cannot be "
    "loaded.",
    fix="mount the file system there; or set `storage.shared: false`, and dslaunch lets DeepSpeed "
    "use node-local storage",
    see="findmnt -T .",
    source="DeepSpeed 0.19 checkpoint.use_node_local_storage",
    flow=_flow,
    last=_last,
)
