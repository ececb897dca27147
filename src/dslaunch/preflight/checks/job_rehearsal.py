"""What a rehearsal of the job has shown: its script, started on the nodes for a few steps.

The survey asks nothing for it. Who starts the survey rehearses the job afterwards, when no check
disturbs it, and adds the result to the recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dslaunch.plural import counted
from dslaunch.preflight.check import (
    Check,
    Finding,
    Flow,
    Level,
    Nodes,
    Question,
    Round,
    Scope,
    UnansweredError,
)
from dslaunch.preflight.unanswered import UnansweredReason
from dslaunch.protocol.survey import RehearsalFinding, RehearsalSeen

NAME = "job.rehearsal"
RESULT = Question("rehearsal")
"""Its answer is that of this machine."""
LEVELS: Mapping[str, Level] = {"error": "fail", "warning": "warn", "info": "info"}


def _flow(scope: Scope) -> Flow:
    nodes = yield Round.of_all(scope, {}, here={"result": RESULT})
    return _judge(nodes)


def _judge(nodes: Nodes) -> Iterator[Finding]:
    hosts = tuple(nodes)
    if not hosts:
        return
    try:
        seen: RehearsalSeen = nodes[hosts[0]].from_here(RESULT)
    except UnansweredError as error:
        yield _without_result(error, hosts)
        return
    for found in seen["findings"]:
        yield _finding(found, hosts)
    if seen["verdict"] == "not-rehearsed":
        gaps = "; ".join(seen["not_rehearsed"])
        found_text = f"the job could not be rehearsed: {gaps}" if gaps else "no step was rehearsed"
        yield Finding("unknown", found_text, hosts=hosts, of_job=True)
    elif seen["verdict"] == "would-run":
        steps, ranks = counted(seen["steps"], "optimizer step"), counted(seen["ranks"], "rank")
        yield Finding("pass", f"the job would run: {steps} on {ranks}", hosts=hosts, of_job=True)


def _without_result(error: UnansweredError, hosts: tuple[str, ...]) -> Finding:
    if error.reason is UnansweredReason.NOT_ASKED:
        return Finding("skip", "no script to rehearse was given", hosts=hosts)
    text = f"the job could not be started: {error}"
    return Finding("fail", text, hosts=hosts, of_job=True)


def _finding(found: RehearsalFinding, hosts: tuple[str, ...]) -> Finding:
    text = f"{found['where']}: {found['text']} [{found['code']}]"
    if found["evidence"]:
        text = f"{text}; evidence: {found['evidence']}"
    return Finding(
        level=LEVELS[found["level"]],
        found=text.strip().rstrip("."),
        fix=found["hint"] or "",
        hosts=hosts,
        code=found["code"],
        of_job=True,
    )


CHECK = Check(
    title="the script makes optimizer steps on the nodes",
    tier="deep",
    why=(
        "Many jobs fail in their first minutes, and some train for days without effect. A "
        "rehearsal starts the script on all of its nodes for two optimizer steps."
    ),
    fix="correct what was found, and rehearse it again",
    see="dslaunch rehearse CLUSTER.yaml SCRIPT",
    source="dslaunch, docs/howto/rehearse.md; the findings have codes in docs/reference/codes.md",
    flow=_flow,
)
