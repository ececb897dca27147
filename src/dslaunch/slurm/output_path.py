"""The path of a job's output, by the pattern of its submission. Pure.

squeue of SLURM 22.05 prints the pattern; later releases expand a part of it, and scontrol the
current job name. The rules are those of sbatch(1), "FILENAME PATTERN".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PATTERN = re.compile(r"%(?:(?P<percent>%)|(?P<width>[0-9]{0,2})(?P<letter>[a-zA-Z]))")


def output_path(
    pattern: str, *, job: str, array: str, task: str, name: str, user: str, host: str
) -> str:
    """Return the path; empty if a value in the pattern is unknown, such as the task of an array
    that has not started."""
    if not pattern.startswith("/"):
        return ""
    if array and pattern.endswith(f"/slurm-{job}.out"):  # what squeue prints without --output
        pattern = pattern.removesuffix(f"slurm-{job}.out") + "slurm-%A_%a.out"
    known = {
        "A": array or job,
        "a": task if array else "4294967294",
        "j": job,
        "J": job,
        "x": name,
        "u": user,
        "N": host.partition(".")[0],
        "n": "0",
        "t": "0",
        "s": "batch",
    }
    if any(not _value(found, known) for found in _PATTERN.finditer(pattern)):
        return ""
    return _PATTERN.sub(lambda found: _value(found, known), pattern)


def _value(found: re.Match[str], known: Mapping[str, str]) -> str:
    """Return the value of a pattern; empty: unknown. Numbers are padded with zeros to their
    width."""
    if found["percent"]:
        return "%"
    value = known.get(found["letter"], "")
    is_number = value.isascii() and value.isdecimal()
    if found["letter"] == "a" and not is_number:
        return ""
    return value.zfill(int(found["width"])) if found["width"] and is_number else value
