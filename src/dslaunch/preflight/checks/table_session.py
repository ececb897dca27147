"""Checks of what a login may do: limits of its processes, its shell, its files."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Check, Finding, NodeAnswers, Question, passed
from dslaunch.preflight.checks._machine import INFINIBAND
from dslaunch.preflight.comparison import alike

LIMITS = Question("limits", ["MEMLOCK", "NOFILE", "NPROC", "STACK"])
MEBI = 1 << 20


def _memlock(a: NodeAnswers) -> Iterator[Finding]:
    soft, _ = a["limits"]["MEMLOCK"]
    if soft < 0:
        yield passed("unlimited")
        return
    found = f"{soft / MEBI:g} MiB"
    if not a["infiniband"]:
        yield passed(f"{found}; no InfiniBand, so nothing is locked")
    elif soft < a.limits["fail"] * MEBI:
        yield Finding("fail", found, "unlimited")
    else:
        yield Finding("warn", found, "unlimited")


def _nofile(a: NodeAnswers) -> Iterator[Finding]:
    soft, hard = a["limits"]["NOFILE"]
    ranks = sum(len(node.slots) for node in a.scope.nodes if not node.spare)
    least = a.limits["many"] if ranks > 64 else a.limits["fail"]
    words = f"{soft} open files" + (f" (at most {hard})" if hard != soft and hard > 0 else "")
    if soft < 0:
        yield passed("no limit")
    elif soft < least:
        yield Finding("fail", words, f"at least {least:g}")
    elif soft < a.limits["warn"] * ranks:
        yield Finding("warn", words, f"{a.limits['warn'] * ranks:g} for {ranks} ranks")
    else:
        yield passed(words)


def _nproc(a: NodeAnswers) -> Iterator[Finding]:
    soft, _ = a["limits"]["NPROC"]
    if soft < 0:
        yield passed("no limit")
    elif soft < a.limits["warn"] and a.hello["uid"] != 0:
        yield Finding("warn", f"{soft} processes and threads", f"{a.limits['warn']:g}")
    else:
        yield passed("enough processes and threads")


def _stack(a: NodeAnswers) -> Iterator[Finding]:
    soft, _ = a["limits"]["STACK"]
    if soft < 0:
        yield Finding("warn", "unlimited, which gives threads 2 MiB", f"{a.limits['warn']:g} MiB")
    elif soft < a.limits["warn"] * MEBI:
        yield Finding("warn", f"{soft / MEBI:g} MiB", f"{a.limits['warn']:g} MiB")


NOT_POSIX = ("csh", "tcsh", "fish", "nu", "xonsh", "pwsh", "elvish")


def _login(a: NodeAnswers) -> Iterator[Finding]:
    shell = a["shell"].get("SHELL", "")
    name = shell.rsplit("/", 1)[-1]
    if name in NOT_POSIX:
        yield Finding("warn", f"the login shell is {name}", "a POSIX shell such as bash")
    else:
        yield passed(f"the login shell is {name}" if name else "no login shell is named")


def _noise(a: NodeAnswers) -> Iterator[Finding]:
    lines = [line for line in str(a.hello.get("noise", "")).splitlines() if line.strip()]
    if not lines:
        return
    first = "".join(c for c in lines[0].strip() if c.isprintable())[:60]
    more = f", and {len(lines) - 1} lines more" if len(lines) > 1 else ""
    yield Finding("warn", f"a login without a terminal says `{first}`{more}", "nothing")


def _umask(a: NodeAnswers) -> Iterator[Finding]:
    mask = int(a.hello["umask"])
    if mask & 0o700:
        yield Finding("warn", f"umask {mask:04o} takes the owner's own rights", "0022 or 0077")


CHECKS = {
    "lim.memlock": Check(
        title="memory may be locked for InfiniBand",
        why="Registering memory with an InfiniBand card locks it. With a low limit NCCL fails with "
        "`ibv_reg_mr` or `ibv_create_qp` errors as soon as a buffer grows.",
        fix="`* - memlock unlimited` in /etc/security/limits.d; LimitMEMLOCK=infinity for sshd and "
        "slurmd; `docker run --ulimit memlock=-1`",
        see="ulimit -l",
        source="NCCL documentation, troubleshooting: memory",
        ask=lambda scope: {"limits": LIMITS, "infiniband": INFINIBAND},
        judge=_memlock,
        limits={"fail": 64},
        limits_mean="MiB below which it fails",
    ),
    "lim.nofile": Check(
        title="enough files may be open",
        why="Every connection, every file of a dataset and every pipe to a worker of a data "
        "loader is an open file; a rank with many neighbours dies with `Too many open "
        "files`.",
        fix="`* - nofile 1048576` in /etc/security/limits.d; LimitNOFILE for sshd and slurmd",
        see="ulimit -n; ulimit -Hn",
        source="NCCL documentation, troubleshooting: file descriptors; setrlimit(2)",
        ask=lambda scope: {"limits": LIMITS},
        judge=_nofile,
        limits={"fail": 256, "many": 4096, "warn": 16},
        limits_mean="open files that every rank needs; those where there are more than 64 ranks; "
        "and for each rank, below which it warns",
    ),
    "lim.nproc": Check(
        title="enough threads may be started",
        why="Every rank has some hundred threads, data loaders beside. At the limit `fork` "
        "fails, or OpenBLAS says that it cannot create a thread.",
        fix="`* - nproc unlimited` in /etc/security/limits.d; docker: `--pids-limit=-1`",
        see="ulimit -u",
        source="setrlimit(2), RLIMIT_NPROC; NHC",
        ask=lambda scope: {"limits": LIMITS},
        judge=_nproc,
        limits={"warn": 4096},
        limits_mean="processes and threads below which it warns",
    ),
    "lim.stack": Check(
        title="threads get stacks of the usual size",
        why="With an unlimited stack glibc gives new threads 2 MiB, too few for NCCL's; the "
        "rank dies with a segmentation fault.",
        fine="of the usual size",
        fix="`ulimit -S -s 8192` in the shell's profile",
        see="ulimit -s",
        source="NCCL documentation, troubleshooting: stack size; pthread_create(3)",
        ask=lambda scope: {"limits": LIMITS},
        judge=_stack,
        limits={"warn": 8},
        limits_mean="MiB below which it warns",
    ),
    "shell.login": Check(
        title="the login shell understands what launchers send",
        why="DeepSpeed's launchers send `export NAME=value; cd ...` through the login shell; csh "
        "and fish do not understand it. dslaunch itself asks for /bin/sh.",
        fix="`chsh -s /bin/bash` for that user",
        see="echo $SHELL",
        source="DeepSpeed 0.19 launcher/multinode_runner.py (PDSHRunner.get_cmd)",
        ask=lambda scope: {"shell": Question("environment", ["SHELL"])},
        judge=_login,
    ),
    "shell.noise": Check(
        title="a login without a terminal says nothing",
        why="What ~/.bashrc prints comes before the answer of every remote command: scp, rsync and "
        "sftp break on it, and launchers take it for a host name or a number.",
        fine="a login says nothing",
        fix="in ~/.bashrc: `case $- in *i*) ;; *) return ;; esac` before anything that prints",
        see="ssh NODE true | od -c | head",
        source="OpenSSH FAQ: sftp and scp with shells that print",
        judge=_noise,
    ),
    "shell.umask": Check(
        title="files that a job makes can be read by it",
        why="A checkpoint's files are read on other nodes than they were written on, and by "
        "people.",
        fine="files that a job makes can be read by it",
        fix="`umask 022` in the shell's profile",
        see="umask",
        source="umask(2)",
        judge=_umask,
        compare=alike(
            lambda a: f"{int(a.hello['umask']):04o}",
            level="info",
            found="umask {value}; {common} on {count} nodes",
            expected="",
        ),
    ),
}
