"""How fast the nodes write to where checkpoints go: one by itself, then all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

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
from dslaunch.preflight.checks._measure import limits, rate_of, slow, span, speed
from dslaunch.preflight.unanswered import UnansweredReason

NAME = "fs.write-speed"
LIMITS: Mapping[str, float] = {"size": 256, "warn": 0.5, "fail": 0.1, "growth": 1.2}
SECONDS = 20.0


def _file(scope: Scope, host: str, together: bool) -> str:
    return f".dslaunch-{scope.token}-{host}-{'all' if together else 'one'}"


def _path(scope: Scope) -> str | None:
    """Where checkpoints go."""
    return scope.directories[-1] if scope.directories else None


def _question(a: NodeAnswers, together: bool) -> Question:
    told = {
        "path": _path(a.scope),
        "name": _file(a.scope, a.host, together),
        "bytes": round(limits(a.scope, NAME, LIMITS)["size"] * (1 << 20)),
        "seconds": SECONDS,
        "writers": len(a.scope.nodes) if together else 1,
    }
    return Question("write_rate", told, 3 * SECONDS)


def _flow(scope: Scope) -> Flow:
    """First one node writes while the others rest, then another, then all."""
    nodes = yield Round({}, last={node.host: _last(scope, node.host) for node in scope.nodes})
    if _path(scope) is None:
        return [Finding("skip", "the job has no directory", hosts=tuple(nodes))]
    singly = [node.host for node in scope.nodes[:2] if node.host in nodes]
    several = len(nodes) > 1
    for number, host in enumerate(singly, 1):
        if host in nodes:
            further = len(singly) - number + several
            question = _question(nodes[host], False)
            nodes = yield Round({host: {"alone": question}}, alone=True, further=further)
    if len(nodes) > 1:
        asked = {host: {"together": _question(a, True)} for host, a in nodes.items()}
        nodes = yield Round(asked, alone=True)
    return _compare(nodes)


def _last(scope: Scope, host: str) -> Asked:
    """A program that was killed leaves its file."""
    path = _path(scope)
    if path is None:
        return {}
    names = [_file(scope, host, together) for together in (False, True)]
    return {"unmark": Question("unmark", {name: [path] for name in names}, 3)}


def _compare(nodes: Nodes) -> Iterator[Finding]:
    alone: dict[str, float] = {}
    together: dict[str, float] = {}
    errors: dict[str, str] = {}
    missing: dict[str, None] = {}
    for host, a in nodes.items():
        for all_at_once, question in _asked(a, several=len(nodes) > 1):
            try:
                (together if all_at_once else alone)[host] = rate_of(a, question)
            except UnansweredError as error:
                if a.reason(question) is UnansweredReason.MISSING:
                    missing[host] = None
                else:
                    errors[host] = str(error).lower()
    if missing:
        path = _path(next(iter(nodes.values())).scope)
        words = f"{path} does not exist: nothing was measured"
        yield Finding("skip", words, hosts=tuple(missing))
    for host, why in errors.items():
        yield Finding("unknown", f"no measurement: {why}", hosts=(host,))
    if together:
        yield from _judge(alone, together, next(iter(nodes.values())))
    elif alone:
        yield Finding("pass", f"{span(alone.values())} alone", hosts=tuple(alone))


def _asked(a: NodeAnswers, *, several: bool) -> Iterator[tuple[bool, Question]]:
    """What a node was asked to write, and whether all did so at once."""
    if a.host in {node.host for node in a.scope.nodes[:2]}:
        yield False, _question(a, False)
    if several:
        yield True, _question(a, True)


def _judge(
    alone: dict[str, float], together: dict[str, float], a: NodeAnswers
) -> Iterator[Finding]:
    whole = sum(together.values())
    bad = set()
    for host, level in slow(together, a.limits):
        bad.add(host)
        found = f"writes {speed(together[host])} when all nodes write"
        expected = f"about the median of {speed(median(together.values()))}"
        yield Finding(level, found, expected, hosts=(host,))
    complete = len(together) == len(a.scope.nodes)
    count = f"{len(together)}" if complete else f"{len(together)} of {len(a.scope.nodes)}"
    words = f"{speed(whole)} when {count} nodes write at once"
    if alone:
        words += f", {span(alone.values())} alone"
    if complete and alone and whole < a.limits["growth"] * max(alone.values()):
        expected = "a higher total with more nodes"
        fix = "one server or link is the bottleneck: write fewer and larger files, add servers, "
        fix += "or use node-local storage"
        yield Finding("warn", words, expected, fix, hosts=tuple(together))
        return
    fine = tuple(host for host in together if host not in bad)
    if fine:
        yield Finding("pass", words, hosts=fine)


CHECK = Check(
    title="checkpoint write speed is uniform and scales",
    tier="deep",
    why=(
        "All ranks write at once and wait for the slowest one. A file system that is "
        "fast for one node may not scale: an NFS bottleneck was seen at 60 nodes and "
        "not at 4."
    ),
    fix=(
        "compare mount options, interface and route to the file server with those of "
        "the other nodes"
    ),
    see="dd if=/dev/urandom of=FILE bs=8M count=32 oflag=dsync",
    source="arXiv 2605.09370, storage; own measurement: pieces of 8 MiB, each with fsync",
    flow=_flow,
    limits=LIMITS,
    limits_mean=(
        "size: MiB per node; warn, fail: share of the nodes' median; growth: all "
        "nodes at once compared with one alone"
    ),
)
