"""Whether all nodes have the same packages in the job's environment."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Check, Level, Nodes, Question, Verdict, odd_ones

MUST = ("torch", "deepspeed", "nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
"""Ranks with different ones do not understand each other."""
SHOULD = ("accelerate", "flash-attn", "numpy", "transformers", "triton")
PACKAGES = Question("packages", [*MUST, *SHOULD], 15)


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    said = {host: a["packages"]["versions"] for host, a in nodes.items() if a.has("packages")}
    odd: set[str] = set()
    for package in (*MUST, *SHOULD):
        versions = {host: found.get(package, ["none"])[0] for host, found in said.items()}
        for version, hosts, common, count in odd_ones(versions):
            odd |= set(hosts)
            has = f"{package} is missing" if version == "none" else f"{package} {version}"
            others = "none" if common == "none" else f"{package} {common}"
            level: Level = "fail" if package in MUST else "warn"
            yield Verdict(level, has, f"{others}, as on {count} nodes", hosts=hosts)
    for host, a in nodes.items():
        if host not in said:
            error = a.recorded.get(PACKAGES.key, {}).get("error", "it was not asked")
            yield Verdict("unknown", error, hosts=(host,))
        elif host not in odd:
            named = [f"{p} {said[host][p][0]}" for p in MUST if p in said[host]]
            yield Verdict("pass", ", ".join(named) or "no torch", hosts=(host,))


CHECK = Check(
    title="all nodes have the same torch, DeepSpeed and NCCL",
    tier="static",
    why="NCCL of different versions refuses or hangs; different torch or DeepSpeed fail in the "
    "first collective, or compute different things.",
    fix="install the environment of all nodes from one lock file, or use one container image",
    see="python -m pip list",
    source="NCCL 2.27 bootstrap.cc (version check); Google cluster-health-scanner configcheck",
    ask=lambda scope: {"packages": PACKAGES},
    compare=_compare,
)
