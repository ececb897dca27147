"""Whether torch is built for the accelerators of its node."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.launch import launchers
from dslaunch.launch.devices import NAMES
from dslaunch.preflight.check import Answers, Check, Level, Scope, Verdict, passed, skipped
from dslaunch.preflight.checks import _builds as builds
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.flow import NodeFlow, each
from dslaunch.protocol.programs import Installed
from dslaunch.protocol.values import Vendor

HIDDEN = {"CUDA_VISIBLE_DEVICES": ("", "-1"), "ACCELERATE_USE_CPU": ("true", "1", "yes")}
"""Variables with values by which a job says that it uses no GPU."""


def _flow(a: Answers) -> NodeFlow:
    query = {"query": nvidia.QUERY} if nvidia.has_driver(a) else {}
    a = yield {"job": job.question(a), **query}
    return _judge(a)


def _judge(a: Answers) -> Iterator[Verdict]:
    if not launchers.starts_python(a.scope.job):
        yield skipped("the job starts no Python")
        return
    there = builds.vendors(a)
    found = job.installed(a)
    hidden = _hides(a)
    if not there:
        yield skipped("no accelerator is known there")
    elif found is None:
        yield skipped(job.NOT_ENTERED)
    elif not found.torch:
        yield skipped("torch does not say what it is built for")
    elif hidden:
        yield skipped(f"the job uses no GPU: {hidden} is set")
    else:
        yield from _fits(a, there, found)


def _fits(a: Answers, there: tuple[Vendor, ...], found: Installed) -> Iterator[Verdict]:
    """One vendor is enough: graphics of a processor may count as a second one."""
    fitting = [vendor for vendor in there if builds.is_for(found, vendor)]
    words = f"torch {found.torch.get('__version__', '')} is built for {builds.target(found)}"
    if not fitting:
        level: Level = "fail" if _certain(a.scope) else "warn"
        names = " or ".join(f"{NAMES[vendor]}s" for vendor in there)
        yield Verdict(level, words, f"torch built for the node's {names}")
    elif "nvidia" in fitting:
        yield from _driver(a, found.torch["cuda"])
    else:
        yield passed(words)


def _certain(scope: Scope) -> bool:
    """Whether the job certainly uses torch."""
    return "torch" in {name.partition(".")[0] for name in job.needed(scope)}


def _driver(a: Answers, cuda: str) -> Iterator[Verdict]:
    """A driver that is too old for torch's CUDA, unless the image brings cuda-compat."""
    major = cuda.partition(".")[0]
    least = builds.DRIVER_OF_CUDA.get(int(major)) if major.isdigit() else None
    has = builds.driver(a)
    if least is not None and has is not None and has < least:
        words = f"torch is built with CUDA {cuda}, and the driver is {has}"
        fix = f"update the driver to {least} or newer, or install torch for an older CUDA"
        yield Verdict("warn", words, f"driver {least} or newer", fix)
    else:
        yield passed(f"torch is built with CUDA {cuda}")


def _hides(a: Answers) -> str:
    """The variable by which the job says that it uses no GPU; empty: it does not say so."""
    env = job.variables(a)
    return next((n for n, values in HIDDEN.items() if env.get(n, "?").lower() in values), "")


CHECK = Check(
    title="torch is built for the node's accelerators",
    tier="gate",
    why="A torch without CUDA sees no GPU: ranks fail when they choose their device, or train on "
    "the CPU, a hundred times slower.",
    fix="install torch for these accelerators (pytorch.org, Get Started), or set "
    "`CUDA_VISIBLE_DEVICES: ''` in `env:` for a job on CPUs",
    see="python3 -c 'import torch; print(torch.version.cuda, torch.cuda.is_available())'",
    source="torch 2.13 torch/version.py (cuda, hip, xpu); NVIDIA CUDA Toolkit release notes, "
    "minimum driver versions",
    ask=builds.ask,
    flow=each(_flow),
)
