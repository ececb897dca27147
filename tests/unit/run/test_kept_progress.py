"""The progress of detached runs, by the end of the journals of their nodes."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import cast

import pytest

from dslaunch.node import frames
from dslaunch.protocol.queries import JOURNAL, Answers, Questions, parse_answers
from dslaunch.run.kept_progress import TIMEOUT, WINDOW, RunsOfCluster, kept_progress
from dslaunch.run.reach import ReachedNodes
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import State
from dslaunch.run.session import Session
from dslaunch.run.status import NodeStatus, RunStatus
from dslaunch.transport.future import Future


class Node:
    """A session with a node that has kept this; None: it does not answer."""

    offset = 0.0

    def __init__(self, host: str, kept: bytes | None) -> None:
        self.host, self.kept, self.ranks = host, kept, range(4)
        self.sent = 0

    def ask(self, questions: Questions) -> Future[Answers]:
        answer: Future[Answers] = Future()
        if self.kept is None:
            return answer
        journal = questions[JOURNAL]
        sent = self.kept[journal["position"] :][: journal["most"]]
        self.sent += len(sent)
        piece = {"data": base64.b64encode(sent).decode(), "size": len(self.kept)}
        answer.set_result(parse_answers(self.host, questions, {"journal": {"value": piece}}))
        return answer


def journal(rank: int, *lines: str) -> bytes:
    bodies = [
        frames.output_body(rank, 1, float(number), f"{text}\n".encode())
        for number, text in enumerate(lines)
    ]
    told = [frames.frame(frames.OUTPUT, body, number) for number, body in enumerate(bodies, 1)]
    return b"".join(told)


def step_of(nodes: Mapping[str, Node]) -> int | None:
    """Return the step of a run with a rank on each node."""
    record = RunRecord(
        program="", cluster="pod", launcher="direct", hosts=tuple(nodes), world_size=len(nodes),
        detached=True, agents="run", started=0.0,
    )  # fmt: skip
    states = {host: NodeStatus("running", (rank,)) for rank, host in enumerate(nodes)}
    runs = {"run": RunStatus("run", State.RUNNING, record, states)}
    reached = ReachedNodes({host: cast("Session", node) for host, node in nodes.items()})
    found = kept_progress([RunsOfCluster(runs, reached, ())])
    return found["run"].step if "run" in found else None


def test_the_newest_step_of_any_rank_is_found_at_the_end_of_long_journals() -> None:
    lines = [f"step {number} loss 1.5" for number in range(20_000)]
    nodes = {"n1": Node("n1", journal(0, "loading")), "n2": Node("n2", journal(1, *lines))}
    assert step_of(nodes) == 19_999
    assert nodes["n2"].sent <= WINDOW


def test_a_node_that_does_not_answer_costs_a_short_time_and_hides_no_other() -> None:
    nodes = {"n1": Node("n1", None), "n2": Node("n2", journal(1, "step 7 loss 1.5"))}
    began = time.monotonic()
    assert step_of(nodes) == 7
    assert time.monotonic() - began < 150 * TIMEOUT


@pytest.mark.parametrize("kept", [b"", b"\xff" * 100, bytes(1 << 20)])
def test_a_damaged_journal_has_no_progress(kept: bytes) -> None:
    assert step_of({"n1": Node("n1", kept)}) is None
    assert step_of({"n1": Node("n1", kept), "n2": Node("n2", journal(1, "step 7 loss 1.5"))}) == 7
