"""The texts of a run's end and of its restarts: the one place where their codes become text. Pure.

It is here and not in `report/`, since the run record holds the message too.
"""

from __future__ import annotations

from dslaunch.launch.replacement import Replacement
from dslaunch.run.exit_text import describe, signal_name
from dslaunch.run.hang_text import hang_text
from dslaunch.run.reasons import EndCode, EndReason, RankSource, Restart

_MESSAGES = {
    EndCode.SUCCEEDED: "all ranks exited successfully",
    EndCode.ENOUGH_SUCCEEDED: "succeeded on {nodes} nodes",
    EndCode.RUNNING: "running in the background",
    EndCode.NOT_STARTED: "{error}",
    EndCode.INTERRUPTED: "interrupted",
    EndCode.INTERRUPTED_TWICE: "interrupted twice",
    EndCode.OUTPUT_CLOSED: "stopped because the reader of its output has exited",
    EndCode.STOPPED: "stopped by {by}",
    EndCode.START_FAILED: "{who} could not start: {error}",
    EndCode.RANK_FAILED: "{who} failed first: {ending}{awaited}{exited}",
    EndCode.LAUNCHER_FAILED: "the launcher on {host} failed first: {ending}",
    EndCode.NODE_LOST: "{host} was lost: {error}",
    EndCode.PROCESS_KILLED: "the {process} on {host} was killed{by_signal}",
    EndCode.PROCESS_FAILED: "the {process} on {host} failed: {error}",
    EndCode.NODE_ENDED: "{ended_by}{error}",
    EndCode.EXIT_TIMEOUT: "{running} did not exit within {seconds:g} s after the first success",
    EndCode.HANG: "hang: no progress for {seconds:.0f} s{hang}",
    EndCode.REHEARSED: "rehearsed {steps} optimizer steps",
    EndCode.REHEARSAL_LIMIT: "not all ranks made {steps} optimizer steps within {seconds:g} s",
    EndCode.REHEARSAL_SPAWNS: "the ranks start processes that train in their place",
    EndCode.SLURM_JOB: "",
}
_STOPPING = _MESSAGES | {
    EndCode.OUTPUT_CLOSED: "the reader of the output has exited",
    EndCode.START_FAILED: "a rank failed",
    EndCode.RANK_FAILED: "a rank failed",
    EndCode.LAUNCHER_FAILED: "a launcher failed",
    EndCode.NODE_LOST: "{host} was lost",
    EndCode.PROCESS_KILLED: "the {process} on {host} was killed",
    EndCode.PROCESS_FAILED: "the {process} on {host} failed",
    EndCode.NODE_ENDED: "a node ended",
    EndCode.EXIT_TIMEOUT: "not all ranks exited within {seconds:g} s after the first success",
    EndCode.HANG: "hang: no progress for {seconds:.0f} s",
}


def message(reason: EndReason) -> str:
    """Return why a run ended, in one line."""
    not_restarted = reason.not_restarted and f"not restarted: {reason.not_restarted}"
    parts = (reason.job, _filled(_MESSAGES, reason), not_restarted)
    return "; ".join(part for part in parts if part)


def stop_text(reason: EndReason) -> str:
    """Return why a run is being stopped, in a few words: the outcome says more at the end."""
    return _filled(_STOPPING, reason)


def restart_text(restart: Restart) -> str:
    """Return why a run is restarted, and on which nodes."""
    changes = [_replacement_text(change) for change in restart.replaced]
    changes = changes or ["the nodes are the same"]
    number = f"restart {restart.attempt} of {restart.most}"
    return "; ".join((message(restart.after), number, *changes))


def _replacement_text(change: Replacement) -> str:
    if change.spare is None:
        return f"{change.lost} is excluded"
    return f"{change.spare} replaces {change.lost}"


def source_text(source: RankSource) -> str:
    """Return the name of a rank, or of the launcher of a node: `rank 3 on n1`, `n1`."""
    host, rank = source
    return host if rank is None else f"rank {rank} on {host}"


def _exited(ranks: tuple[RankSource, ...]) -> str:
    names = ", ".join(map(source_text, ranks))
    return f", after {names} had exited successfully" if names else ""


def _filled(texts: dict[EndCode, str], reason: EndReason) -> str:
    host = reason.host or ""
    names = ", ".join(map(source_text, reason.ranks))
    return texts[reason.code].format(
        host=host,
        who=source_text((host, reason.rank)),
        ending=describe(reason.exit_code, reason.signal, oom=bool(reason.oom)),
        awaited=f", after a timeout, probably waiting for {names}" if names else "",
        exited=_exited(reason.exited),
        running=names or "processes that ranks started",
        process=reason.process,
        by_signal=f" by {signal_name(reason.signal)}" if reason.signal else "",
        ended_by=f"{host} ended the run: " if host else "",
        error=reason.error,
        hang=f": {hang_text(reason.hang)}" if reason.hang is not None else "",
        by=reason.by,
        seconds=reason.seconds or 0.0,
        nodes=reason.nodes,
        steps=reason.steps,
    )
