"""Whether the login shell understands what launchers send."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed

NOT_POSIX = ("csh", "tcsh", "fish", "nu", "xonsh", "pwsh", "elvish")


def _judge(a: Answers) -> Iterator[Verdict]:
    shell = a["shell"].get("SHELL", "")
    name = shell.rsplit("/", 1)[-1]
    if name in NOT_POSIX:
        yield Verdict("warn", f"the login shell is {name}", "a POSIX shell such as bash")
    else:
        yield passed(f"the login shell is {name}" if name else "no login shell is named")


CHECK = Check(
    title="the login shell understands what launchers send",
    tier="static",
    why="DeepSpeed's launchers send `export NAME=value; cd ...` through the login shell; csh and "
    "fish do not understand it. dslaunch itself asks for /bin/sh.",
    fix="`chsh -s /bin/bash` for that user",
    see="echo $SHELL",
    source="DeepSpeed 0.19 launcher/multinode_runner.py (PDSHRunner.get_cmd)",
    ask=lambda scope: {"shell": Question("environment", ["SHELL"])},
    judge=_judge,
)
