"""Before a start on nodes that share nothing: what can be resumed, and `latest` on each node."""

from __future__ import annotations

import contextlib
import json
import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dslaunch.deepspeed import resume
from dslaunch.deepspeed.checkpoint import Checkpoint, find
from dslaunch.deepspeed.placement import rank_map, ranks_place
from dslaunch.deepspeed.storage import find_config
from dslaunch.errors import DslaunchError
from dslaunch.launch.decide import decide_shared
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.launch.facts import Facts
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided
from dslaunch.protocol.checkpoints import RankMap, Survey, query
from dslaunch.protocol.queries import Answers
from dslaunch.run.evidence import Inquiry, ask_all
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.session import Session

LOOK = 10.0
"""Seconds that a node may look for checkpoints; a start does not fail because of more."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which start of which run."""

    run: str
    count: int
    """0 for the first."""


@dataclass(frozen=True, slots=True)
class ResumePreparation:
    """The checkpoint directories of one start's nodes."""

    question: Inquiry
    sessions: list[Session]
    directory: str
    attempt: Attempt
    interrupts: Interrupts

    def before(self, job: Job, decided: Decided) -> Decided:
        """Look for what the job may resume, have every node ready for it, and note who has which
        ranks.

        Raises PlanError for a run that means to resume what its nodes cannot load, NodeError,
        Interrupted.
        """
        told, failed = self.look()
        if failed:
            code = DecisionCode.CHECKPOINTS_UNKNOWN
            unknown = decision(code, assumed=True, path=self.directory, error=failed[0])
            return replace(decided, decisions=(*decided.decisions, unknown))
        ranks = next((survey.ranks for survey in told.values() if survey.ranks is not None), None)
        verdict = self.judge(told, ranks, resume.resumed_path(job.args))
        if verdict.problem is not None and self.wanted(job, verdict.newest, ranks):
            raise verdict.problem
        self.note(ranks)
        written = self.hand_out(verdict.in_place, told)
        if verdict.newest is None:
            return decided
        made = _decision(verdict.newest, verdict.problem, written)
        return replace(decided, decisions=(*decided.decisions, made))

    def after(self) -> None:
        """Have every node's `latest` name what the first node's does now, if that can be: DeepSpeed
        writes that one alone, and another program may resume later."""
        with contextlib.suppress(DslaunchError):
            told, failed = self.look()
            if not failed:
                self.hand_out(self.judge(told, None, None).in_place, told)

    def look(self) -> tuple[dict[str, Survey], list[str]]:
        """What every node has in its directory, and why some could not tell.

        Raises NodeError, also for a node whose answer is invalid, Interrupted.
        """
        survey = query("survey")
        told, failed = {}, []
        for host, answers in self.ask("survey", path=self.directory, seconds=LOOK).items():
            why = answers.error(survey)
            if why is None:
                told[host] = answers[survey]
            else:
                failed.append(f"{host}: {self.directory}: {why}")
        return told, failed

    def judge(
        self, told: Mapping[str, Survey], ranks: RankMap | None, path: str | None
    ) -> resume.Resumable:
        """What these nodes could resume."""
        found = find(told, {session.host: session.offset for session in self.sessions})
        return resume.judge(found, self.question.allocation, ranks, path)

    def wanted(self, job: Job, newest: Checkpoint | None, ranks: RankMap | None) -> bool:
        """Whether the job means to resume: it says so, or this run itself has saved it."""
        began = self.began(ranks)
        saved = began is not None and newest is not None and newest.saved > began
        return resume.resuming(job.args) is not None or (self.attempt.count > 0 and saved)

    def began(self, ranks: RankMap | None) -> float | None:
        """When this run was first started, by what it noted then."""
        return ranks.started if ranks is not None and ranks.run == self.attempt.run else None

    def note(self, ranks: RankMap | None) -> None:
        """Leave the rank map beside the directory."""
        made = rank_map(self.attempt.run, self.question.allocation)
        made["started"] = self.began(ranks) or time.time()
        directory, name = ranks_place(self.directory)
        self.ask("text", path=directory, name=name, text=json.dumps(made) + "\n")

    def hand_out(self, checkpoints: Sequence[Checkpoint], told: Mapping[str, Survey]) -> list[str]:
        """Have `latest` name these on every node; the nodes on which it did not."""
        lacking = set()
        for checkpoint in checkpoints:
            wrong = {h for h, s in told.items() if s.latest.get(checkpoint.root) != checkpoint.tag}
            if wrong:
                name = posixpath.normpath(posixpath.join(checkpoint.root, "latest"))
                self.ask("text", path=self.directory, name=name, text=checkpoint.tag)
            lacking |= wrong
        return [host for host in told if host in lacking]

    def ask(self, operation: str, **argument: Any) -> dict[str, Answers]:
        """Every node's answer to an operation of node/shards.py. Raises NodeError, Interrupted."""
        question = {"do": operation, **argument}
        asked = [session.ask({query(operation): question}) for session in self.sessions]
        said = ask_all(asked, self.sessions, self.interrupts)
        return {session.host: answers for session, answers in zip(self.sessions, said, strict=True)}


def prepare_resume(
    question: Inquiry,
    job: Job,
    sessions: Sequence[Session],
    facts: Facts,
    attempt: Attempt,
    interrupts: Interrupts,
) -> ResumePreparation | None:
    """What is to be done for a job's checkpoints; None where DeepSpeed needs no help: on shared
    storage or one node, or without a DeepSpeed config among the arguments or in the code."""
    cluster, workdir = question.cluster, question.directories[0]
    checkpoints = cluster.storage.checkpoints or workdir
    if len(sessions) == 1 or (find_config(job.args) is None and not question.configs):
        return None
    if decide_shared(cluster, facts, checkpoints)[0] is not False:
        return None
    given = resume.directory(job.args)
    where = posixpath.join(workdir, given) if given else checkpoints
    return ResumePreparation(question, list(sessions), where, attempt, interrupts)


def _decision(
    newest: Checkpoint, problem: DslaunchError | None, written: Sequence[str]
) -> Decision:
    if problem is not None:
        code, last = DecisionCode.CHECKPOINT_NOT_RESUMABLE, problem.message.splitlines()[-1]
        return decision(code, checkpoint=newest.name, problem=last)
    code = DecisionCode.CHECKPOINT_HANDED_OUT if written else DecisionCode.CHECKPOINT_RESUMABLE
    return decision(code, checkpoint=newest.name, nodes=tuple(written))
