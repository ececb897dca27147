"""Runs in every Python process of a run: lets dslaunch ask it for its stacks.

`faulthandler` writes them on a signal, into memory that only this process and the agent can open.
`stacks.py` sends the signal and reads the answer. How this module gets here: `rank_hooks.py`; it
imports nothing that an ordinary Python process has not, not even `__future__`.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, List

SIGNAL = 52
"""SIGRTMAX-12, by its number, since C libraries differ in where SIGRTMIN is.

The common ones are in use: SIGUSR1 and SIGUSR2 by SLURM's warnings, NCCL (NVIDIA/nccl issue 704)
and submitit, SIGALRM and SIGHUP by UCX; SIGRTMIN by .NET, both ends of the realtime signals by
other runtimes, profilers and Valgrind. None is known to use the middle.
"""
NOTE = "dslaunch-stacks"
"""The beginning of the name of the memory; the number of the process follows."""
_NO_EXECUTION = 8
"""MFD_NOEXEC_SEAL, unknown before Linux 6.3."""


def start(directory: str) -> None:
    """Register the handler, in this process and in those that it forks. Raises OSError."""
    del directory  # nothing is written there
    if hasattr(os, "memfd_create"):
        _register_here_and_in_children()
    chosen = "PYTHONFAULTHANDLER" in os.environ or "faulthandler" in sys._xoptions
    import faulthandler

    if not chosen and not faulthandler.is_enabled():
        faulthandler.enable()


def _register_here_and_in_children() -> None:
    import _signal  # type: ignore[import-not-found]  # `signal` takes longer: it imports `enum`

    # what faulthandler puts back while the interpreter leaves: a late signal does no harm
    _signal.signal(SIGNAL, _signal.SIG_IGN)
    own: List[Any] = []
    _register(own)
    os.register_at_fork(after_in_child=lambda: _register_again(own))


def _register(own: "List[Any]") -> None:
    """Register the handler with memory of this process's own, kept in `own` with its identity."""
    import faulthandler

    fd = _note()
    faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)
    own[:] = [fd, os.fstat(fd)]


def _register_again(own: "List[Any]") -> None:
    """Register in a forked child, and close the descriptor of its parent if it is still that."""
    parents = list(own)
    try:
        _register(own)
        if os.path.samestat(os.fstat(parents[0]), parents[1]):
            os.close(parents[0])
    except Exception:  # noqa: BLE001 - whatever fails here must not become an error of the job
        return


def _note() -> int:
    """Return a descriptor of new memory that only this user can open.

    Memory, not a file: nothing to clean up, no disk that may be full. It is named, so that it can
    be told that this descriptor is still ours.
    """
    name = f"{NOTE}:{os.getpid()}"
    try:
        made = os.memfd_create(name, os.MFD_CLOEXEC | _NO_EXECUTION)
    except OSError:
        made = os.memfd_create(name)
    try:
        os.fchmod(made, 0o600)
        # a second descriptor, since it must append: `stacks.py` empties it between two answers
        return os.open(f"/proc/self/fd/{made}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    finally:
        os.close(made)
