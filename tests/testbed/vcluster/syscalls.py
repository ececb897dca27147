"""The Linux system calls that Python 3.11 does not offer, and what a namespace's PID 1 does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
SYS_MOUNT_SETATTR = 442  # the same number on every architecture

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Turn a C return value into an OSError that says what was tried."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(
    source: str | Path, target: str | Path, fstype: str = "", flags: int = 0, data: str = ""
) -> None:
    """mount(2)."""
    check(
        libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            fstype.encode() or None,
            ctypes.c_ulong(flags),
            data.encode() or None,
        ),
        f"mount {source} on {target}",
    )


def bind(source: str | Path, target: str | Path, *, read_only: bool = False) -> None:
    """Recursive bind mount; the mount point is created when it is missing."""
    target = Path(target)
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.is_symlink() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        attributes = struct.pack("=QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
        arguments = AT_FDCWD, os.fsencode(target), AT_RECURSIVE, attributes, len(attributes)
        check(libc.syscall(SYS_MOUNT_SETATTR, *arguments), f"read-only {target}")


def pivot_root(root: Path) -> None:
    """Make `root` this mount namespace's `/` and let go of the old one."""
    os.chdir(root)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount the host's root")
    os.chdir("/")


def in_user_namespace_of(pid: int) -> bool:
    """Whether this process is in the same user namespace as another."""
    own, other = Path("/proc/self/ns/user").stat(), Path(f"/proc/{pid}/ns/user").stat()
    return own.st_ino == other.st_ino


def enter_namespaces(pid: int, kinds: Sequence[str]) -> None:
    """Enter an init's namespaces, after the user namespace that owns them if that is another."""
    for kind in kinds if in_user_namespace_of(pid) else ["user", *kinds]:
        with Path(f"/proc/{pid}/ns/{kind}").open() as handle:
            check(libc.setns(handle.fileno(), 0), f"setns {kind} of {pid}")


def spawn_init(flags: int, main: Callable[[], None], log: Path) -> int:
    """Start `main` as PID 1 of new namespaces; returns its PID as seen from here."""
    read_end, write_end = os.pipe()
    middle = os.fork()
    if middle == 0:
        _fork_init(flags, main, log, write_end)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    os.waitpid(middle, 0)
    if not answer:
        raise OSError("could not create namespaces (see the traceback above)")
    return int(answer)


def _fork_init(flags: int, main: Callable[[], None], log: Path, answer: int) -> None:
    status = 1
    try:
        os.setsid()
        check(libc.unshare(flags), "unshare")
        child = os.fork()
        if child == 0:
            os.close(answer)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(out, 1)
            os.dup2(out, 2)
            main()
        else:
            os.write(answer, str(child).encode())
        status = 0
    except OSError:
        traceback.print_exc()
    finally:
        os._exit(status)


def reap_forever() -> None:
    """What an init does: collect orphans, so that `kill -0` of a dead process fails."""
    os.closerange(3, 1024)  # among them the lock of the state directory
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)


def start_time(pid: int) -> str | None:
    """Start time of a live process: with the PID it identifies a process for good."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def kill_quietly(pid: int) -> None:
    """SIGKILL, whether or not the process is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
