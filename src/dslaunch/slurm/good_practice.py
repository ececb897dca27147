"""What a script does right, where others go wrong: said to people, so that they keep it."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.lint import Remark
from dslaunch.slurm.launches import Reading
from dslaunch.slurm.rules.master import addresses, ports
from dslaunch.slurm.rules.ranks import RANKS


def ranks_on_nodes(reading: Reading) -> Iterator[Remark]:
    """Ranks that the node's shell puts in."""
    seen = set()
    for step in reading.steps:
        for command in step.inner:
            for word in command.all_words():
                for expansion in word.expansions:
                    name = expansion.name
                    if name in RANKS and expansion.shell > 0 and name not in seen:
                        seen.add(name)
                        message = f"{expansion.raw} is left to the node's own shell"
                        yield reading.script.remark("right", "info", expansion.place, message)


def first_node(reading: Reading) -> Iterator[Remark]:
    """The first node by `scontrol show hostnames`, put in once."""
    for given in addresses(reading):
        for expansion in given.value.expansions:
            if "show hostname" in expansion.raw and expansion.shell == 0:
                message = f"{given.name} is the first node's name, the same for all"
                yield reading.script.remark("right", "info", expansion.place, message)


def one_launcher(reading: Reading) -> Iterator[Remark]:
    """One task per node for a launcher."""
    option = reading.script.options.get("ntasks-per-node")
    if option and option.text == "1" and any(one.launcher and one.step for one in reading.launches):
        message = "one launcher on each node"
        yield reading.script.remark("right", "info", option.place, message)


def numbers_once(reading: Reading) -> Iterator[Remark]:
    """The number of nodes from SLURM, the port from the job's number."""
    for launch in reading.launches:
        nodes = launch.option("nnodes", "num_machines", "num_nodes")
        if nodes and nodes.text in ("$SLURM_NNODES", "$SLURM_JOB_NUM_NODES"):
            message = f"{nodes.given} is what SLURM gave"
            yield reading.script.remark("right", "info", nodes.place, message)
    for given in ports(reading):
        for expansion in given.value.expansions:
            if "SLURM_JOB" in expansion.raw:
                message = f"{given.name} is the job's own"
                yield reading.script.remark("right", "info", expansion.place, message)


GOOD_PRACTICE = (ranks_on_nodes, first_node, one_launcher, numbers_once)
