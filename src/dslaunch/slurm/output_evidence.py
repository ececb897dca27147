"""Evidence about a job in its own output, per start: messages of SLURM, and the mark of our
scripts.

A requeued job appends to its output. What an earlier start wrote does not explain the end of a
later one, so evidence is collected per start, and discarded when the next one begins.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster.nodeset import numbers
from dslaunch.render.script_functions import START_MARK
from dslaunch.slurm.nodes import node_names
from dslaunch.slurm.output import Layout

SLURM = "slurm"
"""The host of lines that no task wrote: those of srun, slurmstepd and the batch script."""
MOST_KEPT = 64
"""The maximum of observations of one kind per start."""


class Cut(StrEnum):
    """Why SLURM ended a start of a job, by slurmstepd."""

    TIME_LIMIT = "time-limit"
    PREEMPTED = "preempted"
    NODE_FAILED = "node-failed"
    REQUEUED = "requeued"
    CANCELED = "canceled"


class LaunchError(StrEnum):
    """Why slurmd or slurmstepd could not launch a step."""

    PROLOG = "prolog"
    OUTPUT = "output"
    OTHER = "other"


class MemoryExceeded(Struct, frozen=True):
    """A step exceeded the memory limit on a node."""

    host: str
    """Empty: unknown."""
    step: str = ""
    """Such as `0` or `batch`; empty: unknown."""
    ranks: tuple[int, ...] = ()
    """The ranks that exceeded it, as far as known."""
    used: int | None = None
    limit: int | None = None
    """Bytes."""


class LaunchFailed(Struct, frozen=True):
    """SLURM could not launch a step."""

    error: LaunchError
    host: str = ""
    message: str = ""
    """The message of SLURM."""


class OutputEvidence(Struct, frozen=True):
    """The evidence about the last start in the output."""

    start: int | None = None
    """Counted from 1; None: the output has no marks."""
    memory: tuple[MemoryExceeded, ...] = ()
    launch: tuple[LaunchFailed, ...] = ()
    cut: Cut | None = None


_MARK = re.compile(
    rf"{START_MARK} job [0-9]{{1,18}}, start (?P<start>[0-9]{{1,9}}) on (?P<nodes>\S{{1,65536}})$"
)
_STEPD = r"slurmstepd(?:-(?P<host>[\w.-]{1,255}))?: error: "
_CUT = re.compile(
    _STEPD + r"\*\*\* JOB [0-9]+ ON \S+ CANCELLED AT \S+(?: DUE TO (?P<why>[A-Z ]+))?"
)
_CUTS = {
    "TIME LIMIT": Cut.TIME_LIMIT,
    "PREEMPTION": Cut.PREEMPTED,
    "NODE FAILURE": Cut.NODE_FAILED,
    "JOB REQUEUE": Cut.REQUEUED,
}
"""slurmd/slurmstepd/req.c, `_handle_signal_container` (SLURM 22.05 to 26.05)."""
_EXCEEDED = re.compile(
    _STEPD + r"StepId=[0-9]+(?:[+_][0-9]+)?\.(?P<step>\w+) exceeded memory limit "
    r"\((?P<used>[0-9]{1,18}) > (?P<limit>[0-9]{1,18})\)"
)
"""common/slurm_jobacct_gather.c (SLURM 22.05): sites with `JobAcctGatherParams=OverMemoryKill`."""
_OOM = re.compile(
    _STEPD + r"Detected [0-9]+ oom[-_]kill events?(?:\(s\))? in "
    r"(?:StepId|Step|step)=?\s?[0-9]+(?:[+_][0-9]+)?\.(?P<step>\w+)"
)
"""plugins/task/cgroup/task_cgroup_memory.c: "oom-kill event(s)" in 22.05, later "oom_kill"."""
_OOM_TASKS = re.compile(r"srun: error: (?P<hosts>\S+): tasks? (?P<tasks>[0-9,-]+): Out Of Memory$")
"""launch_slurm.c, `_task_finish` (22.05), since 23.02 srun/launch.c."""
_NOT_LAUNCHED = re.compile(
    r"srun: error: (?:Task launch for \S+ failed on node (?P<host>[\w.-]{1,255})"
    r"|task [0-9]{1,9} launch failed): (?P<text>.{1,200})$"
)
"""api/step_launch.c (SLURM 22.05)."""
_LAUNCH_ERRORS = {
    "Job prolog failed": LaunchError.PROLOG,
    "Slurmd could not connect IO": LaunchError.OUTPUT,
}
"""common/slurm_errno.c: ESLURMD_PROLOG_FAILED and ESLURMD_IO_ERROR."""
_OF_SLURM = re.compile(r"(?:srun|slurmstepd(?:-[\w.-]+)?|slurmd(?:-[\w.-]+)?): ")


class Starts:
    """Parses the lines of an output, and keeps the evidence about its last start."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.last = OutputEvidence()
        self.cut: Cut | None = None
        """Why SLURM ended the start, until the next one begins."""
        self.hosts: tuple[str, ...] = ()
        """The nodes of the start in order; empty: the output has no marks."""

    def begins(self, host: str, line: str) -> bool:
        """Return whether the line is the first of another start; discard the evidence before it.

        A script of a user has no marks. Its next start begins with the first line that is not
        SLURM's after the line with which SLURM ended the start before.
        """
        mark = _MARK.match(line) if host == SLURM else None
        if mark is not None:
            another = self.last.start is not None or self._has_evidence
            self.last = OutputEvidence(start=int(mark["start"]))
            self.hosts = node_names(mark["nodes"])
            self.cut = None
            return another
        requeued = self.cut in (Cut.REQUEUED, Cut.PREEMPTED, Cut.NODE_FAILED)
        if requeued and not (host == SLURM and _OF_SLURM.match(line)) and self.last.start is None:
            self.last, self.cut = OutputEvidence(), None
            return True
        return False

    @property
    def over(self) -> bool:
        """Whether SLURM has ended the start: exits of tasks are consequences."""
        return self.cut is not None

    @property
    def _has_evidence(self) -> bool:
        return self.last != OutputEvidence()

    def feed(self, host: str, rank: int | None, line: str) -> None:
        """Parse a line. `rank` is that of its label; SLURM's own lines may have one too."""
        if host == SLURM:
            self._take_cut(line)
            self._take_launch(line)
        self._take_memory(host, rank, line)

    def _take_cut(self, line: str) -> None:
        found = _CUT.match(line)
        if found is None:
            return
        why = (found["why"] or "").strip()
        cut = next((cut for words, cut in _CUTS.items() if why.startswith(words)), Cut.CANCELED)
        self.cut = self.cut or cut
        self.last = replace(self.last, cut=self.cut)

    def _take_launch(self, line: str) -> None:
        found = _NOT_LAUNCHED.match(line)
        if found is None or len(self.last.launch) >= MOST_KEPT:
            return
        text = found["text"].strip()
        failed = LaunchFailed(
            error=_LAUNCH_ERRORS.get(text, LaunchError.OTHER),
            host=found["host"] or "",
            message=text,
        )
        self.last = replace(self.last, launch=(*self.last.launch, failed))

    def _take_memory(self, host: str, rank: int | None, line: str) -> None:
        exceeded = self._memory(host, rank, line)
        if exceeded is not None and len(self.last.memory) < MOST_KEPT:
            self.last = replace(self.last, memory=(*self.last.memory, exceeded))

    def _memory(self, host: str, rank: int | None, line: str) -> MemoryExceeded | None:
        limit = _EXCEEDED.match(line)
        kernel = limit or _OOM.match(line)
        if kernel is not None:
            # the label is that of the node's first task, not of the one that exceeded the limit
            node = kernel["host"] or ("" if host == SLURM else host)
            return MemoryExceeded(
                host=node,
                step=kernel["step"],
                ranks=self._ranks_if_alone(rank),
                used=int(limit["used"]) if limit else None,
                limit=int(limit["limit"]) if limit else None,
            )
        tasks = _OOM_TASKS.match(line) if host == SLURM else None
        return self._of_tasks(tasks["hosts"], tasks["tasks"]) if tasks else None

    def _ranks_if_alone(self, rank: int | None) -> tuple[int, ...]:
        """Return the rank, if every node has only one task, which is a rank."""
        alone = self.layout.direct and all(slots == 1 for _, slots in self.layout.groups)
        return (rank,) if rank is not None and alone else ()

    def _of_tasks(self, folded: str, listed: str) -> MemoryExceeded | None:
        hosts = node_names(folded)
        try:
            tasks = numbers(listed)
        except ValueError:
            return None  # truncated, or not a line of srun
        ranks = [self.layout.place(task)[1] for task in tasks] if self.layout.direct else []
        return MemoryExceeded(host=hosts[0] if hosts else "", ranks=tuple(ranks))
