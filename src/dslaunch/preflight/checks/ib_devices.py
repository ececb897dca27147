"""Whether a process may use InfiniBand and RoCE."""

from __future__ import annotations

from dslaunch.plural import counted
from dslaunch.preflight.check import (
    Answers,
    Check,
    Question,
    UnansweredError,
    Verdict,
    passed,
    skipped,
)
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.flow import NodeFlow, each

VERBS = Question(
    "run",
    {
        "shell": "for file in /dev/infiniband/uverbs*; do [ -e $file ] || continue; "
        "if [ -r $file ] && [ -w $file ]; then echo usable; else echo denied; fi; done"
    },
    5,
)


def _flow(a: Answers) -> NodeFlow:
    devices = infiniband.devices(a)
    if devices:
        a = yield {"verbs": VERBS}
    used = [name for name, device in devices.items() if device.active]
    if not used:
        return [skipped("no InfiniBand or RoCE card in use")]
    answer = a.value(VERBS)
    if answer["code"]:
        raise UnansweredError(f"/dev/infiniband cannot be looked at: {answer['err'][:80]}")
    words = answer["out"].split()
    cards = counted(len(used), "active card")
    if not words:
        return [Verdict("fail", f"{cards}, and nothing in /dev/infiniband", "uverbs devices")]
    if "usable" not in words:
        fix = "let the user's group read and write /dev/infiniband/uverbs* (rdma-core's udev rules)"
        return [Verdict("fail", f"{cards}, and no right to use them", "right to use them", fix)]
    return [passed("may be used")]


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
    flow=each(_flow),
)
