"""The last seen identity of a job, in its run directory, by which it is recognized after a
requeue."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from msgspec.structs import replace
from pydantic import TypeAdapter

from dslaunch.protocol.values import Count, Sent, Several, parse
from dslaunch.run.run_directory import read_private, write_private
from dslaunch.slurm.identity import JobId

FILE = "job-seen.json"
LARGEST = 1 << 20


class _Seen(Sent):
    """The part of a job's identity that can change; see `JobId`."""

    submitted: Count | None
    restarts: Count
    user: Count | None
    earlier: Several[Count]


_SEEN: TypeAdapter[_Seen] = TypeAdapter(_Seen)


def write_identity(directory: Path, job: JobId) -> None:
    """Write the last seen identity of a job."""
    seen = _Seen(submitted=job.submitted, restarts=job.restarts, user=job.user, earlier=job.earlier)
    # a full disk does not end the following; the token identifies the job too
    with contextlib.suppress(OSError):
        write_private(directory / FILE, seen.model_dump_json() + "\n")


def seen_identity(directory: Path, job: JobId) -> JobId:
    """Return the submitted job with its last seen identity."""
    try:
        seen = parse(_SEEN, json.loads(read_private(directory / FILE, LARGEST)))
    except (OSError, ValueError, RecursionError):
        return job  # not seen yet, or damaged: the submission identifies it
    return replace(
        job,
        submitted=seen.submitted,
        restarts=seen.restarts,
        user=seen.user,
        earlier=seen.earlier,
    )
