"""Prepare a resume on nodes without shared storage: what can be resumed, and `latest` on each."""

from __future__ import annotations

import contextlib
import posixpath
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.deepspeed import resume
from dslaunch.deepspeed.checkpoint import Checkpoint, find
from dslaunch.deepspeed.placement import rank_map, ranks_place
from dslaunch.deepspeed.storage import find_config
from dslaunch.errors import DslaunchError, ErrorCode
from dslaunch.json_text import json_text
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

SURVEY_TIMEOUT = 10.0
"""Seconds for a node to look for checkpoints; if it takes longer, the start continues."""


class Attempt(Struct, frozen=True):
    """Which start of which run."""

    run: str
    count: int
    """0 for the first."""


class ResumePreparation(Struct, frozen=True):
    """The checkpoint directories of one start's nodes."""

    question: Inquiry
    sessions: list[Session]
    directory: str
    attempt: Attempt
    interrupts: Interrupts

    def before(self, job: Job, decided: Decided) -> Decided:
        """Find what the job may resume, prepare every node for it, and record the ranks of the
        nodes.

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
        made = _decision(verdict.newest, verdict.cause, written)
        return replace(decided, decisions=(*decided.decisions, made))

    def after(self) -> None:
        """Let every node's `latest` name what the first node's does now, if possible: DeepSpeed
        writes only that one, and another program may resume later."""
        with contextlib.suppress(DslaunchError):
            told, failed = self.look()
            if not failed:
                self.hand_out(self.judge(told, None, None).in_place, told)

    def look(self) -> tuple[dict[str, Survey], list[str]]:
        """Return the checkpoints of every node, and the errors of nodes that failed.

        Raises NodeError, also for a node whose answer is invalid, Interrupted.
        """
        survey = query("survey")
        told, failed = {}, []
        for host, answers in self.ask(
            "survey", path=self.directory, seconds=SURVEY_TIMEOUT
        ).items():
            why = answers.error(survey)
            if why is None:
                told[host] = answers[survey]
            else:
                failed.append(f"{host}: {self.directory}: {why}")
        return told, failed

    def judge(
        self, told: Mapping[str, Survey], ranks: RankMap | None, path: str | None
    ) -> resume.Resumable:
        """Return what these nodes could resume."""
        found = find(told, {session.host: session.offset for session in self.sessions})
        return resume.judge(found, self.question.allocation, ranks, path)

    def wanted(self, job: Job, newest: Checkpoint | None, ranks: RankMap | None) -> bool:
        """Return whether the job will resume: by its arguments, or since this run has saved it."""
        began = self.began(ranks)
        saved = began is not None and newest is not None and newest.saved > began
        return resume.resuming(job.args) is not None or (self.attempt.count > 0 and saved)

    def began(self, ranks: RankMap | None) -> float | None:
        """Return when this run was first started, as recorded then."""
        return ranks.started if ranks is not None and ranks.run == self.attempt.run else None

    def note(self, ranks: RankMap | None) -> None:
        """Write the rank map beside the directory."""
        made = rank_map(self.attempt.run, self.question.allocation)
        made["started"] = self.began(ranks) or time.time()
        directory, name = ranks_place(self.directory)
        self.ask("text", path=directory, name=name, text=json_text(made) + "\n")

    def hand_out(self, checkpoints: Sequence[Checkpoint], told: Mapping[str, Survey]) -> list[str]:
        """Let `latest` name these on every node; return the nodes on which it did not."""
        lacking = set()
        for checkpoint in checkpoints:
            wrong = {h for h, s in told.items() if s.latest.get(checkpoint.root) != checkpoint.tag}
            if wrong:
                name = posixpath.normpath(posixpath.join(checkpoint.root, "latest"))
                self.ask("text", path=self.directory, name=name, text=checkpoint.tag)
            lacking |= wrong
        return [host for host in told if host in lacking]

    def ask(self, operation: str, **argument: Any) -> dict[str, Answers]:
        """Return every node's answer to an operation of node/shards.py. Raises NodeError,
        Interrupted."""
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
    """Return what prepares a job's checkpoints; None if DeepSpeed needs none: on shared storage or
    one node, or without a DeepSpeed config in the arguments or the code."""
    cluster, workdir = question.cluster, question.directories[0]
    checkpoints = cluster.storage.checkpoints or workdir
    if len(sessions) == 1 or (find_config(job.args) is None and not question.configs):
        return None
    if decide_shared(cluster, facts, checkpoints)[0] is not False:
        return None
    given = resume.directory(job.args)
    where = posixpath.join(workdir, given) if given else checkpoints
    return ResumePreparation(question, list(sessions), where, attempt, interrupts)


def _one_line(problem: DslaunchError) -> str:
    """Return a problem as one line: where shards are missing, one node that lacks some."""
    if problem.error_code is ErrorCode.SHARDS_MISSING_ON_NODES:
        lines = problem.values["lines"]
        assert isinstance(lines, tuple)
        return str(lines[-1])
    return problem.message


def _decision(
    newest: Checkpoint, problem: DslaunchError | None, written: Sequence[str]
) -> Decision:
    if problem is not None:
        code = DecisionCode.CHECKPOINT_NOT_RESUMABLE
        return decision(code, checkpoint=newest.name, problem=_one_line(problem))
    code = DecisionCode.CHECKPOINT_HANDED_OUT if written else DecisionCode.CHECKPOINT_RESUMABLE
    return decision(code, checkpoint=newest.name, nodes=tuple(written))
