"""How a job was seen last, in its run directory: by this it is recognized after it was requeued."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from dslaunch.protocol.values import Count, Sent, Several, parse
from dslaunch.run.run_directory import read_private, write_private
from dslaunch.slurm.identity import JobId

FILE = "job-seen.json"
LARGEST = 1 << 20


class _Seen(Sent):
    """What may change of a job's identity; see `JobId`."""

    submitted: Count | None
    restarts: Count
    user: Count | None
    earlier: Several[Count]


_SEEN: TypeAdapter[_Seen] = TypeAdapter(_Seen)


def note_seen(directory: Path, job: JobId) -> None:
    """Write down how a job was seen last."""
    seen = _Seen(submitted=job.submitted, restarts=job.restarts, user=job.user, earlier=job.earlier)
    # a full disk ends no following; the token identifies the job as well
    with contextlib.suppress(OSError):
        write_private(directory / FILE, seen.model_dump_json() + "\n")


def last_seen(directory: Path, job: JobId) -> JobId:
    """Return the job, as it was submitted, with what was seen of it since."""
    try:
        seen = parse(_SEEN, json.loads(read_private(directory / FILE, LARGEST)))
    except (OSError, ValueError, RecursionError):
        return job  # not seen yet, or damaged: the submission itself identifies it
    return replace(
        job,
        submitted=seen.submitted,
        restarts=seen.restarts,
        user=seen.user,
        earlier=seen.earlier,
    )
