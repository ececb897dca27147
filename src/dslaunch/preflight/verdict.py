"""From findings to a verdict per node, and how nodes are drained. Pure."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from dslaunch.cluster.nodeset import fold
from dslaunch.launch.command import LONGEST_ARGUMENT, quote
from dslaunch.preflight.check import Finding

REACHED = "ssh.connect"
"""The finding of every node, whether it answered at all. Not a file: nothing can be asked."""


class Fitness(StrEnum):
    """Whether a node can be used for training."""

    FIT = "fit"
    """It answered checks, and none failed on it."""
    UNFIT = "unfit"
    """A check failed on it."""
    UNKNOWN = "unknown"
    """It did not answer, or none of its checks: it is not fit, and nothing is known against it."""


class NodeVerdict(Struct, frozen=True):
    """Whether a node is fit, and which checks say that it is not."""

    host: str
    fitness: Fitness
    checks: tuple[str, ...] = ()
    """The names of the checks that failed on it."""


def node_verdicts(
    hosts: Iterable[str], answered: Collection[str], findings: Iterable[Finding]
) -> tuple[NodeVerdict, ...]:
    """Return the verdict of each host, in their order.

    `answered`: the hosts that answered. `findings`: those of all checks.
    """
    findings = tuple(findings)
    failed: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level == "fail" and not finding.of_job:
            for host in finding.hosts:
                failed.setdefault(host, []).append(finding.check)
    known = set(answered) - _all_unknown(findings)
    return tuple(
        _verdict(host, tuple(dict.fromkeys(failed.get(host, ()))), known=host in known)
        for host in hosts
    )


def _all_unknown(findings: Sequence[Finding]) -> set[str]:
    """Return the hosts whose results are all unknown. That a node answered, and checks that were
    skipped there, do not count."""
    of_nodes = [each for each in findings if not each.of_job]
    unknown = {host for each in of_nodes if each.level == "unknown" for host in each.hosts}
    for each in of_nodes:
        if unknown and each.level not in ("unknown", "skip") and each.check != REACHED:
            unknown.difference_update(each.hosts)
    return unknown


def _verdict(host: str, checks: tuple[str, ...], *, known: bool) -> NodeVerdict:
    if not known:
        return NodeVerdict(host, Fitness.UNKNOWN, checks)
    fitness = Fitness.UNFIT if checks else Fitness.FIT
    return NodeVerdict(host, fitness, checks)


def hosts_that_are(verdicts: Iterable[NodeVerdict], *fitness: Fitness) -> tuple[str, ...]:
    """Return the hosts with one of these verdicts, in their order."""
    return tuple(verdict.host for verdict in verdicts if verdict.fitness in fitness)


def drain_commands(verdicts: Iterable[NodeVerdict]) -> Iterator[str]:
    """Yield shell lines that drain the unfit nodes in SLURM, one for nodes with equal reasons that
    fit into an argument.

    Unknown nodes are not drained: SLURM notices by itself if they are down.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for verdict in verdicts:
        if verdict.fitness is Fitness.UNFIT:
            groups.setdefault(verdict.checks, []).append(verdict.host)
    for checks, hosts in groups.items():
        reason = f"dslaunch preflight: {', '.join(checks)}"
        for nodes in _arguments("nodename=", hosts):
            words = (nodes, "state=drain", f"reason={reason}")
            yield " ".join(("scontrol update", *map(quote, words)))


def _arguments(option: str, hosts: Sequence[str]) -> Iterator[str]:
    """Yield an option with the hosts folded; several if one is too long for Linux."""
    argument = f"{option}{fold(hosts)}"
    if len(os.fsencode(argument)) <= LONGEST_ARGUMENT:
        yield argument
        return
    middle = len(hosts) // 2
    yield from _arguments(option, hosts[:middle])
    yield from _arguments(option, hosts[middle:])
