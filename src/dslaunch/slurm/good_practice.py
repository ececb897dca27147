"""What a script does right, where others go wrong: said to people, so that they keep it."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.lint import Remark
from dslaunch.slurm.rules.master import addresses, expansions_of, ports
from dslaunch.slurm.rules.ranks import RANKS
from dslaunch.slurm.training_commands import Reading


def ranks_on_nodes(reading: Reading) -> Iterator[Remark]:
    """Ranks that the node's shell puts in."""
    seen = set()
    for step in reading.steps:
        for expansion in step.inner_expansions():
            name = expansion.name
            if name in RANKS and expansion.shell > 0 and name not in seen:
                seen.add(name)
                yield _right(
                    reading, expansion.place, f"{expansion.raw} is left to the node's own shell"
                )


def first_node(reading: Reading) -> Iterator[Remark]:
    """The first node by `scontrol show hostnames`, put in once."""
    for name, expansion in expansions_of(addresses(reading)):
        if "show hostname" in expansion.raw and expansion.shell == 0:
            yield _right(
                reading, expansion.place, f"{name} is the first node's name, the same for all"
            )


def one_launcher(reading: Reading) -> Iterator[Remark]:
    """One task per node for a launcher."""
    option = reading.script.options.get("ntasks-per-node")
    if option and option.text == "1" and any(one.launcher and one.step for one in reading.launches):
        yield _right(reading, option.place, "one launcher on each node")


def numbers_once(reading: Reading) -> Iterator[Remark]:
    """The number of nodes from SLURM, the port from the job's number."""
    for launch in reading.launches:
        nodes = launch.option("nnodes", "num_machines", "num_nodes")
        if nodes and nodes.text in ("$SLURM_NNODES", "$SLURM_JOB_NUM_NODES"):
            yield _right(reading, nodes.place, f"{nodes.given} is what SLURM gave")
    for name, expansion in expansions_of(ports(reading)):
        if "SLURM_JOB" in expansion.raw:
            yield _right(reading, expansion.place, f"{name} is the job's own")


def _right(reading: Reading, place: int, message: str) -> Remark:
    return reading.script.remark("right", "info", place, message)


GOOD_PRACTICE = (ranks_on_nodes, first_node, one_launcher, numbers_once)
