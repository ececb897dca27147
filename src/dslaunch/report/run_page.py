"""A run as one HTML page: readable offline, on paper, on a phone and without color.

Nothing is loaded, and no script is needed. What comes from nodes, files and users is escaped by the
template's environment, and bounded here.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.cluster.nodeset import fold, ranks_text
from dslaunch.durations import clock_text, duration_text
from dslaunch.plural import byte_count, counted
from dslaunch.render.templates import render_page
from dslaunch.report.event_text import secondary_text
from dslaunch.report.page import SIGNS, WORDS
from dslaunch.report.rehearsal import rehearsal_rows
from dslaunch.report.run_charts import resource_charts, training_charts
from dslaunch.report.status import status_text, unknown_text
from dslaunch.report.straggler_text import straggler_rows
from dslaunch.report.timeline import timeline
from dslaunch.report.timeline_svg import drawing, legend
from dslaunch.run.compare_runs import Change, config_changes, folded_values
from dslaunch.run.outcome import SHOWN_LINES, Outcome, failed
from dslaunch.run.progress_history import slowest_ranks
from dslaunch.run.rehearsal_result import Verdict
from dslaunch.run.run_state import State
from dslaunch.run.secret_names import masked_args, masked_credentials, masked_value
from dslaunch.terminal import without_color

if TYPE_CHECKING:
    from dslaunch.preflight.check import Level
    from dslaunch.rehearsal.judge import Judged
    from dslaunch.run.events import Event
    from dslaunch.run.reasons import RankSource
    from dslaunch.run.recorded_run import PlannedDecision
    from dslaunch.run.run_details import RunDetails
    from dslaunch.run.run_inputs import RecordedConfig, RecordedFinding
    from dslaunch.run.status import RunStatus

MOST_VARIABLES = 200
MOST_LISTED = 60
"""Decisions, warnings and findings, each."""
MOST_CONFIGS = 4
MOST_FAILED = 6
"""Groups of failed ranks whose last lines are shown."""
MOST_SECONDARY = 20
MOST_STACKS = 30_000
"""Characters of stacks."""
LONGEST = 400
"""Characters of a value or a line."""
REHEARSAL_WIDTH = 100
"""Columns of the text of a rehearsal."""
MOST_CONFIG = 20_000
"""Characters of a DeepSpeed config."""
STATE_SIGNS: Mapping[State, str] = {
    State.SUCCEEDED: "✓",
    State.FAILED: "✗",
    State.STOPPED: "■",
    State.RUNNING: "▶",
    State.PARTLY_RUNNING: "▶",
    State.ORPHANED: "!",
    State.UNKNOWN: "?",
}
_WRONG = (State.FAILED, State.ORPHANED)


class Fact(Struct, frozen=True):
    """A name with a value."""

    name: str
    value: str


class LastOutput(Struct, frozen=True):
    """The last lines of ranks that wrote the same."""

    ranks: str
    """Folded, with their nodes."""
    lines: tuple[str, ...]


class Cause(Struct, frozen=True):
    """Why a run failed, as its outcome says."""

    message: str
    reason: str
    hint: str
    evidence: tuple[Fact, ...]
    lines: tuple[str, ...]
    alike: str
    secondary: tuple[str, ...]
    more_secondary: int
    others: tuple[LastOutput, ...]
    """Last lines of other failed ranks."""
    left: tuple[str, ...]
    stacks: str


class ShownConfig(Struct, frozen=True):
    """A DeepSpeed config, and what dslaunch has changed in it."""

    path: str
    text: str
    changes: tuple[Change, ...]


class ShownFinding(Struct, frozen=True):
    """A finding of the checks before the start."""

    level: Level
    sign: str
    word: str
    hosts: str
    finding: RecordedFinding


def run_page(details: RunDetails, rehearsal: Judged | None = None) -> str:
    """Return the page of a run. `rehearsal`: what it has shown if it was one."""
    status = details.status
    recorded = details.recorded
    outcome = status.result
    end = details.ended or details.time
    first_failure = None if outcome is None else outcome.cause
    course = timeline(details.events, details.started, end, first_failure)
    decisions = () if recorded.plan is None else recorded.plan.decisions
    inputs = recorded.inputs
    findings = () if inputs is None else inputs.findings[:MOST_LISTED]
    configs = () if inputs is None else inputs.configs[:MOST_CONFIGS]
    return render_page(
        "run.html.j2",
        title=_short(f"Run {details.name}"),
        state=status_text(status),
        sign=_sign(status),
        is_wrong=status.state in _WRONG or status.rehearsal is Verdict.WOULD_FAIL,
        summary=_summary(details),
        made=_utc(details.time),
        facts=_facts(details),
        cause=None if outcome is None or outcome.status == "ok" else cause_of(details, outcome),
        rehearsal=_rehearsal(details, rehearsal),
        timeline=drawing(course) if details.events else "",
        legend=legend(),
        course=course,
        clock=clock_text,
        training=training_charts(details),
        slower_ranks=slowest_ranks(details.progress.paces),
        late_ranks=details.late,
        stragglers=straggler_rows(details.status.slower),
        resources=resource_charts(details),
        warnings=[each for each in decisions if each.what == "warning"][:MOST_LISTED],
        decisions=[each for each in decisions if each.what != "warning"][:MOST_LISTED],
        reason=_reason,
        inputs=inputs,
        findings=[_finding(each) for each in findings],
        configs=[_config(each) for each in configs],
        command=_command(details),
        arguments=_arguments(details),
        variables=_variables(details),
        versions=_versions(details),
        notices=[_short(notice) for notice in details.notices],
        damaged=details.damaged_lines,
        directory=_short(str(recorded.directory or "")),
        counted=counted,
    )


def _sign(status: RunStatus) -> str:
    """Return the sign of a run's state; that of a failure also if a rehearsal says so."""
    state = State.FAILED if status.rehearsal is Verdict.WOULD_FAIL else status.state
    return STATE_SIGNS.get(state, "…")


def _rehearsal(details: RunDetails, rehearsal: Judged | None) -> str:
    """Return the page of a rehearsal as text; empty: the run was none."""
    if rehearsal is None:
        return ""
    rows = rehearsal_rows(details.status.record.program, rehearsal, REHEARSAL_WIDTH)
    return "\n".join(rows)


def _summary(details: RunDetails) -> str:
    status, record = details.status, details.status.record
    size = f"{counted(record.world_size, 'rank')} on {counted(len(record.hosts), 'node')}"
    if status.state is State.UNKNOWN and status.unknown is not None:
        return f"{size}: {unknown_text(status.unknown)}"
    if status.result is None or status.may_continue:
        return f"{size}, so far {duration_text(details.time - details.started)}"
    if details.ended is None:
        return f"{size}: {_short(status.result.message)}"
    after = duration_text(details.ended - details.started)
    return f"{size}, after {after}: {_short(status.result.message)}"


def _facts(details: RunDetails) -> list[Fact]:
    """Return the head of the page."""
    status, record = details.status, details.status.record
    facts = [
        Fact("program", record.program),
        Fact("cluster", record.cluster),
        Fact("launcher", record.launcher),
        Fact("nodes", f"{len(record.hosts)}: {fold(record.hosts)}"),
        Fact("ranks", str(record.world_size)),
        Fact("started", _utc(details.started)),
    ]
    if record.machine:
        facts.append(Fact("started on", record.machine))
    if record.slurm is not None:
        facts.append(Fact("SLURM job", record.slurm.job))
    if record.attempt:
        facts.append(Fact("restarts", str(record.attempt)))
    if details.ended is not None:
        facts.append(Fact("duration", duration_text(details.ended - details.started)))
    if status.result is not None:
        facts.append(Fact("exit code", str(status.result.exit_code)))
    return [Fact(fact.name, _short(fact.value)) for fact in facts if fact.value]


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _short(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


# ---------------------------------------------------------------- the root cause


def cause_of(details: RunDetails, outcome: Outcome) -> Cause:
    """Return why a run ended, in the words of its outcome."""
    shown = [_short(secondary_text(each)) for each in outcome.secondary[:MOST_SECONDARY]]
    left = [f"could not be killed: {each}" for each in outcome.left]
    if outcome.unconfirmed:
        left.append(f"could not verify cleanup on {fold(outcome.unconfirmed)}")
    return Cause(
        message=_short(outcome.message),
        reason=_short(outcome.what or ""),
        hint=_short(outcome.hint or ""),
        evidence=_evidence(outcome.cause),
        lines=_lines(outcome.last_lines),
        alike=_short(_sources(outcome.alike)),
        secondary=tuple(shown),
        more_secondary=max(len(outcome.secondary) - MOST_SECONDARY, 0),
        others=_last_output(details, outcome),
        left=tuple(map(_short, left[:MOST_SECONDARY])),
        stacks=_stacks(outcome),
    )


def _evidence(cause: Event | None) -> tuple[Fact, ...]:
    """Return what the node observed about the rank that failed first."""
    if cause is None or cause.evidence is None:
        return ()
    told = cause.evidence
    facts = [Fact("kernel", told.oom or ""), Fact("full file systems", ", ".join(told.full))]
    if told.shm_free is not None and cause.signal == signal.SIGBUS:
        facts.append(Fact("free in /dev/shm", byte_count(told.shm_free)))
    facts.append(Fact("exception", told.exception or ""))
    return tuple(Fact(fact.name, _short(fact.value)) for fact in facts if fact.value)


def _lines(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(_short(without_color(line)) for line in lines[-SHOWN_LINES:])


def _sources(sources: Sequence[RankSource]) -> str:
    """Return ranks with their nodes: `ranks 0-3 on node[1-2]`."""
    ranks = [rank for _, rank in sources if rank is not None]
    if not ranks:
        return fold(host for host, _ in sources)
    return f"{ranks_text(ranks)} on {fold(host for host, _ in sources)}"


def _last_output(details: RunDetails, outcome: Outcome) -> tuple[LastOutput, ...]:
    """Return the last lines of the other ranks that failed by themselves, equal ones together."""
    own = None if outcome.cause is None else (outcome.cause.host or "", outcome.cause.rank)
    groups: dict[tuple[str, ...], list[RankSource]] = {}
    for event in details.events:
        source = (event.host or "", event.rank)
        if event.kind != "exit" or event.asked or not failed(event) or source == own:
            continue
        lines = _lines(details.last_lines.get(source, ()))
        if lines:
            groups.setdefault(lines, []).append(source)
    return tuple(
        LastOutput(_short(_sources(sources)), lines)
        for lines, sources in list(groups.items())[:MOST_FAILED]
    )


def _stacks(outcome: Outcome) -> str:
    if not outcome.stacks:
        return ""
    from dslaunch.report import stacks

    return _short(stacks.outcome_page(outcome, 110), MOST_STACKS)


# ---------------------------------------------------------------- what it was started from


def _reason(decision: PlannedDecision) -> str:
    return f"assumed: {decision.why}" if decision.assumed else decision.why


def _finding(finding: RecordedFinding) -> ShownFinding:
    unknown: Level = "unknown"
    level = next((each for each in SIGNS if each == finding.level), unknown)
    hosts = _short(fold(finding.hosts))
    return ShownFinding(level, SIGNS[level], WORDS[level], hosts, finding)


def _config(config: RecordedConfig) -> ShownConfig:
    used = config.given if config.used is None else config.used
    return ShownConfig(_short(config.path), _short(used, MOST_CONFIG), config_changes(config))


def _arguments(details: RunDetails) -> str:
    """Return the arguments of the program, quoted for a shell."""
    inputs = details.recorded.inputs
    return "" if inputs is None else _short(shlex.join(masked_args(inputs.args)), 4000)


def _command(details: RunDetails) -> str:
    """Return the command of the first process, quoted for a shell."""
    plan = details.recorded.plan
    if plan is None or not plan.nodes or not plan.nodes[0].processes:
        return ""
    return _short(shlex.join(masked_args(plan.nodes[0].processes[0].command.words)), 4000)


def _variables(details: RunDetails) -> list[Fact]:
    """Return the variables of the job without secrets; those that differ from node to node with
    their nodes."""
    plan, inputs = details.recorded.plan, details.recorded.inputs
    values: Mapping[str, str] = {}
    if plan is not None:
        values = folded_values([(node.host, dict(node.env)) for node in plan.nodes])
    elif inputs is not None:
        values = dict(inputs.env)
    shown = list(values.items())[:MOST_VARIABLES]
    facts = [Fact(name, _short(masked_value(name, value))) for name, value in shown]
    if inputs is not None:
        facts += [Fact(name, "*** (secret)") for name, _ in inputs.secrets[:MOST_VARIABLES]]
    return sorted(facts, key=lambda fact: fact.name)


def _versions(details: RunDetails) -> list[Fact]:
    inputs = details.recorded.inputs
    if inputs is None:
        return []
    groups = inputs.versions
    values = folded_values([(host, group.versions) for group in groups for host in group.hosts])
    return [Fact(name, _short(masked_credentials(value))) for name, value in values.items()]
