"""The screen of `top`: what nodes and ranks use, as tables that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from dslaunch.durations import short_time_text
from dslaunch.plural import byte_count, counted
from dslaunch.report.progress_text import progress_parts
from dslaunch.report.straggler_text import straggler_rows
from dslaunch.run.slower_rank import SlowerRank
from dslaunch.run.usage import NodeUsage
from dslaunch.run.usage_monitor import RankSample, UsageSample
from dslaunch.terminal import one_line, without_color

Row = TypeVar("Row")
GAP = "  "
SORTS = ("node", "gpu", "cpu", "memory", "network", "step-time")
"""What rows can be sorted by: `node` is the order of the run, all others put the largest first."""
NARROWEST_LINE = 12
"""Columns of the last line of a rank, at least; otherwise it is left out."""


class Column(Struct, Generic[Row], frozen=True):
    """A column of a table; left out where no row has a text for it."""

    title: str
    text: Callable[[Row], str]
    drop: int = 0
    """In a table that is too wide, columns with higher numbers are left out first; 0 never."""
    left: bool = False
    """Whether its texts are aligned to the left."""


class Choice(Struct, frozen=True):
    """What the user wants to see."""

    sort: str = "node"
    words: str = ""
    """Part of a node's name, or a rank's number; empty: all."""


class Size(Struct, frozen=True):
    """The columns and lines of a terminal; None: unlimited."""

    width: int | None = None
    height: int | None = None


# ---------------------------------------------------------------- cells


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _bytes(size: float | None) -> str:
    return "" if size is None else byte_count(round(size))


def _rate(first: float | None, second: float | None) -> str:
    """Return two rates in bytes per second: in and out, or read and written."""
    if first is None or second is None:
        return ""
    return f"{byte_count(round(first))}/s {byte_count(round(second))}/s"


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def gpu_busy(node: NodeUsage) -> float | None:
    """Return the mean busy share of a node's GPUs; None: unknown."""
    return _mean([gpu.busy for gpu in node.gpus if gpu.busy is not None])


def gpu_memory(node: NodeUsage) -> float | None:
    """Return the largest used share of the memory of a node's GPUs; None: unknown."""
    used = [
        gpu.memory_used / gpu.memory_total
        for gpu in node.gpus
        if gpu.memory_used and gpu.memory_total
    ]
    return max(used, default=None)


def _power(node: NodeUsage) -> str:
    known = [gpu.power for gpu in node.gpus if gpu.power is not None]
    return f"{sum(known):.0f} W" if known else ""


def _temperature(node: NodeUsage) -> str:
    known = [gpu.temperature for gpu in node.gpus if gpu.temperature is not None]
    return f"{max(known):.0f} C" if known else ""


def _throttled(node: NodeUsage) -> str:
    gpus = dict.fromkeys(why for gpu in node.gpus for why in gpu.throttled)
    words: list[str] = list(gpus)
    if node.cpu_throttled:
        words.append(f"CPU {_percent(node.cpu_throttled)}")
    return ",".join(words)


def _memory(node: NodeUsage) -> str:
    return f"{byte_count(node.memory_used)}/{byte_count(node.memory_total)}"


NODE_COLUMNS: tuple[Column[NodeUsage], ...] = (
    Column("NODE", lambda node: node.host, left=True),
    Column("GPU", lambda node: _percent(gpu_busy(node))),
    Column("GPU MEM", lambda node: _percent(gpu_memory(node)), drop=2),
    Column("POWER", _power, drop=4),
    Column("TEMP", _temperature, drop=5),
    Column("THROTTLED", _throttled, drop=1, left=True),
    Column("CPU", lambda node: _percent(node.cpu)),
    Column("LOAD", lambda node: f"{node.load:.1f}", drop=8),
    Column("MEMORY", _memory, drop=3),
    Column("NET IN OUT", lambda node: _rate(node.received, node.sent), drop=6),
    Column("FABRIC IN OUT", lambda node: _rate(node.fabric_received, node.fabric_sent), drop=7),
    Column("DISK READ WRITE", lambda node: _rate(node.disk_read, node.disk_written), drop=9),
)


def _of_gpu(rank: RankSample) -> str:
    return "" if rank.gpu is None else _percent(rank.gpu.busy)


def _step(rank: RankSample) -> str:
    step = None if rank.progress is None else rank.progress.step
    return "" if step is None else f"{step:,}"


def _step_time(rank: RankSample) -> str:
    return "" if rank.step_seconds is None else short_time_text(rank.step_seconds)


def _late(rank: RankSample) -> str:
    """Return how late a rank is; earlier than the median one is not late."""
    late = rank.usage.late
    return "" if late is None else _percent(max(0.0, late))


def _gpu_memory(rank: RankSample) -> str:
    return "" if rank.gpu is None else _bytes(rank.gpu.memory_used)


def _gpu_busy(rank: RankSample) -> float:
    """Return the share of time in which its GPU was in use; 0 if that is unknown."""
    busy = None if rank.gpu is None else rank.gpu.busy
    return busy or 0.0


RANK_COLUMNS: tuple[Column[RankSample], ...] = (
    Column("RANK", lambda rank: str(rank.rank)),
    Column("NODE", lambda rank: rank.host, left=True, drop=3),
    Column("GPU", _of_gpu),
    Column("GPU MEM", _gpu_memory, drop=4),
    Column("CPU", lambda rank: _percent(rank.usage.cpu)),
    Column("BUSY", lambda rank: _percent(rank.usage.busy), drop=2),
    Column("MEMORY", lambda rank: _bytes(rank.usage.memory), drop=5),
    Column("STEP", _step),
    Column("STEP TIME", _step_time, drop=1),
    Column("LATE", _late, drop=6),
)
LAST_LINE: Column[RankSample] = Column(
    "LAST LINE", lambda rank: without_color(rank.last_line), left=True
)


# ---------------------------------------------------------------- tables


def table(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    width: int | None,
    last: Column[Row] | None = None,
) -> list[str]:
    """Return a table with its head, at most `width` columns wide; `last` takes what is left of the
    width, and its texts are cut off."""
    texts = [[column.title, *(one_line(column.text(row)) for row in rows)] for column in columns]
    used = [(column, cells) for column, cells in zip(columns, texts, strict=True) if any(cells[1:])]
    while width is not None and _width(used) > width and any(column.drop for column, _ in used):
        used.remove(max(used, key=lambda each: each[0].drop))
    lines = [
        GAP.join(_aligned(column, cells, at) for column, cells in used)
        for at in range(len(rows) + 1)
    ]
    if last is not None:
        lines = _with_last(lines, [last.title, *(one_line(last.text(row)) for row in rows)], width)
    return [line.rstrip()[:width] for line in lines]


def _width(used: Sequence[tuple[Column[Row], list[str]]]) -> int:
    widths = [max(map(len, cells)) for _, cells in used]
    return sum(widths) + len(GAP) * max(0, len(widths) - 1)


def _aligned(column: Column[Row], cells: list[str], at: int) -> str:
    width = max(map(len, cells))
    return cells[at].ljust(width) if column.left else cells[at].rjust(width)


def _with_last(lines: list[str], texts: list[str], width: int | None) -> list[str]:
    taken = max(map(len, lines)) + len(GAP)
    if not any(texts[1:]) or (width is not None and width - taken < NARROWEST_LINE):
        return lines
    return [f"{line}{GAP}{text}" for line, text in zip(lines, texts, strict=True)]


# ---------------------------------------------------------------- the page


def page(
    title: str,
    sample: UsageSample,
    stragglers: tuple[SlowerRank, ...],
    choice: Choice,
    size: Size,
) -> list[str]:
    """Return the lines of the screen: the run, who is slow, a table of nodes and one of ranks."""
    nodes, ranks = chosen_nodes(sample, choice), chosen_ranks(sample, choice)
    head = [_head(title, sample, size.width), *straggler_rows(stragglers)]
    if sample.unanswered:
        head.append(f"no answer from {_several(sample.unanswered)}")
    errors = dict.fromkeys(node.gpu_error for node in nodes if node.gpu_error)
    head += [f"GPUs: {one_line(error)}" for error in errors]
    head = [line[: size.width] for line in head]
    if not sample.nodes:
        return [*head, "measuring ..."]
    room = None if size.height is None else max(4, size.height - len(head) - 2)
    nodes_room, ranks_room = _shared(room, len(nodes), len(ranks))
    return [
        *head,
        "",
        *_limited(table(NODE_COLUMNS, nodes, size.width), nodes_room, "node"),
        "",
        *_limited(table(RANK_COLUMNS, ranks, size.width, LAST_LINE), ranks_room, "rank"),
    ]


def _several(hosts: tuple[str, ...]) -> str:
    from dslaunch.cluster.nodeset import fold

    return one_line(fold(hosts))


def _head(title: str, sample: UsageSample, width: int | None) -> str:
    """Return the run in one line, without the last parts for which there is no room."""
    words = [title, counted(len(sample.nodes), "node"), counted(len(sample.ranks), "rank")]
    if sample.progress is not None:
        words += progress_parts(sample.progress, speed=False)
    times = [rank.step_seconds for rank in sample.ranks if rank.step_seconds is not None]
    if times:
        words.append(f"{short_time_text(max(times))} per step")
    shown = one_line(words[0])
    for word in words[1:]:
        longer = f"{shown} · {one_line(word)}"
        if width is not None and len(longer) > width:
            break
        shown = longer
    return shown


def _shared(room: int | None, nodes: int, ranks: int) -> tuple[int | None, int | None]:
    """Return the lines of both tables, heads included: half of the room for nodes, or what ranks
    leave."""
    if room is None:
        return None, None
    for_nodes = min(nodes + 1, max(room // 2, room - ranks - 1))
    return for_nodes, room - for_nodes


def _limited(lines: list[str], room: int | None, noun: str) -> list[str]:
    """Return the first lines, and how many rows are not shown."""
    if room is None or len(lines) <= room:
        return lines
    shown = max(1, room - 1)
    more = len(lines) - shown
    return [*lines[:shown], f"... {counted(more, noun)} more"]


# ---------------------------------------------------------------- which rows, in which order


def chosen_nodes(sample: UsageSample, choice: Choice) -> list[NodeUsage]:
    """Return the nodes that match, in the order that is wanted."""
    keys: dict[str, Callable[[NodeUsage], float]] = {
        "gpu": lambda node: gpu_busy(node) or 0,
        "cpu": lambda node: node.cpu,
        "memory": lambda node: node.memory_used / max(1, node.memory_total),
        "network": lambda node: (node.received or 0) + (node.fabric_received or 0),
    }
    nodes = [node for node in sample.nodes if choice.words in node.host]
    key = keys.get(choice.sort)
    return nodes if key is None else sorted(nodes, key=key, reverse=True)


def chosen_ranks(sample: UsageSample, choice: Choice) -> list[RankSample]:
    """Return the ranks that match, in the order that is wanted."""
    keys: dict[str, Callable[[RankSample], float]] = {
        "gpu": _gpu_busy,
        "cpu": lambda rank: rank.usage.cpu,
        "memory": lambda rank: rank.usage.memory,
        "step-time": lambda rank: rank.step_seconds or 0,
    }
    words = choice.words
    ranks = [rank for rank in sample.ranks if words in rank.host or words == str(rank.rank)]
    key = keys.get(choice.sort)
    return ranks if key is None else sorted(ranks, key=key, reverse=True)
