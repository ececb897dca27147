"""Measurements on a node: they end in time, report what they did, and leave nothing."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dslaunch.node import network, rates, smoke, survey
from dslaunch.preflight.check import Question
from dslaunch.preflight.checks._job import program
from dslaunch.preflight.checks._measure import shifts
from dslaunch.preflight.checks.sw_dist_smoke import pairings

MIB = 1 << 20


def test_what_is_sent_arrives_and_is_counted() -> None:
    port = network.listen({"ports": [0], "token": "t"})["port"]
    told = {"target": ["127.0.0.1", port], "token": "t", "bytes": 5 * MIB, "seconds": 5.0}
    try:
        found = rates.send(told)
        with pytest.raises(ConnectionError, match="another program"):
            rates.send({**told, "token": "another"})
    finally:
        network.hang_up()
    assert found["bytes"] == 5 * MIB and 0 < found["seconds"] < 5
    with pytest.raises(ConnectionRefusedError):
        rates.send(told)


def test_a_receiver_that_takes_nothing_does_not_hold_the_sender() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = {"target": list(server.getsockname()), "token": "", "bytes": 1 << 30}
        server.listen()
        peers: list[socket.socket] = []

        def greet() -> None:
            peers.append(server.accept()[0])
            peers[0].sendall(b"\n")

        threading.Thread(target=greet, daemon=True).start()
        began = time.monotonic()
        found = rates.send({**told, "seconds": 0.3})
        assert time.monotonic() - began < 300
    peers[0].close()
    assert found["bytes"] < 1 << 30


def test_a_file_is_written_and_gone(tmp_path: Path) -> None:
    told = {"path": str(tmp_path), "name": "x", "bytes": MIB + 5, "seconds": 20.0, "writers": 1}
    found = rates.write(told)
    assert found["bytes"] == MIB + 5 and found["seconds"] > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x").write_text("mine")
    with pytest.raises(FileExistsError):
        rates.write(told)
    assert (tmp_path / "x").read_text() == "mine"
    with pytest.raises(OSError) as full:
        rates.write({**told, "bytes": 1 << 60})
    assert full.value.errno == errno.ENOSPC
    with pytest.raises(FileNotFoundError):
        rates.write({**told, "path": str(tmp_path / "no")})


def test_a_measurement_that_hangs_ends_after_the_time_of_its_question_alone(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody_greets:
        target = list(nobody_greets.getsockname())
        sends = {"target": target, "token": "t", "bytes": 1, "seconds": 60}
        writes = {"path": str(tmp_path), "name": "x", "bytes": MIB, "seconds": 20.0, "writers": 1}
        children = survey.Children()
        answers = survey.ask(
            {
                "sends": {"kind": "send_rate", "argument": sends, "timeout": 0.2},
                "writes": {"kind": "write_rate", "argument": writes, "timeout": 20},
            },
            children,
        )
        children.end()
    assert set(answers["sends"]) == {"error"}
    assert answers["writes"]["value"]["bytes"] == MIB


def test_the_test_job_runs_from_its_text_alone_and_reports_into_the_file_that_is_named(
    tmp_path: Path,
) -> None:
    report = tmp_path / "report"
    told = {"ranks": [], "seconds": 1}
    argv = [sys.executable, "-I", "-S", "-c", program("smoke"), str(report), json.dumps(told)]
    subprocess.run(argv, capture_output=True, check=True)
    assert json.loads(report.read_text()) == {"ranks": []}


def test_a_rank_that_does_not_end_is_ended_and_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hang(self: smoke.Rank) -> None:
        self.tell(stage="rendezvous")
        if self.rank == 1:
            raise RuntimeError("no such device\nmore")
        time.sleep(600)

    monkeypatch.setattr(smoke.Rank, "run", hang)
    told = {"ranks": [0, 1], "nodes": [[0, 1]], "backend": "gloo", "seconds": 3}
    began = time.monotonic()
    found = smoke.main(told)["ranks"]
    assert time.monotonic() - began < 300
    late = {"rank": 0, "stage": "rendezvous", "error": "no end within the time", "late": True}
    assert found == [late, {"rank": 1, "stage": "rendezvous", "error": "no such device"}]


def test_what_a_program_reads_is_no_part_of_the_name_of_its_answer() -> None:
    argument = {"argv": ["python3", "-"]}
    assert Question("run", argument, text="1").key == Question("run", argument, text="2").key


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 17, 64])
def test_pairs_are_disjoint_and_each_node_has_up_to_three_partners(count: int) -> None:
    rounds = pairings(count)
    partners: dict[int, set[int]] = {at: set() for at in range(count)}
    for pairs in rounds:
        members = [at for pair in pairs for at in pair]
        assert len(members) == len(set(members)) >= count - count % 2
        for one, other in pairs:
            partners[one].add(other)
            partners[other].add(one)
    assert len(rounds) == min(3, max(0, count - 1 + count % 2) if count > 1 else 0)
    assert all(len(p) >= min(2, count - 1) for p in partners.values())


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_nodes_send_to_different_ones_in_each_round(count: int) -> None:
    steps = shifts(count, 3)
    assert len(steps) == min(3, count - 1)
    assert len({step % count for step in steps} - {0}) == len(steps)
