"""What a node can say about itself. Each question is answered alone; one that fails says why."""

from __future__ import annotations

import array
import base64
import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from dslaunch.node import files, keeping

Answer = Dict[str, Any]
_SIOCGIFCONF = 0x8912


class Context(NamedTuple):
    """Who is asked."""

    home: str
    host: str
    """The name that the cluster file gives this node."""
    run: str
    """The run, or the inquiry, for which it is asked."""


def answer(questions: Dict[str, Any], context: Context) -> Dict[str, Answer]:
    """Answer each question: `{"value": ...}`, or `{"error": why}`."""

    def one(name: str, argument: Any) -> Answer:
        try:
            return {"value": QUESTIONS[name](argument, context)}
        except OSError as error:
            return {"error": error.strerror or str(error)}
        except (KeyError, ValueError, subprocess.SubprocessError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    return {name: one(name, argument) for name, argument in questions.items()}


def absolute(path: str, home: str) -> str:
    """A path as this node means it: `~` and relative paths start at the user's home."""
    if path == "~" or path.startswith("~/"):
        path = path[2:]
    return os.path.normpath(os.path.join(home, path))


def identity(home: str) -> Answer:
    """Who this node is."""
    boot = _read("/proc/sys/kernel/random/boot_id")
    return {
        "hostname": socket.gethostname(),
        # two nodes that share kernel and network are one machine, whatever they are called
        "machine": f"{boot} {os.readlink('/proc/self/ns/net')}",
        "python": sys.version.split()[0],
        "home": home,
    }


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _interfaces(_: Any, context: Context) -> List[Answer]:
    found = [*_ipv4(), *_ipv6()]
    return [
        {
            "name": name,
            "address": address,
            "loopback": bool(_flags(name) & 8),
            "up": bool(_flags(name) & 1),
            "speed": _speed(name),
        }
        for name, address in found
    ]


def _ipv4() -> List[Tuple[str, str]]:
    """Interface and address pairs; an alias `eth0:1` is given as its interface."""
    room = array.array("B", bytes(64 * 1024))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("iL", len(room), room.buffer_info()[0])
        used = struct.unpack("iL", fcntl.ioctl(handle, _SIOCGIFCONF, request))[0]
    records = [bytes(room[at : at + 40]) for at in range(0, used, 40)]
    return [
        (r[:16].split(b"\0")[0].decode().split(":")[0], socket.inet_ntoa(r[20:24])) for r in records
    ]


def _ipv6() -> List[Tuple[str, str]]:
    """As /proc/net/if_inet6 lists them, link-local ones left out: they need a scope."""
    lines = [line.split() for line in _read("/proc/net/if_inet6").splitlines()]
    return [
        (fields[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0])))
        for fields in lines
        if fields[3] != "20"
    ]


def _flags(name: str) -> int:
    return int(_read(f"/sys/class/net/{name}/flags") or "0", 16)


def _speed(name: str) -> Optional[int]:
    """Mbit/s, None where the driver does not say."""
    text = _read(f"/sys/class/net/{name}/speed")
    return int(text) if text.isdigit() else None


def _resolve(names: List[str], context: Context) -> Dict[str, List[str]]:
    return {name: _addresses(name) for name in names}


def _addresses(name: str) -> List[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _interpreter(path: str, context: Context) -> Optional[str]:
    """Where the interpreter is, None if there is none."""
    return shutil.which(path if "/" not in path else absolute(path, context.home))


def _gpus(_: Any, context: Context) -> Optional[int]:
    """How many GPUs the driver lists, None without nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    done = subprocess.run(
        [program, "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10, check=False
    )
    if done.returncode:
        raise ValueError(done.stdout.decode(errors="replace").strip()[:200])
    return sum(line.startswith(b"GPU ") for line in done.stdout.splitlines())


def _files(argument: Answer, context: Context) -> Dict[str, Optional[str]]:
    """Of the files `{path: SHA-256}` below `root`, those that are missing (None) or differ."""
    root = absolute(argument["root"], context.home)
    wanted = argument["digests"]
    found = {path: _sha256(os.path.join(root, path)) for path in wanted}
    return {path: digest for path, digest in found.items() if digest != wanted[path]}


def _sha256(path: str) -> Optional[str]:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def _nonce_write(argument: Answer, context: Context) -> Dict[str, Answer]:
    """Leave this node's mark in each directory (made if missing); give each path and its error."""

    def one(path: str) -> Answer:
        where = absolute(path, context.home)
        try:
            os.makedirs(where, exist_ok=True)
            with open(os.path.join(where, argument["name"]), "x", encoding="ascii"):
                pass
        except OSError as error:
            return {"path": where, "error": error.strerror}
        return {"path": where, "error": None}

    return {path: one(path) for path in argument["paths"]}


def _nonce_read(argument: Answer, context: Context) -> Dict[str, List[str]]:
    """Which of the nodes' marks can be seen in each directory.

    Opened by name, not listed: a name never looked up before is asked of the server even by an
    NFS client whose directory cache is old.
    """
    names = argument["names"]
    return {
        path: [n for n in names if os.path.exists(os.path.join(absolute(path, context.home), n))]
        for path in argument["paths"]
    }


def _nonce_remove(argument: Answer, context: Context) -> None:
    for path in argument["paths"]:
        try:
            os.unlink(os.path.join(absolute(path, context.home), argument["name"]))
        except FileNotFoundError:
            continue


def _listen(argument: Answer, context: Context) -> Answer:
    """Hold the first free port of `ports` and answer dialers with `token`, until `hang_up`."""
    taken = []
    for port in argument["ports"]:
        try:
            listener = _bind(port)
        except OSError as error:
            taken.append({"port": port, "error": error.strerror})
            continue
        _LISTENERS.append(listener)
        threading.Thread(target=_serve, args=(listener, argument["token"]), daemon=True).start()
        return {"port": port, "taken": taken}
    return {"port": None, "taken": taken}


_LISTENERS: List[socket.socket] = []


def _bind(port: int) -> socket.socket:
    """Listen on all addresses as a training's store does: both families where there is IPv6."""
    family = socket.AF_INET6 if os.path.exists("/proc/net/if_inet6") else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("", port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def _serve(listener: socket.socket, token: str) -> None:
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with peer:
            try:
                peer.settimeout(2)
                peer.sendall(token.encode() + b"\n")
                peer.recv(1)  # the dialer closes first: TIME_WAIT is on its side, not on the port
            except OSError:
                continue


def hang_up() -> None:
    """Let go of the ports that `listen` holds."""
    while _LISTENERS:
        listener = _LISTENERS.pop()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        listener.close()


def _dial(argument: Answer, context: Context) -> Dict[str, Answer]:
    """Which addresses lead to the listener that knows `token`, and from which address of ours."""
    answers: Dict[str, Answer] = {}
    timeout = argument["timeout"]

    def one(address: str) -> None:
        try:
            answers[address] = _call(address, argument["port"], argument["token"], timeout)
        except OSError as error:
            answers[address] = {"error": error.strerror or str(error)}

    threads = [threading.Thread(target=one, args=(a,), daemon=True) for a in argument["addresses"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout + 1)
    return {a: answers.get(a, {"error": "timed out"}) for a in argument["addresses"]}


def _call(address: str, port: int, token: str, timeout: float) -> Answer:
    with socket.create_connection((address, port), timeout) as peer:
        said = peer.makefile("rb").readline().strip().decode(errors="replace")
        if said != token:
            raise OSError("somebody else answers there")
        return {"local": peer.getsockname()[0]}


def established(port: int) -> int:
    """How many TCP connections of this node lead to `port` of some node."""
    lines = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in _read(table).splitlines()[1:]
    ]
    wanted = f":{port:04X}"
    return sum(fields[3] == "01" and fields[2].endswith(wanted) for fields in lines)


def _runs(argument: Any, context: Context) -> List[Answer]:
    return keeping.runs(files.all_places(context.home), context.host)


def _clean(argument: Answer, context: Context) -> Answer:
    places = files.all_places(context.home)
    return keeping.clean(places, context.host, argument["run"], argument["ended"])


def _journal(argument: Answer, context: Context) -> Answer:
    """A piece of what a detached run has kept, as text that JSON can carry."""
    for run in _runs(None, context):
        if run["run"] == argument["run"]:
            path = os.path.join(run["directory"], keeping.JOURNAL)
            data, size = files.read_piece(path, argument["position"], argument["most"])
            return {"data": base64.b64encode(data).decode(), "size": size}
    raise FileNotFoundError(2, "this run kept nothing here")


QUESTIONS: Dict[str, Callable[[Any, Context], Any]] = {
    "clean": _clean,
    "dial": _dial,
    "files": _files,
    "gpus": _gpus,
    "interfaces": _interfaces,
    "interpreter": _interpreter,
    "journal": _journal,
    "listen": _listen,
    "nonce_read": _nonce_read,
    "nonce_remove": _nonce_remove,
    "nonce_write": _nonce_write,
    "resolve": _resolve,
    "runs": _runs,
}
