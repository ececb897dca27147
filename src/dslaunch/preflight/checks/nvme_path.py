"""Whether node-local storage is fit for ZeRO-Infinity."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import (
    Answers,
    Asked,
    Check,
    Level,
    Question,
    Scope,
    Verdict,
    passed,
    skipped,
)
from dslaunch.preflight.checks._machine import NETWORK_TYPES, is_missing, path_question
from dslaunch.protocol.survey import PathStatus

NEED = "zero-infinity"
ROTATES = Question("read", ["/sys/block/*/queue/rotational"])
NO_DISK = ("tmpfs", "ramfs", "overlay", "squashfs", "devtmpfs")


def _write(path: str) -> Question:
    return Question("write", {"path": path, "direct": True}, 15)


def _ask(scope: Scope) -> Asked:
    path = scope.cluster.storage.node_local
    if not path:
        return {}
    asked = {"path": path_question(path), "disks": ROTATES}
    return {**asked, "write": _write(path)} if NEED in scope.purposes else asked


def _judge(a: Answers) -> Iterator[Verdict]:
    path = a.scope.cluster.storage.node_local
    need = NEED in a.scope.purposes
    level: Level = "fail" if need else "info"
    if not path:
        why = "the cluster file names no `storage.node_local`"
        yield Verdict("fail", why, "a directory on an NVMe disk") if need else skipped(why)
        return
    if not need and is_missing(a, path):
        yield skipped(f"{path} is not there yet")
        return
    found = a["path"]
    trouble = _trouble(path, found, a)
    if trouble:
        yield Verdict(level, trouble, "a directory on the node's own NVMe disk")
        return
    if need:
        error = a.why(_write(path))
        if error:
            words = f"{path}: writing past the page cache: {error[0].lower() + error[1:]}"
            yield Verdict("fail", words, "O_DIRECT")
            return
    yield passed(
        f"{path} is on the node's own {found['mount']['type'] if found['mount'] else 'disk'}"
    )


def _trouble(path: str, found: PathStatus, a: Answers) -> str:
    mount = found["mount"]
    kind, source = (mount["type"], mount["source"]) if mount else ("", "")
    if kind in NETWORK_TYPES or kind.startswith("fuse."):
        return f"{path} is on {kind}, which the nodes share"
    if kind in NO_DISK:
        return f"{path} is on {kind}, not on a disk"
    name = source.rsplit("/", 1)[-1]
    for file, text in a["disks"].items():
        disk = file.split("/")[3]
        if text.strip() == "1" and source.startswith("/dev/") and name.rstrip("0123456789") == disk:
            return f"{path} is on {disk}, a disk that rotates"
    return ""


CHECK = Check(
    title="node-local storage is fit for ZeRO-Infinity",
    tier="static",
    why="Parameters and optimizer states go to it and back at every step. DeepSpeed opens its "
    "files with O_DIRECT, which tmpfs and some overlays refuse; on NFS all nodes write into one "
    "server.",
    fix="set `storage.node_local` to a directory on ext4 or xfs of an NVMe disk",
    see="findmnt -T PATH; lsblk -d -o NAME,ROTA,TRAN",
    source="DeepSpeed 0.19 csrc/aio/common/deepspeed_aio_common.cpp (O_DIRECT)",
    ask=_ask,
    judge=_judge,
)
