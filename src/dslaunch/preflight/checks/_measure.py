"""What measures on the nodes: programs that are sent along, and figures that are compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from statistics import median
from typing import Any

from dslaunch.preflight.check import Answers, Level, Question, Scope, UnansweredError
from dslaunch.preflight.checks._machine import INTERFACES, own_interface

SLOW: Mapping[str, float] = {"warn": 0.7, "fail": 0.3}
SLOW_MEANS = "share of the nodes' median"


@cache
def program(name: str) -> str:
    """The text of a program of `dslaunch.node`, which needs nothing else of ours."""
    return (resources.files("dslaunch") / "node" / f"{name}.py").read_text("utf-8")


def plain(a: Answers, name: str, arguments: Mapping[str, Any], timeout: float) -> Question:
    """Run a program that needs nothing but Python."""
    argv = [a.hello["executable"], "-I", "-S", "-", json.dumps(arguments)]
    return Question("run", {"argv": argv}, timeout, program(name))


def job_environment(a: Answers) -> dict[str, str]:
    """The variables that a job has on the node, as far as they are known without starting one."""
    env = {"OMP_NUM_THREADS": "1", **dict(a.scope.cluster.env), **dict(a.node.env)}
    own = own_interface(a) if "value" in a.recorded.get(INTERFACES.key, {}) else None
    interface = a.scope.cluster.network.interface or (own["name"] if own else None)
    if interface is not None:
        env.setdefault("GLOO_SOCKET_IFNAME", interface)
        env.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    if a.node.slots != tuple(range(len(a.node.slots))):
        env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, a.node.slots)))
    return env


def said(a: Answers, question: Question) -> Any:
    """What a program printed last. Raises UnansweredError."""
    done = a.value(question)
    try:
        found = json.loads(done["out"].strip().rpartition("\n")[2])
    except ValueError:
        found = None
    if done["code"] or not isinstance(found, dict):
        last = done["err"].strip().rpartition("\n")[2][:200]
        raise UnansweredError(last or f"the program ended with {done['code']}")
    if "error" in found:
        raise UnansweredError(str(found["error"]))
    return found


def rate_of(a: Answers, question: Question) -> float:
    """Bytes per second that a program measured. Raises UnansweredError."""
    found = said(a, question)
    try:
        return float(found["bytes"]) / max(1e-6, float(found["seconds"]))
    except (KeyError, TypeError, ValueError):
        raise UnansweredError("the program printed no figures") from None


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
