"""Why a detached run made no progress, by what its nodes have recorded (`node/rank_progress.py`).

No launcher watched it. Its nodes have noticed the hang, and recorded what they know of it before
they ended their ranks. A command that asks for its state judges that as `run/hang_watch.py` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from dslaunch.protocol.queries import HANG, Answers, parse_answers
from dslaunch.protocol.values import InvalidAnswer
from dslaunch.run.collectives import RankRecord, records
from dslaunch.run.events import Event
from dslaunch.run.hang_evidence import QUESTIONS, evidence_of
from dslaunch.run.hang_network import with_unreachable
from dslaunch.run.hang_text import hang_hint
from dslaunch.run.hang_watch import judged
from dslaunch.run.outcome import History, Outcome
from dslaunch.run.reach import ReachedNodes, ask
from dslaunch.run.reasons import EndCode


def with_hang_verdict(
    outcome: Outcome,
    run: str,
    reached: ReachedNodes,
    *,
    ranks: Mapping[str, Collection[int]],
    events: Sequence[Event],
) -> Outcome:
    """Return the outcome of a hang with the verdict and the stacks; any other one as it is.

    `run`: the name of its agents. `ranks`: those of each node; what a node says of others is not
    used. Nodes that do not answer are in `reached.failures`.
    """
    if outcome.reason.code is not EndCode.HANG:
        return outcome
    found: dict[int, RankRecord] = {}
    stacks: dict[str, dict[str, Any]] = {}
    answered: dict[str, Answers] = {}
    unreachable: list[tuple[str, str]] = []
    times, durations = [], []
    for host, answers in ask(reached, {HANG: {"run": run}}).items():
        kept = answers.get(HANG)
        if kept is None:
            continue
        offset = reached.sessions[host].offset
        own = {str(rank) for rank in ranks.get(host, ())}
        told = {key: each for key, each in kept.collectives.items() if key in own}
        found.update(records(host, told, offset))
        stacks[host] = {key: each for key, each in kept.stacks.items() if key in own}
        times.append(kept.time - offset)
        durations.append(kept.seconds)
        unreachable += [(host, other) for other in kept.unreachable if other in ranks]
        with suppress(InvalidAnswer):  # what else it has recorded counts
            answered[host] = parse_answers(host, QUESTIONS, kept.answers)
    before = History([event for event in events if not event.asked])
    verdict = judged(
        stacks,
        found,
        before.ended,
        now=max(times, default=None),
        evidence=evidence_of(answered, seconds=max(durations, default=0.0)),
    )
    verdict = with_unreachable(verdict, unreachable)
    return replace(
        outcome,
        reason=replace(outcome.reason, hang=verdict),
        hint=hang_hint(verdict),
        stacks=stacks,
    )
