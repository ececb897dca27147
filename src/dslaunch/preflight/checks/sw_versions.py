"""Whether all nodes have the same packages in the job's environment."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Check, Level, Nodes, UnansweredError, Verdict, as_on, odd_ones
from dslaunch.preflight.checks import _job as job
from dslaunch.protocol.programs import Installed


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    said: dict[str, Installed] = {}
    for host, a in nodes.items():
        try:
            found = job.installed(a)
        except UnansweredError as error:
            yield Verdict("unknown", str(error), hosts=(host,))
            continue
        if found is None:
            yield Verdict("skip", job.NOT_ENTERED, hosts=(host,))
        else:
            said[host] = found
    odd: set[str] = set()
    for package in (*job.MUST, *job.SHOULD):
        versions = {host: job.version(found, package) for host, found in said.items()}
        for version, hosts, common, count in odd_ones(versions):
            odd |= set(hosts)
            has = f"{package} {version}" if version else f"{package} is missing"
            others = f"{package} {common}" if common else "none"
            level: Level = "fail" if package in job.MUST else "warn"
            yield Verdict(level, has, as_on(others, count), hosts=hosts)
    for host, found in said.items():
        if host not in odd:
            named = [f"{p} {v}" for p in job.MUST if (v := job.version(found, p))]
            # what a job lacks is said by sw.packages: here nothing is to be compared
            level = "pass" if named else "skip"
            yield Verdict(level, ", ".join(named) or "no torch is installed", hosts=(host,))


CHECK = Check(
    title="all nodes have the same torch, DeepSpeed and NCCL",
    tier="static",
    why="NCCL of different versions refuses or hangs; different torch or DeepSpeed fail in the "
    "first collective, or compute different things.",
    fix="install the environment of all nodes from one lock file, or use one container image",
    see="python -m pip list",
    source="NCCL 2.27 bootstrap.cc (version check); Google cluster-health-scanner configcheck",
    flow=job.asking(),
    compare=_compare,
)
