"""Whether a process may use InfiniBand and RoCE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dslaunch.plural import counted
from dslaunch.preflight.check import (
    Answers,
    Asked,
    Check,
    Nodes,
    Question,
    UnansweredError,
    Verdict,
    passed,
    skipped,
)
from dslaunch.preflight.checks import _infiniband as infiniband

VERBS = Question(
    "run",
    {
        "shell": "for file in /dev/infiniband/uverbs*; do [ -e $file ] || continue; "
        "if [ -r $file ] && [ -w $file ]; then echo usable; else echo denied; fi; done"
    },
    5,
)


def _then(nodes: Nodes) -> Mapping[str, Asked]:
    return {host: {"verbs": VERBS} for host in infiniband.with_devices(nodes)}


def _judge(a: Answers) -> Iterator[Verdict]:
    used = [device.name for device in infiniband.devices(a).values() if device.active]
    if not used:
        yield skipped("no InfiniBand or RoCE card in use")
        return
    answer = a.value(VERBS)
    if answer["code"]:
        raise UnansweredError(f"/dev/infiniband cannot be looked at: {answer['err'][:80]}")
    words = answer["out"].split()
    cards = counted(len(used), "active card")
    if not words:
        yield Verdict("fail", f"{cards}, and nothing in /dev/infiniband", "uverbs devices")
    elif "usable" not in words:
        fix = "let the user's group read and write /dev/infiniband/uverbs* (rdma-core's udev rules)"
        yield Verdict("fail", f"{cards}, and no right to use them", "right to use them", fix)
    else:
        yield passed("may be used")


CHECK = Check(
    title="InfiniBand and RoCE may be used",
    tier="static",
    why="Without the devices, as in a container that was not given them, NCCL uses sockets "
    "instead, without a word: all-reduce is ten times slower.",
    fix="load ib_uverbs; `docker run --device=/dev/infiniband --cap-add IPC_LOCK "
    "--ulimit memlock=-1`",
    see="ls -l /dev/infiniband",
    source="AzureHPC health checks; NVIDIA NCCL documentation, docker",
    ask=infiniband.ask,
    then=_then,
    judge=_judge,
)
