"""The kinds of question that a node can be asked. Few and general: what the answers mean is
judged elsewhere, so that a recorded answer can be judged again."""

from __future__ import annotations

import fnmatch
import glob
import os
import sys
import time

from dslaunch.node import accelerators, interfaces, network, paths

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    from typing import Any, Callable, Dict, List, Optional

    Answer = Dict[str, Any]

PCI = "/sys/bus/pci/devices"


def identity() -> Answer:
    """Who this node is, and who we are on it."""
    uname = os.uname()
    return {
        "hostname": uname.nodename,
        "kernel": uname.release,
        "machine": uname.machine,
        "boot": paths.text_of("/proc/sys/kernel/random/boot_id"),
        "network": os.readlink("/proc/self/ns/net"),
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "uid": os.getuid(),
        "home": paths.home(),
        "cores": _cores(),
    }


def _cores() -> Optional[int]:
    """How many we may use; PyPy knows only how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def umask() -> int:
    """The mode bits that new files lack. Changes them for a moment: not for use among threads."""
    old = os.umask(0o077)
    os.umask(old)
    return old


def answered(work: Callable[[], Any]) -> Answer:
    """What a question gives: `{"value": ...}`, or `{"error": why}`."""
    try:
        return {"value": work()}
    except OSError as error:
        return {"error": error.strerror or str(error)}
    except Exception as error:  # noqa: BLE001 - no question may take the others with it
        return {"error": f"{type(error).__name__}: {error}"}


# ---------------------------------------------------------------- at once: the kernel's own tables


def _read(patterns: List[str]) -> Dict[str, str]:
    """Texts of files in /proc and /sys, `*` allowed; what is not there is left out."""
    found = {}
    for path in (path for pattern in patterns for path in sorted(glob.glob(pattern))):
        try:
            with open(path, "rb") as file:
                found[path] = file.read(paths.MOST_TEXT).decode(errors="replace").rstrip("\n")
        except OSError:
            continue
    return found


def _limits(names: List[str]) -> Dict[str, List[int]]:
    """Soft and hard limits by the names of Python's `resource`; -1 is unlimited."""
    import resource

    return {name: list(resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))) for name in names}


def _environment(patterns: List[str]) -> Dict[str, str]:
    """The variables of this session that match; the patterns name no secrets."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def _present(names: List[str]) -> Dict[str, str]:
    """Where programs are that systems keep, by name, and which absolute paths exist; what is not
    there is left out. The session's PATH is not searched: it may lead to a file server."""
    found = {
        name: (name if os.path.exists(name) else None)
        if name.startswith("/")
        else paths.program(name, paths.SYSTEM)
        for name in names
    }
    return {name: path for name, path in found.items() if path}


def _pci(vendors: List[str]) -> Dict[str, Answer]:
    """PCI devices of these vendors (`0x10de`), by address: class, device, and kernel driver."""
    found = {}
    for address in _entries(PCI):
        where = os.path.join(PCI, address)
        if paths.text_of(os.path.join(where, "vendor")) in vendors:
            driver = os.path.realpath(os.path.join(where, "driver"))
            found[address] = {
                "class": paths.text_of(os.path.join(where, "class")),
                "device": paths.text_of(os.path.join(where, "device")),
                "driver": os.path.basename(driver) if os.path.isdir(driver) else None,
            }
    return found


# ---------------------------------------------------------------- in a child: what may hang


def _which(names: List[str]) -> Dict[str, Optional[str]]:
    """Where programs are: on this session's PATH, which may lead to a file server, or where
    systems keep them."""
    search = _search()
    return {name: paths.program(name, search) for name in names}


def _search() -> str:
    """This session's PATH, then where systems keep programs."""
    return f"{os.environ.get('PATH', '')}:{paths.SYSTEM}".lstrip(":")


def _run(argument: Answer) -> Answer:
    """Run a program: `argv`, or `shell`; it reads `text`. Gives `code`, `out`, `err`; code 127: not
    there."""
    import subprocess

    argv = argument.get("argv") or ["/bin/sh", "-c", argument["shell"]]
    try:
        done = subprocess.run(
            argv,
            input=argument.get("text", "").encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PATH": _search(), "LC_ALL": "C", **argument.get("env", {})},
            cwd=paths.home() if os.path.isdir(paths.home()) else "/",
            check=False,
        )
    except FileNotFoundError:
        return {"code": 127, "out": "", "err": f"{argv[0]}: not found"}
    texts = {name: getattr(done, f"std{name}")[: paths.MOST_TEXT] for name in ("out", "err")}
    return {"code": done.returncode, **{k: v.decode(errors="replace") for k, v in texts.items()}}


def _each(argument: Answer) -> Dict[str, Answer]:
    """Run many programs, name -> argument vector, `at_once` at a time. One whose errors contain a
    word of `again` is tried three times: a server that has too many callers drops some."""
    from concurrent.futures import ThreadPoolExecutor

    def one(argv: List[str]) -> Answer:
        import random

        for attempt in range(3):
            done = _run({"argv": argv})
            if not done["code"] or not any(word in done["err"] for word in argument["again"]):
                break
            time.sleep((attempt + random.random()) / 2)
        return done

    programs: Dict[str, List[str]] = argument["programs"]
    with ThreadPoolExecutor(max_workers=argument["at_once"]) as pool:
        running = {name: pool.submit(one, argv) for name, argv in programs.items()}
        return {name: future.result() for name, future in running.items()}


def _texts(wanted: List[str]) -> Dict[str, str]:
    """Texts of files anywhere; what cannot be read is left out."""
    texts = {path: paths.text_of(paths.absolute(path)) for path in wanted}
    return {path: text for path, text in texts.items() if text}


def _path(path: str) -> Answer:
    """What a path is: kind, owner, space, and the file system that it is on."""
    import stat

    where = paths.absolute(path)
    status, space = os.stat(where), os.statvfs(where)
    kind = "directory" if stat.S_ISDIR(status.st_mode) else "file"
    return {
        "path": where,
        "real": os.path.realpath(where),
        "kind": kind if not stat.S_ISCHR(status.st_mode) else "device",
        "mode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "size": space.f_blocks * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
        "inodes": space.f_files,
        "inodes_free": space.f_favail,
        "writable": os.access(where, os.W_OK),
        "mount": _mount(os.path.realpath(where)),
    }


def _above(path: str) -> Answer:
    """The same of the nearest directory above a path that is there."""
    where = paths.absolute(path)
    while not os.path.isdir(where):
        where = os.path.dirname(where)
    return _path(where)


def _mount(path: str) -> Optional[Answer]:
    """The line of /proc/self/mountinfo that a path is below; proc(5)."""
    best: Optional[Answer] = None
    for line in paths.text_of("/proc/self/mountinfo", 1 << 22).splitlines():
        left, _, right = line.partition(" - ")
        fields, more = left.split(), right.split()
        if len(fields) < 6 or len(more) < 2:
            continue
        point = fields[4].encode().decode("unicode_escape") if "\\" in fields[4] else fields[4]
        if path == point or path.startswith(point.rstrip("/") + "/"):
            options = ",".join([fields[5], *more[2:]])
            best = {"point": point, "type": more[0], "source": more[1], "options": options}
    return best


def _list(argument: Answer) -> List[Answer]:
    """Files below a directory whose names match: path, size, owner, age in seconds."""
    found = []
    top = paths.absolute(argument["path"])
    for directory, below, names in os.walk(top):
        below[:] = [] if directory[len(top) :].count("/") >= argument.get("depth", 4) else below
        for name in names:
            if not fnmatch.fnmatchcase(name, argument["names"]):
                continue
            try:
                status = os.lstat(os.path.join(directory, name))
            except FileNotFoundError:
                continue  # removed since
            found.append(
                {
                    "path": os.path.join(directory, name),
                    "size": status.st_size,
                    "uid": status.st_uid,
                    "age": round(time.time() - status.st_mtime, 1),
                }
            )
    return found[: argument.get("most", 100)]


def _write(argument: Answer) -> None:
    """Make, flush and remove a small file in a directory; with `direct` past the page cache.

    DeepSpeed's asynchronous I/O opens its files with O_DIRECT (deepspeed_aio_common.cpp).
    """
    import mmap

    path = os.path.join(
        paths.absolute(argument["path"]), f".dslaunch-{os.getpid()}-{time.time_ns()}"
    )
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    handle = os.open(path, flags | (os.O_DIRECT if argument.get("direct") else 0), 0o600)
    try:
        page = mmap.mmap(-1, 4096)  # aligned, as O_DIRECT wants it
        if os.write(handle, page) != 4096:
            raise OSError(28, "No space left on device")
        os.fsync(handle)
    finally:
        os.close(handle)
        os.unlink(path)


def _job(argument: Answer) -> Answer:
    """Run a program as a run starts its ranks; see `trial`. Where it cannot be started, `missing`
    names what is not there."""
    import json

    from dslaunch.node import trial

    told = json.loads(argument["text"])
    try:
        done = trial.run(told, paths.home())
    except FileNotFoundError as error:
        done = {"code": 127, "out": "", "err": "", "report": "", "missing": str(error.filename)}
    if done["code"] != 0:
        done["there"] = [
            path for path in told.get("look", []) if os.path.exists(paths.absolute(path))
        ]
        done["lacks"] = [word for word in told.get("words", []) if not _command(word, told)]
    return done


def _command(word: str, told: Answer) -> bool:
    """Whether a shell that starts a job has a command of that name: a program or a function."""
    done = _run({"argv": ["bash", "-c", 'type -t -- "$1"', "dslaunch", word], "env": told["env"]})
    return bool(done["code"] == 0)


def _entries(directory: str) -> List[str]:
    try:
        return os.listdir(directory or ".")
    except OSError:
        return []


def _digests(argument: Answer) -> Dict[str, Optional[str]]:
    """SHA-256 of files below `root`, None where one is missing."""
    root = paths.absolute(argument["root"])
    return {path: paths.digest(os.path.join(root, path)) for path in argument["paths"]}


# ---------------------------------------------------------------- with other nodes


def _mark(argument: Answer) -> Answer:
    """Leave a mark of that name in each directory until the end; give each directory's error."""
    return {path: paths.leave(paths.absolute(path), argument["name"]) for path in argument["paths"]}


def _marks(argument: Answer) -> Dict[str, List[str]]:
    """Which of the nodes' marks each directory has."""
    return {path: paths.seen(paths.absolute(path), argument["names"]) for path in argument["paths"]}


def _unmark(argument: Answer) -> None:
    for path in argument["paths"]:
        paths.remove(paths.absolute(path), argument["name"])


def clean() -> None:
    """Let go of ports."""
    network.hang_up()


AT_ONCE = (
    *("read", "limits", "environment", "present", "pci", "accelerators", "interfaces", "listen"),
)
"""Kinds that cannot hang."""
SLOW = ("run", "each", "job")
"""Kinds that may take their time though nothing is wrong: each question has its own process."""
REMOTE = ("dial", "names", "resolve")
"""Kinds that may have to wait for other machines: they are asked last."""
KINDS: Dict[str, Callable[[Any], Any]] = {
    "read": _read,
    "limits": _limits,
    "environment": _environment,
    "which": _which,
    "pci": _pci,
    "accelerators": lambda _: accelerators.found(),
    "interfaces": lambda _: interfaces.held(),
    "listen": network.listen,
    "run": _run,
    "each": _each,
    "present": _present,
    "texts": _texts,
    "path": _path,
    "above": _above,
    "list": _list,
    "write": _write,
    "job": _job,
    "digests": _digests,
    "mark": _mark,
    "marks": _marks,
    "unmark": _unmark,
    "resolve": interfaces.resolve,
    "names": lambda _: interfaces.own_names(),
    "dial": network.dial,
}
