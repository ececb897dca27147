"""When ranks entered their collectives: from the answers of nodes to what is compared."""

from __future__ import annotations

from typing import Any

import pytest

from dslaunch.protocol.collectives import COLLECTIVES, RankAnswer
from dslaunch.protocol.values import parse
from dslaunch.run.collective_times import (
    EXACT,
    LONGEST,
    MOST_GROUPS,
    MOST_TRIPS,
    SHARE_OF_RANK,
    SHORTEST,
    STEPS_BETWEEN,
    TRIPS_OF_ROUND,
    CollectiveTimes,
)
from dslaunch.transport.clock import Clock
from dslaunch.transport.future import Future

KIND = "all_reduce [[1000]]"
STEP = 0.1
SLOW = 0.01


def answer(
    ranks: range, numbers: range, *, world: int = 4, slow: int = 3, **more: Any
) -> dict[str, Any]:
    """What ranks of a node answer that have entered these collectives, one per step."""
    told: dict[str, Any] = {}
    for rank in ranks:
        late = SLOW if rank == slow else 0.0
        calls = [[number, 0, 1e9 + number * STEP + late, None] for number in numbers]
        times = {
            "group": "0",
            "backend": "gloo",
            "ranks": list(range(world)),
            "kinds": [KIND],
            "calls": calls,
        }
        told[str(rank)] = {
            "state": "answered",
            "pid": 100 + rank,
            "told": {"times": [times | more], "spent": 0.001},
        }
    return told


class Node:
    """The session of a node with two ranks."""

    def __init__(self, number: int, offset: float = 0.0) -> None:
        self.host = f"node{number}"
        self.ranks = range(2 * number, 2 * number + 2)
        self.offset, self.clock_error = offset, 0.0
        self.asked: list[Future[dict[str, RankAnswer]]] = []
        self.messages: list[dict[str, object]] = []

    def measure_clock(self) -> Future[Clock]:
        return Future()

    def request(self, operation: str, form: object, **message: object) -> Future[Any]:
        assert (operation, form) == ("collectives", COLLECTIVES)
        self.messages.append(message)
        self.asked.append(Future())
        return self.asked[-1]

    def tell(self, told: dict[str, Any]) -> None:
        self.asked[-1].set_result(dict(parse(COLLECTIVES, told)))


class Asking(CollectiveTimes):
    """Asks in every round."""

    @property
    def interval(self) -> float:
        return 0.0


def rounds(*numbers: range, nodes: tuple[Node, Node] | None = None, **more: Any) -> CollectiveTimes:
    """What is known after rounds in which two nodes have told these collectives."""
    times = Asking()
    asked = nodes or (Node(0), Node(1))
    for several in numbers:
        times.begin(asked)  # type: ignore[arg-type]
        for node in asked:
            node.tell(answer(node.ranks, several, **more))
        times.end()
    return times


def test_a_late_rank_is_named_by_the_answers_of_all_nodes() -> None:
    found = rounds(range(40)).end()
    assert found is not None
    assert [(each.rank, each.host) for each in found.slow] == [(3, "node1")]
    assert found.shares[3] == pytest.approx(SLOW / STEP, rel=1e-3)
    assert found.shares[0] == 0


def test_answers_of_several_rounds_are_joined() -> None:
    found = rounds(range(20), range(15, 40)).end()
    assert found is not None
    assert [each.rank for each in found.slow] == [3]
    assert rounds(range(20)).end().slow == ()  # type: ignore[union-attr]


def test_a_node_is_asked_only_for_what_is_new() -> None:
    nodes = (Node(0), Node(1))
    rounds(range(20), range(20, 40), nodes=nodes)
    assert [message["since"] for message in nodes[0].messages] == [0.0, 1e9 + 19 * STEP]


def test_times_are_compared_by_one_clock() -> None:
    ahead = Node(1, offset=5.0)
    told = answer(ahead.ranks, range(40), slow=99)
    for each in told.values():
        for call in each["told"]["times"][0]["calls"]:
            call[2] += 5.0
    times, other = Asking(), Node(0)
    times.begin([other, ahead])  # type: ignore[list-item]
    other.tell(answer(other.ranks, range(40)))
    ahead.tell(told)
    found = times.end()
    assert found is not None
    assert (found.slow, set(found.shares.values())) == ((), {0.0})


def test_a_clock_that_is_not_known_exactly_names_no_rank() -> None:
    nodes = (Node(0), Node(1))
    nodes[1].clock_error = SLOW
    found = rounds(range(40), nodes=nodes, slow=3).end()
    assert found is not None
    # rank 2 of the same node shows that rank 3 is late, but not that rank 2 is not early
    assert found.slow == ()


class MeasuredNode(Node):
    """A node whose clock is always measured with the same error."""

    def __init__(self, number: int, clock_error: float) -> None:
        super().__init__(number)
        self.clock_error = clock_error
        self.measured = 0

    def measure_clock(self) -> Future[Clock]:
        self.measured += 1
        future: Future[Clock] = Future()
        future.set_result(Clock(offset=0.0, error=self.clock_error))
        return future


def test_a_clock_is_measured_again_only_while_that_is_not_exact_enough_for_the_steps() -> None:
    exact, inexact = MeasuredNode(0, 0.5 * EXACT * STEP), MeasuredNode(1, 2 * EXACT * STEP)
    times = rounds(range(40), nodes=(exact, inexact))
    exact.measured = inexact.measured = 0
    times.begin([exact, inexact])  # type: ignore[list-item]
    assert (exact.measured, inexact.measured) == (1, MOST_TRIPS)


def test_of_many_nodes_each_clock_is_measured_once() -> None:
    nodes = [MeasuredNode(number, STEP) for number in range(TRIPS_OF_ROUND)]
    Asking().begin(nodes)  # type: ignore[arg-type]
    assert {node.measured for node in nodes} == {1}


def test_ranks_that_were_started_again_are_compared_anew() -> None:
    nodes = (Node(0), Node(1))
    times = rounds(range(40), nodes=nodes)
    times.begin(nodes)  # type: ignore[arg-type]
    for node in nodes:
        told = answer(node.ranks, range(5), slow=99)
        for each in told.values():
            each["pid"] += 1000
        node.tell(told)
    found = times.end()
    assert found is None or found.slow == ()


def test_collectives_of_a_gpu_are_compared_by_their_duration() -> None:
    """The processes call them long before the GPU runs them; the last rank does not wait."""
    nodes, times = (Node(0), Node(1)), Asking()
    times.begin(nodes)  # type: ignore[arg-type]
    for node in nodes:
        told = answer(node.ranks, range(40), slow=99, backend="nccl")
        for rank, each in told.items():
            for call in each["told"]["times"][0]["calls"]:
                call[3] = 0.002 if rank == "1" else 0.012
        node.tell(told)
    found = times.end()
    assert found is not None
    assert [each.rank for each in found.slow] == [1]


def test_collectives_of_a_gpu_without_durations_are_not_compared() -> None:
    assert rounds(range(40), backend="nccl").end() is None


def test_groups_with_ranks_that_the_run_does_not_have_are_not_kept() -> None:
    """They would displace the groups of the run, or be so large that nothing of them is dropped."""
    nodes, times = (Node(0), Node(1)), Asking()
    times.begin(nodes)  # type: ignore[arg-type]
    told = answer(nodes[0].ranks, range(40))
    claimed = answer(range(1), range(1), world=1000)["0"]["told"]["times"][0]
    told["0"]["told"]["times"] += [claimed | {"group": f"{n}"} for n in range(1, MOST_GROUPS + 1)]
    nodes[0].tell(told)
    nodes[1].tell(answer(nodes[1].ranks, range(40)))
    found = times.end()
    assert found is not None
    assert [each.rank for each in found.slow] == [3]


def test_ranks_that_disagree_about_their_group_are_not_compared() -> None:
    nodes, times = (Node(0), Node(1)), Asking()
    times.begin(nodes)  # type: ignore[arg-type]
    nodes[0].tell(answer(nodes[0].ranks, range(40)))
    nodes[1].tell(answer(nodes[1].ranks, range(40), world=6))
    assert times.end() is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"calls": [[1, 1, 1e9, None]]},
        {"calls": [[1, 0, float("nan"), None]]},
        {"calls": [[1, 0, 1e9, -1.0]]},
        {"calls": [[1, 0]]},
        {"calls": [[-1, 0, 1e9, None]]},
        {"kinds": ["x" * 100_000]},
        {"backend": None},
        {"group": None},
    ],
)
def test_invalid_times_of_a_rank_are_refused(wrong: dict[str, Any]) -> None:
    valid = parse(COLLECTIVES, answer(range(2), range(3)))["0"].told
    assert valid.error is None
    refused = parse(COLLECTIVES, answer(range(2), range(3), **wrong))["0"].told
    assert (refused.times, refused.error is None) == ((), False)


# ---------------------------------------------------------------- how often nodes are asked


def asked_once(seconds: float, spent: float, slow: float = 0.0) -> CollectiveTimes:
    """One round of two ranks with this step time, of which each answer took CPU time, and one is
    slower by some seconds."""
    times, node = CollectiveTimes(), Node(0)
    times.begin([node])  # type: ignore[list-item]
    told = answer(node.ranks, range(20), world=2)
    for rank, each in told.items():
        each["told"]["spent"] = spent
        for call in each["told"]["times"][0]["calls"]:
            call[2] = 1e9 + call[0] * seconds + slow * int(rank)
    node.tell(told)
    times.end()
    return times


def test_nodes_are_asked_every_few_steps() -> None:
    assert asked_once(0.5, 0.0).interval == pytest.approx(STEPS_BETWEEN * 0.5)
    assert asked_once(60.0, 0.0).interval == LONGEST


def test_nodes_are_asked_less_often_if_the_answers_take_long() -> None:
    """By what each rank spends: the ranks of a node answer beside each other."""
    assert asked_once(0.5, 0.05).interval == pytest.approx(0.05 / SHARE_OF_RANK)


def test_nodes_are_asked_closely_while_a_rank_may_be_slow() -> None:
    assert asked_once(0.5, 0.05, slow=0.1).interval == SHORTEST
