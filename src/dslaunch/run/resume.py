"""Before a start on nodes that share nothing: what can be resumed, and `latest` on each node."""

from __future__ import annotations

import json
import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dslaunch.deepspeed import resume
from dslaunch.deepspeed.checkpoint import Checkpoint, find
from dslaunch.deepspeed.placement import rank_map, ranks_path
from dslaunch.deepspeed.storage import find_config
from dslaunch.launch.decide import decide_shared
from dslaunch.launch.facts import Facts
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided, Decision
from dslaunch.run.evidence import Inquiry, ask_all
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.session import Session

NAME = "checkpoints"
LOOK = 10.0
"""Seconds that a node may look for checkpoints; a start does not fail because of more."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which start of which run."""

    run: str
    count: int
    """0 for the first."""


def settle(
    question: Inquiry,
    job: Job,
    sessions: Sequence[Session],
    facts: Facts,
    decided: Decided,
    attempt: Attempt,
    interrupts: Interrupts,
) -> Decided:
    """Look for what the job may resume; have every node ready for it, and note who had which ranks.

    Nothing is asked where storage is shared or no DeepSpeed config is among the arguments. Raises
    PlanError for a run that means to resume what its nodes cannot load, NodeError, Interrupted.
    """
    cluster = question.cluster
    checkpoints = cluster.storage.checkpoints or decided.workdir
    if len(sessions) == 1 or find_config(job.args) is None:
        return decided
    if decide_shared(cluster, facts, checkpoints)[0] is not False:
        return decided
    given = resume.directory(job.args)
    where = posixpath.join(decided.workdir, given) if given else checkpoints
    return _Settling(question, list(sessions), where, attempt, interrupts).settle(job, decided)


@dataclass(frozen=True, slots=True)
class _Settling:
    question: Inquiry
    sessions: list[Session]
    directory: str
    attempt: Attempt
    interrupts: Interrupts

    def settle(self, job: Job, decided: Decided) -> Decided:
        answers = self.ask(
            [{"do": "survey", "path": self.directory, "seconds": LOOK}] * len(self.sessions)
        )
        failed = [f"{h}: {a['error']}" for h, a in answers.items() if "error" in a]
        if failed:
            unknown = Decision(
                NAME, f"{self.directory} not looked through", failed[0], assumed=True
            )
            return replace(decided, decisions=(*decided.decisions, unknown))
        told = {host: answer["value"] for host, answer in answers.items()}
        found = find(told, {session.host: session.offset for session in self.sessions})
        ranks = next((s["ranks"] for s in told.values() if isinstance(s["ranks"], dict)), None)
        path = resume.resumed_path(job.args)
        verdict = resume.judge(found, self.question.allocation, ranks, path)
        if verdict.problem is not None and self.wanted(job, verdict.newest, ranks):
            raise verdict.problem
        written = self.hand_out(verdict.in_place, told, ranks)
        if verdict.newest is None:
            return decided
        decision = _decision(verdict.newest, verdict.problem is None, written)
        return replace(decided, decisions=(*decided.decisions, decision))

    def wanted(self, job: Job, newest: Checkpoint | None, ranks: Mapping[str, Any] | None) -> bool:
        """Whether the job means to resume: it says so, or this run itself has saved it."""
        ours = ranks is not None and ranks.get("run") == self.attempt.run
        began = ranks.get("started") if ranks is not None and ours else None
        saved = isinstance(began, (int, float)) and newest is not None and newest.saved > began
        return resume.resuming(job.args) is not None or (self.attempt.count > 0 and saved)

    def hand_out(
        self,
        checkpoints: Sequence[Checkpoint],
        told: Mapping[str, Any],
        ranks: Mapping[str, Any] | None,
    ) -> list[str]:
        """Have `latest` on every node, and the rank map; the nodes that lacked the former."""
        before = ranks or {}
        started = before.get("started") if before.get("run") == self.attempt.run else None
        allocation = self.question.allocation
        note = {**rank_map(self.attempt.run, allocation), "started": started or time.time()}
        text = _text(ranks_path(self.directory), json.dumps(note) + "\n")
        self.ask([text] * len(self.sessions))
        for checkpoint in checkpoints:
            path = posixpath.join(self.directory, checkpoint.root, "latest")
            self.ask([_text(path, checkpoint.tag)] * len(self.sessions))
        return [
            host
            for host, said in told.items()
            if any(said["latest"].get(c.root) != c.tag for c in checkpoints)
        ]

    def ask(self, questions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Ask every node its question. Raises NodeError, Interrupted."""
        asked = [s.ask(shards=q) for s, q in zip(self.sessions, questions, strict=True)]
        said = ask_all(asked, self.sessions, self.interrupts)
        return {s.host: a["shards"] for s, a in zip(self.sessions, said, strict=True)}


def _text(path: str, text: str) -> dict[str, str]:
    return {"do": "text", "path": path, "text": text}


def _decision(newest: Checkpoint, good: bool, written: Sequence[str]) -> Decision:
    if not good:
        why = "some ranks' shards are not on their nodes; nothing says that this run resumes"
        return Decision(NAME, f"{newest.name} cannot be resumed here", why)
    why = "every rank finds its shards on its own node"
    if written:
        why += f"; `latest` was missing on {', '.join(written)} and is there now"
    return Decision(NAME, f"{newest.name} can be resumed", why)
