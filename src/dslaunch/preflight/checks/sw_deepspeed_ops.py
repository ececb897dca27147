"""Whether DeepSpeed's kernels are built, or can be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed, skipped
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.checks._machine import NVIDIA
from dslaunch.preflight.flow import NodeFlow, each

NVCC = "/usr/local/cuda/bin/nvcc"
LIBAIO = "/usr/include/libaio.h"
TOOLS = Question("present", ["nvcc", NVCC, "c++", "ninja", LIBAIO])
NEEDS = {"offload": ("cpu_adam",), "zero-infinity": ("async_io", "cpu_adam")}


def _flow(a: Answers) -> NodeFlow:
    a = yield {"job": job.question(a)}
    found = job.installed(a)
    if found is None:
        return [skipped(job.NOT_ENTERED)]
    if "deepspeed" not in found.packages:
        return [skipped("DeepSpeed is not installed there")]
    if not a["nvidia"] and not any(purpose in NEEDS for purpose in a.scope.purposes):
        return [skipped("no NVIDIA GPU, and nothing is offloaded")]
    # there DeepSpeed writes down which kernels were built when it was installed
    file = f"{found.packages['deepspeed'][1]}/deepspeed/git_version_info_installed.py"
    question = Question("texts", [file], 5)
    a = yield {"built": question, "tools": TOOLS}
    text = "\n".join(a.value(question).values())
    return _judge(a, set(re.findall(r"['\"](\w+)['\"]\s*:\s*True", text)))


def _judge(a: Answers, built: set[str]) -> Iterator[Verdict]:
    tools, gpu = a.value(TOOLS), bool(a["nvidia"])
    needed = [op for purpose in sorted(a.scope.purposes) for op in NEEDS.get(purpose, ())]
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
    flow=each(_flow),
)
