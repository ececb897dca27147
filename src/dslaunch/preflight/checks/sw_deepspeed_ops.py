"""Whether DeepSpeed's kernels are built, or can be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

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
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.checks._machine import NVIDIA

NVCC = "/usr/local/cuda/bin/nvcc"
LIBAIO = "/usr/include/libaio.h"
TOOLS = Question("present", ["nvcc", NVCC, "c++", "ninja", LIBAIO])
NEEDS = {"offload": ("cpu_adam",), "zero-infinity": ("async_io", "cpu_adam")}


def _deepspeed(a: Answers) -> str:
    """The directory that DeepSpeed is in; empty: it is not installed, or nobody could look."""
    try:
        found = job.installed(a)
    except UnansweredError:
        return ""
    return found.packages["deepspeed"][1] if found and "deepspeed" in found.packages else ""


def _built(a: Answers) -> Question | None:
    """Where DeepSpeed writes down which kernels were built when it was installed."""
    found = _deepspeed(a)
    if not a.has("nvidia"):
        return None
    needed = a["nvidia"] or any(purpose in NEEDS for purpose in a.scope.purposes)
    if not found or not needed:
        return None
    return Question("texts", [f"{found}/deepspeed/git_version_info_installed.py"], 5)


def _after(nodes: Nodes) -> Mapping[str, Asked]:
    built = {host: _built(a) for host, a in nodes.items()}
    return {h: {"built": question, "tools": TOOLS} for h, question in built.items() if question}


def _judge(a: Answers) -> Iterator[Verdict]:
    if job.installed(a) is None:
        yield skipped(job.NOT_ENTERED)
        return
    if not _deepspeed(a):
        yield skipped("DeepSpeed is not installed there")
        return
    question = _built(a)
    if question is None:
        yield skipped("no NVIDIA GPU, and nothing is offloaded")
        return
    text = "\n".join(a.value(question).values())
    built = set(re.findall(r"['\"](\w+)['\"]\s*:\s*True", text))
    tools = a.value(TOOLS)
    needed = [op for purpose in sorted(a.scope.purposes) for op in NEEDS.get(purpose, ())]
    gpu = bool(a["nvidia"])
    lacks = {op: list(_lacks(op, tools, gpu)) for op in dict.fromkeys(needed) if op not in built}
    missing = dict.fromkeys(word for words in lacks.values() for word in words)
    if missing:
        which = ", ".join(op for op, lacked in lacks.items() if lacked)
        words = f"{which} cannot be built: {', '.join(missing)} is not there"
        yield Verdict("fail", words, "kernels that are built, or what builds them")
    elif not built and not {"nvcc", NVCC} & set(tools) and gpu:
        yield Verdict("info", "no kernel is built, and there is no nvcc to build one")
    else:
        yield passed("DeepSpeed's kernels are built, or can be")


def _lacks(op: str, tools: Mapping[str, str], gpu: bool) -> Iterator[str]:
    for tool in ("c++", "ninja"):
        if tool not in tools:
            yield tool
    if op == "async_io" and LIBAIO not in tools:
        yield "libaio.h"
    if gpu and op == "cpu_adam" and not {"nvcc", NVCC} & set(tools):
        yield "nvcc"


CHECK = Check(
    title="DeepSpeed's kernels are built, or can be",
    tier="static",
    why="Offloaded optimizers and NVMe need compiled kernels. Where these can neither be loaded "
    "nor built, the training ends at its first step.",
    fix="`apt-get install g++ ninja-build libaio-dev`, the CUDA toolkit; or install DeepSpeed with "
    "DS_BUILD_OPS=1",
    see="ds_report",
    source="DeepSpeed 0.19 op_builder (cpu_adam.py, async_io.py), env_report.py",
    ask=lambda scope: {"nvidia": NVIDIA},
    then=job.then,
    after=_after,
    judge=_judge,
)
