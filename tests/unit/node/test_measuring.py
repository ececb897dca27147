"""The programs that measure: they end in time, say what they did, and leave nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dslaunch.node import network, send_rate, smoke, write_rate
from dslaunch.preflight.check import Question
from dslaunch.preflight.checks._job import program
from dslaunch.preflight.checks._measure import shifts
from dslaunch.preflight.checks.sw_dist_smoke import pairings

MIB = 1 << 20


def test_what_is_sent_arrives_and_is_counted() -> None:
    port = network.listen({"ports": [0], "token": "t"})["port"]
    told = {"target": ["127.0.0.1", port], "token": "t", "bytes": 5 * MIB, "seconds": 5.0}
    try:
        found = send_rate.main(told)
        other = send_rate.main({**told, "token": "another"})
    finally:
        network.hang_up()
    assert found["bytes"] == 5 * MIB and 0 < found["seconds"] < 5
    assert other == {"error": "somebody else answers there"}
    assert "refused" in send_rate.main(told)["error"]


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
        found = send_rate.main({**told, "seconds": 0.3})
        assert time.monotonic() - began < 2
    peers[0].close()
    assert found["bytes"] < 1 << 30


def test_a_file_is_written_and_gone(tmp_path: Path) -> None:
    told = {"path": str(tmp_path), "name": "x", "bytes": MIB + 5, "seconds": 20.0, "writers": 1}
    found = write_rate.main(told)
    assert found["bytes"] == MIB + 5 and found["seconds"] > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x").write_text("mine")
    assert write_rate.main(told) == {"error": "File exists"}
    assert (tmp_path / "x").read_text() == "mine"
    assert write_rate.main({**told, "bytes": 1 << 60}) == {"error": "too little free space to try"}
    assert write_rate.main({**told, "path": str(tmp_path / "no")}) == {
        "error": "No such file or directory"
    }


@pytest.mark.parametrize("name", ["send_rate", "write_rate", "smoke"])
def test_a_program_runs_from_its_text_alone(name: str) -> None:
    told = {
        "send_rate": {"target": ["127.0.0.1", 9], "token": "", "bytes": 1, "seconds": 1},
        "write_rate": {"path": "/nowhere", "name": "x", "bytes": 1, "seconds": 1, "writers": 1},
        "smoke": {"ranks": [], "seconds": 1},
    }[name]
    argv = [sys.executable, "-I", "-S", "-", json.dumps(told)]
    done = subprocess.run(argv, input=program(name), text=True, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    assert set(found) == {"ranks"} if name == "smoke" else set(found) == {"error"}


def test_a_rank_that_does_not_end_is_ended_and_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hang(self: smoke.Rank) -> None:
        self.tell(stage="meet")
        if self.rank == 1:
            raise RuntimeError("no such device\nmore")
        time.sleep(60)

    monkeypatch.setattr(smoke.Rank, "run", hang)
    told = {"ranks": [0, 1], "nodes": [[0, 1]], "backend": "gloo", "seconds": 0.5}
    began = time.monotonic()
    found = smoke.main(told)["ranks"]
    assert time.monotonic() - began < 10
    late = {"rank": 0, "stage": "meet", "error": "no end within the time", "late": True}
    assert found == [late, {"rank": 1, "stage": "meet", "error": "no such device"}]


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
