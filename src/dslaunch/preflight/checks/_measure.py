"""What measures on the nodes: programs that are sent along, and figures that are compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from dslaunch.preflight.check import Finding, Level, NodeAnswers, Question, Scope, UnansweredError
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.unanswered import reason_of
from dslaunch.protocol import programs
from dslaunch.protocol.values import InvalidAnswer, Model

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SLOW: Mapping[str, float] = {"warn": 0.7, "fail": 0.3}
SLOW_MEANS = "share of the nodes' median"


def plain(a: NodeAnswers, name: str, arguments: Mapping[str, Any], timeout: float) -> Question:
    """Run a program that needs nothing but Python."""
    argv = [a.hello["executable"], "-I", "-S", "-", json.dumps(arguments)]
    return Question("run", {"argv": argv}, timeout, job.program(name))


def said(a: NodeAnswers, question: Question, adapter: TypeAdapter[Model]) -> Model:
    """What a program of ours printed last. Raises UnansweredError."""
    done = a.value(question)
    if done["code"]:
        last = done["err"].strip().rpartition("\n")[2][:200]
        raise UnansweredError(last or f"the program ended with {done['code']}", reason_of(last))
    try:
        found = programs.printed(adapter, done["out"])
    except InvalidAnswer as error:
        last = done["err"].strip().rpartition("\n")[2][:200]
        raise UnansweredError(last or f"the program printed no figures ({error})") from None
    if isinstance(found, programs.Failed):
        raise UnansweredError(found.error, reason_of(found.error))
    return found


def rate_of(a: NodeAnswers, question: Question) -> float:
    """Bytes per second that a program measured. Raises UnansweredError."""
    found = said(a, question, programs.TRANSFERRED)
    return found.bytes / max(1e-6, found.seconds)


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
    expected = f"as the others: {shown(others)}" if others else ""
    for host, level in odd.items():
        yield Finding(level, found.format(shown([rates[host]])), expected, hosts=(host,))


def speed(rate: float) -> str:
    """Bytes per second as the network's people write them: GB are 10^9 bytes."""
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
