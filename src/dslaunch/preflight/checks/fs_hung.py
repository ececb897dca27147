"""Whether every network file system still answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dslaunch.launch.command import quote
from dslaunch.preflight.check import Answers, Asked, Check, Level, Question, Scope, Verdict, passed
from dslaunch.preflight.checks._machine import NETWORK_TYPES, mounts, path_question, paths
from dslaunch.preflight.flow import NodeFlow, each
from dslaunch.preflight.unanswered import Reason

MOUNTS = Question("read", ["/proc/self/mountinfo"])
MOST = 24
"""Mounts that are asked of one node beside the job's own paths."""
DEAD = (Reason.TIMEOUT, Reason.FILE_SERVER_GONE)


def _ask(scope: Scope) -> Asked:
    return {**{path: path_question(path) for path in paths(scope)}, "mounts": MOUNTS}


def _mounted(a: Answers) -> dict[str, str]:
    """The node's network mounts, and what they are."""
    if not a.has("mounts"):
        return {}
    found = dict(mounts(a["mounts"].get(MOUNTS.argument[0], "")))
    network = {point: kind for point, kind in found.items() if kind in NETWORK_TYPES}
    return dict(list(network.items())[:MOST])


def _flow(a: Answers) -> NodeFlow:
    network = _mounted(a)
    if network:
        a = yield {path: path_question(path) for path in network}
    return _judge(a, network)


def _judge(a: Answers, network: Mapping[str, str]) -> Iterator[Verdict]:
    own = paths(a.scope)
    bad = False
    for path in dict.fromkeys([*own, *network]):
        question = path_question(path)
        if a.reason(question) not in DEAD:
            continue
        bad = True
        level: Level = "fail" if path in own or any(_below(o, path) for o in own) else "warn"
        error = a.why(question)
        words = f"{path} does not answer: {error[0].lower() + error[1:]}"
        yield Verdict(level, words, "an answer at once", see=f"timeout 5 stat {quote(path)}")
    if not bad:
        yield passed("all network file systems answer" if network else "all paths answer")


def _below(path: str, point: str) -> bool:
    return path.startswith(point.rstrip("/") + "/")


CHECK = Check(
    title="every file system answers",
    tier="gate",
    why="A process that touches a file system whose server is gone waits for ever and cannot be "
    "killed: a rank, a login, even `df`.",
    fix="`umount -f -l PATH` and mount it again, or boot the node; leave it out until then",
    see="timeout 5 stat PATH; dmesg | grep -i nfs",
    source="nfs(5), hard; nvidia-resiliency-ext, storage health check",
    ask=_ask,
    flow=each(_flow),
)
