"""Good practice in a script where many others fail; shown so that users keep it."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.lint import Remark
from dslaunch.slurm.rules.master import addresses, expansions_of, ports
from dslaunch.slurm.rules.ranks import RANKS
from dslaunch.slurm.training_commands import LintedScript


def ranks_on_nodes(linted: LintedScript) -> Iterator[Remark]:
    """Yield ranks that the shell on the node expands."""
    seen = set()
    for step in linted.steps:
        for expansion in step.inner_expansions():
            name = expansion.name
            if name in RANKS and expansion.shell > 0 and name not in seen:
                seen.add(name)
                message = f"{expansion.raw} is expanded by the shell on each node"
                yield _good(linted, "rank-on-node", expansion.place, message)


def first_node(linted: LintedScript) -> Iterator[Remark]:
    """Yield the name of the first node by `scontrol show hostnames`, expanded once."""
    for name, expansion in expansions_of(addresses(linted)):
        if "show hostname" in expansion.raw and expansion.shell == 0:
            message = f"{name} is the name of the first node, the same on all nodes"
            yield _good(linted, "first-node", expansion.place, message)


def launcher_per_node(linted: LintedScript) -> Iterator[Remark]:
    """Yield `--ntasks-per-node=1` for a launcher."""
    option = linted.script.options.get("ntasks-per-node")
    if option and option.text == "1" and any(one.launcher and one.step for one in linted.launches):
        message = "srun starts one launcher per node"
        yield _good(linted, "launcher-per-node", option.place, message)


def numbers_of_slurm(linted: LintedScript) -> Iterator[Remark]:
    """Yield the number of nodes by SLURM's variable, and the port by the job's number."""
    for launch in linted.launches:
        nodes = launch.option("nnodes", "num_machines", "num_nodes")
        if nodes and nodes.text in ("$SLURM_NNODES", "$SLURM_JOB_NUM_NODES"):
            message = f"{nodes.given} is the number of nodes of the job"
            yield _good(linted, "nodes-of-job", nodes.place, message)
    for name, expansion in expansions_of(ports(linted)):
        if "SLURM_JOB" in expansion.raw:
            message = f"{name} depends on the job number, so jobs do not share a port"
            yield _good(linted, "port-of-job", expansion.place, message)


def _good(linted: LintedScript, code: str, place: int, message: str) -> Remark:
    return linted.script.remark(code, "info", place, message)


GOOD_PRACTICE = (ranks_on_nodes, first_node, launcher_per_node, numbers_of_slurm)
