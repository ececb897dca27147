"""Why a detached run made no progress, by what its nodes have recorded (`node/rank_progress.py`).

No launcher watched it. Its nodes have noticed the hang, and recorded what their ranks did before
they ended them. A command that asks for its state judges that as `run/hang_watch.py` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dslaunch.protocol.queries import HANG
from dslaunch.run.collectives import RankRecord, records
from dslaunch.run.events import Event
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
    times = []
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
    before = History([event for event in events if not event.asked])
    verdict = judged(stacks, found, before.ended, now=max(times, default=None))
    return replace(
        outcome,
        reason=replace(outcome.reason, hang=verdict),
        hint=hang_hint(verdict),
        stacks=stacks,
    )
