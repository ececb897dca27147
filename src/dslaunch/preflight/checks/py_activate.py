"""Whether the activate line works, as the run executes it."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.launch.command import quote
from dslaunch.preflight.check import Check, Finding, NodeAnswers, skipped
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.flow import judged

INIT_OF = {
    **dict.fromkeys(("conda", "mamba", "micromamba"), ("conda", job.CONDA_FILES)),
    **dict.fromkeys(("module", "ml"), ("Environment Modules or Lmod", job.MODULE_FILES)),
}
"""Commands that a start-up file of interactive shells defines: what has to be installed for them,
and where that file is."""
NO_COMMAND = 127
"""The exit code of a shell that does not know a command; bash(1), EXIT STATUS."""
NOT_INTERACTIVE = "jobs start in a shell that is not interactive and does not read ~/.bashrc"


def _judge(a: NodeAnswers) -> Iterator[Finding]:
    line = (a.kind.activate or "").strip()
    if not line:
        yield skipped("`activate:` is not set")
        return
    found = job.entered(a)
    if found.activated:
        yield from _remarks(a, found)
    else:
        yield _failed(a, line, found)


def _failed(a: NodeAnswers, line: str, found: job.Entered) -> Finding:
    """Why nothing was run after the line."""
    said = f"`activate: {_short(line)}`"
    expected = "a line that exits successfully"
    if "missing" in found.tried:
        return Finding(
            "fail", f"{said} needs bash, which is not installed", expected, "install bash"
        )
    code = found.tried["code"]
    if code is None:
        words = f"{said} did not finish within {a.limits['seconds']:g} s"
        last = f"; its last output: {found.last_words}" if found.last_words else ""
        fix = "check whether it prompts for input or uses a hung file system; " + FIX
        return Finding("fail", words + last, expected, fix)
    if code == 0:
        words = f"{said} exits the shell with exit code 0: no command would run after it"
        fix = "remove `exit` from the line and from what it runs (`return` ends a sourced file)"
        return Finding("fail", words, expected, fix)
    cause, fix = _cause(a, line, found)
    words = f"{said} fails with exit code {code}{cause}"
    secret = next((s.name for s in a.scope.job.secrets if s.name in line), None)
    if secret is not None:  # secrets go to agents alone
        return Finding("warn", f"{words}; the secret {secret} is not set in checks", expected, fix)
    return Finding("fail", words, expected, fix)


def _cause(a: NodeAnswers, line: str, found: job.Entered) -> tuple[str, str]:
    """The cause in words, and what to do: by what the node has of what the line names."""
    there = found.tried.get("there", [])
    absent = [path for path in job.files_of(a.scope, job.uses_of(a)) if path not in there]
    if absent:
        fix = "create the file on that node, or correct `activate:`"
        if absent[0] not in job.uses_of(a).files:
            fix += "; a relative path starts at the working directory"
        return f": file not found: {absent[0]}", fix
    lacks = found.tried.get("lacks", [])
    if lacks and found.tried["code"] == NO_COMMAND:
        are = "is not found" if len(lacks) == 1 else "are not found"
        return f": {', '.join(lacks)} {are}", _fix_of(lacks[-1], line, there)
    words = f": {found.last_words}" if found.last_words else ""
    return words, FIX


def _fix_of(command: str, line: str, there: list[str]) -> str:
    """How a command that an interactive shell has is had in a job."""
    what, files = INIT_OF.get(command, (command, ()))
    ready = next((path for path in files if path in there), None)
    if ready is not None:
        source = ready if ready.startswith("~") else quote(ready)
        return f"{NOT_INTERACTIVE}: write `activate: source {source} && {_short(line)}`"
    if files:
        return f"install {what} on the node, or source the file that defines it: {NOT_INTERACTIVE}"
    return f"install {what} on the node, or use its full path: {NOT_INTERACTIVE}"


def _remarks(a: NodeAnswers, found: job.Entered) -> Iterator[Finding]:
    """What is odd about a line that succeeded."""
    has = found.installed
    if has is not None and has.active:
        words = f"activates {has.active}, but the job's Python is {found.path} of {has.prefix}"
        fix = (
            "check whether the environment was moved or has no Python, and what else the line runs"
        )
        yield Finding("warn", words, f"Python of {has.active}", fix)
    if found.first_words:
        yield Finding("info", f"prints to the terminal: {found.first_words}")


def _short(line: str) -> str:
    first = line.splitlines()[0]
    return first[:160] + ("..." if first != line or len(first) > 160 else "")


FIX = "try the line on the node in `bash --norc -c '...'`: " + NOT_INTERACTIVE
CHECK = Check(
    title="the activate line succeeds",
    tier="gate",
    why=(
        "The line runs on each node before the job's command. If it fails, no rank "
        "starts; if it activates another environment, ranks fail later, at their "
        "first import."
    ),
    fix=FIX,
    see="bash --norc -c 'ACTIVATE && command -v python3'",
    source="bash(1), INVOCATION; conda/conda#7980 (conda activate in scripts); Environment Modules "
    "and Lmod, initialization of shells",
    flow=judged(_judge, job.ask, fine="the activate line succeeds"),
    limits=job.LIMITS,
    limits_mean="seconds in which the activate line and the start of Python must finish",
)
