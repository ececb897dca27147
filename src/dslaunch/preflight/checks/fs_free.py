"""Whether there is room where a job writes."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.launch.command import quote
from dslaunch.preflight.check import (
    Answers,
    Asked,
    Check,
    Question,
    Scope,
    Verdict,
    passed,
    skipped,
)
from dslaunch.preflight.checks._machine import GIB, is_missing, path_question, paths, space
from dslaunch.preflight.flow import NodeFlow, each
from dslaunch.protocol.survey import PathStatus


def _ask(scope: Scope) -> Asked:
    return {path: path_question(path) for path in paths(scope)}


def _above(path: str) -> Question:
    """The directory in which this one, that is not there yet, will be made."""
    return Question("above", path, 5)


def _flow(a: Answers) -> NodeFlow:
    missing = [path for path in paths(a.scope) if is_missing(a, path)]
    if missing:
        a = yield {f"above {path}": _above(path) for path in missing}
    return _judge(a)


def _judge(a: Answers) -> Iterator[Verdict]:
    """Of what answered; `fs.hung` and `fs.shared` say what did not."""
    seen: set[str] = set()
    bad = False
    for path in paths(a.scope):
        question = path_question(path) if a.has(path) else _above(path)
        found = a.found(question)
        if found is None:
            continue
        mount = found["mount"]["point"] if found["mount"] else path
        if mount in seen:
            continue
        seen.add(mount)
        there = path if a.has(path) else found["path"]
        for verdict in _full(path, there, found, a):
            bad = True
            yield verdict
    if not seen:
        yield skipped("no path answered")
    elif not bad:
        yield passed("there is room where a job writes")


def _full(path: str, there: str, found: PathStatus, a: Answers) -> Iterator[Verdict]:
    """Per cent are not enough: 5 % of a large file server are many checkpoints."""
    size, free = found["size"], found["free"]
    share = 100 * free / size if size > 0 else 100.0
    little = free < a.limits["enough"] * GIB
    words = f"{path}: {space(free)} free of {space(size)}"
    if size > 0 and share < a.limits["fail"] and little:
        yield Verdict("fail", words, f"{a.limits['fail']:g} %", see=f"df -h {quote(there)}")
    elif size > 0 and share < a.limits["warn"] and little:
        yield Verdict("warn", words, f"{a.limits['warn']:g} %", see=f"df -h {quote(there)}")
    inodes, left = found["inodes"], found["inodes_free"]
    if inodes > 0 and left < inodes * a.limits["fail"] / 100 and left < 10_000:
        words = f"{path}: {left} inodes left of {inodes}"
        fix = "remove many small files: caches, __pycache__, old runs"
        yield Verdict("fail", words, f"{a.limits['fail']:g} %", fix, f"df -i {quote(there)}")


CHECK = Check(
    title="there is room where a job writes",
    tier="gate",
    why="A checkpoint is written after hours, by all ranks at once; on a full disk it is cut "
    "short, and the one before may be gone already.",
    fix="remove old checkpoints and caches, or set `storage.checkpoints` to a larger place",
    see="df -h . ~ /tmp; df -i .",
    source="statvfs(3); OPT-175B logbook (metaseq); imbue cluster-health check_disk",
    ask=_ask,
    flow=each(_flow),
    limits={"fail": 5, "warn": 12, "enough": 100},
    limits_mean="per cent that must be free, and should be; GiB free that are always enough",
)
