"""Whether the job's interpreter has what the launcher and the script import."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.launch import launchers
from dslaunch.plural import counted
from dslaunch.preflight.check import Answers, Check, Scope, Verdict, passed, skipped
from dslaunch.preflight.checks import _job as job
from dslaunch.protocol.programs import Installed
from dslaunch.pysource.imports import USUAL

FIX = "install it for that interpreter, or let `python:` or `activate:` lead to the one that has it"


def _judge(a: Answers) -> Iterator[Verdict]:
    scope = a.scope
    if not launchers.starts_python(scope.job):
        yield skipped("the job starts no Python")
        return
    found = job.installed(a)
    if found is None:
        yield skipped(job.NOT_ENTERED)
        return
    wrong = [*_of_launcher(scope, found), *_of_script(scope, found)]
    yield from wrong or [passed(_words(found))]


def _of_launcher(scope: Scope, found: Installed) -> Iterator[Verdict]:
    absent: dict[str, None] = {}
    for name, module in job.missing(found, launchers.modules_of(scope.launcher)):
        top = name.partition(".")[0]
        if module is None or not module.at:
            absent[top] = None
        elif not module.package:
            words = f"{top} is the file {module.at}, not the package"
            fix = "rename the file: Python finds it before the package"
            yield Verdict("fail", words, f"the package {top}", fix)
        else:
            words = f"{top} at {module.at} has no {name}"
            expected = f"{name}, which launcher `{scope.launcher}` starts"
            yield Verdict("fail", words, expected, FIX)
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        words = f"{' and '.join(absent)} {verb} missing at {found.executable}"
        words += f", and launcher `{scope.launcher}` does not start without"
        yield Verdict("fail", words, " and ".join(absent), FIX)


def _of_script(scope: Scope, found: Installed) -> Iterator[Verdict]:
    known = {name.partition(".")[0] for name in launchers.modules_of(scope.launcher)}
    certain = [name for name in scope.imports.certain if name not in known]
    absent = [name for name, _ in job.missing(found, tuple(certain))]
    script = scope.job.program
    if absent:
        words = f"{_listed(absent)} missing at {found.executable}, and "
        if scope.job.kind == "module" and not scope.imports.read:
            words += f"the module to run is {script}"
        else:
            words += f"{script} imports {'it' if len(absent) == 1 else 'them'}"
        yield Verdict("fail", words, "what the script imports", FIX)
    possible = tuple(n for n in scope.imports.possible if n in USUAL and n not in known)
    perhaps = [name for name, _ in job.missing(found, possible)]
    if perhaps:
        words = f"{_listed(perhaps)} missing at {found.executable}; a part of {script} imports "
        words += "it" if len(perhaps) == 1 else "them"
        yield Verdict("warn", words, "what the script imports", FIX)
    unread = script and scope.job.kind != "command" and not scope.imports.read
    if unread and "torch" not in known and "torch" not in found.modules:
        words = f"torch is missing at {found.executable}"
        expected = f"torch, if {script} needs it: its source is not here to be read"
        yield Verdict("warn", words, expected, FIX)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more} {'is' if len(names) == 1 else 'are'}"


def _words(found: Installed) -> str:
    named = [f"{p} {found.packages[p][0]}" for p in job.MUST[:2] if p in found.packages]
    return ", ".join(named) or f"{counted(len(found.packages), 'known package')}, none is needed"


CHECK = Check(
    title="what the launcher and the script import is installed",
    tier="gate",
    why="A launcher without torch, or a script without a module, ends at its first import; the "
    "ranks of the other nodes wait for it.",
    fix=FIX,
    see="python3 -c 'import torch'",
    source="torch 2.13 distributed/run.py, DeepSpeed 0.19.8 launcher/launch.py, accelerate 1.15 "
    "commands/launch.py; Python's import system",
    flow=job.asking(_judge),
)
