"""How a job was seen last is read back as it was written, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.slurm.identity import JobId
from dslaunch.slurm.identity_file import FILE, seen_identity, write_identity

SUBMITTED = JobId("12", submitted=5, token="dslaunch-0")
REQUEUED = JobId("12", submitted=9, restarts=1, token="dslaunch-0", user=7, earlier=(5,))


def test_a_requeue_that_was_seen_is_remembered(tmp_path: Path) -> None:
    assert seen_identity(tmp_path, SUBMITTED) == SUBMITTED
    write_identity(tmp_path, REQUEUED)
    assert seen_identity(tmp_path, SUBMITTED) == REQUEUED
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "5", "[" * 5000, '{"submitted": 9}',
        '{"submitted": 9, "restarts": 1, "user": 7, "earlier": 5}',
        '{"submitted": "9", "restarts": -1, "user": 7, "earlier": []}',
    ],
)  # fmt: skip
def test_a_damaged_note_leaves_the_job_as_it_was_submitted(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    (tmp_path / FILE).chmod(0o600)
    assert seen_identity(tmp_path, SUBMITTED) == SUBMITTED
