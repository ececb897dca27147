"""Judge a rehearsal: would the job run, and train as it should? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dslaunch.cluster.nodeset import ranks_text
from dslaunch.notes import NoteCode
from dslaunch.protocol.rehearsal import (
    Ended,
    Held,
    JoinedRpc,
    Joins,
    Loader,
    Saved,
    Started,
    TorchImported,
    Unrecorded,
)
from dslaunch.rehearsal.collectives import (
    ended_before_others,
    in_different_collectives,
    was_left_by_another,
)
from dslaunch.rehearsal.configs import config_findings
from dslaunch.rehearsal.failure import failure, own_failure
from dslaunch.rehearsal.findings import Finding, FindingKind, finding
from dslaunch.rehearsal.measured import Measured, measure
from dslaunch.rehearsal.ranks import RankRecords, Ranks, ranks_of
from dslaunch.rehearsal.rules import RULES
from dslaunch.run.hang_text import hang_hint, hang_text
from dslaunch.run.hang_verdict import HangCode, HangVerdict
from dslaunch.run.outcome import Outcome
from dslaunch.run.outcome_text import stop_text
from dslaunch.run.reasons import EndCode
from dslaunch.run.rehearsal import RehearsalLimits, Rehearsed
from dslaunch.run.rehearsal_result import Verdict

ORDER = ("error", "warning", "info")


class Gap(NoteCode):
    """What could not be rehearsed, with its text."""

    INTERRUPTED = "interrupted", "the remaining steps: the rehearsal was interrupted"
    LATER_STEPS = "later-steps", "what happens after the rehearsed steps: evaluation, end of epoch"
    NO_CHECKPOINT = "no-checkpoint", "checkpoints: none was written in the rehearsed steps"
    NO_LOADER = "no-loader", "the data of the ranks: they use no DataLoader of PyTorch"
    NO_HOOK = "no-hook", "what the ranks do: Python ran with -I, -E or -S, or in a container"
    NO_STEP = "no-step", "the training: no rank made an optimizer step"
    NO_TORCH = "no-torch", "the training: no rank imported PyTorch"
    OTHER_NODES = (
        "other-nodes",
        "the other nodes of the real run: their hardware, network, files, and collectives over all",
    )
    REPLACED = (
        "replaced",
        "what the script does after it has started another program in its place (os.exec), whose "
        "PYTHONPATH has another sitecustomize in front: leave the first entry of PYTHONPATH where "
        "it is",
    )
    SPAWNED = (
        "spawned",
        "what the processes do that the script starts itself as its ranks: let the launcher start "
        "one for each slot, and call the function without mp.spawn",
    )
    SHARDED = "sharded", "whether ranks have equal parameters: they are sharded"
    NOT_RECORDED = "not-recorded", "some records could not be made"


class Judged(Struct, frozen=True):
    """What a rehearsal has shown, as its page says it."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    """The most severe first."""
    measured: Measured
    not_rehearsed: tuple[Gap, ...]


class Rehearsal(Judged, frozen=True):
    """The result of a rehearsal."""

    outcome: Outcome
    """How the run of the rehearsal ended."""

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command; docs/reference/exit-codes.md lists them."""
        if self.outcome.status == "interrupted":
            return self.outcome.exit_code
        return 0 if self.verdict is Verdict.WOULD_RUN else 1

    def as_data(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return {
            "verdict": self.verdict.value,
            "findings": [each.as_data() for each in self.findings],
            "measured": self.measured.as_data(),
            "not_rehearsed": [{"code": gap.value, "text": gap.text} for gap in self.not_rehearsed],
            "outcome": self.outcome.as_data(),
        }


def judge_rehearsal(rehearsed: Rehearsed) -> Rehearsal:
    """Return what a rehearsal has shown."""
    ranks = ranks_of(rehearsed.plan, rehearsed.records)
    found = [
        *_of_the_end(rehearsed, ranks),
        *config_findings(rehearsed, ranks),
        *(each for rule in RULES for each in rule(rehearsed, ranks)),
    ]
    found = _without_explained(found)
    unique = list({(each.code, each.where, each.text): each for each in found}.values())
    ordered = tuple(sorted(unique, key=lambda each: ORDER.index(each.level)))
    return Rehearsal(
        verdict=_verdict(rehearsed.outcome, ordered, ranks),
        findings=ordered,
        measured=measure(rehearsed, ranks),
        not_rehearsed=_gaps(rehearsed, ranks),
        outcome=rehearsed.outcome,
    )


_HANGS = frozenset({"hang.network", "hang.rendezvous"})
_WITHOUT_STEPS = frozenset({FindingKind.NO_STEP_OF_GRADIENTS.code, FindingKind.TOO_SLOW.code})
_DO_NOT_MEET = (
    FindingKind.LACKS_RANKS,
    FindingKind.LACKS_MASTER,
    FindingKind.UNKNOWN_MASTER,
    FindingKind.OTHER_PORT,
    FindingKind.SAME_RANK,
    FindingKind.PORTS_DIFFER,
    FindingKind.FILE_NOT_SHARED,
    FindingKind.GROUPS_DIFFER,
)
EXPLAINED: Mapping[str, frozenset[str]] = {
    FindingKind.STEPS_SKIPPED.code: _WITHOUT_STEPS,
    **{kind.code: _HANGS for kind in _DO_NOT_MEET},
}
"""Codes of findings that are only how another one shows itself, by the code of that one."""


def _without_explained(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those that would mislead, since another one is the reason."""
    codes = {each.code for each in findings}
    explained = {code for reason in codes for code in EXPLAINED.get(reason, ())}
    return [each for each in findings if each.code not in explained]


def _verdict(outcome: Outcome, findings: Iterable[Finding], ranks: Ranks) -> Verdict:
    if any(each.level == "error" for each in findings):
        return Verdict.WOULD_FAIL
    served = _served(outcome, ranks)
    stepped = bool(ranks) and all(rank.steps or rank.rank in served for rank in ranks)
    in_time = outcome.status == "ok" or outcome.reason.code is EndCode.REHEARSAL_LIMIT
    return Verdict.WOULD_RUN if stepped and in_time else Verdict.NOT_REHEARSED


def _served(outcome: Outcome, ranks: Ranks) -> frozenset[int]:
    """Return the ranks that train nothing and wait for ranks that were held: they evaluate, or
    collect, what these will send them after a later step, or call functions of theirs."""
    if outcome.reason.code is not EndCode.REHEARSED:
        return frozenset()
    hang = outcome.reason.hang
    waiting = hang.waiting if hang is not None else ()
    return frozenset(
        rank.rank
        for rank in ranks
        if not rank.trains and (rank.rank in waiting or rank.last(JoinedRpc))
    )


def _of_the_end(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield how the run itself ended, if that says something."""
    outcome = rehearsed.outcome
    if outcome.reason.code is EndCode.REHEARSAL_LIMIT:
        yield from _too_slow(ranks, rehearsed.limits)
    elif outcome.reason.code is EndCode.REHEARSAL_SPAWNS:
        return  # the rule about it has the finding
    elif outcome.reason.code is EndCode.HANG and outcome.reason.hang is not None:
        yield _hang(outcome.reason.hang, stop_text(outcome.reason), ranks)
    elif outcome.status == "failed":
        yield _failure(rehearsed, ranks)
    elif outcome.status == "ok":
        yield from _without_steps(ranks)
        # within Join a rank that has ended answers the collectives of the others
        if any(rank.last(Joins) for rank in ranks):
            return
        hang = outcome.reason.hang
        if hang is not None and set(hang.waiting) - _served(outcome, ranks):
            yield _uneven_collectives(hang)
        yield from _uneven(ranks)


def _failure(rehearsed: Rehearsed, ranks: Ranks) -> Finding:
    """Return why a rank has failed: by itself, or since others did not do the same."""
    found = failure(rehearsed, ranks)
    if not was_left_by_another(rehearsed.outcome):
        return found
    own = own_failure(rehearsed.outcome, ranks)
    if own is not None:
        return own
    verdict = in_different_collectives(ranks)
    if verdict is not None:
        return _hang(verdict, found.evidence or "", ranks)
    ended = ended_before_others(ranks)
    if ended:
        return _uneven_steps(ended)
    return found


def _hang(verdict: HangVerdict, evidence: str, ranks: Ranks) -> Finding:
    """Return why there was no progress, with the code of the verdict."""
    late = [rank for _, rank in verdict.ranks] or [rank.rank for rank in ranks]
    place = verdict.place
    return Finding(
        code=f"hang.{verdict.code}",
        # with more time, ranks that do not wait for each other may make their steps
        level="warning" if verdict.code in (HangCode.SLOW, HangCode.UNKNOWN) else "error",
        where=f"{place.file}:{place.line}" if place is not None else ranks_text(late),
        text=hang_text(verdict),
        hint=hang_hint(verdict),
        evidence=evidence,
    )


def _too_slow(ranks: Ranks, limits: RehearsalLimits) -> Iterator[Finding]:
    done = min(rank.steps for rank in ranks)
    late = [rank.rank for rank in ranks if rank.steps < limits.steps and not rank.was_replaced]
    if not late or any(rank.builds for rank in ranks):
        return  # another finding, or what could not be rehearsed, says why
    yield finding(
        FindingKind.TOO_SLOW,
        ranks_text(late),
        done=done,
        wanted=limits.steps,
        seconds=limits.time_limit,
    )


def _without_steps(ranks: Ranks) -> Iterator[Finding]:
    """Yield that no rank has made a step before its script ended."""
    ended = [end for rank in ranks if not rank.steps and (end := rank.last(Ended))]
    if not ended or len(ended) < len(ranks):
        return
    where = ranks_text(rank.rank for rank in ranks)
    backwards = max(end.backwards for end in ended)
    if backwards:
        yield finding(FindingKind.NO_STEP_OF_GRADIENTS, where, backwards=backwards)
    else:
        yield finding(FindingKind.NO_STEPS, where)


def _uneven(ranks: Ranks) -> Iterator[Finding]:
    held = any(rank.last(Held) for rank in ranks)
    ended = [rank for rank in ranks if rank.last(Ended) and not rank.last(Held)]
    if held and ended:
        yield _uneven_steps(ended)


def _uneven_steps(ended: Sequence[RankRecords]) -> Finding:
    """Return the finding for ranks whose scripts have ended while others train."""
    steps = min(rank.steps for rank in ended)
    return finding(FindingKind.UNEVEN_STEPS, ranks_text(rank.rank for rank in ended), steps=steps)


def _uneven_collectives(verdict: HangVerdict) -> Finding:
    """Return the finding for ranks that wait in a collective for ranks that are held."""
    operation = verdict.operation or "a collective"
    place = verdict.waiting_place
    where = f"{place.file}:{place.line}" if place is not None else ranks_text(verdict.waiting)
    return finding(FindingKind.UNEVEN_COLLECTIVES, where, operation=operation)


def _gaps(rehearsed: Rehearsed, ranks: Ranks) -> tuple[Gap, ...]:
    alone = _only_gap(rehearsed, ranks)
    if alone is not None:
        return (alone,)
    gaps = [Gap.OTHER_NODES] if rehearsed.is_smaller else []
    if not any(rank.steps for rank in ranks):
        return (*gaps, Gap.NO_STEP)
    if rehearsed.outcome.reason.code is EndCode.REHEARSED:
        gaps.append(Gap.LATER_STEPS)
    if not any(rank.last(Saved) for rank in ranks):
        gaps.append(Gap.NO_CHECKPOINT)
    if not any(rank.last(Loader) for rank in ranks):
        gaps.append(Gap.NO_LOADER)
    if any(rank.sharded for rank in ranks):
        gaps.append(Gap.SHARDED)
    if any(rank.last(Unrecorded) for rank in ranks):
        gaps.append(Gap.NOT_RECORDED)
    return tuple(gaps)


def _only_gap(rehearsed: Rehearsed, ranks: Ranks) -> Gap | None:
    """Return why nothing of the training was rehearsed; None: something was."""
    if rehearsed.outcome.status == "interrupted":
        return Gap.INTERRUPTED
    if not any(rank.last(Started) for rank in ranks):
        return Gap.NO_HOOK
    if any(rank.was_replaced for rank in ranks):
        return Gap.REPLACED
    if any(rank.spawns_share(len(ranks)) for rank in ranks):
        return Gap.SPAWNED
    if not any(rank.last(TorchImported) for rank in ranks):
        return Gap.NO_TORCH
    return None
