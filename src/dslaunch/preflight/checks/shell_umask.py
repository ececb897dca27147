"""Whether files that a job makes can be read by the job."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Verdict, passed
from dslaunch.preflight.checks._alike import alike


def _judge(a: Answers) -> Iterator[Verdict]:
    mask = int(a.hello["umask"])
    if mask & 0o700:
        yield Verdict("warn", f"umask {mask:04o} takes the owner's own rights", "0022 or 0077")
    else:
        yield passed("files that a job makes can be read by it")


CHECK = Check(
    title="files that a job makes can be read by it",
    tier="static",
    why="A checkpoint's files are read on other nodes than they were written on, and by people.",
    fix="`umask 022` in the shell's profile",
    see="umask",
    source="umask(2)",
    judge=_judge,
    compare=alike(
        lambda a: f"{int(a.hello['umask']):04o}",
        level="info",
        found="umask {value}; {common} on {count} nodes",
        expected="",
    ),
)
