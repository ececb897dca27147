"""What a node can say about itself. Each question is answered alone; one that fails says why."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from dslaunch.node import accelerators, interfaces, keeping, network, paths

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict, List, Optional

    Answer = Dict[str, Any]


class Context:
    """Who is asked."""

    def __init__(self, home: str, host: str, run: str) -> None:
        """`host`: the name that the cluster file gives this node; `run`: the run, or the inquiry,
        for which it is asked."""
        self.home, self.host, self.run = home, host, run


def answer(questions: Dict[str, Any], context: Context) -> Dict[str, Answer]:
    """Answer each question: `{"value": ...}`, or `{"error": why}`."""

    def one(name: str, argument: Any) -> Answer:
        try:
            return {"value": QUESTIONS[name](argument, context)}
        except OSError as error:
            return {"error": error.strerror or str(error)}
        except (KeyError, ValueError, ImportError, subprocess.SubprocessError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    return {name: one(name, argument) for name, argument in questions.items()}


def absolute(path: str, home: str) -> str:
    """A path as this node means it: `~` and relative paths start at the user's home."""
    if path == "~" or path.startswith("~/"):
        path = path[2:]
    return os.path.normpath(os.path.join(home, path))


def identity(home: str) -> Answer:
    """Who this node is."""
    boot = paths.text_of("/proc/sys/kernel/random/boot_id")
    return {
        "hostname": socket.gethostname(),
        # two nodes that share kernel and network are one machine, whatever they are called
        "machine": f"{boot} {os.readlink('/proc/self/ns/net')}",
        "python": sys.version.split()[0],
        "home": home,
    }


def _interpreter(path: str, context: Context) -> Optional[str]:
    """Where the interpreter is, None if there is none."""
    return paths.program(path if "/" not in path else absolute(path, context.home))


def _gpus(_: Any, context: Context) -> Optional[int]:
    """How many GPUs the driver lists, None without nvidia-smi."""
    program = paths.program("nvidia-smi")
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
    found = {path: paths.digest(os.path.join(root, path)) for path in wanted}
    return {path: digest for path, digest in found.items() if digest != wanted[path]}


def _nonce_write(argument: Answer, context: Context) -> Dict[str, Answer]:
    """Leave this node's mark in each directory (made if missing); give each path and its error."""

    def one(path: str) -> Answer:
        where = absolute(path, context.home)
        made = not os.path.isdir(where)
        try:
            os.makedirs(where, exist_ok=True)
        except OSError as error:
            return {"path": where, "error": error.strerror, "made": False}
        return {"path": where, "error": paths.leave(where, argument["name"]), "made": made}

    return {path: one(path) for path in argument["paths"]}


def _nonce_read(argument: Answer, context: Context) -> Dict[str, List[str]]:
    """Which of the nodes' marks can be seen in each directory."""
    return {
        path: paths.seen(absolute(path, context.home), argument["names"])
        for path in argument["paths"]
    }


def _nonce_remove(argument: Answer, context: Context) -> None:
    for path in argument["paths"]:
        paths.remove(absolute(path, context.home), argument["name"])


def _dial(argument: Answer, context: Context) -> Dict[str, Answer]:
    """Which addresses lead to the listener that knows `token`, and from which address of ours."""
    targets = {address: [address, argument["port"]] for address in argument["addresses"]}
    return network.dial({**argument, "targets": targets})


def _runs(argument: Any, context: Context) -> List[Answer]:
    return keeping.runs(context.home, context.host)


def _clean(argument: Answer, context: Context) -> Answer:
    return keeping.clean(context.home, context.host, argument["run"], argument["ended"])


def _journal(argument: Answer, context: Context) -> Answer:
    """A piece of what a detached run has kept, as text that JSON can carry."""
    import base64

    data, size = keeping.read_journal(
        context.home, context.host, argument["run"], argument["position"], argument["most"]
    )
    return {"data": base64.b64encode(data).decode(), "size": size}


def _shards(argument: Answer, context: Context) -> Any:
    from dslaunch.node import shards  # with pickle and zipfile: more than all else imports

    return shards.do({**argument, "path": absolute(argument["path"], context.home)})


QUESTIONS: Dict[str, Callable[[Any, Context], Any]] = {
    "accelerators": lambda _, context: accelerators.found(),
    "clean": _clean,
    "dial": _dial,
    "files": _files,
    "gpus": _gpus,
    "interfaces": lambda _, context: interfaces.held(),
    "interpreter": _interpreter,
    "journal": _journal,
    "listen": lambda argument, context: network.listen(argument),
    "nonce_read": _nonce_read,
    "nonce_remove": _nonce_remove,
    "nonce_write": _nonce_write,
    "resolve": lambda names, context: interfaces.resolve(names),
    "runs": _runs,
    "shards": _shards,
}
