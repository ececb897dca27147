"""Whether a job can write where it will."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Asked, Check, Scope, Verdict, passed, skipped
from dslaunch.preflight.checks._machine import is_missing, path_question, paths


def _ask(scope: Scope) -> Asked:
    return {path: path_question(path) for path in paths(scope) if path not in scope.directories}


def _judge(a: Answers) -> Iterator[Verdict]:
    """Of places beside the job's directories, which `fs.shared` writes into."""
    bad, asked = False, False
    for path, what in paths(a.scope).items():
        if path in a.scope.directories or not a.has(path):
            missing = path in a.asked and is_missing(a, path)
            # below the home a job can make it; elsewhere something is not mounted
            if missing and path == a.scope.cluster.storage.node_local and path.startswith("/"):
                bad = True
                yield Verdict("fail", f"{path} ({what}) is not there", "a directory")
            continue
        asked = True
        found = a[path]
        options = (found["mount"] or {}).get("options", "").split(",")
        read_only = "ro" in options
        if not found["writable"] or read_only:
            bad = True
            words = f"{path} ({what}) is {'read-only' if read_only else 'not ours to write'}"
            yield Verdict("fail", words, "writable", see=f"touch {path}/x; findmnt -T {path}")
    if not bad:
        yield (
            passed("home, /tmp and node-local storage can be written")
            if asked
            else skipped("no path answered")
        )


CHECK = Check(
    title="home, /tmp and node-local storage can be written",
    tier="static",
    why="Caches of compiled kernels, tokenizers and data go there. A disk with errors is mounted "
    "read-only by the kernel, and nobody is told.",
    fix="see `dmesg` for errors of the disk; `mount -o remount,rw` when it is sound",
    see="findmnt -T ~ -T /tmp",
    source="access(2); ext4(5), errors=remount-ro",
    ask=_ask,
    judge=_judge,
)
