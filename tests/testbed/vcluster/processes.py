"""What runs in a node. This file is also the program, with nothing but the standard library,
that looks into the node's /proc: run inside it prints one JSON line."""

import json
import os
import sys
from pathlib import Path


def look() -> list[dict[str, object]]:
    """Every process of this PID namespace but this one: pid, argv, environment, parent."""
    return [found for found in map(_read, _pids()) if found]


def _pids() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _read(pid: int) -> dict[str, object] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
        state, parent = stat.rpartition(")")[2].split()[:2]
        words = _words(pid, "cmdline")
        environment = _words(pid, "environ") if state != "Z" else []
    except OSError:  # it has just ended
        return None
    if pid == os.getpid() or state == "X":
        return None
    environ = dict(word.partition("=")[::2] for word in environment)
    return {"pid": pid, "parent": int(parent), "state": state, "argv": words, "environ": environ}


def _words(pid: int, what: str) -> list[str]:
    content = Path(f"/proc/{pid}/{what}").read_bytes().decode(errors="surrogateescape")
    return content.rstrip("\0").split("\0") if content else []


if __name__ == "__main__":
    json.dump(look(), sys.stdout)
