"""Query SLURM for details about the end of a job: the user, the node, the step."""

from __future__ import annotations

import pwd
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dslaunch.cluster.nodeset import fold
from dslaunch.errors import DslaunchError
from dslaunch.slurm.identity import JobId
from dslaunch.slurm.nodes import is_down
from dslaunch.slurm.output import Layout
from dslaunch.slurm.output_evidence import MemoryExceeded, OutputEvidence
from dslaunch.slurm.scontrol import NodeRecord
from dslaunch.slurm.states import JobInfo, moment, whole_number
from dslaunch.slurm.verdict import PROLOG_REASON, Account, EndDetails

if TYPE_CHECKING:
    from dslaunch.slurm.client import SlurmClient

STEPS = "JobIDRaw,State,Start,MaxRSSNode,MaxRSSTask,MaxRSS"
WAITS, BETWEEN = 20, 0.5
"""The maximum of queries to accounting who canceled a job, and the seconds between them: slurmdbd
gets a start and an end after slurmctld, on a busy machine seconds later."""
NODE_AGREES = 60
"""Maximum seconds between the end of a job and the drain of a node for its prolog."""
_BY = re.compile(r"by ([0-9]{1,10})")
_NODE = re.compile(r"[A-Za-z0-9._-]{1,255}")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGTP]?)")
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def waits_for_accounting() -> Callable[[], bool]:
    """Return a function that waits until accounting may know more, and returns False after WAITS
    calls, for all tasks of an array together."""
    left = iter(range(WAITS))

    def wait() -> bool:
        """Wait, unless it was done too often."""
        if next(left, None) is None:
            return False
        time.sleep(BETWEEN)
        return True

    return wait


def end_details(
    client: SlurmClient,
    job: JobId,
    info: JobInfo,
    observed: OutputEvidence,
    layout: Layout,
    wait: Callable[[], bool],
) -> EndDetails:
    """Return what explains the end of `info`: a job, or a task or component of it. Without an
    answer it is unknown; DslaunchError is never raised. `wait`: see `waits_for_accounting`."""
    try:
        if info.state == "NODE_FAIL" and info.nodes:
            nodes = client.nodes(info.nodes)
            down = [name for name, node in nodes.items() if is_down(node.states)]
            return EndDetails(down=_folded(down))
        if info.state == "CANCELLED":
            began = observed != OutputEvidence()
            prolog = "" if began or not info.nodes else _prolog(client, info)
            return EndDetails(canceled_by=_canceled_by(client, job, info, wait), prolog=prolog)
        if info.state == "OUT_OF_MEMORY":
            return EndDetails(memory=_memory(client, info, layout))
    except DslaunchError:
        pass
    return EndDetails()


def _canceled_by(
    client: SlurmClient, job: JobId, info: JobInfo, wait: Callable[[], bool]
) -> Account | None:
    """Return who canceled the last start; None: unknown."""
    while True:
        starts = [start for start in client.starts(job) if start.job == info.job]
        if starts and starts[-1].state == "CANCELLED":
            found = _BY.fullmatch(starts[-1].reason)
            return account(int(found[1])) if found is not None else None
        if not wait():
            return None


def account(uid: int) -> Account:
    """Return a user with its name on this machine."""
    try:
        return Account(uid, pwd.getpwuid(uid).pw_name)
    except (KeyError, OverflowError):
        return Account(uid)


def _memory(client: SlurmClient, info: JobInfo, layout: Layout) -> MemoryExceeded | None:
    """Return the step that was out of memory, and its node and task with the highest use."""
    found = [
        _step(name, node=node, task=task, size=size, layout=layout)
        for name, state, began, node, task, size in _steps(client, info)
        if name.startswith(f"{info.job}.")
        and state.startswith("OUT_OF_ME")
        and _is_within(info, began)
    ]
    # the batch script is out of memory too if a step on its node is
    of_ranks = [one for one in found if one.step.isdecimal()]
    return next(iter(of_ranks or found), None)


def _is_within(info: JobInfo, began: str) -> bool:
    """Return whether a step belongs to this start, by its time: an earlier start, or another job
    with the number, has steps too."""
    when = moment(began)
    if when is None or info.started is None:
        return True
    return info.started <= when and (info.ended is None or when <= info.ended)


def _step(name: str, *, node: str, task: str, size: str, layout: Layout) -> MemoryExceeded:
    step = name.partition(".")[2][:40]
    number = whole_number(task)
    rank = layout.direct and step.isdecimal() and number is not None
    return MemoryExceeded(
        host=node if _NODE.fullmatch(node) else "",
        step=step,
        ranks=(layout.place(number)[1],) if rank and number is not None else (),
        used=_bytes(size),
    )


def _bytes(text: str) -> int | None:
    found = _SIZE.fullmatch(text)
    return round(float(found[1]) * 1024 ** _UNITS[found[2]]) if found else None


def _steps(client: SlurmClient, info: JobInfo) -> list[list[str]]:
    """Return the rows of a job's steps; none: no accounting, or no answer."""
    done = client.sacct(info.job, info.cluster, STEPS)
    if done.code:
        return []
    rows = [line.split("|") for line in done.out.splitlines()]
    return [cells for cells in rows if len(cells) == STEPS.count(",") + 1]


def _prolog(client: SlurmClient, info: JobInfo) -> str:
    """Return the nodes of a job that were drained for their prolog when it ended, folded."""
    return _folded(
        name
        for name, node in client.nodes(info.nodes).items()
        if _drained_for_prolog(node, info.ended)
    )


def _drained_for_prolog(node: NodeRecord, ended: int | None) -> bool:
    if node.since is None or node.reason != PROLOG_REASON:
        return False
    return ended is None or abs(node.since - ended) <= NODE_AGREES


def _folded(names: Iterable[str]) -> str:
    known = [name for name in names if _NODE.fullmatch(name)]
    return fold(known) if known else ""
