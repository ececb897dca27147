"""The curves of a run on its page: loss, steps per second, and the usage of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.durations import duration_text
from dslaunch.plural import byte_count
from dslaunch.report.curves_svg import Axes, CurvePoint, curve
from dslaunch.run.progress_history import ProgressHistory, step_rates
from dslaunch.run.usage_history import Measure, UsageCurve

if TYPE_CHECKING:
    from dslaunch.run.run_details import RunDetails


class Chart(Struct, frozen=True):
    """A drawing with its caption."""

    title: str
    svg: str
    caption: str


def training_charts(details: RunDetails) -> list[Chart]:
    """Return the curves of the loss and of the steps per second."""
    progress = details.progress
    charts = []
    losses = [CurvePoint(p.step, p.loss) for p in progress.points if p.loss is not None]
    if losses:
        charts.append(_loss_chart(progress.rank, losses))
    rates = [CurvePoint(at - details.started, rate) for at, rate in _rates(progress)]
    if len(rates) > 1:
        charts.append(_rate_chart(progress.rank, rates))
    return charts


def _loss_chart(rank: int | None, losses: Sequence[CurvePoint]) -> Chart:
    axes = Axes("step", lambda value: f"{value:,.0f}", number_text)
    lowest = min(losses, key=lambda point: point.y)
    caption = (
        f"of rank {rank}; last {number_text(losses[-1].y)}, "
        f"lowest {number_text(lowest.y)} at step {lowest.x:,.0f}"
    )
    return Chart("Loss", curve("Loss by step", losses, axes), caption)


def _rate_chart(rank: int | None, rates: Sequence[CurvePoint]) -> Chart:
    axes = Axes("time since the start", duration_text, number_text, from_zero=True)
    caption = f"of rank {rank}; last {number_text(rates[-1].y)}"
    svg = curve("Steps per second over time", rates, axes)
    return Chart("Steps per second", svg, caption)


def _rates(progress: ProgressHistory) -> list[tuple[float, float]]:
    """Return the steps per second as the rank printed them, else by the times of its lines."""
    told = [(p.time, p.steps_per_second) for p in progress.points if p.steps_per_second is not None]
    return told if len(told) > 1 else step_rates(progress.points)


class _MeasureStyle(Struct, frozen=True):
    """How a measure is shown."""

    title: str
    text: Callable[[float], str]
    rounds_to: float = 1.0
    """The smallest difference that the text shows."""
    most: float | None = None


def _percent(value: float) -> str:
    return f"{value * 100:.0f} %"


def _rate(value: float) -> str:
    """Return bytes per second without the decimals of round numbers, which labels have no room
    for."""
    return f"{byte_count(round(value)).replace('.0 ', ' ')}/s"


def _share(title: str) -> _MeasureStyle:
    return _MeasureStyle(title, _percent, rounds_to=0.01, most=1.0)


_MEASURES: Mapping[Measure, _MeasureStyle] = {
    Measure.GPU_BUSY: _share("GPU utilization"),
    Measure.GPU_MEMORY: _share("GPU memory"),
    Measure.GPU_POWER: _MeasureStyle("GPU power", lambda value: f"{value:.0f} W"),
    Measure.GPU_TEMPERATURE: _MeasureStyle("GPU temperature", lambda value: f"{value:.0f} °C"),
    Measure.CPU: _share("CPU utilization"),
    Measure.MEMORY: _share("Host memory"),
    Measure.RECEIVED: _MeasureStyle("Network, received", _rate),
    Measure.SENT: _MeasureStyle("Network, sent", _rate),
    Measure.FABRIC_RECEIVED: _MeasureStyle("InfiniBand or RoCE, received", _rate),
    Measure.FABRIC_SENT: _MeasureStyle("InfiniBand or RoCE, sent", _rate),
    Measure.DISK_READ: _MeasureStyle("Disk, read", _rate),
    Measure.DISK_WRITTEN: _MeasureStyle("Disk, written", _rate),
    Measure.CPU_THROTTLED: _share("Held back by a CPU limit"),
}


def resource_charts(details: RunDetails) -> list[Chart]:
    """Return a curve for each measure of the nodes."""
    return [_resource_chart(each, details.started) for each in details.usage]


def _resource_chart(usage: UsageCurve, start: float) -> Chart:
    shown = _MEASURES[usage.measure]
    points = [
        CurvePoint(point.time - start, point.middle, point.low, point.high)
        for point in usage.points
    ]
    axes = Axes(
        "time since the start",
        duration_text,
        shown.text,
        from_zero=True,
        most=shown.most,
        least_step=shown.rounds_to,
    )
    svg = curve(f"{shown.title} over time", points, axes)
    return Chart(shown.title, svg, _usage_caption(usage))


def _usage_caption(usage: UsageCurve) -> str:
    if usage.nodes < 2:
        return f"of {usage.highest}"
    if usage.lowest == usage.highest:
        return f"equal on all {usage.nodes} nodes"
    return f"lowest on {usage.lowest}, highest on {usage.highest}"


def number_text(value: float) -> str:
    """Return a number with four significant digits: `2.113`, `0.000125`, `1,240`."""
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
