"""Whether files that a job makes can be read by the job."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Nodes, Verdict, odd_ones, passed


def _judge(a: Answers) -> Iterator[Verdict]:
    mask = int(a.hello["umask"])
    if mask & 0o700:
        yield Verdict("warn", f"umask {mask:04o} takes the owner's own rights", "0022 or 0077")
    else:
        yield passed("files that a job makes can be read by it")


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    masks = {host: f"{int(a.hello['umask']):04o}" for host, a in nodes.items()}
    for mask, hosts, common, count in odd_ones(masks):
        yield Verdict("info", f"umask {mask}; {common} on {count} nodes", hosts=hosts)


CHECK = Check(
    title="files that a job makes can be read by it",
    tier="static",
    why="A checkpoint's files are read on other nodes than they were written on, and by people.",
    fix="`umask 022` in the shell's profile",
    see="umask",
    source="umask(2)",
    judge=_judge,
    compare=_compare,
)
