"""The texts of a run's end and of its restarts: the one place where their codes become text. Pure.

It stands here and not in `report/`, since the record of a run has its message too.
"""

from __future__ import annotations

import signal

from dslaunch.run.reasons import EndCode, EndReason, RankSource, Restart

_LIKELY: dict[int, str] = {
    signal.SIGKILL: "likely out of memory: the kernel or the scheduler kills so",
    signal.SIGBUS: "likely /dev/shm is too small",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code gave up, its reason is above",
}
_MESSAGES = {
    EndCode.SUCCEEDED: "all ranks ended well",
    EndCode.ENOUGH_SUCCEEDED: "ended well on {nodes} nodes",
    EndCode.RUNNING: "goes on",
    EndCode.NOT_STARTED: "{error}",
    EndCode.INTERRUPTED: "interrupted",
    EndCode.INTERRUPTED_TWICE: "interrupted twice",
    EndCode.STOPPED: "stopped by {by}",
    EndCode.START_FAILED: "{who} could not start: {error}",
    EndCode.RANK_FAILED: "{who} failed first: {ending}{awaited}",
    EndCode.LAUNCHER_FAILED: "{who} failed first: {ending}",
    EndCode.NODE_LOST: "{host} was lost: {error}",
    EndCode.PROCESS_KILLED: "the {process} on {host} was killed{by_signal}",
    EndCode.PROCESS_FAILED: "the {process} on {host} failed: {error}",
    EndCode.NODE_ENDED: "{ended_by}{error}",
    EndCode.EXIT_TIMEOUT: "{still_there}: still there {seconds:g} s after others had ended well",
    EndCode.HANG: "hang: no rank printed or computed for {seconds:.0f} s",
    EndCode.SLURM_JOB: "",
}
_STOPPING = _MESSAGES | {
    EndCode.START_FAILED: "a rank failed",
    EndCode.RANK_FAILED: "a rank failed",
    EndCode.LAUNCHER_FAILED: "a rank failed",
    EndCode.NODE_LOST: "{host} was lost",
    EndCode.PROCESS_KILLED: "the {process} on {host} was ended",
    EndCode.PROCESS_FAILED: "the {process} on {host} was ended",
    EndCode.NODE_ENDED: "a node ended",
    EndCode.EXIT_TIMEOUT: "still there {seconds:g} s after others had ended well",
}


def message(reason: EndReason) -> str:
    """Return why a run ended, in one line."""
    not_restarted = reason.not_restarted and f"not started again: {reason.not_restarted}"
    parts = (reason.job, _filled(_MESSAGES, reason), not_restarted)
    return "; ".join(part for part in parts if part)


def stop_text(reason: EndReason) -> str:
    """Return why a run is being ended, in a few words: the outcome says more at the end."""
    return _filled(_STOPPING, reason)


def restart_text(restart: Restart) -> str:
    """Return why a run is started again, and which nodes are other ones."""
    changes = [
        f"{change.spare} takes the place of {change.lost}"
        if change.spare
        else f"{change.lost} is left out"
        for change in restart.replaced
    ]
    again = f"start {restart.attempt} of {restart.most} again"
    last = again if changes else f"{again} on the same nodes"
    return "; ".join((message(restart.after), *changes, last))


def source_text(source: RankSource) -> str:
    """Return the name of a rank, or of the launcher of a node: `rank 3 on n1`, `n1`."""
    host, rank = source
    return host if rank is None else f"rank {rank} on {host}"


def signal_name(number: int) -> str:
    """The name of a signal, such as `SIGKILL`."""
    return signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"


def describe(code: int | None, number: int | None, *, oom: bool = False) -> str:
    """An ending in words, such as `killed by SIGKILL (137), likely out of memory`; with `oom` the
    kernel has said so."""
    if number is not None:
        name = signal_name(number)
        likely = "out of memory" if oom else _LIKELY.get(number)
        return f"killed by {name} ({128 + number})" + (f", {likely}" if likely else "")
    if code is None:
        return "ended, its exit code was not seen"
    if code > 128 and code - 128 in list(signal.Signals):
        return f"exit code {code}, as after {signal.Signals(code - 128).name}"
    return f"exit code {code}"


def _filled(texts: dict[EndCode, str], reason: EndReason) -> str:
    host = reason.host or ""
    names = ", ".join(map(source_text, reason.ranks))
    return texts[reason.code].format(
        host=host,
        who=source_text((host, reason.rank)),
        ending=describe(reason.exit_code, reason.signal, oom=bool(reason.oom)),
        awaited=f", after waiting in vain, likely for {names}" if names else "",
        still_there=names or "processes that ranks left behind",
        process=reason.process,
        by_signal=f" by {signal_name(reason.signal)}" if reason.signal else "",
        ended_by=f"{host} ended the run: " if host else "",
        error=reason.error,
        by=reason.by,
        seconds=reason.seconds or 0.0,
        nodes=reason.nodes,
    )
