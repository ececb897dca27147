"""Why a rehearsal failed. Pure."""

from __future__ import annotations

import posixpath

from msgspec.structs import replace

from dslaunch.cluster.nodeset import ranks_text
from dslaunch.protocol.rehearsal import Engine, ProcessGroup, Raised, Saved, Started, Written
from dslaunch.rehearsal.findings import Finding, FindingKind, finding
from dslaunch.rehearsal.ranks import Ranks
from dslaunch.run.endings import Diagnosis, diagnose
from dslaunch.run.known_endings import built_in
from dslaunch.run.outcome import Outcome
from dslaunch.run.rehearsal import Rehearsed
from dslaunch.run.secret_names import masked_credentials

OF_WORLD_SIZE = frozenset(
    {
        "accelerate-batch",
        "batch-sizes",
        "hf-mismatch",
        "mesh-size",
        "parallel-size",
        "split-batches",
        "world-size",
    }
)
"""Known endings that a smaller number of ranks may have caused."""
OF_OTHER_DATA = frozenset({"collective-sizes", "models-differ"})
"""How gloo, or DistributedDataParallel, ends a rank that gets the data of another collective."""
OF_LAUNCHER = "child-failed"
"""How a launcher ends of which a rank has failed."""
WRITTEN_BY_ANOTHER = (
    "another rank writes it in this run: let the others wait in a barrier until it is written; "
    "where the nodes do not share the directory, let local rank 0 of each node write it"
)
ON_MORE_NODES = "rehearse on more nodes: the smaller number of ranks may have caused it"


def failure(rehearsed: Rehearsed, ranks: Ranks) -> Finding:
    """Return the failure of the run with its known ending, if there is one."""
    found = _timeout(rehearsed, ranks) or _failure_here(rehearsed.outcome, ranks)
    if _is_written_by_another(rehearsed.outcome, ranks):
        found = replace(found, hint=WRITTEN_BY_ANOTHER)
    sharded = any((engine := rank.last(Engine)) and engine.stage > 0 for rank in ranks)
    of_smaller = found.code in OF_WORLD_SIZE or (found.code == "gpu-memory" and sharded)
    if rehearsed.is_smaller and of_smaller:
        return replace(found, level="warning", hint=ON_MORE_NODES)
    return found


def _timeout(rehearsed: Rehearsed, ranks: Ranks) -> Finding | None:
    """Return that a rank has waited for another one for as long as the script lets it. A longer
    timeout than the rehearsal took is not the one that ended it."""
    outcome = rehearsed.outcome
    known = built_in().get(outcome.ending or "")
    if known is None or not known.waited:
        return None
    here = _failure_here(outcome, ranks)
    groups = [group for rank in ranks if (group := rank.last(ProcessGroup)) is not None]
    timeouts = [group.timeout for group in groups if group.timeout is not None]
    if not timeouts or min(timeouts) > rehearsed.seconds:
        return None
    return finding(FindingKind.TIMEOUT, here.where, evidence=here.evidence, seconds=min(timeouts))


def _is_written_by_another(outcome: Outcome, ranks: Ranks) -> bool:
    """Return whether a rank has missed a file, or a directory, that another one writes."""
    if outcome.ending != "file-missing" or outcome.cause is None or not outcome.ending_values:
        return False
    mine = next((rank for rank in ranks if rank.rank == outcome.cause.rank), None)
    started = mine.last(Started) if mine is not None else None
    if started is None:
        return False
    missing = posixpath.normpath(posixpath.join(started.cwd, outcome.ending_values[0]))
    others = [rank for rank in ranks if rank is not mine]
    written = {each.path for rank in others for each in rank.every(Saved)}
    written |= {each.path for rank in others for each in rank.every(Written)}
    return any(path == missing or path.startswith(f"{missing}/") for path in written)


def own_failure(outcome: Outcome, ranks: Ranks) -> Finding | None:
    """Return the exception of a rank that no other one has caused, if all that is known of the run
    is that something else failed: a launcher may report a rank before the agent sees its end."""
    ending = built_in().get(outcome.ending or "")
    if ending is None or not ending.secondary:
        return None
    for rank in ranks:
        raised = rank.last(Raised)
        found = _diagnosed(raised) if raised is not None else Diagnosis()
        if raised is None or found.secondary or found.code in OF_OTHER_DATA:
            continue
        if found.code is None and ending.code != OF_LAUNCHER:
            continue  # it may be a consequence that is not known
        evidence = masked_credentials(f"{raised.error}: {raised.text}")
        return Finding(
            code=found.code or FindingKind.FAILED.code,
            level="error",
            where=_place(raised) or ranks_text([rank.rank]),
            text=found.what or evidence,
            hint=found.advice or FindingKind.FAILED.hint,
            evidence=evidence,
        )
    return None


def _diagnosed(raised: Raised) -> Diagnosis:
    return diagnose(f"{raised.error}: {raised.text}".splitlines())


def _place(raised: Raised) -> str | None:
    """Return the innermost line of the script's own code; None: unknown."""
    return f"{raised.file}:{raised.line}" if raised.file is not None else None


def _failure_here(outcome: Outcome, ranks: Ranks) -> Finding:
    cause = outcome.cause
    mine = [rank for rank in ranks if cause is not None and rank.rank == cause.rank]
    raised = mine[0].last(Raised) if mine else None
    where = ranks_text(rank.rank for rank in mine) if mine else (outcome.reason.host or "run")
    if raised is not None:
        where = _place(raised) or where
    evidence = f"{raised.error}: {raised.text}" if raised is not None else None
    if evidence is None and outcome.last_lines:
        evidence = outcome.last_lines[-1]
    return Finding(
        code=outcome.ending or FindingKind.FAILED.code,
        level="error",
        where=where,
        text=outcome.what or outcome.message,
        hint=outcome.hint or (FindingKind.FAILED.hint if outcome.ending is None else None),
        evidence=masked_credentials(evidence) if evidence is not None else None,
    )
