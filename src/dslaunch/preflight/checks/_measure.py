"""What is measured on the nodes: figures, and how they are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median

from dslaunch.preflight.check import Finding, Level, NodeAnswers, Question, Scope
from dslaunch.protocol.survey import Transferred

SLOW: Mapping[str, float] = {"warn": 0.7, "fail": 0.3}
SLOW_MEANS = "share of the nodes' median"


def rate_of(a: NodeAnswers, question: Question) -> float:
    """Bytes per second that a node measured. Raises UnansweredError."""
    found: Transferred = a.value(question)
    return found["bytes"] / max(1e-6, found["seconds"])


def limits(scope: Scope, name: str, usual: Mapping[str, float]) -> dict[str, float]:
    """A check's thresholds on this cluster, for what it asks."""
    return {**usual, **dict(dict(scope.cluster.preflight.limits).get(name, ()))}


def slow(
    values: Mapping[str, float], limit: Mapping[str, float], middle: float | None = None
) -> Iterator[tuple[str, Level]]:
    """Who is well below the median, or another figure, and how bad that is."""
    if middle is None:
        middle = median(values.values()) if values else 0.0
    for host, value in values.items():
        if value < limit["fail"] * middle:
            yield host, "fail"
        elif value < limit["warn"] * middle:
            yield host, "warn"


def slow_findings(
    rates: Mapping[str, float],
    limit: Mapping[str, float],
    found: str,
    shown: Callable[[Iterable[float]], str] | None = None,
) -> Iterator[Finding]:
    """Find the nodes that are well below the median. `found`: a text with `{}` for the rate, which
    `shown` makes a text."""
    shown = shown or span
    odd = dict(slow(rates, limit))
    others = [rate for host, rate in rates.items() if host not in odd]
    expected = f"about the others' {shown(others)}" if others else ""
    for host, level in odd.items():
        yield Finding(level, found.format(shown([rates[host]])), expected, hosts=(host,))


def speed(rate: float) -> str:
    """Return bytes per second in the units of networks: GB are 10^9 bytes."""
    for unit in ("B/s", "kB/s", "MB/s", "GB/s"):
        if rate < 1000 or unit == "GB/s":
            break
        rate /= 1000
    return f"{rate:.0f} {unit}" if rate >= 10 else f"{rate:.1f} {unit}"


def span(rates: Iterable[float]) -> str:
    """From the lowest to the highest."""
    values = sorted(rates)
    low, high = speed(values[0]), speed(values[-1])
    return low if low == high else f"{low} to {high}"


def shifts(count: int, rounds: int) -> list[int]:
    """By how many places each node's partner stands further on, round by round: near and far."""
    steps = [1, count // 2, count // 3, *range(1, count)]
    return list(dict.fromkeys(s for s in steps if 0 < s < count))[:rounds]
