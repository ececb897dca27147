"""A preflight as text and JSON: the worst first, equal findings of many nodes in one line. Pure."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from msgspec import to_builtins
from msgspec.structs import replace

from dslaunch.cluster.nodeset import fold
from dslaunch.durations import elapsed_text
from dslaunch.json_text import json_text
from dslaunch.plural import counted
from dslaunch.preflight.baseline import FindingChange
from dslaunch.preflight.check import Check, Finding, Level, Scope
from dslaunch.preflight.judge import Report
from dslaunch.preflight.measurement import Measurement
from dslaunch.preflight.verdict import Fitness, hosts_that_are
from dslaunch.report.node_list import listed_nodes
from dslaunch.report.output_stream import ERASE
from dslaunch.report.status_line import SEPARATOR, joined
from dslaunch.report.width import columns
from dslaunch.terminal import PLAIN, one_line

WORDS: Mapping[Level, str] = {
    "fail": "FAIL",
    "warn": "warn",
    "unknown": "????",
    "info": "info",
    "skip": "skip",
    "pass": "ok",
}
MOST_RESULTS = 8
"""Results of one check and level that a person is shown."""
REDRAW = 1.0
"""Seconds between two states of the progress line while nothing happens."""
COLORS: Mapping[Level, str] = {
    "fail": "\x1b[1;31m",
    "warn": "\x1b[33m",
    "unknown": "\x1b[35m",
    "pass": "\x1b[32m",
}


def rows(report: Report, width: int | None, *, every: bool, color: bool) -> Iterator[str]:
    """Yield the findings, a summary and the verdicts; `every`: also what passed."""
    shown = [f for f in readable(report.findings) if every or f.level not in ("pass", "skip")]
    name = max((len(f.check) for f in shown), default=0)
    for finding in shown:
        yield from finding_rows(finding, name, width, color=color)
    yield from _wrapped(summary(report), width, "", "  ")
    yield from _wrapped(verdict_line(report), width, "", "  ")


def readable(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings as a person can read them: of a check with another result on each of many
    nodes, the results of the most nodes, and one finding for all others. JSON has each."""
    of_level: dict[tuple[str, Level], list[Finding]] = {}
    for finding in findings:
        of_level.setdefault((finding.check, finding.level), []).append(finding)
    few = {key: _few(several) for key, several in of_level.items()}
    # in the order of the findings, which begin with the worst
    return [finding for several in few.values() for finding in several]


def _few(findings: Sequence[Finding]) -> list[Finding]:
    if len(findings) <= MOST_RESULTS:
        return list(findings)
    by_number = sorted(findings, key=lambda finding: -len(finding.hosts))
    first, others = by_number[: MOST_RESULTS - 1], by_number[MOST_RESULTS - 1 :]
    hosts = dict.fromkeys(host for finding in others for host in finding.hosts)
    results = counted(len(others) - 1, "other result")
    found = f"{others[0].found}; {results} on the other nodes"
    return [*first, replace(others[0], found=found, hosts=tuple(hosts))]


def finding_rows(finding: Finding, name: int, width: int | None, *, color: bool) -> Iterator[str]:
    """Yield one finding: what and where, then what to do."""
    word = f"{WORDS[finding.level]:<4}"
    painted = f"{COLORS[finding.level]}{word}{PLAIN}" if finding.level in COLORS else word
    found = finding.found + (f"; expected: {finding.expected}" if finding.expected else "")
    text = f"{finding.check:<{name}}  {listed_nodes(finding.hosts)}: {found}"
    first, *more = _wrapped(text, width, " " * 6, " " * (name + 8))
    yield (painted if color else word) + first[4:]
    yield from more
    for what, words in (("fix", finding.fix), ("see", finding.see)):
        if words:
            yield from _wrapped(f"{what}: {words}", width, " " * (name + 8), " " * (name + 13))


def _wrapped(words: str, width: int | None, first: str, further: str) -> list[str]:
    text = one_line(words)
    if width is None:
        return [first + text]
    room = max(width, len(further) + 30)
    wrapper = textwrap.TextWrapper(
        room,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.wrap(text) or [first]


def summary(report: Report) -> str:
    """Return the number of nodes, and of findings of each kind."""
    hosts = [node.host for node in report.scope.nodes]
    silent = sum(host not in report.facts.nodes for host in hosts)
    nodes = counted(len(hosts), "node") + (f", {silent} did not answer" if silent else "")
    counts = (
        f"{report.count('fail')} failed",
        counted(report.count("warn"), "warning"),
        f"{report.count('unknown')} unknown",
        f"{counted(report.count('pass'), 'check')} passed",
    )
    verdict = "fit to train on" if report.fit else "NOT fit to train on"
    if not report.fit and not hosts_that_are(report.verdicts, Fitness.UNFIT, Fitness.UNKNOWN):
        verdict = "fit to train on, but the job would fail"
    elif report.fit and report.count("unknown"):
        verdict = "fit to train on, as far as is known"
    return f"{nodes}: {', '.join(counts)}: {verdict}"


def verdict_line(report: Report) -> str:
    """Return which nodes are unfit, unknown and fit, each with their number."""
    parts = []
    for fitness in (Fitness.UNFIT, Fitness.UNKNOWN, Fitness.FIT):
        hosts = hosts_that_are(report.verdicts, fitness)
        if hosts:
            parts.append(f"{fitness}: {listed_nodes(hosts)} ({len(hosts)})")
    return "   ".join(parts)


def change_rows(found: Sequence[FindingChange], width: int | None = None) -> Iterator[str]:
    """Yield what differs from the baseline."""
    if not found:
        yield "no change since the baseline"
    for change in found:
        sign = "worse" if change.worse else "changed"
        was = f"{change.before[0]}, {change.before[1]}" if change.before else "no result"
        now = f"{change.now[0]}, {change.now[1]}" if change.now else "no result"
        text = f"{sign}: {change.check} {listed_nodes(change.hosts)}: {was} -> {now}"
        yield from _wrapped(text, width, "", "  ")


def as_json(report: Report) -> str:
    """Return the same as JSON."""
    return json_text(
        {
            "cluster": report.scope.cluster.name,
            "time": report.facts.time,
            "fit": report.fit,
            "nodes": [node.host for node in report.scope.nodes],
            "verdicts": [to_builtins(verdict) for verdict in report.verdicts],
            "findings": [_as_dict(finding) for finding in report.findings],
        },
        indent=2,
    )


def _as_dict(finding: Finding) -> dict[str, Any]:
    names = ("check", "level", "hosts", "found", "expected", "fix", "see", "code")
    return {name: getattr(finding, name) for name in names}


class ProgressLine:
    """How many nodes have connected and answered, then what is being measured on them.

    One line at the bottom of a terminal; elsewhere a line for each check that measures.
    """

    def __init__(
        self,
        scope: Scope,
        err: TextIO,
        *,
        live: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hosts = [node.host for node in scope.nodes]
        self.err, self.live, self.clock = err, live, clock
        self.stage = dict.fromkeys(self.hosts, "")
        self.measurement: Measurement | None = None
        self.deadline = 0.0
        """When the check that measures ends at the latest, by the clock."""
        self.lock = threading.Lock()
        self._ended = threading.Event()

    def note(self, host: str, stage: str) -> None:
        """Record how far a node is."""
        with self.lock:
            self.stage[host] = stage
            if stage == "answered":
                self.measurement = None
            self._draw()

    def begin_measurement(self, measurement: Measurement) -> None:
        """Show what is being measured now."""
        with self.lock:
            is_first = self.measurement is None
            self.measurement = measurement
            self.deadline = self.clock() + measurement.seconds
            if self.live:
                self._draw()
            elif measurement.round == 1:
                self.err.write(f"{one_line(_beginning(measurement))}\n")
                self.err.flush()
        if self.live and is_first:
            threading.Thread(target=self._tick, name="dslaunch-progress", daemon=True).start()

    def end(self) -> None:
        """Erase the line."""
        self._ended.set()
        with self.lock:
            if self.live:
                self.err.write(ERASE)
                self.err.flush()

    def __str__(self) -> str:
        """Return the line as far as a terminal of any width shows it."""
        return SEPARATOR.join(self._parts())

    def _tick(self) -> None:
        while not self._ended.wait(REDRAW):
            with self.lock:
                self._draw()

    def _draw(self) -> None:
        if self.live and not self._ended.is_set():
            text = joined(list(self._parts()), columns(self.err) - 3)
            self.err.write(f"{ERASE}{one_line(text)}")
            self.err.flush()

    def _parts(self) -> Iterator[str]:
        """Yield how many nodes answered and which are pending, or what is being measured."""
        if self.measurement is not None:
            left = max(0.0, self.deadline - self.clock())
            yield f"measuring {self.measurement.check}"
            yield f"round {self.measurement.round}/{self.measurement.rounds}"
            yield f"up to {elapsed_text(left)} left"
            if self.measurement.more_checks:
                yield f"{counted(self.measurement.more_checks, 'more check')}"
            return
        waiting = [host for host in self.hosts if self.stage[host] in ("", "connected")]
        done = len(self.hosts) - len(waiting)
        yield f"nodes asked: {done} of {len(self.hosts)}"
        yield f"waiting for {fold(waiting)}" if waiting else "comparing"


def _beginning(measurement: Measurement) -> str:
    rounds = counted(measurement.rounds, "round")
    up_to = elapsed_text(measurement.seconds)
    return f"measuring {measurement.check}: {rounds}, up to {up_to}"


def explanation(name: str, check: Check) -> Iterator[str]:
    """Yield all texts of a check."""
    yield f"{name}: {check.title}"
    own = ", ".join(f"{key} {value:g}" for key, value in check.limits.items())
    parts = (
        ("tier", check.tier),
        ("why", check.why),
        ("thresholds", f"{own} ({check.limits_mean})" if own else ""),
        ("fix", check.fix),
        ("see", check.see),
        ("source", check.source),
    )
    for what, text in parts:
        if text:
            yield textwrap.fill(
                f"{what}: {text}",
                80,
                initial_indent="  ",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
