"""A chart of an estimate: the memory of a GPU for each strategy, part by part.

Color is never the only distinction: parts differ in pattern too, figures stand beside the bars, and
the same is in the chart's description. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from dslaunch.deepspeed.estimate import EstimateInput, Recommendation, Row
from dslaunch.deepspeed.memory import GIB
from dslaunch.report.estimate import heading, recommendation_text, text, total
from dslaunch.report.markup import escaped

BAR, STEP, LEFT, SPAN, RIGHT, TOP = 18, 30, 392, 420, 190, 64
"""Pixels: height of a bar, from bar to bar, room for names, for bars, for figures, for the head."""
FIGURES = LEFT + SPAN + 12
VERDICTS = FIGURES + 74
"""Pixels: where the columns of figures and verdicts begin."""
FITS = {
    "unknown": "",
    "yes": "✓ fits",
    "no": "✗ does not fit",
    "checkpointing": "✓ checkpointed",
}
LINE = 120
"""Characters of a line below the chart."""
PARTS = ("model states", "buckets", "activations")
_STYLE = "".join(
    f".memory {selector}{{{rules}}}"
    for selector, rules in (
        (
            "text",
            "font:13px system-ui,sans-serif;fill:#111;"
            "stroke:#fff;stroke-width:3;paint-order:stroke",
        ),
        (".head", "font-weight:600;font-size:15px"),
        (".chosen", "font-weight:700"),
        (".p0", "fill:#1b4f72;stroke:#111"),
        (".p1", "fill:url(#memory-lines);stroke:#111"),
        (".p2", "fill:#f0f0f0;stroke:#111"),
        (".yes,.checkpointing", "fill:#1c6b3a"),
        (".no", "fill:#b00020"),
        (".limit", "stroke:#b00020;stroke-width:2;stroke-dasharray:6 4"),
    )
)
_LINES = (
    '<pattern id="memory-lines" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fff"/>'
    '<rect width="3" height="6" fill="#5d8aa8"/></pattern>'
)


def chart(question: EstimateInput, rows: Sequence[Row], advice: Recommendation) -> str:
    """Return the chart as SVG, for an HTML page or a file."""
    limit = question.limits.gpu or 0
    longest = max([*(total(row) for row in rows), limit, 1])
    scale = SPAN / longest
    width, height = LEFT + SPAN + RIGHT, TOP + len(rows) * STEP + 84
    body = [_bar(row, TOP + i * STEP, scale, row is advice.row) for i, row in enumerate(rows)]
    if limit:
        body.append(_limit(limit, LEFT + limit * scale, TOP + len(rows) * STEP))
    title = escaped(heading(question).replace("\n", "; "))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="memory" role="img" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<title>{title}</title><desc>{escaped(_described(question, rows, advice))}</desc>"
        f"<style>{_STYLE}</style><defs>{_LINES}</defs>"
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        f"{_text(16, 24, 'Memory of each GPU', 'head')}{_legend()}{''.join(body)}"
        f"{_advice(recommendation_text(question, advice), height)}</svg>\n"
    )


def _sizes(row: Row) -> tuple[int, int, int]:
    """Return states and buckets at their own peak, and what activations add to it."""
    whole = total(row)
    states = min(row.states.gpu, whole)
    buckets = min(row.buckets, whole - states)
    return states, buckets, whole - states - buckets


def name(row: Row) -> str:
    """Return the name of a strategy."""
    init = "" if row.strategy.stage < 3 or row.strategy.zero_init else ", no zero.Init"
    return f"{row.strategy}{init}"


def _bar(row: Row, top: int, scale: float, chosen: bool) -> str:
    at, boxes = float(LEFT), []
    for number, size in enumerate(_sizes(row)):
        if size > 0:
            boxes.append(
                f'<rect class="p{number}" x="{at:.1f}" y="{top}" '
                f'width="{size * scale:.1f}" height="{BAR}"/>'
            )
        at += size * scale
    kind = "chosen" if chosen else ""
    label = _text(16, top + 14, name(row), kind)
    # in their own column: the line of the limit would cross figures that follow the bars
    figure = _text(FIGURES, top + 14, f"{total(row) / GIB:.1f} GiB", kind)
    verdict = _text(VERDICTS, top + 14, FITS[row.fits], f"{row.fits} {kind}".strip())
    return label + "".join(boxes) + figure + verdict


def _limit(limit: int, x: float, bottom: int) -> str:
    line = f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}"/>'
    return line + _text(x - 60, bottom + 16, f"GPU: {limit / GIB:.1f} GiB")


def _legend() -> str:
    return "".join(
        f'<rect class="p{i}" x="{LEFT + i * 130}" y="34" width="14" height="14"/>'
        + _text(LEFT + 20 + i * 130, 46, part)
        for i, part in enumerate(PARTS)
    )


def _advice(words: str, height: int) -> str:
    lines = textwrap.wrap(words, LINE)[:3]
    return "".join(
        _text(16, height - 44 + 18 * number, line, "chosen") for number, line in enumerate(lines)
    )


def _described(question: EstimateInput, rows: Sequence[Row], advice: Recommendation) -> str:
    each = [f"{name(row)}: {total(row) / GIB:.1f} GiB" for row in rows]
    return f"{'; '.join(each)}. {recommendation_text(question, advice)}"


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{marked}>{escaped(words)}</text>'


def page(question: EstimateInput, rows: Sequence[Row], advice: Recommendation) -> str:
    """Return an HTML page with the chart and the tables."""
    title = escaped(heading(question).splitlines()[0])
    recommended = recommendation_text(question, advice)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title><style>body{{font-family:system-ui,sans-serif;margin:2em}}"
        "pre{overflow-x:auto}</style></head><body>\n"
        f"<h1>{title}</h1>\n<p><strong>{escaped(recommended)}</strong></p>\n"
        f"{chart(question, rows, advice)}"
        f"<pre>{escaped(text(question, rows, advice, width=150))}</pre>\n</body></html>\n"
    )
