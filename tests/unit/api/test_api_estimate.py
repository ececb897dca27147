"""What `dslaunch.estimate` takes from its parameters, and what from the hardware."""

from __future__ import annotations

import dslaunch
from dslaunch.cluster.load import parse_cluster
from dslaunch.deepspeed.memory import Machines

HARDWARE = dslaunch.Hardware.of(parse_cluster("nodes: [{host: 'n[1-2]', slots: 4}]", "c.yaml"))


def machines(nodes: int | None = None, gpus_per_node: int | None = None) -> Machines:
    found = dslaunch.estimate(
        params=10**9,
        largest_layer=10**6,
        hardware=HARDWARE,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
    )
    return found.question.machines


def test_numbers_that_are_given_come_before_those_of_the_hardware() -> None:
    assert machines() == Machines(nodes=2, gpus_per_node=4)
    assert machines(nodes=8) == Machines(nodes=8, gpus_per_node=4)
    assert machines(nodes=8, gpus_per_node=1) == Machines(nodes=8, gpus_per_node=1)
