"""Whether the job's directories are on file systems that keep what is written."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import (
    Answers,
    Asked,
    Check,
    Nodes,
    Scope,
    Verdict,
    odd_ones,
    passed,
    skipped,
)
from dslaunch.preflight.checks._machine import path_question
from dslaunch.protocol.survey import Mount


def _ask(scope: Scope) -> Asked:
    return {path: path_question(path) for path in scope.directories}


def _mount(a: Answers, path: str) -> Mount | None:
    return a[path]["mount"] if a.has(path) else None


def _judge(a: Answers) -> Iterator[Verdict]:
    found = {path: _mount(a, path) for path in a.scope.directories}
    told = {path: mount for path, mount in found.items() if mount}
    if not told:
        yield skipped("no directory of the job's answered")
        return
    remarks = [(path, words) for path, mount in told.items() for words in _remarks(mount)]
    for path, words in remarks:
        yield Verdict("warn", f"{path}: {words}", see=f"findmnt -T {path}")
    if not remarks:
        kinds = dict.fromkeys(mount["type"] for mount in told.values())
        yield passed(f"on {', '.join(kinds)}")


def _remarks(mount: Mount) -> Iterator[str]:
    kind, options = mount["type"], mount["options"].split(",")
    if kind.startswith("nfs"):
        if "soft" in options:
            yield "NFS is mounted `soft`: what is written may be lost without an error"
        if "nolock" in options or "local_lock=all" in options:
            yield "NFS is mounted without locks between nodes"
        if "proto=udp" in options:
            yield "NFS goes over UDP, which corrupts data at high speed"
    elif kind == "lustre" and not {"flock", "localflock"} & set(options):
        yield "Lustre is mounted without `flock`: locks of caches fail"


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    scope = next(iter(nodes.values())).scope
    for path in scope.directories:
        kinds = {h: mount["type"] for h, a in nodes.items() if (mount := _mount(a, path))}
        for kind, hosts, common, count in odd_ones(kinds):
            words = f"{path} is on {kind}; on {common} on {count} nodes"
            yield Verdict("info", words, hosts=hosts)


CHECK = Check(
    title="the job's directories keep what is written",
    tier="static",
    why="Checkpoints are written by all nodes at once. A `soft` mount gives up in a storm and "
    "loses blocks; without locks two nodes build the same kernel, or none does.",
    fix="NFS: `hard,proto=tcp,vers=4.2`; Lustre: `flock`",
    see="findmnt -T .",
    source="nfs(5), soft and nolock; mount.lustre(8), flock",
    ask=_ask,
    judge=_judge,
    compare=_compare,
)
