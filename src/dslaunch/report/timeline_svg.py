"""The course of a run as a drawing: a row per node and rank, or per group of equal ones.

Nothing is shown by color alone: spans differ in pattern and height, marks in shape. Colors are
variables of the page, so that it has a dark mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dslaunch.durations import clock_text, duration_text
from dslaunch.report.event_meaning import Sign
from dslaunch.report.markup import escaped
from dslaunch.report.timeline import Line, LineKind, Mark, Phase, Row, Timeline

WIDTH, LEFT, RIGHT = 1000, 230, 24
"""Pixels: of the drawing, of the labels, and free behind the end."""
ROW, BAR, HEAD, AXIS = 24, 12, 22, 30
"""Pixels: from row to row, height of a bar, of a heading, of the axis with its labels."""
SPAN = WIDTH - LEFT - RIGHT
LABEL, NOTE = 21, 9
"""Characters of a label and of its note."""
NEAR = 74
"""Pixels between the labels of two lines that stand in one row."""
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""Seconds between two labels of the axis."""
MOST_TICKS = 8
DEFINITIONS = (
    '<defs><pattern id="t-starting" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="t-back" width="6" height="6"/>'
    '<rect class="t-line" width="2.5" height="6"/></pattern></defs>'
)
WORDS = {
    Sign.CONNECTED: "connected",
    Sign.SHIPPED: "files copied",
    Sign.JOINED: "joined the process group",
    Sign.SUCCEEDED: "exited successfully",
    Sign.FAILED: "failed",
    Sign.STOPPED: "stopped",
    Sign.LOST: "lost",
}
PHASES = {
    Phase.PREPARING: "connected, not started",
    Phase.STARTING: "started, process group not joined",
    Phase.RUNNING: "running",
    Phase.AWAY: "connection lost",
}


def drawing(line: Timeline) -> str:
    """Return the drawing as SVG for an HTML page."""
    lanes = _lanes([_x(line, each.time) for each in line.lines])
    top = 8 + 16 * (max(lanes, default=-1) + 1)
    blocks, y = [], top
    for title, rows in (("Nodes", line.nodes), ("Ranks", line.ranks)):
        if rows:
            blocks.append(_text(8, y + 15, title, "t-head"))
            y += HEAD
            blocks += [_row(line, row, y + i * ROW) for i, row in enumerate(rows)]
            y += len(rows) * ROW + 6
    bottom = y
    height = bottom + AXIS
    described = escaped(_described(line))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" role="img" '
        f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f"<title>Timeline of the run</title><desc>{described}</desc>{DEFINITIONS}"
        f"{_axis(line, top, bottom)}{''.join(blocks)}{_vertical(line, lanes, bottom)}</svg>"
    )


def legend() -> str:
    """Return what spans and marks mean, as HTML."""
    spans = (
        (
            f'<svg width="34" height="16" aria-hidden="true">{_span_shape(phase, 0, 34, 8)}</svg>',
            word,
        )
        for phase, word in PHASES.items()
    )
    marks = (
        (f'<svg width="18" height="16" aria-hidden="true">{_shape(sign, 9, 8)}</svg>', word)
        for sign, word in WORDS.items()
    )
    return "".join(f"<span>{shape} {word}</span> " for shape, word in (*spans, *marks))


def _described(line: Timeline) -> str:
    """Return the course in words, for screen readers."""
    length = duration_text(line.end - line.start)
    failed = [row.label for row in (*line.nodes, *line.ranks) if row.has_failed]
    text = f"{length} from the first to the last event"
    return f"{text}; failed: {', '.join(failed[:10])}" if failed else text


def _x(line: Timeline, at: float) -> float:
    share = (at - line.start) / (line.end - line.start)
    return LEFT + min(max(share, 0.0), 1.0) * SPAN


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    extra = f' class="{kind}"' if kind else ""
    extra += f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escaped(text)}</text>'


def _row(line: Timeline, row: Row, y: int) -> str:
    middle = y + ROW / 2
    kind = "t-failed" if row.has_failed else ""
    label = _cut(row.label, LABEL)
    full = f"<title>{escaped(f'{row.label[:500]} {row.note[:100]}'.strip())}</title>"
    label_text = f"<g>{full}{_text(16, middle + 4, label, kind)}</g>"
    note = _text(LEFT - 10, middle + 4, _cut(row.note, NOTE), "t-note", "end") if row.note else ""
    spans = "".join(
        _span_shape(span.phase, _x(line, span.start), _x(line, span.end), middle)
        for span in row.spans
    )
    marks = "".join(_mark(line, mark, middle) for mark in row.marks)
    return f"{label_text}{note}{spans}{marks}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _span_shape(phase: Phase, left: float, right: float, middle: float) -> str:
    thin = phase is Phase.PREPARING
    size = 3 if thin else BAR
    width = max(right - left, 1.0)
    return (
        f'<rect class="t-{phase}" x="{left:.1f}" y="{middle - size / 2:.1f}" '
        f'width="{width:.1f}" height="{size}"/>'
    )


def _mark(line: Timeline, mark: Mark, middle: float) -> str:
    x = _x(line, mark.time)
    low, high = _x(line, mark.low), _x(line, mark.high)
    spread = ""
    if high - low > 3:
        spread = f'<path class="t-spread" d="M{low:.1f} {middle + 9:.1f}H{high:.1f}"/>'
    after = clock_text(mark.time - line.start)
    how = f", {mark.text[:200]}" if mark.text else ""
    told = escaped(f"{WORDS[mark.sign]}{how}, {after} after the start")
    return f"<g><title>{told}</title>{spread}{_shape(mark.sign, x, middle)}</g>"


def _shape(sign: Sign, x: float, y: float) -> str:
    """Return the shape of a mark around a point."""
    path = {
        Sign.CONNECTED: "M{x} {y}m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
        Sign.SHIPPED: "M{x} {y}m-4 -4h8v8h-8z",
        Sign.JOINED: "M{x} {y}m0 -6l5 6l-5 6l-5 -6z",
        Sign.SUCCEEDED: "M{x} {y}m-5 0l4 5l7 -10",
        Sign.FAILED: "M{x} {y}m-5 -5l10 10m0 -10l-10 10",
        Sign.STOPPED: "M{x} {y}m-4 -4h8v8h-8z",
        Sign.LOST: "M{x} {y}m0 -7l7 13h-14zm0 5v4",
    }[sign]
    placed = path.format(x=f"{x:.1f}", y=f"{y:.1f}")
    return f'<path class="t-halo" d="{placed}"/><path class="t-mark t-{sign}" d="{placed}"/>'


def _axis(line: Timeline, top: int, bottom: int) -> str:
    length = line.end - line.start
    step = next((tick for tick in TICKS if length / tick <= MOST_TICKS), 0)
    step = step or int(length / MOST_TICKS / 86400 + 1) * 86400
    if length < 2:
        times: Iterable[float] = (0.0, length)
    else:
        times = range(0, int(length) + 1, step)
    parts = []
    for at in times:
        x = LEFT + at / length * SPAN
        text = f"{at:.1f} s" if length < 2 else clock_text(at)
        anchor = "end" if x > WIDTH - 40 else "middle"
        parts.append(f'<path class="t-grid" d="M{x:.1f} {top}V{bottom}"/>')
        parts.append(_text(min(x, WIDTH - 2), bottom + 18, text, "t-note", anchor))
    return "".join(parts)


def _lanes(places: Sequence[float]) -> list[int]:
    """Return the row of each label, so that none covers another."""
    ends: list[float] = []
    lanes = []
    for x in places:
        free = next((i for i, end in enumerate(ends) if x >= end), len(ends))
        ends[free : free + 1] = [x + NEAR]
        lanes.append(free)
    return lanes


def _vertical(line: Timeline, lanes: Sequence[int], bottom: int) -> str:
    parts = []
    for each, lane in zip(line.lines, lanes, strict=True):
        x, y = _x(line, each.time), 14 + 16 * lane
        style = "t-cause" if each.kind is LineKind.ROOT_CAUSE else "t-moment"
        is_late = x > WIDTH - NEAR
        parts.append(f'<path class="{style}" d="M{x:.1f} {y + 4}V{bottom}"/>')
        anchor = "end" if is_late else "start"
        parts.append(_text(x - 3 if is_late else x + 3, y, _line_text(each), "t-note", anchor))
    return "".join(parts)


def _line_text(line: Line) -> str:
    match line.kind:
        case LineKind.ROOT_CAUSE:
            return "root cause"
        case LineKind.RESTART:
            return f"restart {line.attempt}"
        case LineKind.STOP:
            return "stopping"
