"""Checkpoints as a table, in detail, as JSON, and the progress of a copy."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dslaunch.cluster.nodeset import fold
from dslaunch.deepspeed.checkpoint import Checkpoint
from dslaunch.deepspeed.placement import Lacking
from dslaunch.plural import byte_count, counted
from dslaunch.run.shards import CopyProgress

HEAD = ("CHECKPOINT", "ZERO", "RANKS", "STEP", "SIZE", "SAVED", "STATE", "NODES")
DETAIL = ("NODE", "SHARDS OF RANKS", "MODEL", "SIZE", "LATEST", "BROKEN")


def rows(checkpoints: Sequence[Checkpoint]) -> list[tuple[str, ...]]:
    """Return a row per checkpoint, the newest last; `*` marks the one that `latest` names."""
    return [HEAD, *map(_row, checkpoints)]


def _row(checkpoint: Checkpoint) -> tuple[str, ...]:
    steps = checkpoint.header.steps
    return (
        checkpoint.name + ("*" if checkpoint.is_latest else ""),
        _stage(checkpoint),
        str(checkpoint.world * checkpoint.parallel) if checkpoint.stage != 0 else "any",
        "-" if steps is None else str(steps),
        byte_count(checkpoint.size),
        when(checkpoint.saved),
        state(checkpoint),
        fold(hosts(checkpoint)),
    )


def _stage(checkpoint: Checkpoint) -> str:
    return "1-2" if checkpoint.stage is None else str(checkpoint.stage)


def when(seconds: float) -> str:
    """Return a time in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def hosts(checkpoint: Checkpoint) -> list[str]:
    """Return the nodes that have shards of a checkpoint."""
    return list(dict.fromkeys(c.host for p in checkpoint.shards for c in checkpoint.files[p]))


def state(checkpoint: Checkpoint) -> str:
    """Return `complete`, or how many shards are missing or broken."""
    missing = checkpoint.missing()
    if not missing:
        return "complete"
    broken = sum(any(c.broken for c in checkpoint.files.get(path, ())) for path in missing)
    text = f"{len(missing)} of {len(checkpoint.wanted())} shards missing"
    return f"{text}, {broken} broken" if broken else text


def detail(checkpoint: Checkpoint, everyone: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a row per node with the ranks whose shards it has."""
    return [DETAIL, *(_node(checkpoint, host) for host in everyone)]


def _node(checkpoint: Checkpoint, host: str) -> tuple[str, ...]:
    mine = checkpoint.on(host)
    shards = {path: checkpoint.shards[path] for path in mine if path in checkpoint.shards}
    ranks = sorted({s.rank for s in shards.values() if s.kind in ("optimizer", "partition")})
    model = "-"
    if any(s.kind == "model" for s in shards.values()):
        model = "whole"
    elif checkpoint.divided and ranks:
        model = "parts"
    broken = [posixpath.basename(path) for path in mine if mine[path].broken]
    return (
        host,
        ",".join(map(str, ranks)) or "-",
        model,
        byte_count(sum(copy.size for copy in mine.values())),
        checkpoint.latest.get(host, "-"),
        ", ".join(broken) or "-",
    )


def as_data(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint as JSON data."""
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
    """Return a line per fault of a checkpoint; empty: a training can resume from it."""
    lines = [f"{posixpath.basename(path)} not found on any node" for path in _nowhere(checkpoint)]
    lines += [f"{h}: {p}: {why}" for h, some in broken.items() for p, why in some.items()]
    lines += [f"{c.host}: {path} {c.broken}" for path, c in checkpoint.left_out().items()]
    return lines + [str(lack) for lack in lacks]


def _nowhere(checkpoint: Checkpoint) -> list[str]:
    return [path for path in checkpoint.missing() if path not in checkpoint.files]


def progress_line(progress: CopyProgress) -> str:
    """Return the progress of a copy and its rate."""
    seconds = max(time.monotonic() - progress.began, 1e-3)
    share = 100 * progress.done // progress.total if progress.total else 100
    return (
        f"{progress.files_done} of {counted(progress.files, 'file')}, "
        f"{byte_count(progress.done)} of {byte_count(progress.total)} ({share}%), "
        f"{byte_count(round(progress.done / seconds))}/s"
    )


def copied(progress: CopyProgress) -> str:
    """Return the result of a copy: files, bytes, and what an earlier copy had left to reuse."""
    text = f"{counted(progress.files, 'file')}, {byte_count(progress.total)}"
    if progress.there:
        text += f"; {progress.there} already present"
    if progress.resumed:
        text += f"; {byte_count(progress.resumed)} reused from an interrupted copy"
    return f"{text}; checksums verified"
