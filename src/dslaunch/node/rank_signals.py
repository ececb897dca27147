"""Signals to ranks: to their own processes, never to the launchers that started them.

Launchers pass on what they get, or are killed by it: torch's kills its ranks 30 seconds after TERM,
and is killed by USR1 (torch 2.13, distributed/elastic/agent/server/api.py). So is DeepSpeed's.
"""

from __future__ import annotations

import os
import signal

from dslaunch.node import processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional

SIGNALS = {
    name: int(getattr(signal, f"SIG{name}"))
    for name in ("USR1", "USR2", "HUP", "INT", "TERM", "CONT", "WINCH")
}
"""Those that a user may send. KILL, STOP and QUIT would break a training that continues; `stop`
ends one."""
_NEED_A_HANDLER = {SIGNALS[name] for name in ("USR1", "USR2", "HUP")}
"""Those that tell a program to do something, and end one that has no handler for them."""


def deliver(
    pids: Dict[int, int],
    number: int,
    ranks: Optional[List[int]],
    *,
    force: bool = False,
    check: bool = False,
) -> Dict[str, List[int]]:
    """Send a signal to the processes of ranks: rank -> process; return which got it.

    `ranks`: only these; None: all. Without `force` a rank that the signal would end, since it has
    no handler, does not get it. With `check` nothing is sent. Raises ValueError for a signal that
    is not in SIGNALS.
    """
    if number not in SIGNALS.values():
        raise ValueError(f"signal {number} is not sent to ranks")
    chosen = {rank: pid for rank, pid in pids.items() if ranks is None or rank in ranks}
    unhandled = [rank for rank, pid in chosen.items() if not survives(pid, number)]
    sent = [rank for rank in chosen if force or rank not in unhandled]
    if not check:
        targets = [chosen[rank] for rank in sent]
        processes.send(targets, number, lambda pid: force or survives(pid, number))
    return {"sent": sorted(sent), "unhandled": sorted(unhandled)}


def survives(pid: int, number: int) -> bool:
    """Return whether a process handles or ignores a signal, or is meant to be ended by it."""
    if number not in _NEED_A_HANDLER:
        return True
    bit = 1 << (number - 1)
    return any(processes.signal_mask(pid, name) & bit for name in (b"SigCgt", b"SigIgn"))


def ranks_of_job(jobs: List[str]) -> Dict[int, int]:
    """Return the rank processes of a SLURM job on this node: rank -> process.

    `jobs`: its number, and that of the heterogeneous job that it is a component of.

    Known by their environment (srun(1), "OUTPUT ENVIRONMENT VARIABLES"). A rank is the topmost
    process of its branch with its `RANK`.
    """
    numbers = {job.encode() for job in jobs}
    node = os.environ.get("SLURMD_NODENAME", "").encode()
    found: Dict[int, int] = {}
    for pid in sorted(processes.pids()):
        environment = processes.environment(pid)
        rank = environment.get(b"RANK", b"")
        is_in_job = environment.get(b"SLURM_JOB_ID") in numbers
        is_here = environment.get(b"SLURMD_NODENAME", node) == node
        if not (is_in_job and is_here and is_number(rank) and processes.is_ours(pid)):
            continue
        parent = int((processes.stat(pid) or ["X", "0"])[1])
        if processes.environment(parent).get(b"RANK") != rank and processes.alive([pid]):
            found.setdefault(int(rank), pid)
    return found


def is_number(rank: bytes) -> bool:
    """Return whether it is a rank."""
    return rank.isdigit() and len(rank) < 8


def answer(argument: Dict[str, Any]) -> Dict[str, List[int]]:
    """Answer the question `job_signal`: send a signal to the ranks of a SLURM job. Raises
    ValueError."""
    pids = ranks_of_job(argument["jobs"])
    return deliver(
        pids,
        argument["number"],
        argument["ranks"],
        force=argument["force"],
        check=argument["check"],
    )
