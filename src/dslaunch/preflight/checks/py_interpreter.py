"""Whether the job's interpreter is there, and the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Nodes, Verdict, odd_ones, passed


def _judge(a: Answers) -> Iterator[Verdict]:
    version = ".".join(map(str, a.hello["python"]))
    executable = a.hello["executable"]
    wanted = a.node.python
    if (wanted is not None and executable.split("/")[-1] != wanted.split("/")[-1]) or (
        wanted is not None and wanted.startswith("/") and executable != wanted
    ):
        yield Verdict("fail", f"{wanted} is not there; {executable} answered", wanted)
    else:
        yield passed(f"Python {version} at {executable}")


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    versions = {host: ".".join(map(str, a.hello["python"][:2])) for host, a in nodes.items()}
    for version, hosts, common, count in odd_ones(versions):
        expected = f"Python {common}, as on {count} nodes"
        yield Verdict("fail", f"Python {version}", expected, hosts=hosts)


CHECK = Check(
    title="the job's interpreter is there, the same on all nodes",
    tier="gate",
    why="Packages are installed for one version of Python; a node with another one fails at its "
    "first import, and all others wait for it.",
    fix="install it there, or correct `python:` or `activate:` of that node",
    see="command -v python3; python3 -V",
    source="imbue cluster-health: the same container everywhere",
    judge=_judge,
    compare=_compare,
)
