"""Folding the stacks of many ranks."""

from __future__ import annotations

from typing import Any

from dslaunch.report.stacks import fold, page

WAITING = [
    ["torch/distributed/distributed_c10d.py", 3252, "all_reduce"],
    ["train.py", 9, "<module>"],
]
STUCK = [["train.py", 7, "load"], ["train.py", 8, "<module>"]]
HELPER = [["/usr/lib/python3.11/threading.py", 320, "wait"], ["x/threading.py", 1, "_bootstrap"]]


def process(frames: list[list[Any]], **more: Any) -> list[dict[str, Any]]:
    return [{"pid": 1, "threads": [{"name": "", "frames": f} for f in (HELPER, frames)], **more}]


def test_equal_stacks_are_one_group_and_the_odd_one_comes_first() -> None:
    told = {
        "node1": {"0": process(WAITING), "1": process(WAITING)},
        "node2": {"2": process(STUCK), "3": process(WAITING)},
    }
    odd, others = fold(told)
    assert odd.members == (("node2", 2),)
    assert others.members == (("node1", 0), ("node1", 1), ("node2", 3))
    assert page([odd, others]) == (
        "rank 2 on node2\n"
        "  load  train.py:7\n"
        "  <module>  train.py:8\n"
        "\n"
        "ranks 0-1,3 on node[1-2]\n"
        "  all_reduce  torch/distributed/distributed_c10d.py:3252  <- collective\n"
        "  <module>  train.py:9"
    )


def test_a_process_without_a_stack_is_told_by_its_state() -> None:
    told = {"node1": {"0": [{"pid": 1, "state": "D", "waits_in": "nfs_wait"}]}}
    assert page(fold(told)) == "rank 0 on node1: in the kernel, cannot be interrupted, in nfs_wait"


def test_a_long_path_is_shortened_from_its_beginning() -> None:
    frames = [["/a" * 100 + "/train.py", 1, "f"]]
    text = page(fold({"n": {"0": process(frames)}}), 80)
    assert max(map(len, text.splitlines())) < 80
    assert text.endswith("/train.py:1")


def test_nothing_running_is_said() -> None:
    assert page(fold({})) == "no rank is running"
