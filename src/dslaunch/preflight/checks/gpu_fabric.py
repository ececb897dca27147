"""Whether the fabric of NVSwitches is ready."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed, skipped
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.flow import NodeFlow, each

SERVICE = Question("run", {"argv": ["systemctl", "is-active", "nvidia-fabricmanager"]}, 10)
SWITCH = "0x0680"


def switches(a: Answers) -> int:
    """How many NVSwitches the PCI bus has."""
    return sum(of["class"].startswith(SWITCH) for of in a["pci"].values()) if a.has("pci") else 0


def _flow(a: Answers) -> NodeFlow:
    if nvidia.has_driver(a):
        a = yield {"query": nvidia.QUERY, **({"service": SERVICE} if switches(a) else {})}
    return nvidia.if_up(a, _judge)


def _judge(a: Answers) -> Iterator[Verdict]:
    states: dict[tuple[str, str], list[int]] = {}
    for gpu in nvidia.gpus(a):
        state = gpu.text("fabric.state")
        if state not in (None, "Not Supported"):
            states.setdefault((state or "", gpu.text("fabric.status") or "?"), []).append(gpu.index)
    for (state, status), gpus in states.items():
        if (state, status) != ("Completed", "Success"):
            words = f"GPU {nvidia.listed(gpus)}: fabric {state}, {status}"
            yield Verdict("fail", words, "Completed, Success")
    if any(state != ("Completed", "Success") for state in states):
        return
    if states:
        yield passed("the fabric is ready")
    elif switches(a):
        yield from _service(a)
    else:
        yield skipped("no NVSwitch")


def _service(a: Answers) -> Iterator[Verdict]:
    """Before Hopper only the service can be asked."""
    said = a.value(SERVICE)["out"].strip()
    if said == "active":
        yield passed("nvidia-fabricmanager is active")
    elif said in ("inactive", "failed", "deactivating", "activating"):
        yield Verdict("fail", f"nvidia-fabricmanager is {said}", "active")
    else:
        yield Verdict("unknown", "`systemctl is-active nvidia-fabricmanager` says nothing of use")


CHECK = Check(
    title="the fabric of NVSwitches is ready",
    tier="static",
    why="Without it CUDA does not start: error 802, system not yet initialized.",
    fix="`systemctl restart nvidia-fabricmanager`; its version must be that of the driver",
    see="nvidia-smi -q | grep -A2 Fabric; systemctl status nvidia-fabricmanager",
    source="NVIDIA fabric manager user guide; imbue-ai/cluster-health",
    ask=nvidia.ask,
    flow=each(_flow),
)
