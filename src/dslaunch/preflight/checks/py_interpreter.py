"""Whether the job's interpreter is there, and the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.launch import launchers
from dslaunch.preflight.check import Answers, Check, Verdict, passed, skipped
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.checks._alike import alike

NO_LIBRARY = (
    "unset PYTHONHOME (`env:`, `activate:`, ~/.bashrc); or make the virtual environment again, "
    "if the Python that it was made with was moved or removed"
)


def _judge(a: Answers) -> Iterator[Verdict]:
    if not launchers.starts_python(a.scope.job):
        yield skipped("the job starts no Python")
        return
    found = job.entered(a)
    if not found.activated and (a.node.activate or "").strip():
        yield skipped("`activate:` fails; see py.activate")
    elif found.installed is not None:
        version = ".".join(map(str, found.installed.version))
        yield passed(f"Python {version} at {found.installed.executable}")
    else:
        yield _without(a, found)


def _without(a: Answers, found: job.Entered) -> Verdict:
    name = a.node.python or "python3"
    if found.tried["code"] is None:
        words = f"{found.path or name} did not answer within {a.limits['seconds']:g} s"
        fix = "look for a hung or overloaded file system below sys.path: `python3 -X importtime`"
        return Verdict("fail", words, "an answer in a second", fix)
    if not found.path:
        after = "" if a.node.activate is None else " after the activate line"
        return Verdict("fail", f"there is no interpreter {name!r}{after}", "a Python interpreter")
    if found.without_library:
        words = f"{found.path} does not start: it does not find its own library"
        return Verdict("fail", words, "a Python interpreter", NO_LIBRARY)
    said = f": {found.last_words}" if found.last_words else ""
    words = f"{found.path} does not run (exit code {found.tried['code']}){said}"
    return Verdict("fail", words, "a Python interpreter")


def _version(a: Answers) -> str | None:
    found = job.installed(a) if launchers.starts_python(a.scope.job) else None
    return ".".join(map(str, found.version[:2])) if found is not None else None


CHECK = Check(
    title="the job's interpreter is there, the same on all nodes",
    tier="gate",
    why="Packages are installed for one version of Python; a node with another one fails at its "
    "first import, and all others wait for it.",
    fix="install it there, or correct `python:` or `activate:` of that node",
    see="command -v python3; python3 -V",
    source="imbue cluster-health: the same container everywhere",
    flow=job.asking(_judge),
    compare=alike(
        _version,
        level="fail",
        found="Python {value}",
        expected="Python {common}, as on {nodes}",
    ),
    limits=job.LIMITS,
    limits_mean="seconds in which Python must start",
)
