"""Whether the port of the training's meeting place is free."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dslaunch.preflight.check import Answers, Asked, Check, Nodes, Question, Scope, Verdict, passed

USUAL = 29500
"""What torchrun and DeepSpeed take when nobody says (torch 2.13, DeepSpeed 0.19)."""


def _port(scope: Scope) -> int:
    return scope.cluster.network.master_port or USUAL


def _listen(scope: Scope) -> Question:
    return Question("listen", {"ports": [_port(scope)], "token": scope.token})


def _owner(scope: Scope) -> Question:
    return Question("run", {"argv": ["ss", "-Hltnp", f"sport = :{_port(scope)}"]}, 5)


def _taken(a: Answers) -> bool:
    return a.has("listen") and a["listen"]["port"] is None


def _first(a: Answers) -> bool:
    return a.scope.nodes[0].host == a.host


def _then(nodes: Nodes) -> Mapping[str, Asked]:
    return {h: {"owner": _owner(a.scope)} for h, a in nodes.items() if _first(a) and _taken(a)}


def _judge(a: Answers) -> Iterator[Verdict]:
    """Of the first node, where the meeting place will be."""
    if not _first(a):
        return
    port = _port(a.scope)
    if a["listen"]["port"] is not None:
        yield passed(f"port {port} is free")
        return
    words = f"port {port} is in use{_who(a)}"
    if a.scope.cluster.network.master_port:
        yield Verdict("fail", words, "a free port")
    else:
        yield Verdict("info", f"{words}; dslaunch will take another one")


def _who(a: Answers) -> str:
    answer = a.found(_owner(a.scope))
    found = re.search(r'\("([^"]{1,40})",pid=\d{1,10}', answer["out"] if answer else "")
    return f" by {found[1]}" if found else ""


CHECK = Check(
    title="the port where ranks meet is free",
    tier="static",
    why="The first rank's store cannot listen (EADDRINUSE), or worse, the others meet a training "
    "that is not theirs.",
    fix="set `network.master_port` to another one, or leave it out and dslaunch finds one",
    see="ss -ltnp",
    source="microsoft/DeepSpeed#1923; torch 2.13 distributed/run.py",
    ask=lambda scope: {"listen": _listen(scope)},
    then=_then,
    judge=_judge,
)
