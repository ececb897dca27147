"""Shell functions of a rendered script; their text is in the templates.

`job_verdict.sh.j2` writes what a job knows of its own end: a small JSON file beside its output, by
the shell alone. SLURM forgets a job some minutes after its end, not every site has accounting, and
batch hosts need not have Python. The file is written at each start and at its end, in one step, for
its user alone; `slurm/job_files.py` reads it.

`functions.sh.j2` and `task_functions.sh.j2` run a command and end with its exit code, whatever
signals arrive. Why not `command & wait $!`: a trap interrupts `wait`, and a child that ends at that
moment is reaped and its status dropped (bash 4.2 to 5.3, jobs.c, waitchld: CHECK_WAIT_INTR stands
between waitpid and the job table). A second `wait` then says 127 or 255. So a subshell that ignores
TERM waits, and reports by a pipe; `read` goes on after a trap.
"""

from __future__ import annotations

from dslaunch.render.templates import render

START_MARK = "dslaunch:"
"""Begins the line with which a start of a job begins in its output, to which all starts append."""
VERDICT_SUFFIX = ".verdict.json"
"""The file's name is that of the output with this."""
LINES_READ = 10_000
"""Of the output's end, in which SLURM's own lines about the end are looked for."""
LINES_KEPT = 8
DECLARED = "declare -f start finish"
"""The command that prints `run_functions`, to hand them to the nodes."""


def verdict_lines(version: str, nodes: str) -> str:
    """Return the lines of the batch script that write the job's verdict, now and at its end.

    `version` is that of dslaunch, `nodes` shell text for the names of all nodes. The lines set a
    trap for EXIT, and print the mark of a start.
    """
    return render(
        "job_verdict.sh.j2",
        version=version,
        nodes=nodes,
        suffix=VERDICT_SUFFIX,
        start_mark=START_MARK,
        lines_read=LINES_READ,
        lines_kept=LINES_KEPT,
    ).rstrip("\n")


def run_functions(*, signal: bool) -> str:
    """Return `start` and `finish`, for the batch script and, by DECLARED, for the nodes.

    `signal`: whether ranks get a notice before the time limit.
    """
    return render("functions.sh.j2", signal=signal)


def task_functions(*, signal: bool, python: bool) -> str:
    """Return what the text of every node begins with, behind `run_functions`.

    `python`: whether the text prints versions of Python packages.
    """
    return render("task_functions.sh.j2", signal=signal, python=python)
