"""Checks of where a job writes: is there room, may it, does it answer, what is it on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice

from dslaunch.preflight.alike import by_host
from dslaunch.preflight.check import (
    Asked,
    Check,
    Finding,
    Level,
    NodeAnswers,
    Nodes,
    Question,
    Scope,
    UnansweredError,
    passed,
    skipped,
)
from dslaunch.preflight.checks._machine import (
    GIB,
    NETWORK_TYPES,
    is_missing,
    mounts,
    path_question,
    path_word,
    paths,
    space,
)
from dslaunch.preflight.comparison import deviations
from dslaunch.preflight.flow import NodeFlow, each, judged
from dslaunch.preflight.unanswered import UnansweredReason
from dslaunch.protocol.survey import Mount, PathStatus
from dslaunch.terminal import printable

ENOUGH_INODES = 10_000
"""Free inodes that are enough on a file system of any size."""


def _above(path: str) -> Question:
    """The directory in which this one, that is not there yet, will be made."""
    return Question("above", path, 5)


def _flow_fs_free(a: NodeAnswers) -> NodeFlow:
    missing = [path for path in paths(a.scope) if is_missing(a, path)]
    if missing:
        a = yield {f"above {path}": _above(path) for path in missing}
    return _fs_free(a)


def _fs_free(a: NodeAnswers) -> Iterator[Finding]:
    """Judge the paths that responded; `fs.hung` and `fs.shared` report the others."""
    seen: set[str] = set()
    for path in paths(a.scope):
        question = path_question(path) if a.has(path) else _above(path)
        found = a.found(question)
        if found is None:
            continue
        mount = found["mount"]["point"] if found["mount"] else path
        if mount in seen:
            continue
        seen.add(mount)
        there = path if a.has(path) else found["path"]
        yield from _full(path, there, found, a)
    if not seen:
        yield skipped("no path responded")


def _full(path: str, there: str, found: PathStatus, a: NodeAnswers) -> Iterator[Finding]:
    """Yield that a file system has little space or few inodes free. `there`: a path that exists.

    A share alone does not decide: 5 % of a large file server are many checkpoints.
    """
    size, free = found["size"], found["free"]
    if size > 0 and free < a.limits["enough"] * GIB:
        share = 100 * free / size
        words = f"{path}: {space(free)} free of {space(size)}"
        levels: tuple[Level, ...] = ("fail", "warn")
        level = next((each for each in levels if share < a.limits[each]), None)
        if level is not None:
            least = f"{a.limits[level]:g} %"
            yield Finding(level, words, least, see=f"df -h {path_word(there)}")
    inodes, left = found["inodes"], found["inodes_free"]
    if left < inodes * a.limits["fail"] / 100 and left < ENOUGH_INODES:
        words = f"{path}: {left} of {inodes} inodes free"
        fix = "remove many small files: caches, __pycache__, old runs"
        yield Finding("fail", words, f"{a.limits['fail']:g} %", fix, f"df -i {path_word(there)}")


MOUNTS = Question("read", ["/proc/self/mountinfo"])
MOST_MOUNTS = 24
"""Mounts that are asked of one node beside the job's own paths."""
UNRESPONSIVE = (UnansweredReason.TIMEOUT, UnansweredReason.FILE_SERVER_GONE)


@lru_cache(maxsize=256)
def network_mounts(text: str) -> tuple[str, ...]:
    """Return the first network mounts of /proc/self/mountinfo. A flow that asks about them runs
    once more with the answers."""
    network = (point for point, kind in dict(mounts(text)).items() if kind in NETWORK_TYPES)
    return tuple(islice(network, MOST_MOUNTS))


def _flow_fs_hung(a: NodeAnswers) -> NodeFlow:
    table = a["mounts"].get(MOUNTS.argument[0], "") if a.has("mounts") else ""
    network = network_mounts(table)
    if network:
        a = yield {path: path_question(path) for path in network}
    return _fs_hung(a, network)


def _fs_hung(a: NodeAnswers, network: Sequence[str]) -> Iterator[Finding]:
    own = paths(a.scope)
    every = dict.fromkeys([*own, *network])
    hung = [path for path in every if a.reason(path_question(path)) in UNRESPONSIVE]
    for path in hung:
        level: Level = "fail" if path in own or any(_below(o, path) for o in own) else "warn"
        error = a.why(path_question(path))
        words = f"{path} does not respond: {error[0].lower() + error[1:]}"
        yield Finding(level, words, "an answer within 5 s", see=f"timeout 5 stat {path_word(path)}")
    if not hung:
        yield passed("all network file systems respond" if network else "all paths respond")


def _below(path: str, point: str) -> bool:
    return path.startswith(point.rstrip("/") + "/")


def _mount(a: NodeAnswers, path: str) -> Mount | None:
    return a[path]["mount"] if a.has(path) else None


def _fs_kind(a: NodeAnswers) -> Iterator[Finding]:
    found = {path: _mount(a, path) for path in a.scope.directories}
    told = {path: mount for path, mount in found.items() if mount}
    if not told:
        yield skipped("no directory of the job responded")
        return
    remarks = [(path, words) for path, mount in told.items() for words in _mount_remarks(mount)]
    for path, words in remarks:
        yield Finding("warn", f"{path}: {words}", see=f"findmnt -T {path_word(path)}")
    if not remarks:
        kinds = dict.fromkeys(mount["type"] for mount in told.values())
        yield passed(f"on {', '.join(kinds)}")


def _mount_remarks(mount: Mount) -> Iterator[str]:
    kind, options = mount["type"], mount["options"].split(",")
    if kind.startswith("nfs"):
        if "soft" in options:
            yield "NFS mounted `soft`: writes may be lost without an error"
        if "nolock" in options or "local_lock=all" in options:
            yield "NFS mounted without locks between nodes"
        if "proto=udp" in options:
            yield "NFS over UDP, which corrupts data at high speed"
    elif kind == "lustre" and not {"flock", "localflock"} & set(options):
        yield "Lustre mounted without `flock`: file locks fail"


def _compare_fs_kind(nodes: Nodes) -> Iterator[Finding]:
    scope = next(iter(nodes.values())).scope
    for path in scope.directories:
        found = by_host(nodes, partial(_mount, path=path))
        kinds = {host: mount["type"] for host, mount in found.items() if mount}
        for odd in deviations(kinds):
            words = f"{path} is on {odd.value}; on {odd.common} on {odd.count} nodes"
            yield Finding("info", words, hosts=odd.hosts)


_N = r"(\d{1,18})"
QUOTA_PRESENT = Question("present", ["quota"])
QUOTA = Question("run", {"argv": ["quota", "-w", "-p"]}, 8)


def _flow_fs_quota(a: NodeAnswers) -> NodeFlow:
    if "quota" not in a["present"]:
        return [skipped("the quota command is not installed")]
    a = yield {"quota": QUOTA}
    return _fs_quota(a)


def _fs_quota(a: NodeAnswers) -> Iterator[Finding]:
    ran = a.value(QUOTA)
    if ran["code"] and ran["err"].strip():  # without a message, something is over quota: quota(1)
        yield Finding("unknown", f"quota failed: {printable(ran['err'].strip().splitlines()[0])}")
    for place, used, limit in usage(ran["out"]):
        share = 100 * used / limit
        if share > a.limits["warn"]:
            level: Level = "fail" if share >= 100 else "warn"
            words = f"{share:.0f} % of the quota on {place} used"
            yield Finding(level, words, f"less than {a.limits['warn']:g} %")


def usage(text: str) -> Iterator[tuple[str, int, int]]:
    """Place, used and allowed, in blocks of 1 KiB and in files; a star marks what is exceeded."""
    for line in text.splitlines():
        found = re.match(rf"\s*(\S+)\s+{_N}\*?\s+{_N}\s+{_N}\s+\S+\s+{_N}\*?\s+{_N}\s+{_N}", line)
        if not found or (not found[1].startswith(("/", ".")) and ":" not in found[1]):
            continue
        blocks, soft, hard, files, few, many = (int(found[n]) for n in range(2, 8))
        if hard or soft:
            yield found[1], blocks, hard or soft
        if many or few:
            yield f"{found[1]} (files)", files, many or few


def _fs_writable(a: NodeAnswers) -> Iterator[Finding]:
    """Of places beside the job's directories, which `fs.shared` writes into."""
    places = {p: what for p, what in paths(a.scope).items() if p not in a.scope.directories}
    local = a.scope.cluster.storage.node_local
    for path, what in places.items():
        # below the home a job can make it; elsewhere something is not mounted
        is_required = path == local and path.startswith("/")
        if a.has(path):
            yield from _not_writable(path, what, a[path])
        elif is_required and is_missing(a, path):
            yield Finding("fail", f"{path} ({what}) does not exist", "a directory")
    if not any(a.has(path) for path in places):
        yield skipped("no path responded")


COMPILED_IN = ("~", "/tmp")
"""Where Triton, torch.compile and DeepSpeed put the libraries that they compile, by default."""


def _not_writable(path: str, what: str, found: PathStatus) -> Iterator[Finding]:
    mount = found["mount"]
    options = mount["options"].split(",") if mount is not None else []
    word = path_word(path)
    if "ro" in options:
        words = f"{path} ({what}) is mounted read-only"
    elif not found["writable"]:
        words = f"{path} ({what}) is not writable for this user"
    elif "noexec" in options and path in COMPILED_IN:
        yield Finding(
            "warn",
            f"{path} ({what}) is mounted noexec: libraries that torch.compile, Triton or "
            "DeepSpeed compile there cannot be loaded",
            "a mount without noexec",
            fix="set TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR and TORCH_EXTENSIONS_DIR to a "
            "directory on another file system",
            see=f"findmnt -T {word}",
        )
        return
    else:
        return
    yield Finding("fail", words, "writable", see=f"touch {word}/x; findmnt -T {word}")


NEED = "zero-infinity"
ROTATES = Question("read", ["/sys/block/*/queue/rotational"])
NO_DISK = ("tmpfs", "ramfs", "overlay", "squashfs", "devtmpfs")


def _write(path: str) -> Question:
    return Question("write", {"path": path, "direct": True}, 15)


def _ask_nvme_path(scope: Scope) -> Asked:
    path = scope.cluster.storage.node_local
    if not path:
        return {}
    asked = {"path": path_question(path), "disks": ROTATES}
    return {**asked, "write": _write(path)} if NEED in scope.purposes else asked


def _nvme_path(a: NodeAnswers) -> Iterator[Finding]:
    path = a.scope.cluster.storage.node_local
    need = NEED in a.scope.purposes
    level: Level = "fail" if need else "info"
    if not path:
        why = "`storage.node_local` is not set in the cluster file"
        yield Finding("fail", why, "a directory on an NVMe disk") if need else skipped(why)
        return
    if not need and is_missing(a, path):
        yield skipped(f"{path} does not exist yet")
        return
    found = a["path"]
    trouble = _unfit_disk(path, found, a)
    if trouble:
        yield Finding(level, trouble, "a directory on a local NVMe disk")
        return
    if need and not a.answered(_write(path)):
        error = a.why(_write(path))
        if not error:  # recorded answers to a preflight that had no need of it
            raise UnansweredError("no write with O_DIRECT was tried", UnansweredReason.NOT_ASKED)
        words = f"{path}: write with O_DIRECT failed: {error[0].lower() + error[1:]}"
        yield Finding("fail", words, "O_DIRECT")
        return
    kind = found["mount"]["type"] if found["mount"] else "disk"
    yield passed(f"{path} is on a local {kind} file system")


def _unfit_disk(path: str, found: PathStatus, a: NodeAnswers) -> str:
    """Return why a path is not on a local disk that fits; empty: it is, or that is not known."""
    mount = found["mount"]
    if mount is None:
        return ""
    kind, source = mount["type"], mount["source"]
    if kind in NETWORK_TYPES or kind.startswith("fuse."):
        return f"{path} is on {kind}, a network file system"
    if kind in NO_DISK:
        return f"{path} is on {kind}, not on a disk"
    if not source.startswith("/dev/"):
        return ""
    partition = source.rpartition("/")[2]
    for file, text in a["disks"].items():
        disk = file.split("/")[3]
        rotates = text.strip() == "1"
        if rotates and partition.rstrip("0123456789") == disk:
            return f"{path} is on {disk}, a rotating disk"
    return ""


CHECKS = {
    "fs.free": Check(
        title="enough free disk space for a job's files",
        tier="gate",
        why=(
            "All ranks write a checkpoint at once, hours after the start; on a full disk "
            "it is truncated, and the previous one may be deleted already."
        ),
        flow=each(
            _flow_fs_free,
            lambda scope: {path: path_question(path) for path in paths(scope)},
            fine="enough free disk space",
        ),
        fix=(
            "remove old checkpoints and caches, or set `storage.checkpoints` to a larger "
            "file system"
        ),
        see="df -h . ~ /tmp; df -i .",
        source="statvfs(3); OPT-175B logbook (metaseq); imbue cluster-health check_disk",
        limits={"fail": 5, "warn": 12, "enough": 100},
        limits_mean=(
            "per cent of free space below which it fails and warns; GiB of free space "
            "that are always enough"
        ),
    ),
    "fs.hung": Check(
        title="all file systems respond",
        tier="gate",
        why=(
            "A process that uses a file system whose server is gone waits forever and "
            "cannot be killed: a rank, a login, even `df`."
        ),
        fix=(
            "run `umount -f -l PATH` and mount it again, or reboot the node; exclude the "
            "node until then"
        ),
        see="timeout 5 stat PATH; dmesg | grep -i nfs",
        source="nfs(5), hard; nvidia-resiliency-ext, storage health check",
        flow=each(
            _flow_fs_hung,
            lambda scope: {
                **{path: path_question(path) for path in paths(scope)},
                "mounts": MOUNTS,
            },
        ),
    ),
    "fs.kind": Check(
        title="mount options are safe for a job's directories",
        why=(
            "All nodes write checkpoints at once. A `soft` mount times out under load "
            "and loses blocks; without locks two nodes build the same kernel, or none "
            "does."
        ),
        fix="mount NFS with `hard,proto=tcp,vers=4.2`, Lustre with `flock`",
        see="findmnt -T .",
        source="nfs(5), soft and nolock; mount.lustre(8), flock",
        flow=judged(
            _fs_kind,
            lambda scope: {path: path_question(path) for path in scope.directories},
            compare=_compare_fs_kind,
        ),
    ),
    "fs.quota": Check(
        title="the user's quota is not exhausted",
        why=("An exhausted quota ends a checkpoint like a full disk, while `df` shows free space."),
        flow=each(
            _flow_fs_quota,
            lambda scope: {"present": QUOTA_PRESENT},
            fine="quota usage below the limit",
        ),
        fix="remove old checkpoints, or request a larger quota",
        see="quota -w; lfs quota -h -u $USER PATH",
        source="quota(1)",
        limits={"warn": 90},
        limits_mean="per cent of the quota above which it warns",
    ),
    "fs.writable": Check(
        title="home, /tmp and node-local storage are writable",
        why=(
            "Caches of compiled kernels, tokenizers and data are written there. The "
            "kernel remounts a disk with errors read-only, without notice."
        ),
        flow=judged(
            _fs_writable,
            lambda scope: {
                path: path_question(path) for path in paths(scope) if path not in scope.directories
            },
            fine="home, /tmp and node-local storage are writable",
        ),
        fix="look for disk errors in `dmesg`; run `mount -o remount,rw` after the repair",
        see="findmnt -T ~ -T /tmp",
        source="access(2); ext4(5), errors=remount-ro; mmap(2), EPERM with noexec",
    ),
    "nvme.path": Check(
        title="node-local storage is suitable for ZeRO-Infinity",
        why=(
            "Parameters and optimizer states are read and written at every step. "
            "DeepSpeed opens its files with O_DIRECT, which tmpfs and some overlays "
            "refuse; on NFS all nodes write to one server."
        ),
        fix="set `storage.node_local` to a directory on ext4 or xfs on an NVMe disk",
        see="findmnt -T PATH; lsblk -d -o NAME,ROTA,TRAN",
        source="DeepSpeed 0.19 csrc/aio/common/deepspeed_aio_common.cpp (O_DIRECT)",
        flow=judged(_nvme_path, _ask_nvme_path),
    ),
}
