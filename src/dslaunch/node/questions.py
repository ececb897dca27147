"""The kinds of question that a node can be asked. Few and general: what the answers mean is
evaluated elsewhere, so that a recorded answer can be replayed.

Modules that take more than 1 ms to import are imported by the functions that need them, each with
a comment: most preflights need none of them, and every node would wait for all.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from dslaunch.node import accelerators, interfaces, network, paths, plain_json, trial

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    import subprocess
    from typing import IO, Any, Callable, Dict, Iterator, List, Optional

    Answer = Dict[str, Any]

PCI = "/sys/bus/pci/devices"


def identity() -> Answer:
    """Return who this node is, and as whom we run on it."""
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
    """Return the number of CPUs that this process may use; in PyPy, of all CPUs."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def umask() -> int:
    """Return the umask. It is changed for a moment, so no other thread may create files."""
    old = os.umask(0o077)
    os.umask(old)
    return old


def answered(work: Callable[[], Any]) -> Answer:
    """Return the answer to a question: `{"value": ...}`, or `{"error": why}`."""
    try:
        return {"value": work()}
    except OSError as error:
        return {"error": error.strerror or str(error)}
    except Exception as error:  # noqa: BLE001 - a failing question must not fail the others
        return {"error": f"{type(error).__name__}: {error}"}


# ---------------------------------------------------------------- at once: the kernel's own tables


def _read(patterns: List[str]) -> Dict[str, str]:
    """Return the texts of files in /proc and /sys, by path. Wildcards are allowed; missing files
    are left out."""
    found = {}
    for pattern in patterns:
        for path in paths.matching(pattern):
            try:
                with open(path, "rb") as file:
                    data = file.read(paths.MOST_TEXT)
            except OSError:
                continue
            found[path] = data.decode(errors="replace").rstrip("\n")
    return found


def _limits(names: List[str]) -> Dict[str, List[int]]:
    """Return soft and hard limits by the names of Python's `resource`; -1 is unlimited."""
    import resource

    return {name: list(resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))) for name in names}


def _environment(patterns: List[str]) -> Dict[str, str]:
    """Return the variables of this session that match; the patterns name no secrets."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if any(paths.fits(name, pattern) for pattern in patterns)
    }


def _present(names: List[str]) -> Dict[str, str]:
    """Return the paths of programs in the system's directories, by name, and the absolute paths
    that exist; others are left out. The session's PATH is not searched: it may be on a file
    server."""
    found = {name: _found_at(name) for name in names}
    return {name: path for name, path in found.items() if path}


def _found_at(name: str) -> Optional[str]:
    if not name.startswith("/"):
        return paths.program(name, paths.SYSTEM)
    return name if os.path.exists(name) else None


def _pci(vendors: List[str]) -> Dict[str, Answer]:
    """Return the PCI devices of some vendors (`0x10de`) by address: class, device, kernel
    driver."""
    found = {}
    for address in paths.entries(PCI):
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
    """Return the paths of programs by name: on this session's PATH, which may be on a file
    server, or in the system's directories."""
    search = _search()
    return {name: paths.program(name, search) for name in names}


def _search() -> str:
    """Return this session's PATH, followed by the system's directories."""
    return f"{os.environ.get('PATH', '')}:{paths.SYSTEM}".lstrip(":")


def _run(argument: Answer) -> Answer:
    """Run a program: `argv`, or `shell`; it reads `text`. Returns `code`, `out`, `err`; code 127:
    not found."""
    import subprocess  # 3 ms

    argv = argument.get("argv") or ["/bin/sh", "-c", argument["shell"]]
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PATH": _search(), "LC_ALL": "C", **argument.get("env", {})},
            cwd=paths.home() if os.path.isdir(paths.home()) else "/",
        )
    except FileNotFoundError:
        return {"code": 127, "out": "", "err": f"{argv[0]}: not found"}
    with child:
        out, err = _beginnings(child, argument.get("text", "").encode())
    return {"code": child.returncode, "out": out, "err": err}


def _beginnings(child: subprocess.Popen[bytes], text: bytes) -> List[str]:
    """Give a program its input, and return the beginning of both its outputs. It may write without
    an end: what is more is read, so that it is not held up, and dropped."""
    from threading import Thread  # `subprocess` imports it

    read: Dict[IO[bytes], bytes] = {}

    def read_beginning(pipe: IO[bytes]) -> None:
        read[pipe] = pipe.read(paths.MOST_TEXT)
        while pipe.read(paths.MOST_TEXT):
            pass

    assert child.stdin and child.stdout and child.stderr
    pipes = (child.stdout, child.stderr)
    threads = [Thread(target=read_beginning, args=(pipe,), daemon=True) for pipe in pipes]
    for thread in threads:
        thread.start()
    try:
        with child.stdin as pipe:
            pipe.write(text)
    except BrokenPipeError:
        pass  # it does not read its input
    for thread in threads:
        thread.join()
    return [read[pipe].decode(errors="replace") for pipe in pipes]


def _each(argument: Answer) -> Dict[str, Answer]:
    """Run many programs, name -> argument vector, `at_once` at a time. One whose errors contain a
    word of `again` is tried three times: a server with too many connections drops some."""
    from concurrent.futures import ThreadPoolExecutor  # 5 ms

    def one(argv: List[str]) -> Answer:
        import random  # 2 ms

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
    """Return the texts of files anywhere, by path; unreadable files are left out."""
    texts = {path: paths.text_of(paths.absolute(path)) for path in wanted}
    return {path: text for path, text in texts.items() if text}


def _path(path: str) -> Answer:
    """Return what a path is: kind, owner, space, and its file system."""
    where = paths.absolute(path)
    status, space = os.stat(where), os.statvfs(where)
    return {
        "path": where,
        "real": os.path.realpath(where),
        "kind": _kind(status.st_mode),
        "mode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "size": space.f_blocks * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
        "inodes": space.f_files,
        "inodes_free": space.f_favail,
        "writable": os.access(where, os.W_OK),
        "mount": _mount(os.path.realpath(where)),
    }


def _kind(mode: int) -> str:
    """Return what a path with this mode is: all but directories and devices counts as a file."""
    if stat.S_ISDIR(mode):
        return "directory"
    return "device" if stat.S_ISCHR(mode) else "file"


def _above(path: str) -> Answer:
    """Return the same of the nearest existing directory at or above a path."""
    where = paths.absolute(path)
    while not os.path.isdir(where):
        where = os.path.dirname(where)
    return _path(where)


def _mount(path: str) -> Optional[Answer]:
    """Return the mount that a path is on, of /proc/self/mountinfo; proc(5)."""
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
    """Return files below a directory whose names match: path, size, owner, age in seconds.

    At most `most` of them, from at most `depth` levels of directories.
    """
    found: List[Answer] = []
    top = paths.absolute(argument["path"])
    for path in _matching(top, argument["names"], argument.get("depth", 4)):
        if len(found) == argument.get("most", 100):
            break
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue  # removed meanwhile
        age = round(time.time() - status.st_mtime, 1)
        found.append({"path": path, "size": status.st_size, "uid": status.st_uid, "age": age})
    return found


def _matching(top: str, pattern: str, depth: int) -> Iterator[str]:
    """Yield the paths of files below a directory whose names match."""
    for directory, below, names in os.walk(top):
        if directory[len(top) :].count("/") >= depth:
            below.clear()  # os.walk goes into none of them then
        for name in names:
            if paths.fits(name, pattern):
                yield os.path.join(directory, name)


def _write(argument: Answer) -> None:
    """Create, flush and remove a small file in a directory; with `direct` bypass the page cache.

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
    """Run a program as a run starts its ranks; see `trial`. If it cannot be started, `missing` is
    the program that was not found."""
    told = plain_json.value(argument["text"])
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


def _send_rate(argument: Answer) -> Answer:
    """Send to another node for a while; see `rates.send`."""
    from dslaunch.node import rates  # 2 ms

    return rates.send(argument)


def _write_rate(argument: Answer) -> Answer:
    """Write a file and remove it; see `rates.write`."""
    from dslaunch.node import rates  # 2 ms

    return rates.write(argument)


def _command(word: str, told: Answer) -> bool:
    """Return whether a shell that starts a job has a command of a name: a program or a function."""
    done = _run({"argv": ["bash", "-c", 'type -t -- "$1"', "dslaunch", word], "env": told["env"]})
    return bool(done["code"] == 0)


def _digests(argument: Answer) -> Dict[str, Optional[str]]:
    """Return the SHA-256 of files below `root` by path, None for a missing file."""
    root = paths.absolute(argument["root"])
    return {path: paths.digest(os.path.join(root, path)) for path in argument["paths"]}


# ---------------------------------------------------------------- with other nodes


def _mark(argument: Answer) -> Answer:
    """Create a file `name` in each directory, which stays until the end; return the errors by
    directory."""
    return {path: paths.leave(paths.absolute(path), argument["name"]) for path in argument["paths"]}


def _marks(argument: Answer) -> Dict[str, List[str]]:
    """Return which of the nodes' marks each directory has."""
    return {path: paths.seen(paths.absolute(path), argument["names"]) for path in argument["paths"]}


def _claim(argument: Answer) -> Dict[str, Optional[str]]:
    """Return by directory what the first node that shares it has written into the file `name`."""
    name, text = argument["name"], argument["text"]
    return {path: paths.claim(paths.absolute(path), name, text) for path in argument["paths"]}


def _unmark(argument: Answer) -> None:
    for name, directories in argument.items():
        for path in directories:
            paths.remove(paths.absolute(path), name)


def clean() -> None:
    """Release the ports that are held."""
    network.hang_up()


AT_ONCE = (
    "read",
    "limits",
    "environment",
    "present",
    "pci",
    "accelerators",
    "interfaces",
    "listen",
)
"""Kinds that cannot hang."""
SLOW = ("run", "each", "job", "send_rate", "write_rate")
"""Kinds that may take long on a healthy node: each question has its own process."""
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
    "send_rate": _send_rate,
    "write_rate": _write_rate,
    "digests": _digests,
    "mark": _mark,
    "marks": _marks,
    "claim": _claim,
    "unmark": _unmark,
    "resolve": interfaces.resolve,
    "names": lambda _: interfaces.own_names(),
    "dial": network.dial,
}
