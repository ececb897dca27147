"""Checks of what a login may do: limits of its processes, its shell, its files."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.plural import counted
from dslaunch.preflight.check import Check, Finding, NodeAnswers, Question, Scope, passed
from dslaunch.preflight.checks._machine import INFINIBAND, has_active_port
from dslaunch.preflight.comparison import alike
from dslaunch.preflight.flow import judged

LIMITS = Question("limits", ["MEMLOCK", "NOFILE", "NPROC", "STACK"])
MEBI = 1 << 20


def _memlock(a: NodeAnswers) -> Iterator[Finding]:
    soft, _ = a["limits"]["MEMLOCK"]
    if soft < 0:
        yield passed("unlimited")
        return
    found = f"{soft / MEBI:g} MiB"
    if not has_active_port(a["infiniband"]):
        yield passed(f"{found}; not needed without an active InfiniBand or RoCE port")
    elif soft < a.limits["fail"] * MEBI:
        yield Finding("fail", found, "unlimited")
    else:
        yield Finding("warn", found, "unlimited")


def _ranks(scope: Scope) -> int:
    return sum(len(node.slots) for node in scope.nodes if not node.spare)


HIGHEST_LIMIT = 1 << 20
"""Open files that Linux permits a process at most, unless fs.nr_open is raised; proc_sys_fs(5)."""


def _nofile(a: NodeAnswers) -> Iterator[Finding]:
    soft, hard = a["limits"]["NOFILE"]
    ranks = a.scope.once(_ranks)
    wanted = min(round(a.limits["warn"] * ranks), HIGHEST_LIMIT)
    words = f"{soft} open files" + (f" (at most {hard})" if hard != soft and hard > 0 else "")
    if soft < 0:
        yield passed("no limit")
    elif soft < a.limits["fail"]:
        yield Finding("fail", words, f"at least {a.limits['fail']:g}")
    elif ranks > 64 and 0 <= hard < a.limits["many"]:
        # the rank with many peers is that of NCCL's root, which raises its soft limit to the hard
        # one (NCCL, src/bootstrap.cc, `setFilesLimit`)
        yield Finding("fail", words, f"a hard limit of at least {a.limits['many']:g}")
    elif soft < wanted:
        yield Finding("warn", words, f"{wanted} for {ranks} ranks")
    elif soft < a.limits["usual"]:
        yield Finding("warn", words, f"{a.limits['usual']:g}, the default of Linux")
    else:
        yield passed(words)


def _nproc(a: NodeAnswers) -> Iterator[Finding]:
    soft, _ = a["limits"]["NPROC"]
    if soft < 0:
        yield passed("no limit")
    elif soft < a.limits["warn"] and a.kind.uid != 0:
        yield Finding("warn", f"{soft} processes and threads", f"{a.limits['warn']:g}")
    else:
        yield passed("enough processes and threads")


def _stack(a: NodeAnswers) -> Iterator[Finding]:
    soft, _ = a["limits"]["STACK"]
    if soft < 0:
        yield Finding(
            "warn",
            "unlimited, which limits stacks of new threads to 2 MiB",
            f"{a.limits['warn']:g} MiB",
        )
    elif soft < a.limits["warn"] * MEBI:
        yield Finding("warn", f"{soft / MEBI:g} MiB", f"{a.limits['warn']:g} MiB")


NOT_POSIX = ("csh", "tcsh", "fish", "nu", "xonsh", "pwsh", "elvish")


def _login(a: NodeAnswers) -> Iterator[Finding]:
    shell = a["shell"].get("SHELL", "")
    name = shell.rsplit("/", 1)[-1]
    if name in NOT_POSIX:
        yield Finding("warn", f"the login shell is {name}", "a POSIX shell such as bash")
    else:
        yield passed(f"the login shell is {name}" if name else "login shell not reported")


def _noise(a: NodeAnswers) -> Iterator[Finding]:
    lines = [line for line in a.noise.splitlines() if line.strip()]
    if not lines:
        return
    first = "".join(c for c in lines[0].strip() if c.isprintable())[:60]
    more = f", and {counted(len(lines) - 1, 'more line')}" if len(lines) > 1 else ""
    yield Finding("warn", f"a login without a terminal prints `{first}`{more}", "nothing")


def _umask(a: NodeAnswers) -> Iterator[Finding]:
    mask = a.kind.umask
    if mask & 0o700:
        yield Finding("warn", f"umask {mask:04o} removes the owner's permissions", "0022 or 0077")


CHECKS = {
    "lim.memlock": Check(
        title="locked memory is unlimited for InfiniBand",
        why=(
            "Registering memory with an InfiniBand NIC locks it. With a low limit NCCL "
            "fails with `ibv_reg_mr` or `ibv_create_qp` errors when a buffer grows."
        ),
        fix=(
            "set `* - memlock unlimited` in /etc/security/limits.d, "
            "LimitMEMLOCK=infinity for sshd and slurmd; or run `docker run --ulimit "
            "memlock=-1`"
        ),
        see="ulimit -l",
        source="NCCL documentation, troubleshooting: memory",
        flow=judged(_memlock, lambda scope: {"limits": LIMITS, "infiniband": INFINIBAND}),
        limits={"fail": 64},
        limits_mean="MiB below which it fails",
    ),
    "lim.nofile": Check(
        title="the limit of open files is high enough",
        why=(
            "Every connection, file of a dataset and pipe to a data loader's worker is "
            "an open file; a rank with many peers fails with `Too many open files`."
        ),
        fix=(
            "set `* - nofile 1048576` in /etc/security/limits.d, and LimitNOFILE for "
            "sshd and slurmd"
        ),
        see="ulimit -n; ulimit -Hn",
        source=(
            "NCCL documentation, troubleshooting: file descriptors; NCCL, src/bootstrap.cc; "
            "setrlimit(2)"
        ),
        flow=judged(_nofile, lambda scope: {"limits": LIMITS}),
        limits={"fail": 256, "many": 4096, "warn": 16, "usual": 1024},
        limits_mean=(
            "open files needed by every rank; the hard limit needed with more than 64 ranks; per "
            "rank, below which it warns; and at any size, below which it warns"
        ),
    ),
    "lim.nproc": Check(
        title="the limit of processes is high enough",
        why=(
            "Every rank starts hundreds of threads, plus those of data loaders. At the "
            "limit `fork` fails, or OpenBLAS cannot create a thread."
        ),
        fix=("set `* - nproc unlimited` in /etc/security/limits.d; docker: `--pids-limit=-1`"),
        see="ulimit -u",
        source="setrlimit(2), RLIMIT_NPROC; NHC",
        flow=judged(_nproc, lambda scope: {"limits": LIMITS}),
        limits={"warn": 4096},
        limits_mean="processes and threads below which it warns",
    ),
    "lim.stack": Check(
        title="the stack size of threads is large enough",
        why=(
            "With an unlimited stack glibc gives new threads 2 MiB, too little for NCCL; "
            "the rank fails with a segmentation fault."
        ),
        flow=judged(_stack, lambda scope: {"limits": LIMITS}, fine="default stack size"),
        fix="set `ulimit -S -s 8192` in the shell's profile",
        see="ulimit -s",
        source="NCCL documentation, troubleshooting: stack size; pthread_create(3)",
        limits={"warn": 8},
        limits_mean="MiB below which it warns",
    ),
    "shell.login": Check(
        title="the login shell is a POSIX shell",
        why=(
            "DeepSpeed's launchers send `export NAME=value; cd ...` to the login shell; "
            "csh and fish cannot run it. dslaunch itself uses /bin/sh."
        ),
        fix="run `chsh -s /bin/bash` for that user",
        see="echo $SHELL",
        source="DeepSpeed 0.19 launcher/multinode_runner.py (PDSHRunner.get_cmd)",
        flow=judged(_login, lambda scope: {"shell": Question("environment", ["SHELL"])}),
    ),
    "shell.noise": Check(
        title="logins without a terminal print nothing",
        why=(
            "Output of ~/.bashrc precedes that of every remote command: scp, rsync and "
            "sftp fail, and launchers parse it as a host name or a number."
        ),
        flow=judged(_noise, fine="logins print nothing"),
        fix="put `case $- in *i*) ;; *) return ;; esac` into ~/.bashrc before any output",
        see="ssh NODE true | od -c | head",
        source="OpenSSH FAQ: sftp and scp with shells that print",
    ),
    "shell.umask": Check(
        title="new files are readable by their owner",
        why=(
            "A checkpoint's files are read on other nodes than they were written on, and "
            "by other users."
        ),
        flow=judged(
            _umask,
            fine="new files are readable by their owner",
            compare=alike(
                lambda a: f"{a.kind.umask:04o}",
                level="info",
                found="umask {value}; {common} on {count} nodes",
                expected="",
            ),
        ),
        fix="set `umask 022` in the shell's profile",
        see="umask",
        source="umask(2)",
    ),
}
