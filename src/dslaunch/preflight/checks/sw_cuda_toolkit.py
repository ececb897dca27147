"""Whether the CUDA toolkit fits torch, for kernels that are built at the start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed, skipped
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.checks._machine import NVIDIA
from dslaunch.protocol.programs import Installed

LONGEST = 8192
"""Characters that are searched; what NVIDIA installs has 3,000."""
TOOLKIT = Question("read", ["/usr/local/cuda/version.json", "/usr/local/cuda/version.txt"])

INTERCHANGEABLE: Mapping[str, tuple[int, ...]] = {
    "10": (0, 1, 2),
    "11": tuple(range(9)),
    "12": (0, 1, 2, 3, 4, 5, 6, 8, 9),
}
"""Versions, minor by major, of which DeepSpeed accepts any toolkit with any torch. There is no
toolkit 12.7."""


def toolkit(files: Mapping[str, str]) -> str:
    """The toolkit's version, as `12.4`; empty if none is installed where most are."""
    text = "\n".join(files.values())[:LONGEST]
    found = re.search(r'"cuda"\s*:\s*\{[^{}]*?"version"\s*:\s*"(\d+\.\d+)', text, re.S)
    return (found or re.search(r"CUDA Version (\d+\.\d+)", text) or [None, ""])[1] or ""


def of_torch(found: Installed) -> str:
    """The CUDA that torch is built with: `12.1` by its own file or version, `12` by its NCCL."""
    own = re.fullmatch(r"(\d{1,3}\.\d{1,3})(?:\.\d{1,9})?", found.torch.get("cuda", ""))
    if own:
        return own[1]
    tag = re.search(r"\+cu(\d{1,3})(\d)$", job.version(found, "torch"))
    if tag:
        return f"{tag[1]}.{tag[2]}"
    return next((n[-2:] for n in found.packages if re.fullmatch(r"nvidia-nccl-cu\d\d", n)), "")


def fits(there: str, wanted: str) -> bool | None:
    """Return whether DeepSpeed builds with that toolkit; None: torch's minor version, by which it
    decides, is not known."""
    if there == wanted:
        return True
    major, _, minor = there.partition(".")
    wanted_major, _, wanted_minor = wanted.partition(".")
    accepted = INTERCHANGEABLE.get(major, ())
    if major != wanted_major:
        return False
    if not wanted_minor:
        return True if int(minor) in accepted else None
    return int(minor) in accepted and int(wanted_minor) in accepted


def _judge(a: Answers) -> Iterator[Verdict]:
    if not a["nvidia"]:
        yield skipped("no NVIDIA GPU")
        return
    found = job.installed(a)
    if found is None:
        yield skipped(job.NOT_ENTERED)
        return
    there, wanted = toolkit(a["toolkit"]), of_torch(found)
    if not there or not wanted:
        yield skipped(
            "no toolkit in /usr/local/cuda" if not there else "torch does not say its CUDA"
        )
        return
    fit = fits(there, wanted)
    if fit is None:
        words = f"CUDA toolkit {there}, torch is built with CUDA {wanted} of unknown minor version"
        yield Verdict("unknown", words)
    elif not fit:
        words = f"CUDA toolkit {there}, torch is built with {wanted}"
        yield Verdict("warn", words, f"CUDA {wanted}")
    elif "." in wanted and there != wanted:
        yield passed(f"CUDA toolkit {there}, torch is built with {wanted}: they fit")
    else:
        yield passed(f"CUDA toolkit {there} fits torch")


CHECK = Check(
    title="the CUDA toolkit fits torch",
    tier="static",
    why="DeepSpeed builds its kernels when they are first used, and refuses with "
    "CUDAMismatchException if the toolkit's major version is not torch's, from CUDA 13 on also if "
    "the minor version is not.",
    fix="install the toolkit of torch's version, or DeepSpeed with its kernels built "
    "(DS_BUILD_OPS=1)",
    see="nvcc --version; python -c 'import torch; print(torch.version.cuda)'",
    source="DeepSpeed 0.19.8 op_builder/builder.py (cuda_minor_mismatch_ok)",
    ask=lambda scope: {"nvidia": NVIDIA, "toolkit": TOOLKIT},
    flow=job.asking(_judge),
)
