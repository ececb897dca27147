"""The quick checks before a run, over connections that somebody else has opened."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from dslaunch.cluster.model import Allocation, Cluster, Node, Preflight
from dslaunch.errors import PreflightError
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided, Rendezvous
from dslaunch.preflight.checks import load, of_tier
from dslaunch.run.evidence import Inquiry
from dslaunch.run.gate import OWN, Gate
from dslaunch.transport.base import Connection
from dslaunch.transport.local import LocalTransport

NODES = (Node("n1", (0,)), Node("n2", (0,)))
DECIDED = Decided(Rendezvous("127.0.0.1", 29500), "/", ())


def gate(tmp_path: Path, **limits: tuple[tuple[str, float], ...]) -> Gate:
    own = tuple((name.replace("_", "."), values) for name, values in limits.items())
    cluster = Cluster("c", NODES, transport="local", preflight=Preflight(limits=own))
    opened: dict[str, Future[Connection]] = {node.host: Future() for node in NODES}
    for node in NODES:
        opened[node.host].set_result(LocalTransport(tmp_path).connect(node))
    allocation = Allocation.of([(node, (0,)) for node in NODES])
    inquiry = Inquiry(cluster, allocation, (str(tmp_path),), None)
    return Gate(inquiry, Job("train.py"), opened)


def test_what_a_run_finds_out_by_itself_is_not_asked_again(tmp_path: Path) -> None:
    opened = gate(tmp_path)
    assert set(opened.checks) == set(of_tier(load(), "gate")) - set(OWN)
    assert {"clock.skew", "fs.free"} <= set(opened.checks)
    opened.passed(DECIDED)


def test_what_fails_stops_the_start_with_nodes_check_and_fix(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as refused:
        gate(tmp_path, fs_free=(("fail", 101.0), ("enough", 1e9))).passed(DECIDED)
    assert refused.value.message.startswith("n[1-2]: fs.free: ")
    assert refused.value.hint is not None
    assert refused.value.hint.endswith("or start with --no-preflight")


def test_warnings_stand_among_the_decisions(tmp_path: Path) -> None:
    limits = (("fail", 0.0), ("warn", 101.0), ("enough", 1e9))
    decided = gate(tmp_path, fs_free=limits).passed(DECIDED)
    assert {d.what for d in decided.decisions} == {"warning"}
    assert all("fs.free" in d.why for d in decided.decisions)
    assert decided.decisions
