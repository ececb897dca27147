"""The JSON of `top`: one document per measurement."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from dslaunch.run.slower_rank import SlowerRank
from dslaunch.run.usage_monitor import RankSample, UsageSample


def sample_data(
    run: str, sample: UsageSample, stragglers: tuple[SlowerRank, ...]
) -> dict[str, Any]:
    """Return a measurement of a run; fields that are unknown are left out."""
    return {
        "run": run,
        "time": sample.time,
        "progress": sample.progress.as_data() if sample.progress is not None else {},
        "nodes": [node.as_data() for node in sample.nodes],
        "ranks": [_rank(rank) for rank in sample.ranks],
        "stragglers": [to_builtins(each) for each in stragglers],
        "unanswered": list(sample.unanswered),
    }


def _rank(rank: RankSample) -> dict[str, Any]:
    progress = rank.progress.as_data() if rank.progress is not None else {}
    found: dict[str, Any] = {"rank": rank.rank, "host": rank.host, "progress": progress}
    found["last_line"] = rank.last_line
    if rank.gpu is not None:
        found["gpu"] = rank.gpu.index
    if rank.step_seconds is not None:
        found["step_seconds"] = rank.step_seconds
    if rank.usage.late is not None:
        found["late"] = rank.usage.late
    return found
