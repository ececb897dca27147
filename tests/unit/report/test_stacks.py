"""Folding the stacks of many ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dslaunch.report.stacks import as_data, fold, page
from dslaunch.run.waits import Frame, WaitKind, wait

SITE = "/opt/venv/lib/python3.11/site-packages/"
LIB = "/usr/lib/python3.11/"
MAIN = ("train.py", 90, "<module>")
WAITING = [
    (f"{SITE}torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
    (f"{SITE}torch/distributed/c10d_logger.py", 83, "wrapper"),
    ("train.py", 40, "step"),
    MAIN,
]
STUCK = [("train.py", 31, "read_a_batch"), ("train.py", 39, "step"), MAIN]
LOADING = [
    (f"{LIB}selectors.py", 415, "select"),
    (f"{LIB}multiprocessing/connection.py", 930, "wait"),
    (f"{LIB}multiprocessing/queues.py", 113, "get"),
    (f"{SITE}torch/utils/data/dataloader.py", 1288, "_try_get_data"),
    (f"{SITE}torch/utils/data/dataloader.py", 708, "__next__"),
    MAIN,
]
START = [(f"{LIB}threading.py", 1038, "_bootstrap_inner"), (f"{LIB}threading.py", 1, "_bootstrap")]
PINNING = [(f"{SITE}torch/utils/data/_utils/pin_memory.py", 35, "do_one_step"), *START]
IDLE = [(f"{LIB}threading.py", 320, "wait"), *START]
WORKER = [
    ("data.py", 12, "__getitem__"),
    (f"{SITE}torch/utils/data/_utils/worker.py", 349, "_worker_loop"),
    (f"{LIB}multiprocessing/process.py", 108, "run"),
    (f"{LIB}multiprocessing/process.py", 314, "_bootstrap"),
    (f"{LIB}multiprocessing/popen_fork.py", 71, "_launch"),
    MAIN,
]
Frames = list[tuple[str, int, str]]


def process(main: Frames | None, *others: Frames, **more: Any) -> dict[str, Any]:
    threads = [(main, "MainThread", True)] if main else []
    threads += [(each, "helper", False) for each in others]
    return {
        "pid": 1,
        "state": "S",
        "threads": [
            {
                "name": name,
                "main": first,
                "frames": [dict(zip(("file", "line", "function"), f, strict=True)) for f in frames],
            }
            for frames, name, first in threads
        ],
        **more,
    }


def eight_ranks() -> dict[str, dict[str, list[dict[str, Any]]]]:
    told = {
        f"node{n}": {str(rank): [process(WAITING, IDLE)] for rank in (2 * n - 2, 2 * n - 1)}
        for n in (1, 2, 3, 4)
    }
    worker = process(WORKER, command="python train.py")
    told["node4"]["6"] = [process(STUCK, IDLE, PINNING, syscall="clock_nanosleep"), worker, worker]
    told["node4"]["7"] = [
        process(None, state="D", syscall="read", on="/mnt/data/7.bin", error="py-spy: denied")
    ]
    return told


def test_equal_stacks_are_one_group_and_the_odd_ones_come_first() -> None:
    sleeping, unreadable, waiting, workers = fold(eight_ranks())
    assert sleeping.members == (("node4", 6),)
    assert unreadable.members == (("node4", 7),)
    assert [rank for _, rank in waiting.members] == [0, 1, 2, 3, 4, 5]
    assert (workers.members, workers.count) == ((("node4", 6),), 2)
    assert workers.main.frames[-1].function == "_worker_loop"


def test_the_ranks_that_a_verdict_names_come_first_also_if_they_are_most() -> None:
    first = [("node1", 0), ("node1", 1), ("node2", 2)]
    groups = fold(eight_ranks(), first=first)
    assert [group.members[0] for group in groups] == [
        ("node1", 0),
        ("node4", 6),
        ("node4", 7),
        ("node4", 6),
    ]


@pytest.mark.parametrize("width", [80, 200])
def test_a_page_looks_like_that(golden: Callable[[str, str], None], width: int) -> None:
    text = page(fold(eight_ranks()), width)
    assert max(map(len, text.splitlines())) <= width
    golden(f"stacks/{width}.txt", text + "\n")


def test_the_json_form_holds_the_same(golden: Callable[[str, str], None]) -> None:
    golden("stacks/groups.json", json.dumps(as_data(fold(eight_ranks())), indent=1) + "\n")


@pytest.mark.parametrize(
    ("completed", "kind"), [(False, WaitKind.COLLECTIVE), (True, WaitKind.LOCK)]
)
def test_a_backward_pass_waits_for_the_collective_that_it_is_in(
    completed: bool, kind: WaitKind
) -> None:
    backward = [(f"{SITE}torch/autograd/graph.py", 979, "_engine_run_backward"), MAIN]
    collective = {"operation": "all_reduce", "seq": 7, "group": "0", "completed": completed}
    told = process(backward, syscall="futex", collective=collective)
    (group,) = fold({"node1": {"0": [told]}})
    assert group.main.wait is not None
    assert group.main.wait.kind is kind


def test_of_equal_groups_the_one_that_waits_for_others_is_last() -> None:
    told = {"n1": {"0": [process(WAITING)]}, "n2": {"1": [process(STUCK)]}}
    assert [group.members[0][1] for group in fold(told)] == [1, 0]


def test_lines_of_the_innermost_frame_may_be_ignored() -> None:
    told = {
        "n1": {
            str(rank): [process([("train.py", line, "step"), MAIN])]
            for rank, line in enumerate((7, 9, 8, 20))
        }
    }
    assert len(fold(told)) == 4
    (group,) = fold(told, exact=False)
    assert group.lines == (7, 8, 9, 20)
    assert "step      train.py:7-9,20" in page([group])


def test_methods_are_equal_however_a_tool_writes_them() -> None:
    told = {
        "n1": {"0": [process([("m.py", 1, "Model.forward")])]},
        "n2": {"1": [process([("m.py", 1, "forward")])]},
    }
    assert len(fold(told)) == 1


def test_a_helper_that_differs_does_not_part_ranks() -> None:
    told = {"n1": {"0": [process(WAITING, PINNING)], "1": [process(WAITING, IDLE)]}}
    (group,) = fold(told)
    assert "thread helper of rank 0 on n1:" in page([group])
    assert "and 1 idle thread: lock" in page([group])


def test_a_thread_of_the_users_keeps_its_frames() -> None:
    frames = [("job.py", 3, "work"), (f"{LIB}threading.py", 975, "run"), *START]
    (group,) = fold({"n": {"0": [process(WAITING, frames)]}})
    assert group.others[0].thread.frames == (Frame("job.py", 3, "work"),)


def test_a_process_without_a_stack_is_reported_by_its_state() -> None:
    told = {"node1": {"0": [{"pid": 1, "state": "D", "wchan": "nfs_wait", "threads": []}]}}
    assert page(fold(told)) == "rank 0 on node1: uninterruptible sleep, in nfs_wait"


def test_a_long_path_and_name_are_shortened() -> None:
    frames = [("/a" * 100 + "/train.py", 1, "f" * 100)]
    told = {"n" * 20 + str(i): {str(i): [process(frames)]} for i in range(0, 40, 2)}
    text = page(fold(told), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.endswith("/train.py:1")


def test_nothing_in_a_name_disturbs_the_terminal() -> None:
    text = page(fold({"n": {"0": [process([("a\x1b[2J.py", 1, "f\r\n")])]}}))
    assert text == "rank 0 on n\n    f\\r\\n  a\\u001b[2J.py:1"


def test_nothing_running_is_said() -> None:
    assert page(fold({})) == "no rank is running"


@pytest.mark.parametrize(
    ("frames", "state", "syscall", "kind", "index"),
    [
        (WAITING, "S", "futex", "collective", 0),
        (LOADING, "S", "poll", "data loader", 3),
        (STUCK, "S", "clock_nanosleep", "sleep", 0),
        (STUCK, "D", "read", WaitKind.KERNEL, 0),
        (STUCK, "S", "futex", "lock", 0),
        ([(f"{LIB}subprocess.py", 1209, "communicate"), MAIN], "S", "poll", "child process", 0),
        ([(f"{LIB}queue.py", 171, "get"), *STUCK], "S", "futex", "queue", 0),
        ([(f"{LIB}threading.py", 320, "wait"), (f"{LIB}queue.py", 171, "get")], "", "", "queue", 1),
        (
            [(f"{SITE}torch/distributed/rendezvous.py", 189, "_create_c10d_store"), MAIN],
            *("S", "futex", "store", 0),
        ),
        (
            [(f"{SITE}torch/distributed/distributed_c10d.py", 2, "all_gather_into_tensor")],
            *("", "", "collective", 0),
        ),
        ([], "S", "futex", "lock", None),
    ],
)
def test_what_a_thread_waits_for_is_reported(
    frames: Frames, state: str, syscall: str, kind: str, index: int | None
) -> None:
    assert wait([Frame(*frame) for frame in frames], state, syscall) == (kind, index)


@pytest.mark.parametrize(
    "frames",
    [
        STUCK,
        [("my/train.py", 1, "reduce")],
        [(f"{SITE}torch/distributed/distributed_c10d.py", 1, "get_rank")],
    ],
)
def test_what_computes_waits_for_nothing(frames: Frames) -> None:
    assert wait([Frame(*frame) for frame in frames], "R", "") is None
