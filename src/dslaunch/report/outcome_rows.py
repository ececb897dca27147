"""How a run ended, as rows for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from pathlib import Path

from msgspec import Struct

from dslaunch.cluster.nodeset import fold, ranks_text
from dslaunch.durations import elapsed_text
from dslaunch.plural import counted
from dslaunch.report.event_text import secondary_text
from dslaunch.run.events import Event
from dslaunch.run.outcome import Outcome, SecondaryFailure
from dslaunch.run.reasons import EndCode, RankSource
from dslaunch.run.run_directory import LOGS
from dslaunch.terminal import cut, one_line, without_color

MOST_CONSEQUENCES = 3
"""Different secondary failures that are shown."""
LONGEST_LINE = 1000
"""Characters that are shown of a line of the last output: one of some megabytes would hide the
rest."""


class RunExtent(Struct, frozen=True):
    """How large a run was, and when it took place."""

    ranks: int
    nodes: int
    started: float
    """Seconds since the epoch."""
    ended: float


def outcome_rows(
    outcome: Outcome,
    directory: Path | None,
    *,
    brief: bool,
    width: int = 80,
    extent: RunExtent | None = None,
    zone: tzinfo | None = None,
) -> list[str]:
    """Return how a run ended, as at its end: root cause, last output, hint, processes that may be
    left, and where the logs are.

    `zone`: of the times; None: this machine's.
    """
    logs = _logs(outcome, directory)
    if _is_clean(outcome):
        return [] if brief else [f"dslaunch: {_success(outcome, extent, logs)}"]
    first, *rest = cause_rows(outcome, width=width, extent=extent, zone=zone)
    place = [f"  logs: {logs}"] if logs is not None else []
    return [f"dslaunch: {first}", *rest, *place]


def cause_rows(
    outcome: Outcome,
    *,
    width: int = 80,
    extent: RunExtent | None = None,
    zone: tzinfo | None = None,
) -> list[str]:
    """Return how a run ended, without a prefix and without the place of its logs."""
    if _is_clean(outcome):
        return [_success(outcome, extent, logs=None)]
    rows = [one_line(outcome.message)]
    if outcome.cause is not None:
        rows.append(f"  {_when(outcome.cause, extent, zone)}")
    if outcome.last_lines and outcome.cause is not None:
        rows.append("  last output:")
        rows += [f"    {_last_line(text)}" for text in outcome.last_lines]
    if outcome.what:
        rows.append(f"  reason: {one_line(outcome.what)}")
    if outcome.hint:
        rows.append(f"  hint: {one_line(outcome.hint)}")
    equal = [each for each in outcome.secondary if _ended_alike(each, outcome.cause)]
    alike = [*outcome.alike, *((each.host, each.rank) for each in equal)]
    if alike:
        rows.append(f"  the same on {_ranks(alike)}")
    rows += _consequences([each for each in outcome.secondary if each not in equal])
    if outcome.stacks:
        from dslaunch.report import stacks

        page = stacks.outcome_page(outcome, width - 2)
        rows += [f"  {line}" for line in page.splitlines()]
    rows += _left_rows(outcome)
    return rows


def _is_clean(outcome: Outcome) -> bool:
    """Return whether a run succeeded and left nothing behind."""
    return outcome.status == "ok" and not outcome.left and not outcome.unconfirmed


def _logs(outcome: Outcome, directory: Path | None) -> Path | None:
    """Return the directory of the output; None: there is none here, as of a job that was attached
    to."""
    logs = directory / LOGS if directory is not None else None
    if logs is None or (outcome.jobs and not logs.is_dir()):
        return None
    return logs


def _success(outcome: Outcome, extent: RunExtent | None, logs: Path | None) -> str:
    """Return `64 ranks on 8 nodes finished after 12:31 · logs: DIRECTORY`."""
    text = one_line(outcome.message)
    if extent is not None and outcome.reason.code in (EndCode.SUCCEEDED, EndCode.SLURM_JOB):
        ranks, nodes = counted(extent.ranks, "rank"), counted(extent.nodes, "node")
        took = elapsed_text(extent.ended - extent.started)
        size = f"{ranks} on {nodes} finished after {took}"
        text = f"{text}: {size}" if outcome.reason.code is EndCode.SLURM_JOB else size
    return f"{text} · logs: {logs}" if logs is not None else text


def _when(cause: Event, extent: RunExtent | None, zone: tzinfo | None) -> str:
    """Return when the root cause happened, and the process that it happened to."""
    parts = [f"at {datetime.fromtimestamp(cause.time, zone):%H:%M:%S}"]
    if extent is not None:
        parts.append(f"{elapsed_text(cause.time - extent.started)} after the start")
    if cause.pid is not None:
        parts.append(f"process {cause.pid}")
    return ", ".join(parts)


def _ended_alike(failure: SecondaryFailure, cause: Event | None) -> bool:
    """Return whether a rank ended as the root cause did, and nothing else is known about it."""
    if cause is None or cause.rank is None or failure.what is not None:
        return False
    return (failure.code, failure.signal) == (cause.code, cause.signal)


def _consequences(failures: Sequence[SecondaryFailure]) -> list[str]:
    """Return the secondary failures; ranks that failed in the same way are one row."""
    by_text: dict[str, list[RankSource]] = {}
    for failure in failures:
        sources = by_text.setdefault(one_line(secondary_text(failure)), [])
        sources.append((failure.host, failure.rank))
    rows = [
        f"  failed as a consequence: {_ranks(sources)}: {text}" for text, sources in by_text.items()
    ]
    more = len(rows) - MOST_CONSEQUENCES
    if more <= 0:
        return rows
    others = counted(more, "other way", "other ways")
    return [*rows[:MOST_CONSEQUENCES], f"  and in {others}; see `dslaunch logs`"]


def _left_rows(outcome: Outcome) -> list[str]:
    """Return which processes are left on the nodes that answered, and which nodes did not."""
    rows = []
    if outcome.left:
        rows.append(f"  processes that could not be killed: {one_line(', '.join(outcome.left))}")
    if outcome.unconfirmed:
        rows.append(f"  {cleanup_text(outcome.unconfirmed)}")
    elif outcome.nodes_checked and not outcome.left:
        rows.append("  all processes of this run have exited")
    return rows


def cleanup_text(hosts: Iterable[str]) -> str:
    """Return that nodes did not confirm the cleanup, and the command to run later."""
    names = list(hosts)
    when = "it is reachable" if len(names) == 1 else "they are reachable"
    folded = one_line(fold(names))
    return f"could not verify cleanup on {folded}; run `dslaunch clean` when {when}"


def _ranks(sources: Iterable[RankSource]) -> str:
    """Return ranks with their nodes: `rank 3 on n1`, `ranks 0-2,5 on n[1-2]`."""
    known = [(host, rank) for host, rank in sources if rank is not None]
    hosts = one_line(fold(host for host, _ in known))
    return f"{ranks_text(rank for _, rank in known)} on {hosts}"


def _last_line(text: str) -> str:
    """Return a rank's output line without colors; tabs are kept."""
    shown = cut(without_color(text), LONGEST_LINE)
    return "\t".join(map(one_line, shown.split("\t")))
