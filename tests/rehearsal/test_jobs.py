"""The data of the rehearsal's jobs: complete, unique, and with codes that exist."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dslaunch.deepspeed.rules import rules
from dslaunch.errors import ErrorCode
from dslaunch.preflight import checks
from dslaunch.run.endings import BY_EVIDENCE
from dslaunch.run.known_endings import built_in
from tests.rehearsal.jobs import (
    FINDINGS,
    HANGS,
    InvalidJobError,
    Job,
    Outcome,
    broken_jobs,
    parse_broken,
    sound_jobs,
)
from tests.rehearsal.table import page, recorded

ENDINGS = frozenset(built_in()) | {known.code for known in BY_EVIDENCE}
OF_A_FAILURE = frozenset(
    {"rehearsal.timeout", "rehearsal.model-differs", "rehearsal.master-unknown"}
)
"""Findings that say more of a failure than its ending."""
BEFORE_THE_RUN = rules().names | frozenset(checks.built_in()) | {code.value for code in ErrorCode}
CODES = {
    Outcome.DIES: ENDINGS | BEFORE_THE_RUN | OF_A_FAILURE,
    Outcome.WRONG: ENDINGS | BEFORE_THE_RUN | frozenset(FINDINGS),
    Outcome.HANGS: HANGS,
}
EVERY_JOB = [*(broken.job for broken in broken_jobs()), *sound_jobs()]


def names(jobs: list[Job]) -> list[str]:
    return [job.name for job in jobs]


def test_every_name_is_unique() -> None:
    counts = Counter(names(EVERY_JOB))
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_python_file_of_a_job_compiles() -> None:
    for job in EVERY_JOB:
        files = {"train.py": job.script, **job.files}
        for name, text in files.items():
            if name.endswith(".py"):
                compile(text, f"{job.name}/{name}", "exec")


def test_every_expected_code_exists() -> None:
    unknown = {each.job.name: each.expect - CODES[each.outcome] for each in broken_jobs()}
    assert {name: codes for name, codes in unknown.items() if codes} == {}


def test_every_finding_of_the_rehearsal_is_expected_of_a_job() -> None:
    expected = frozenset().union(*(broken.expect for broken in broken_jobs()))
    assert FINDINGS.keys() - expected == set()


def test_every_job_that_dies_is_explained_by_a_known_ending_or_a_lint_rule() -> None:
    dying = [broken for broken in broken_jobs() if broken.outcome is Outcome.DIES]
    assert [broken.job.name for broken in dying if not broken.expect & ENDINGS] == []


def test_every_job_that_dies_has_the_line_that_was_written() -> None:
    dying = [broken for broken in broken_jobs() if broken.outcome is Outcome.DIES]
    assert [broken.job.name for broken in dying if not broken.alone] == []


def test_there_are_enough_jobs_of_each_kind() -> None:
    counts = Counter(broken.outcome for broken in broken_jobs())
    assert counts[Outcome.DIES] >= 40
    assert counts[Outcome.WRONG] >= 18
    assert counts[Outcome.HANGS] >= 8
    assert len(sound_jobs()) >= 30


VALID = {
    "source": "owner/repository#1",
    "about": "a job",
    "script": "pass",
    "alone": "ValueError",
    "class": "dies",
    "expect": ["batch"],
}


def test_a_valid_entry_is_loaded() -> None:
    assert parse_broken("f.toml", "a-job", dict(VALID)).job == Job("a-job", "a job", "pass")


@pytest.mark.parametrize(
    "change",
    [
        {"source": "an issue"},
        {"about": "two\nlines"},
        {"script": ""},
        {"class": "fails"},
        {"expect": []},
        {"launcher": "srun"},
        {"slots": 0},
        {"slots": True},
        {"shared": "yes"},
        {"files": {"../up.py": "pass"}},
        {"files": {"train.py": "pass"}},
        {"requires": ["a-package"]},
        {"unknown": 1},
    ],
    ids=str,
)
def test_an_invalid_entry_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidJobError, match=r"^f\.toml, a-job: "):
        parse_broken("f.toml", "a-job", {**VALID, **change})


def test_the_page_is_made_from_the_recorded_rehearsals() -> None:
    written = Path(__file__).parents[2] / "docs/reference/rehearsals.md"
    assert written.read_text("utf-8") == page(recorded())
