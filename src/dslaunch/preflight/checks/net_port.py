"""Whether the port of the training's meeting place is free."""

from __future__ import annotations

import re

from dslaunch.preflight.check import Answers, Check, Question, Scope, Verdict, passed
from dslaunch.preflight.flow import NodeFlow, each
from dslaunch.protocol.survey import Ran

USUAL = 29500
"""What torchrun and DeepSpeed take when nobody says (torch 2.13, DeepSpeed 0.19)."""


def _port(scope: Scope) -> int:
    return scope.cluster.network.master_port or USUAL


def _listen(scope: Scope) -> Question:
    return Question("listen", {"ports": [_port(scope)], "token": scope.token})


def _owner(scope: Scope) -> Question:
    return Question("run", {"argv": ["ss", "-Hltnp", f"sport = :{_port(scope)}"]}, 5)


def _flow(a: Answers) -> NodeFlow:
    """Of the first node, where the meeting place will be."""
    if a.scope.nodes[0].host != a.host:
        return []
    port = _port(a.scope)
    if a["listen"]["port"] is not None:
        return [passed(f"port {port} is free")]
    question = _owner(a.scope)
    a = yield {"owner": question}
    words = f"port {port} is in use{_who(a.found(question))}"
    if a.scope.cluster.network.master_port:
        return [Verdict("fail", words, "a free port")]
    return [Verdict("info", f"{words}; dslaunch will take another one")]


def _who(answer: Ran | None) -> str:
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
    flow=each(_flow),
)
