"""Checkpoints for people and programs: a table, one in detail, JSON, how far a copy has come."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dslaunch.cluster.nodeset import fold
from dslaunch.deepspeed.checkpoint import Checkpoint
from dslaunch.deepspeed.placement import Lacking
from dslaunch.run.shards import CopyProgress, in_words

HEAD = ("CHECKPOINT", "ZERO", "RANKS", "STEP", "SIZE", "SAVED", "STATE", "NODES")
DETAIL = ("NODE", "SHARDS OF RANKS", "MODEL", "SIZE", "LATEST", "BROKEN")


def rows(checkpoints: Sequence[Checkpoint]) -> list[tuple[str, ...]]:
    """A line per checkpoint, the newest last; a star is at what `latest` names."""
    return [HEAD, *map(_row, checkpoints)]


def _row(checkpoint: Checkpoint) -> tuple[str, ...]:
    steps = checkpoint.header.steps
    return (
        checkpoint.name + ("*" if checkpoint.is_latest else ""),
        _stage(checkpoint),
        str(checkpoint.world * checkpoint.parallel) if checkpoint.stage != 0 else "any",
        "-" if steps is None else str(steps),
        in_words(checkpoint.size),
        when(checkpoint.saved),
        state(checkpoint),
        fold(hosts(checkpoint)),
    )


def _stage(checkpoint: Checkpoint) -> str:
    return "1-2" if checkpoint.stage is None else str(checkpoint.stage)


def when(seconds: float) -> str:
    """A time by our clock."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def hosts(checkpoint: Checkpoint) -> list[str]:
    """The nodes that have shards of it."""
    return list(dict.fromkeys(c.host for p in checkpoint.shards for c in checkpoint.files[p]))


def state(checkpoint: Checkpoint) -> str:
    """Complete, or what is missing in how many shards."""
    missing = checkpoint.missing()
    if not missing:
        return "complete"
    broken = sum(any(c.broken for c in checkpoint.files.get(path, ())) for path in missing)
    said = f"lacks {len(missing)} of {len(checkpoint.wanted())} shards"
    return f"{said}, {broken} broken" if broken else said


def detail(checkpoint: Checkpoint, everyone: Sequence[str]) -> list[tuple[str, ...]]:
    """A line per node: which ranks' shards it has."""
    return [DETAIL, *(_node(checkpoint, host) for host in everyone)]


def _node(checkpoint: Checkpoint, host: str) -> tuple[str, ...]:
    mine = {p: c for p, copies in checkpoint.files.items() for c in copies if c.host == host}
    shards = {path: checkpoint.shards[path] for path in mine if path in checkpoint.shards}
    ranks = sorted({s.rank for s in shards.values() if s.kind in ("optimizer", "partition")})
    whole = any(s.kind == "model" for s in shards.values())
    broken = [posixpath.basename(path) for path in mine if mine[path].broken]
    return (
        host,
        ",".join(map(str, ranks)) or "-",
        "whole" if whole else "parts" if checkpoint.divided and ranks else "-",
        in_words(sum(copy.size for copy in mine.values())),
        checkpoint.latest.get(host, "-"),
        ", ".join(broken) or "-",
    )


def as_data(checkpoint: Checkpoint) -> dict[str, Any]:
    """One checkpoint for programs."""
    return {
        "name": checkpoint.name,
        "root": checkpoint.root,
        "tag": checkpoint.tag,
        "stage": checkpoint.stage,
        "world": checkpoint.world,
        "parallel": checkpoint.parallel,
        "steps": checkpoint.header.steps,
        "params": checkpoint.header.params,
        "deepspeed": checkpoint.header.version,
        "saved": checkpoint.saved,
        "size": checkpoint.size,
        "complete": checkpoint.complete,
        "missing": list(checkpoint.missing()),
        "strangers": list(checkpoint.strangers()),
        "latest": dict(checkpoint.latest),
        "files": {
            path: [
                {"host": c.host, "size": c.size, "saved": c.saved, "broken": c.broken}
                for c in copies
            ]
            for path, copies in checkpoint.files.items()
        },
    }


def faults(
    checkpoint: Checkpoint, broken: Mapping[str, Mapping[str, str]], lacks: Sequence[Lacking]
) -> list[str]:
    """Everything that is wrong with a checkpoint, a line each; empty: it can be resumed."""
    said = [f"{posixpath.basename(path)} is on no node" for path in _nowhere(checkpoint)]
    said += [f"{h}: {p}: {why}" for h, some in broken.items() for p, why in some.items()]
    said += [f"{c.host}: {path} {c.broken}" for path, c in checkpoint.left_out().items()]
    return said + [str(lack) for lack in lacks]


def _nowhere(checkpoint: Checkpoint) -> list[str]:
    return [path for path in checkpoint.missing() if path not in checkpoint.files]


def progress_line(progress: CopyProgress) -> str:
    """How far a copy has come, and how fast."""
    seconds = max(time.monotonic() - progress.began, 1e-3)
    share = 100 * progress.done // progress.total if progress.total else 100
    return (
        f"{progress.files_done} of {progress.files} files, {in_words(progress.done)} of "
        f"{in_words(progress.total)} ({share}%), {in_words(round(progress.done / seconds))}/s"
    )


def copied(progress: CopyProgress) -> str:
    """What a copy did, in words."""
    said = f"{progress.files} files, {in_words(progress.total)}"
    if progress.there:
        said += f"; {progress.there} were there already"
    if progress.resumed:
        said += f"; {in_words(progress.resumed)} from an earlier try"
    return f"{said}; checksums compared"
