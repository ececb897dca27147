"""The result of a rehearsal as one page of text. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dslaunch.durations import elapsed_text, short_time_text
from dslaunch.plural import byte_count, counted, first_few
from dslaunch.run.rehearsal_result import Verdict
from dslaunch.terminal import PLAIN, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.lint import Level
    from dslaunch.rehearsal.findings import Finding
    from dslaunch.rehearsal.judge import Judged, Rehearsal
    from dslaunch.rehearsal.measured import Measured

VERDICTS: Mapping[Verdict, str] = {
    Verdict.WOULD_RUN: "would run",
    Verdict.WOULD_FAIL: "would fail",
    Verdict.NOT_REHEARSED: "not rehearsed",
}
COLORS: Mapping[Level, str] = {"error": "\x1b[1;31m", "warning": "\x1b[33m"}
MOST_SHOWN = 4
"""Directories and hosts that are shown."""
NAME = 15
"""Columns of the names of measured values."""


def rehearsal_rows(
    program: str, rehearsal: Judged, width: int | None, *, color: bool = False
) -> Iterator[str]:
    """Yield the verdict, the findings, what was measured, and what was not rehearsed."""
    yield from _wrapped(_head(program, rehearsal), width, "", "  ")
    for finding in rehearsal.findings:
        yield from finding_rows(finding, width, color=color)
    if not rehearsal.findings:
        yield "no findings"
    if rehearsal.measured.steps:
        yield "measured:"
        for name, value in measured_values(rehearsal.measured):
            yield from _wrapped(value, width, f"  {name:<{NAME}} ", " " * (NAME + 3))
    if rehearsal.not_rehearsed:
        yield "not rehearsed:"
        for gap in rehearsal.not_rehearsed:
            yield from _wrapped(gap.text, width, "  ", "    ")


def _head(program: str, rehearsal: Judged) -> str:
    measured = rehearsal.measured
    size = f"{counted(measured.ranks, 'rank')} on {counted(measured.nodes, 'node')}"
    if measured.full_ranks is not None and measured.full_nodes is not None:
        full = f"{counted(measured.full_ranks, 'rank')} on {counted(measured.full_nodes, 'node')}"
        size = f"{size}, judged for {full}"
    steps = counted(measured.steps, "optimizer step")
    took = elapsed_text(measured.seconds)
    verdict = VERDICTS[rehearsal.verdict]
    return f"{program}: {verdict} · {size} · {steps} · {took}"


def finding_rows(finding: Finding, width: int | None, *, color: bool) -> Iterator[str]:
    """Yield one finding: what and where, its evidence, what to do."""
    head = f"{finding.where}: {finding.text} [{finding.code}]"
    first, *more = _wrapped(head, width, f"{finding.level}: ", "    ")
    painted = color and finding.level in COLORS
    start = len(finding.level)
    yield f"{COLORS[finding.level]}{first[:start]}{PLAIN}{first[start:]}" if painted else first
    yield from more
    if finding.evidence:
        yield from _wrapped(finding.evidence, width, "    evidence: ", "      ")
    if finding.hint:
        yield from _wrapped(finding.hint, width, "    hint: ", "      ")


def measured_values(measured: Measured) -> Iterator[tuple[str, str]]:
    """Yield the names and values of what was measured."""
    yield from _named("process group", [measured.backend, _ranks(measured)])
    yield from _named("model", _model(measured))
    yield from _named("optimizer", [measured.optimizer, _rates(measured)])
    yield from _named("data", _data(measured))
    yield from _named("steps", _steps(measured))
    yield from _named("memory", _memory(measured))
    written = ", ".join(first_few(measured.written, MOST_SHOWN))
    yield from _named("written", [f"{written} (nothing was removed)" if written else None])
    hosts = ", ".join(first_few(measured.hosts, MOST_SHOWN))
    yield from _named("network", [hosts or None])


def _named(name: str, parts: list[str | None]) -> Iterator[tuple[str, str]]:
    """Yield the known parts of a value; nothing if none is known."""
    known = [part for part in parts if part]
    if known:
        yield name, ", ".join(known)


def _ranks(measured: Measured) -> str | None:
    return counted(measured.world, "rank") if measured.world is not None else None


def _model(measured: Measured) -> list[str | None]:
    size = trainable = None
    if measured.parameters is not None:
        size = f"{measured.parameters:,} parameters"
    if measured.trainable is not None and measured.trainable != measured.parameters:
        trainable = f"{measured.trainable:,} trainable"
    stage = f"ZeRO stage {measured.stage}" if measured.stage is not None else None
    types = " and ".join(measured.precision)
    return [measured.model, size, trainable, types, measured.wrapper, stage]


def _rates(measured: Measured) -> str | None:
    rates = [f"{rate:g}" for rate in measured.learning_rates]
    if len(set(rates)) == 1:
        return f"learning rate {rates[0]}"
    return f"learning rate {', '.join(rates)}" if rates else None


def _data(measured: Measured) -> list[str | None]:
    batch = f"batches of {measured.batch}" if measured.batch is not None else None
    samples = f"{measured.samples:,} samples" if measured.samples is not None else None
    return [batch, samples, measured.sampler]


def _steps(measured: Measured) -> list[str | None]:
    losses = [f"{loss:.4g}" for loss in measured.losses]
    speed = None
    if measured.step_seconds is not None:
        speed = f"{short_time_text(measured.step_seconds)} per step"
    return [speed, f"loss {', '.join(losses)}" if losses else None]


def _memory(measured: Measured) -> list[str | None]:
    cpu = gpu = states = None
    if measured.memory is not None:
        cpu = f"{byte_count(measured.memory)} of CPU memory per rank at most"
    if measured.gpu_memory is not None:
        gpu = f"{byte_count(measured.gpu_memory)} of GPU memory"
    if measured.model_states is not None:
        states = f"model states about {byte_count(measured.model_states)} per GPU"
    return [cpu, gpu, states]


def stack_rows(rehearsal: Rehearsal, width: int) -> list[str]:
    """Return what the ranks were doing when they made no step in time; empty: they did."""
    if not rehearsal.outcome.stacks:
        return []
    from dslaunch.report import stacks

    text = stacks.outcome_page(rehearsal.outcome, width)
    return ["stacks of the ranks:", *(f"  {line}" for line in text.splitlines())]


def _wrapped(words: str, width: int | None, first: str, further: str) -> list[str]:
    text = one_line(words)
    if width is None:
        return [first + text]
    wrapper = textwrap.TextWrapper(
        max(width, len(further) + 30),
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.wrap(text) or [first]
