"""Curves over steps or time as drawings for an HTML page.

A curve is a line; where it stands for several nodes, a band from the lowest to the highest is
behind it. Colors are variables of the page. The last value stands beside the drawing, and the
description has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from dslaunch.report.markup import escaped

WIDTH, HEIGHT = 420, 190
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 12, 34
"""Pixels around the curve."""
LINES = 4
"""Horizontal lines, at most."""


class CurvePoint(Struct, frozen=True):
    """One point; `low` and `high` are those of the band."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Axes(Struct, frozen=True):
    """How the values of a drawing are written."""

    across: str
    """What is on the horizontal axis."""
    x_text: Callable[[float], str]
    y_text: Callable[[float], str]
    from_zero: bool = False
    """Whether the vertical axis begins at zero."""
    most: float | None = None
    """The upper end of the vertical axis; None: that of the curve."""
    least_step: float = 0.0
    """Between two values on the vertical axis: those closer to each other have the same text."""


def curve(title: str, points: Sequence[CurvePoint], axes: Axes) -> str:
    """Return the drawing as SVG; `points` are at least one, in their order."""
    scale = _Scale.of(points, axes)
    lines = "".join(
        f'<path class="c-grid" d="M{LEFT} {scale.y(value):.1f}H{WIDTH - RIGHT}"/>'
        + _text(LEFT - 6, scale.y(value) + 4, axes.y_text(value), "end")
        for value in scale.lines(axes.least_step)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="curve" role="img" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f"<title>{escaped(title)}</title><desc>{escaped(_described(points, axes))}</desc>"
        f"{lines}{_across(scale, axes)}{_band(points, scale)}{_line(points, scale)}</svg>"
    )


def _described(points: Sequence[CurvePoint], axes: Axes) -> str:
    values = [point.y for point in points]
    figures = (("first", values[0]), ("last", values[-1]), ("lowest", min(values)))
    told = [f"{name} {axes.y_text(value)}" for name, value in (*figures, ("highest", max(values)))]
    return ", ".join(told)


class _Scale(Struct, frozen=True):
    left: float
    right: float
    low: float
    high: float

    @classmethod
    def of(cls, points: Sequence[CurvePoint], axes: Axes) -> _Scale:
        lows = [point.y if point.low is None else point.low for point in points]
        highs = [point.y if point.high is None else point.high for point in points]
        low = 0.0 if axes.from_zero else min(lows)
        high = max(highs) if axes.most is None else axes.most
        if high <= low:
            room = abs(low) * 0.1 or 1.0
            low, high = (low if axes.from_zero else low - room), low + room
        first, last = min(point.x for point in points), max(point.x for point in points)
        return cls(first, last if last > first else first + 1.0, low, high)

    def x(self, value: float) -> float:
        share = (value - self.left) / (self.right - self.left)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)

    def lines(self, least_step: float) -> list[float]:
        """Return round values for the horizontal lines."""
        step = _round_step(max((self.high - self.low) / LINES, least_step))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, min(last, first + 2 * LINES) + 1)]


def _round_step(step: float) -> float:
    """Return the next number of the form 1, 2 or 5 times a power of ten."""
    size = 10 ** math.floor(math.log10(step))
    return float(next(size * factor for factor in (1, 2, 5, 10) if size * factor >= step * 0.999))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'


def _across(scale: _Scale, axes: Axes) -> str:
    y = HEIGHT - BOTTOM + 16
    middle = (LEFT + WIDTH - RIGHT) / 2
    ends = (
        _text(LEFT, y, axes.x_text(scale.left), "start"),
        _text(WIDTH - RIGHT, y, axes.x_text(scale.right), "end"),
    )
    return f"{''.join(ends)}{_text(middle, y + 12, axes.across, 'middle')}"


def _line(points: Sequence[CurvePoint], scale: _Scale) -> str:
    """Return the line; it is interrupted where a restart goes back."""
    parts = []
    before: CurvePoint | None = None
    for point in points:
        is_back = before is not None and point.x < before.x
        letter = "M" if before is None or is_back else "L"
        parts.append(f"{letter}{scale.x(point.x):.1f} {scale.y(point.y):.1f}")
        before = point
    last = points[-1]
    dot = f'<circle class="c-dot" cx="{scale.x(last.x):.1f}" cy="{scale.y(last.y):.1f}" r="3"/>'
    return f'<path class="c-line" d="{"".join(parts)}"/>{dot}'


def _band(points: Sequence[CurvePoint], scale: _Scale) -> str:
    if any(point.low is None or point.high is None for point in points) or len(points) < 2:
        return ""
    upper = [f"{scale.x(p.x):.1f} {scale.y(p.high or 0.0):.1f}" for p in points]
    lower = [f"{scale.x(p.x):.1f} {scale.y(p.low or 0.0):.1f}" for p in reversed(points)]
    return f'<path class="c-band" d="M{"L".join((*upper, *lower))}Z"/>'
