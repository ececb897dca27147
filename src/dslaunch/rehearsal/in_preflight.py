"""A rehearsal as a part of a preflight: its result is an answer of this machine. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from dslaunch.preflight.checks.job_rehearsal import RESULT
from dslaunch.preflight.recording import Recording
from dslaunch.protocol.survey import Answer, RehearsalFinding, RehearsalSeen, recorded
from dslaunch.rehearsal.findings import Finding
from dslaunch.rehearsal.judge import Rehearsal


def with_rehearsal(facts: Recording, result: Rehearsal) -> Recording:
    """Return recorded answers with the result of a rehearsal, which `job.rehearsal` judges."""
    seen = RehearsalSeen(
        verdict=result.verdict.value,
        ranks=result.measured.ranks,
        steps=result.measured.steps,
        findings=[_finding(each) for each in result.findings],
        not_rehearsed=[gap.text for gap in result.not_rehearsed],
    )
    return _with_answer(facts, {"value": seen})


def without_start(facts: Recording, why: str) -> Recording:
    """Return recorded answers that say why the job could not be started."""
    return _with_answer(facts, {"error": why})


def _with_answer(facts: Recording, given: Answer) -> Recording:
    # the same as when it is read from a file
    answer = recorded(RESULT.key, given)
    assert answer is not None
    return replace(facts, here={**facts.here, RESULT.key: answer})


def _finding(found: Finding) -> RehearsalFinding:
    return RehearsalFinding(
        code=found.code,
        level=found.level,
        where=found.where,
        text=found.text,
        hint=found.hint,
        evidence=found.evidence,
    )
