"""Shell functions of a rendered script; their text is in the templates.

`job_verdict.sh.j2` writes what a job knows about its own end: a small JSON file beside its output,
by the shell only. SLURM forgets a job minutes after its end, not every site has accounting, and
batch hosts may lack Python. The file is written atomically at each start and at its end, readable
by its user only; `slurm/job_files.py` parses it.

`functions.sh.j2` and `task_functions.sh.j2` run a command and end with its exit code, also if
signals arrive. Why not `command & wait $!`: a trap interrupts `wait`, and a child that ends at that
moment is reaped and its status dropped (bash 4.2 to 5.3, jobs.c, waitchld: CHECK_WAIT_INTR stands
between waitpid and the job table). A second `wait` then returns 127 or 255. So a subshell that
ignores TERM waits, and reports by a pipe; `read` continues after a trap.
"""

from __future__ import annotations

from dslaunch.render.templates import render

START_MARK = "dslaunch:"
"""The prefix of the first line of each start of a job, which all append to one output."""
VERDICT_SUFFIX = ".verdict.json"
"""The name of the file is that of the output with this suffix."""
LINES_READ = 10_000
"""The number of last lines of the output that are searched for messages of SLURM."""
LINES_KEPT = 8
DECLARED = "declare -f start finish"
"""The command that prints `run_functions`, to pass them to the nodes."""


def verdict_lines(version: str, nodes: str) -> str:
    """Return the lines of the batch script that write the job's verdict, now and at its end.

    `version` is that of dslaunch, `nodes` the shell text with the names of all nodes. The lines set
    a trap for EXIT, and print the first line of a start.
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

    `signal`: whether ranks get a signal before the time limit.
    """
    return render("functions.sh.j2", signal=signal)


def task_functions(*, signal: bool, python: bool) -> str:
    """Return the functions of the text of every node, besides `run_functions`.

    `python`: whether the text prints versions of Python packages.
    """
    return render("task_functions.sh.j2", signal=signal, python=python)
