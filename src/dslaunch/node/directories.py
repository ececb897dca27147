"""Where runs have their directories on a node: `PLACE/<run>.<host>.<random>`, for this user alone.

A place is a directory of ours (see `private`) that holds the directories of all our runs:

- the lasting place, below the home directory. No other user can make entries there, nothing
  removes it at a logout or a reboot, and it is searched first. Home directories are often on a
  file server that all nodes share, which may hang, be full or be slow; that is why it is the first
  choice only for a detached run, whose records must last. The name of the node is part of every
  run directory's name, so that nodes that share a home do not mix.
- temporary places, for runs that a launcher holds: `dslaunch-UID` in $TMPDIR, /tmp, /var/tmp and
  /dev/shm. Any user can make that name before us. If one did, a place with a name that
  cannot be guessed is made beside it, `dslaunch-UID-<random>`, and found again by its owner.

/run/user/UID is not used: systemd removes it at the last logout, while runs continue.

Places are never removed: another user can take a name that is free.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile

from dslaunch.node import paths, private

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Callable, Collection, Iterator, List, Optional

STATE = ".local/state/dslaunch"
LASTING = "nodes"
_PROBE = "probe"
_PROBE_BYTES = 64 * 1024


def make(run: str, host: str, home: str, *, lasting: bool) -> str:
    """Make this run's directory in the first place that can hold one, `lasting` or temporary.

    Raises OSError with every reason if none can.
    """
    makers: List[Callable[[], str]] = [_temporary_maker(above) for above in _temporary_parents()]
    makers.insert(0 if lasting else len(makers), lambda: _make_lasting(home))
    reasons = []
    for maker in makers:
        try:
            return _make_in(maker(), run, host)
        except OSError as error:
            reasons.append(f"{error.filename}: {error.strerror}")
    raise OSError(f"no directory for the run: {'; '.join(reasons)}")


def find(home: str, host: str, run: Optional[str] = None) -> Iterator[str]:
    """Yield the directories of a node's runs, or those of one run, that belong to this user."""
    start, middle = (f"{run}.{host}." if run else ""), f".{host}."
    for place in _places(home):
        for name in paths.entries(place):
            path = os.path.join(place, name)
            if name.startswith(start) and middle in name and private.is_ours(path):
                yield path


def run_of(path: str, host: str) -> str:
    """Return the run whose directory it is, by its name."""
    return os.path.basename(path).rpartition(f".{host}.")[0]


def remove(path: str, keep: Collection[str] = ()) -> None:
    """Remove a run's directory, or all in it but the files that `keep` names."""
    above, name = os.path.split(path)
    with contextlib.suppress(OSError), private.opened(above) as place:
        if not keep:
            private.remove_tree(name, place)
            return
        with private.opened(name, place) as directory:
            for inside in set(os.listdir(directory)) - set(keep):
                with contextlib.suppress(OSError):
                    _remove_entry(inside, directory)


def is_lasting(path: str, home: str) -> bool:
    """Return whether a run's directory is persistent."""
    return os.path.dirname(path) == _lasting(home)


# ------------------------------------------------------------ places


def _lasting(home: str) -> str:
    return os.path.join(home, STATE, LASTING)


def _temporary_parents() -> List[str]:
    """Directories for temporary files: the user's choice, the node's disk, the node's memory."""
    chosen = os.environ.get("TMPDIR", "")
    parents = [chosen] if chosen.startswith("/") else []
    return list(dict.fromkeys([*parents, "/tmp", "/var/tmp", "/dev/shm"]))


def _usual(above: str) -> str:
    return os.path.join(above, f"dslaunch-{os.geteuid()}")


def _fallbacks(above: str) -> List[str]:
    """Return the places with names that cannot be guessed, if there are any of ours."""
    prefix = os.path.basename(_usual(above)) + "-"
    found = (os.path.join(above, name) for name in paths.entries(above) if name.startswith(prefix))
    return [path for path in found if private.is_ours(path)]


def _places(home: str) -> Iterator[str]:
    """Yield all places of ours that exist, the lasting one first."""
    if private.is_ours(_lasting(home)):
        yield _lasting(home)
    for above in _temporary_parents():
        if private.is_ours(_usual(above)):
            yield _usual(above)
        yield from _fallbacks(above)


# ------------------------------------------------------------ making


def _make_lasting(home: str) -> str:
    # both levels: who can write to the upper one could replace the lower one
    private.make_directory(os.path.join(home, STATE))
    private.make_directory(_lasting(home))
    return _lasting(home)


def _temporary_maker(above: str) -> Callable[[], str]:
    return lambda: _make_temporary(above)


def _make_temporary(above: str) -> str:
    """Make the place in a directory that others share, or take the one that is there."""
    private.check_parent(above)
    with contextlib.suppress(OSError):
        private.make_directory(_usual(above))
        return _usual(above)
    # another user has the name
    there = _fallbacks(above)
    prefix = os.path.basename(_usual(above)) + "-"
    return there[0] if there else tempfile.mkdtemp(prefix=prefix, dir=above)


def _make_in(place: str, run: str, host: str) -> str:
    path = tempfile.mkdtemp(prefix=f"{run}.{host}.", dir=place)
    try:
        _write_probe(path)
    except OSError as error:
        remove(path)
        raise OSError(error.errno, error.strerror, place) from None
    return path


def _write_probe(path: str) -> None:
    """Write and remove a small file: a full disk may still have room for a directory."""
    with private.opened(path) as directory:
        private.write(_PROBE, "0" * _PROBE_BYTES, directory)
        os.unlink(_PROBE, dir_fd=directory)


def _remove_entry(name: str, directory: int) -> None:
    about = os.lstat(name, dir_fd=directory)
    if stat.S_ISDIR(about.st_mode):
        private.remove_tree(name, directory)
    else:
        os.unlink(name, dir_fd=directory)
