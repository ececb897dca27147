"""A rank that is slower by a tenth is named by the times of its collectives, and no other is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.testbed.late_ranks import (
    BEGIN,
    GOAL,
    IRREGULAR,
    RECORDED,
    SOUND,
    Irregular,
    Trial,
    page,
    recorded,
    train,
    train_irregularly,
)
from tests.testbed.project import Project

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/slow-ranks.md"


@pytest.mark.torch
def test_a_slow_rank_is_named_by_when_it_enters_collectives(project: Project) -> None:
    # twice as slow, so that no other program on the machine delays the others as much
    trained = train(project, Trial(nodes=2, slots=2, seconds=0.1, slow=3, slower=1.0))
    (event,) = trained.events
    (slow,) = event["slower"]
    assert (event["host"], slow["rank"], slow["host"]) == ("node2", 3, "node2")
    assert slow["evidence"] == "collectives"
    assert slow["cost"] > 0.1
    status = project.cluster.run(
        "control", project.command("status", "latest", "--json"), cwd=project.path
    )
    assert json.loads(status.stdout)["slower"] == [slow]


@pytest.mark.torch
@pytest.mark.long  # where other programs take most of the CPUs, a tenth takes longer
@pytest.mark.parametrize("nodes", [2, 4])
def test_a_rank_that_is_slower_by_a_tenth_is_named_within_50_steps(
    project: Project, nodes: int
) -> None:
    ((rank, step),) = train(project, Trial(nodes, slots=2, seconds=0.3, slow=3)).named
    assert rank == 3
    assert BEGIN <= step <= BEGIN + GOAL


@pytest.mark.torch
@pytest.mark.long
def test_a_cpu_limit_is_the_reason_why_the_ranks_of_a_node_are_late(project: Project) -> None:
    with fault(project, "node3", "cpu", "12"):
        trained = train(project, Trial(nodes=4, slots=2, seconds=0.3, cpu_share=0.05))
    assert {event["host"] for event in trained.events} == {"node3"}
    named = [slow for event in trained.events for slow in event["slower"]]
    assert {slow["rank"] for slow in named} <= {4, 5}
    assert [slow for slow in named if "cpu-limit" not in slow["reasons"]] == []


@contextmanager
def fault(project: Project, node: str, *words: str) -> Iterator[None]:
    project.cluster.fault(node, *words)
    try:
        yield
    finally:
        project.cluster.heal(node)


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize("trial", SOUND, ids=lambda trial: trial.name)
def test_no_rank_of_a_sound_run_is_named(project: Project, trial: Trial) -> None:
    assert train(project, trial).named == []


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize("irregular", IRREGULAR, ids=lambda irregular: irregular.name)
def test_no_rank_of_a_sound_run_with_irregular_steps_is_named(
    project: Project, irregular: Irregular
) -> None:
    assert train_irregularly(project, irregular) == []


def test_the_page_is_made_from_what_was_recorded() -> None:
    assert PAGE.read_text() == page(recorded(RECORDED))
