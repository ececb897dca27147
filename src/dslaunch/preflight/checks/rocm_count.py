"""Whether a node has the AMD GPUs that its slots promise, and whether we may use them."""

from __future__ import annotations

from dslaunch.preflight.check import Answers, Check, Question, Verdict, skipped
from dslaunch.preflight.checks import _accelerators as accelerators
from dslaunch.preflight.checks import _rocm as rocm
from dslaunch.preflight.flow import NodeFlow, each

KFD = Question("path", "/dev/kfd")


def _flow(a: Answers) -> NodeFlow:
    if accelerators.of_vendor(a, "amd") is None:
        return [skipped(rocm.NONE)]
    a = yield {"kfd": KFD}
    kfd = a.found(KFD)
    if kfd is not None and not kfd["writable"]:
        fix = "add the user to the group of /dev/kfd (`usermod -aG render,video USER`)"
        return [Verdict("fail", "/dev/kfd cannot be opened by this user", "write access", fix)]
    return accelerators.count(a, "amd")


CHECK = Check(
    title="a node has as many AMD GPUs as slots, and the user may open them",
    tier="gate",
    why="A rank whose GPU is not there fails at once. Without access to /dev/kfd PyTorch finds no "
    "GPU and silently trains on the CPU.",
    fix="see `dmesg | grep -i amdgpu`; correct `slots:` if that is what the node has",
    see="ls -l /dev/kfd; rocm-smi",
    source="ROCm documentation, Configuring permissions for GPU access; Linux, amdkfd",
    ask=accelerators.ask,
    flow=each(_flow),
)
