"""Whether a login is silent until something is asked."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Verdict, passed


def _judge(a: Answers) -> Iterator[Verdict]:
    lines = [line for line in str(a.hello.get("noise", "")).splitlines() if line.strip()]
    if not lines:
        yield passed("a login says nothing")
        return
    first = "".join(c for c in lines[0].strip() if c.isprintable())[:60]
    more = f", and {len(lines) - 1} lines more" if len(lines) > 1 else ""
    yield Verdict("warn", f"a login without a terminal says `{first}`{more}", "nothing")


CHECK = Check(
    title="a login without a terminal says nothing",
    tier="static",
    why="What ~/.bashrc prints comes before the answer of every remote command: scp, rsync and "
    "sftp break on it, and launchers take it for a host name or a number.",
    fix="in ~/.bashrc: `case $- in *i*) ;; *) return ;; esac` before anything that prints",
    see="ssh NODE true | od -c | head",
    source="OpenSSH FAQ: sftp and scp with shells that print",
    judge=_judge,
)
