"""Whether the CUDA toolkit fits torch, for kernels that are built at the start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed, skipped
from dslaunch.preflight.checks._machine import NVIDIA
from dslaunch.preflight.checks.sw_versions import PACKAGES

TOOLKIT = Question("read", ["/usr/local/cuda/version.json", "/usr/local/cuda/version.txt"])


def toolkit(files: Mapping[str, str]) -> str:
    """The toolkit's version, as `12.4`; empty if none is installed where most are."""
    text = "\n".join(files.values())
    found = re.search(r'"cuda"\s*:\s*\{[^}]*?"version"\s*:\s*"(\d+\.\d+)', text, re.S)
    return (found or re.search(r"CUDA Version (\d+\.\d+)", text) or [None, ""])[1] or ""


def of_torch(versions: Mapping[str, list[str]]) -> str:
    """The CUDA that torch is built with: `12.1` by its own version, `12` by its NCCL."""
    tag = re.search(r"\+cu(\d+)(\d)$", versions.get("torch", [""])[0])
    if tag:
        return f"{tag[1]}.{tag[2]}"
    return next((n[-2:] for n in versions if re.fullmatch(r"nvidia-nccl-cu\d\d", n)), "")


def _judge(a: Answers) -> Iterator[Verdict]:
    if not a["nvidia"]:
        yield skipped("no NVIDIA GPU")
        return
    there, wanted = toolkit(a["toolkit"]), of_torch(a["packages"]["versions"])
    if not there or not wanted:
        yield skipped(
            "no toolkit in /usr/local/cuda" if not there else "torch does not say its CUDA"
        )
    elif there.split(".")[0] != wanted.split(".")[0]:
        yield Verdict(
            "warn", f"CUDA toolkit {there}, torch is built with {wanted}", f"CUDA {wanted}"
        )
    elif "." in wanted and there != wanted:
        yield passed(f"CUDA toolkit {there}, torch is built with {wanted}: they fit")
    else:
        yield passed(f"CUDA toolkit {there} fits torch")


CHECK = Check(
    title="the CUDA toolkit fits torch",
    tier="static",
    why="DeepSpeed builds its kernels when they are first used, and refuses with "
    "CUDAMismatchException if the toolkit's major version is not torch's.",
    fix="install the toolkit of torch's version, or DeepSpeed with its kernels built "
    "(DS_BUILD_OPS=1)",
    see="nvcc --version; python -c 'import torch; print(torch.version.cuda)'",
    source="DeepSpeed 0.19 op_builder/builder.py (assert_no_cuda_mismatch)",
    ask=lambda scope: {"nvidia": NVIDIA, "toolkit": TOOLKIT, "packages": PACKAGES},
    judge=_judge,
)
