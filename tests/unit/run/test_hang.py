"""Why ranks make no progress, judged by what real ranks have answered.

`recorded_hangs.json` is written by `python -m tests.testbed.hangs record`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.growth import result_within
from tests.testbed.hangs import CASES, Case, odd

from dslaunch.protocol.collectives import COLLECTIVES
from dslaunch.protocol.queries import STACKS
from dslaunch.protocol.values import parse
from dslaunch.run.collectives import (
    Collective,
    Group,
    RankRecord,
    RankState,
    records,
    with_collectives,
)
from dslaunch.run.events import Event
from dslaunch.run.faulty import faulty_nodes
from dslaunch.run.hang import judge
from dslaunch.run.hang_network import may_be_network, with_unreachable
from dslaunch.run.hang_verdict import HangCode, HangVerdict, Place
from dslaunch.run.hang_watch import Numbers
from dslaunch.run.local_runs import read_outcome
from dslaunch.run.outcome import Outcome
from dslaunch.run.rank_views import RankView, place, rank_views
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.recorded_events import read_events
from dslaunch.run.run_directory import EVENTS
from dslaunch.run.waits import Frame

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("recorded_hangs.json").read_text("utf-8")
)
HALF = 2
"""Ranks on each of the two nodes."""


def host(rank: int) -> str:
    return f"node{rank // HALF + 1}"


def seen(told: dict[str, Any]) -> dict[int, RankView]:
    """Return the views of 4 ranks on two nodes."""
    answers = parse(COLLECTIVES, told["collectives"])
    found: dict[int, RankRecord] = {}
    for key, answer in answers.items():
        found.update(records(host(int(key)), {key: answer}, offset=0.0))
    stacks: dict[str, dict[str, Any]] = {}
    for key, processes in parse(STACKS, told["stacks"]).items():
        stacks.setdefault(host(int(key)), {})[key] = processes
    ended = {(host(rank), rank): (0, None) for rank in told["ended"]}
    return rank_views(stacks, found, ended)


def verdict_of(told: dict[str, Any]) -> HangVerdict:
    return judge(seen(told), told["time"])


def changed(how: str) -> dict[str, Any]:
    """Return a copy of what was recorded, to be changed."""
    return copy.deepcopy(RECORDED[how])


OTHER_WAITS = ("mismatch-root", "mismatch-groups")
"""Cases in which the others do not wait in the collective that follows."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.how)
def test_a_hang_is_judged_by_what_its_ranks_have_answered(case: Case) -> None:
    verdict = verdict_of(RECORDED[case.how])
    assert verdict.code == case.code
    if not case.all_ranks:
        assert verdict.ranks == (("node2", odd(4)),)
    if not case.all_ranks and case.how not in OTHER_WAITS:
        assert verdict.waiting == (0, 1, 2)
        assert verdict.operation == "all_reduce"
        assert verdict.waiting_place is not None
        assert verdict.waiting_place.function == "train"
        assert verdict.since is not None
        assert 1 < verdict.since < 60
    if case.function:
        assert verdict.place is not None
        assert (verdict.place.file, verdict.place.function) == ("train.py", case.function)


def test_the_sides_of_a_mismatch_are_named_the_smaller_one_first() -> None:
    sides = verdict_of(RECORDED["mismatch-operation"]).sides
    assert [(side.ranks, side.operation) for side in sides] == [
        ((3,), "barrier"),
        ((0, 1, 2), "all_reduce"),
    ]
    sides = verdict_of(RECORDED["mismatch-order"]).sides
    assert [(side.ranks, side.group) for side in sides] == [
        ((3,), "pair"),
        ((0, 1, 2), "default_pg"),
    ]


def test_a_gather_to_different_ranks_is_a_mismatch_of_its_root() -> None:
    verdict = verdict_of(RECORDED["mismatch-root"])
    assert [(side.ranks, side.operation, side.root) for side in verdict.sides] == [
        ((3,), "gather", 3),
        ((0, 1, 2), "gather", 0),
    ]
    assert not verdict.final


def test_roots_that_are_not_known_of_all_ranks_are_not_compared() -> None:
    told = changed("mismatch-root")
    for entry in told["collectives"]["1"]["told"]["entries"]:
        entry.pop("root", None)
    assert verdict_of(told).code is HangCode.NETWORK


def test_process_groups_of_the_same_name_and_other_members_are_a_mismatch() -> None:
    verdict = verdict_of(RECORDED["mismatch-groups"])
    assert [(side.ranks, side.members) for side in verdict.sides] == [
        ((3,), (2, 3)),
        ((0, 1), (0, 1)),
    ]
    assert verdict.operation == "new_group"
    assert 2 in verdict.waiting


def test_a_rank_that_has_made_its_part_of_split_groups_may_wait_for_the_next_one() -> None:
    """The parts of a group that is split have one name."""
    told = forming(known_to=(0,))
    for rank in "0123":
        part = [0, 1] if rank in "01" else [2, 3]
        group = {"name": "7", "description": "split", "ranks": part}
        told["collectives"][rank]["told"]["groups"].append(group)
    assert verdict_of(told).code is HangCode.NETWORK


def test_ranks_that_all_wait_for_what_they_have_begun_to_receive_wait_for_each_other() -> None:
    verdict = verdict_of(RECORDED["one-way"])
    assert tuple(rank for _, rank in verdict.ranks) == (0, 1, 2, 3)
    assert [(side.ranks, side.operation) for side in verdict.sides] == [((0, 1, 2, 3), "recv")]


def test_a_rank_that_waits_for_what_it_has_begun_to_receive_is_in_another_operation() -> None:
    told = changed("not-entered")
    told["stacks"]["3"] = RECORDED["one-way"]["stacks"]["3"]
    told["collectives"]["3"]["told"]["transfer"] = {"kind": "recv", "peer": 0}
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.MISMATCH, (("node2", 3),))
    assert [(side.operation, side.peer) for side in verdict.sides] == [
        ("recv", 0),
        ("all_reduce", None),
    ]


def test_the_file_of_a_lock_and_the_process_that_holds_it_are_named() -> None:
    lock = verdict_of(RECORDED["lock-file"]).lock
    assert lock is not None
    assert Path(lock.file).name.startswith("lock")
    assert (lock.pid is not None, lock.rank) == (True, 3)


@pytest.mark.parametrize("how", ["mismatch-operation", "mismatch-order"])
def test_ranks_that_are_blocked_in_different_operations_are_blocked_forever(how: str) -> None:
    assert verdict_of(RECORDED[how]).final


def test_ranks_that_have_only_begun_operations_of_different_groups_may_continue() -> None:
    told = changed("mismatch-order")
    (thread,) = (each for each in told["stacks"]["3"][0]["threads"] if each.get("main"))
    thread["frames"] = [frame for frame in thread["frames"] if frame["file"] == "train.py"]
    verdict = verdict_of(told)
    assert (verdict.code, verdict.final) == (HangCode.MISMATCH, None)


def test_other_sizes_of_the_same_operation_are_a_mismatch() -> None:
    told = equally_entered()
    told["collectives"]["1"]["told"]["entries"][-1]["sizes"] = [[8]]
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.MISMATCH, (("node1", 1),))
    assert [side.sizes for side in verdict.sides] == [((8,),), ((16,),)]
    assert not verdict.final


@pytest.mark.parametrize(
    ("operation", "sizes"),
    [("all_reduce", [[4, 4]]), ("all_to_all", [[8]]), ("scatter", [])],
)
def test_sizes_that_may_differ_are_no_mismatch(operation: str, sizes: list[list[int]]) -> None:
    told = equally_entered()
    for answer in told["collectives"].values():
        answer["told"]["entries"][-1]["operation"] = operation
    told["collectives"]["1"]["told"]["entries"][-1]["sizes"] = sizes
    assert verdict_of(told).code is HangCode.NETWORK


def equally_entered() -> dict[str, Any]:
    """Return what ranks answer that have all entered the same collective."""
    told = changed("not-entered")
    told["collectives"]["3"] = copy.deepcopy(told["collectives"]["0"])
    told["stacks"]["3"] = copy.deepcopy(told["stacks"]["0"])
    return told


def test_a_collective_that_all_have_entered_waits_for_the_network_between_nodes() -> None:
    verdict = verdict_of(equally_entered())
    assert (verdict.code, verdict.ranks) == (HangCode.NETWORK, ())
    assert verdict.waiting == (0, 1, 2, 3)


def test_on_one_node_the_network_is_not_the_reason() -> None:
    alone = {rank: view for rank, view in seen(equally_entered()).items() if rank < HALF}
    assert judge(alone).code is HangCode.UNKNOWN


def test_a_rank_that_does_not_answer_and_computes_is_named() -> None:
    told = changed("busy")
    told["collectives"]["3"] = {"state": "silent", "pid": 9}
    told["stacks"]["3"][0].update(threads=[], error="no answer", tool="")
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.BUSY, (("node2", 3),))


def test_without_a_recorder_the_stacks_show_who_does_not_wait() -> None:
    told = changed("not-entered")
    told["collectives"] = {rank: {"state": "absent", "pid": 9} for rank in "0123"}
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.NOT_ENTERED, (("node2", 3),))
    assert verdict.waiting == (0, 1, 2)
    assert verdict.operation == "all_reduce"


def test_ranks_that_all_wait_for_others_to_join_are_a_rendezvous_that_does_not_complete() -> None:
    verdict = judge(rank_views({"n1": {"0": [joining()]}, "n2": {"1": [joining()]}}, {}, {}))
    assert (verdict.code, verdict.operation) == (HangCode.RENDEZVOUS, "init_process_group")
    assert (verdict.ranks, verdict.waiting) == ((), (0, 1))
    assert verdict.waiting_place == Place("train.py", 6, "<module>")


def test_a_rank_that_does_not_join_is_what_the_others_wait_for() -> None:
    late = {**joining(), "threads": [main_thread(("train.py", 4, "prepare"))]}
    verdict = judge(rank_views({"n1": {"0": [joining()]}, "n2": {"1": [late]}}, {}, {}))
    assert (verdict.code, verdict.ranks) == (HangCode.NOT_ENTERED, (("n2", 1),))
    assert (verdict.operation, verdict.waiting) == ("init_process_group", (0,))


def joining() -> dict[str, Any]:
    """A process that waits for the other ranks in `init_process_group`."""
    torch = "/opt/lib/python3.11/site-packages/torch/distributed"
    frames = (
        (f"{torch}/rendezvous.py", 199, "_create_c10d_store"),
        (f"{torch}/distributed_c10d.py", 1892, "init_process_group"),
        ("train.py", 6, "<module>"),
    )
    return {"pid": 7, "state": "S", "syscall": "poll", "threads": [main_thread(*frames)]}


def forming(*, known_to: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return what ranks answer if rank 3 waits in `new_group`, and the others in the first
    collective after it. `known_to`: ranks that have formed the group, with rank 3 as a member."""
    told = changed("not-entered")
    torch = "/opt/lib/python3.11/site-packages/torch/distributed"
    frames = (
        (f"{torch}/distributed_c10d.py", 2309, "_new_process_group_helper"),
        (f"{torch}/distributed_c10d.py", 6057, "_new_group_with_tag"),
        (f"{torch}/distributed_c10d.py", 5843, "new_group"),
        ("train.py", 60, "train"),
    )
    told["stacks"]["3"][0]["threads"] = [main_thread(*frames)]
    for rank in known_to:
        group = {"name": "2", "description": "undefined", "ranks": [rank, 3]}
        told["collectives"][str(rank)]["told"]["groups"].append(group)
    return told


def test_a_rank_that_cannot_join_a_group_that_others_have_formed_waits_for_the_network() -> None:
    verdict = verdict_of(forming(known_to=(0,)))
    assert (verdict.code, verdict.ranks) == (HangCode.NETWORK, ())
    assert [(side.ranks, side.operation) for side in verdict.sides] == [
        ((3,), "new_group"),
        ((0, 1, 2), "all_reduce"),
    ]
    assert verdict.waiting == (0, 1, 2, 3)


def test_a_group_that_no_other_rank_has_formed_is_a_mismatch_unless_nodes_do_not_connect() -> None:
    verdict = verdict_of(forming())
    assert (verdict.code, verdict.ranks) == (HangCode.MISMATCH, (("node2", 3),))
    assert verdict.final
    assert may_be_network(verdict)
    assert with_unreachable(verdict, ()) == verdict
    pairs = (("node1", "node2"),)
    connected = with_unreachable(verdict, pairs)
    assert (connected.code, connected.ranks) == (HangCode.NETWORK, ())
    assert (connected.unreachable, connected.final) == (pairs, None)


def test_ranks_that_compute_may_still_make_the_group_that_another_one_waits_for() -> None:
    told = forming()
    told["stacks"]["0"][0]["threads"] = [main_thread(("train.py", 70, "train"))]
    told["stacks"]["0"][0].update(state="R", syscall="")
    verdict = verdict_of(told)
    assert (verdict.code, verdict.final) == (HangCode.MISMATCH, None)


def test_nodes_that_do_not_connect_are_no_reason_for_different_collectives() -> None:
    verdict = verdict_of(RECORDED["mismatch-operation"])
    assert not may_be_network(verdict)
    assert with_unreachable(verdict, (("node1", "node2"),)) == verdict


def test_a_first_group_that_is_not_complete_waits_for_nodes_that_do_not_connect() -> None:
    verdict = judge(rank_views({"n1": {"0": [joining()]}, "n2": {"1": [joining()]}}, {}, {}))
    connected = with_unreachable(verdict, (("n2", "n1"),))
    assert (connected.code, connected.waiting) == (HangCode.NETWORK, (0, 1))
    assert connected.operation == "init_process_group"


def test_a_first_collective_that_no_recorder_has_yet_waits_for_the_network() -> None:
    """NCCL connects its ranks before it records their first collective."""
    told = equally_entered()
    without_current(told, "0123")
    verdict = verdict_of(told)
    assert (verdict.code, verdict.operation) == (HangCode.NETWORK, "all_reduce")
    assert verdict.waiting == (0, 1, 2, 3)


def test_ranks_of_other_groups_may_wait_for_the_group_that_the_network_holds_up() -> None:
    """Ranks 2 and 3 have entered a collective of theirs, and rank 0 waits for them in another."""
    told = changed("not-entered")
    for rank in "23":
        record = told["collectives"][rank]["told"]
        record["groups"].append({"name": "9", "description": "tensor", "ranks": [2, 3]})
        entry = copy.deepcopy(told["collectives"]["0"]["told"]["entries"][-1])
        later = {"group": "9", "seq": 1, "entered": entry["entered"] + 1}
        record["entries"] = [each for each in record["entries"] if each["completed"]]
        record["entries"].append(entry | later)
        told["stacks"][rank] = copy.deepcopy(told["stacks"]["0"])
    views = {rank: replace(view, host=f"node{rank}") for rank, view in seen(told).items()}
    verdict = judge(views)
    assert (verdict.code, verdict.group, verdict.waiting) == (HangCode.NETWORK, "tensor", (2, 3))


def main_thread(*frames: tuple[str, int, str]) -> dict[str, Any]:
    names = ("file", "line", "function")
    return {
        "name": "MainThread",
        "main": True,
        "frames": [dict(zip(names, frame, strict=True)) for frame in frames],
    }


def test_a_process_in_uninterruptible_sleep_waits_for_a_file() -> None:
    told = changed("not-entered")
    told["stacks"]["3"][0].update(state="D", syscall="read", on="/data/shard-7")
    verdict = verdict_of(told)
    assert (verdict.code, verdict.on) == (HangCode.FILESYSTEM, "/data/shard-7")


def in_thread(told: dict[str, Any], rank: str) -> None:
    """Let a rank do what it does in a thread whose end its main thread waits for."""
    process = told["stacks"][rank][0]
    (working,) = process["threads"]
    joining = main_thread(
        ("/usr/lib/python3.11/threading.py", 1132, "Thread._wait_for_tstate_lock"),
        ("/usr/lib/python3.11/threading.py", 1112, "Thread.join"),
        ("train.py", 99, "main"),
    )
    idle = {"name": "writer", "main": False, "frames": joining["frames"][:1]}
    process.update(threads=[joining, {**working, "main": False}, idle], syscall="futex", state="S")


def test_a_rank_that_trains_in_a_thread_is_judged_by_what_that_thread_does() -> None:
    told = changed("not-entered")
    for rank in "0123":
        in_thread(told, rank)
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.NOT_ENTERED, (("node2", 3),))
    assert verdict.waiting == (0, 1, 2)
    assert verdict.place is not None
    assert verdict.place.function == "save_checkpoint"


def test_a_rank_whose_thread_computes_is_busy_although_its_main_thread_sleeps() -> None:
    told = changed("busy")
    in_thread(told, "3")
    told["stacks"]["3"][0]["computes"] = True
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.BUSY, (("node2", 3),))
    assert verdict.place is not None
    assert verdict.place.function == "compute"


def test_a_rank_that_waits_for_one_of_several_threads_waits_for_a_lock() -> None:
    told = changed("not-entered")
    in_thread(told, "3")
    threads = told["stacks"]["3"][0]["threads"]
    threads.append({**threads[1], "name": "second"})
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.LOCK, (("node2", 3),))


def test_a_rank_that_compiles_computes_and_does_not_wait_for_a_lock() -> None:
    told = changed("lock")
    library = "/env/lib/python3.11/site-packages/torch"
    told["stacks"]["3"][0]["threads"] = [
        main_thread(
            ("/usr/lib/python3.11/threading.py", 327, "wait"),
            ("/usr/lib/python3.11/concurrent/futures/_base.py", 451, "result"),
            (f"{library}/_inductor/async_compile.py", 433, "_wait_futures"),
            (f"{library}/_dynamo/convert_frame.py", 1272, "__call__"),
            ("train.py", 30, "forward"),
        )
    ]
    verdict = verdict_of(told)
    assert (verdict.code, verdict.place) == (HangCode.BUSY, Place("train.py", 30, "forward"))


def test_thousands_of_groups_that_a_node_claims_are_judged_in_a_second() -> None:
    """The launcher supervises the run in the same thread."""
    entries = tuple(
        Collective("0", number, "all_reduce", "nccl", entered=1.0, completed=number < 512)
        for number in range(1, 513)
    )
    ranks = tuple(range(256))
    honest = (Group(id=None, name="0", ranks=ranks),)
    claimed = tuple(Group(id=None, name=str(number), ranks=ranks) for number in range(2000))
    found = {
        rank: RankView(
            rank,
            "node1",
            RankRecord(
                rank,
                "node1",
                RankState.ANSWERED,
                pid=7,
                groups=honest if rank else claimed,
                entries=entries,
            ),
        )
        for rank in ranks
    }
    assert result_within(30, lambda: judge(found)).waiting == ranks


def test_nothing_known_is_said_to_be_unknown() -> None:
    assert judge({}) == HangVerdict(HangCode.UNKNOWN)


def test_a_place_is_in_the_users_program_if_there_is_one() -> None:
    library = Frame("/env/lib/python3.11/site-packages/torch/nn/module.py", 7, "forward")
    frozen = Frame("<frozen runpy>", 88, "_run_code")
    own = Frame("src/model.py", 3, "step")
    found = place([library, frozen, own])
    assert found is not None
    assert (found.file, found.line, found.function) == own
    only = place([library])
    assert only is not None
    assert only.function == "forward"


def test_a_collective_of_a_backward_pass_is_at_the_line_that_began_it() -> None:
    """Hooks of DDP, FSDP and DeepSpeed enter it, in a thread of PyTorch on a GPU."""
    torch = "/env/lib/python3.11/site-packages/torch"
    hook = [(f"{torch}/distributed/distributed_c10d.py", 3252, "all_reduce")]
    main = [
        (f"{torch}/autograd/graph.py", 881, "_engine_run_backward"),
        (f"{torch}/_tensor.py", 648, "backward"),
        ("train.py", 41, "step"),
    ]
    told = changed("not-entered")
    told["stacks"]["0"][0]["threads"] = [main_thread(*main)]
    told["collectives"]["0"]["told"]["entries"][-1]["frames"] = main_thread(*hook)["frames"]
    assert verdict_of(told).waiting_place == Place("train.py", 41, "step")

    in_main = main_thread(*hook, *main, ("train.py", 60, "train"))["frames"]
    told["collectives"]["0"]["told"]["entries"][-1]["frames"] = in_main
    told["stacks"]["0"][0]["threads"] = [main_thread(("train.py", 50, "log"))]
    assert verdict_of(told).waiting_place == Place("train.py", 41, "step")


def test_the_stacks_have_the_collective_of_each_rank() -> None:
    told = RECORDED["not-entered"]
    answers = parse(COLLECTIVES, told["collectives"])
    found = with_collectives({"n": told["stacks"]}, records("n", answers, offset=0.0))
    waiting, other = found["n"]["0"][0]["collective"], found["n"]["3"][0]["collective"]
    assert (waiting["completed"], waiting["seq"], waiting["group"]) == (False, 4, "default_pg")
    assert (other["completed"], other["seq"]) == (True, 3)


@pytest.mark.parametrize("how", ["mismatch-order", "mismatch-groups", "lock-file"])
def test_an_event_with_a_verdict_is_read_back(tmp_path: Path, how: str) -> None:
    event = Event(1.0, "stalled", hang=verdict_of(RECORDED[how]))
    (tmp_path / EVENTS).write_text(json.dumps(event.as_data()) + "\n")
    assert read_events(tmp_path) == [event]


def test_an_outcome_with_a_verdict_is_read_back() -> None:
    outcome = hung(verdict_of(RECORDED["mismatch-order"]))
    read = read_outcome(json.dumps(outcome.as_data()).encode())
    assert read is not None
    assert read.reason == outcome.reason


# ------------------------------------------------------------ progress


def record(rank: int, enqueued: int | None, completed: int | None, **more: Any) -> RankRecord:
    group = {"id": 0, "enqueued": enqueued, "completed": completed}
    told = {"initialized": True, "groups": [group]}
    answer = {"state": "answered", "pid": rank + 1, "told": told, **more}
    return records("n", parse(COLLECTIVES, {str(rank): answer}), offset=0.0)[rank]


def test_numbers_that_change_are_progress() -> None:
    numbers = Numbers(now=0.0)
    numbers.take({0: record(0, None, None)}, now=1.0)
    assert (numbers.are_known, numbers.moved) == (False, 0.0)
    numbers.take({0: record(0, 1, None), 1: record(1, None, None)}, now=2.0)
    assert (numbers.are_known, numbers.moved, numbers.waiting) == (True, 2.0, True)
    numbers.take({0: record(0, 1, None), 1: record(1, None, None)}, now=3.0)
    assert (numbers.moved, numbers.waiting) == (2.0, True)
    numbers.take({0: record(0, 1, 1), 1: record(1, 1, 1)}, now=4.0)
    assert (numbers.moved, numbers.waiting) == (4.0, False)


def test_a_rank_that_does_not_answer_is_no_progress() -> None:
    numbers = Numbers(now=0.0)
    numbers.take({0: record(0, 1, None)}, now=1.0)
    silent = RankRecord(rank=0, host="n", state=RankState.SILENT, pid=1)
    numbers.take({0: silent}, now=2.0)
    numbers.take({0: record(0, 1, None)}, now=3.0)
    assert numbers.moved == 1.0


# ------------------------------------------------------------ restarts


def hung(verdict: HangVerdict) -> Outcome:
    return Outcome("failed", 1, EndReason(EndCode.HANG, seconds=60.0, hang=verdict))


def test_a_restart_excludes_the_node_whose_file_system_hangs() -> None:
    verdict = verdict_of(RECORDED["filesystem"])
    assert faulty_nodes([hung(verdict)]) == ("node2",)


def test_a_hang_of_the_program_is_no_fault_of_a_node() -> None:
    assert faulty_nodes([hung(verdict_of(RECORDED["not-entered"]))]) == ()


def test_the_node_in_all_pairs_that_do_not_connect_is_excluded() -> None:
    pairs = (("n1", "n3"), ("n3", "n2"))
    assert faulty_nodes([hung(HangVerdict(HangCode.NETWORK, unreachable=pairs))]) == ("n3",)
    both = (("n1", "n2"), ("n2", "n1"))
    assert faulty_nodes([hung(HangVerdict(HangCode.NETWORK, unreachable=both))]) == ()
    assert faulty_nodes([hung(HangVerdict(HangCode.NETWORK))]) == ()


def test_an_invalid_record_of_one_rank_discards_no_answer_of_another() -> None:
    told = copy.deepcopy(RECORDED["busy"]["collectives"])
    told["1"]["told"]["entries"][0]["entered"] = "now"
    found = records("node1", parse(COLLECTIVES, told), 0.0)
    assert found[1].entries == ()
    assert found[1].error is not None
    assert found[1].error.startswith("invalid record: entries.0.entered")
    assert found[0].entries


def in_function(process: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a rank that waits in another function of torch.distributed."""
    renamed = json.loads(json.dumps(process).replace('"all_reduce"', json.dumps(name)))
    assert renamed != process
    return dict(renamed)


def without_current(told: dict[str, Any], ranks: str) -> None:
    """Let ranks have completed all that they have recorded."""
    for rank in ranks:
        record = told["collectives"][rank]["told"]
        record["entries"] = [entry for entry in record["entries"] if entry["completed"]]


def test_an_operation_that_is_not_recorded_is_seen_in_the_stacks() -> None:
    told = changed("not-entered")
    without_current(told, "012")
    for rank in "012":
        told["stacks"][rank][0] = in_function(told["stacks"][rank][0], "monitored_barrier")
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.NOT_ENTERED, (("node2", 3),))
    assert (verdict.operation, verdict.waiting) == ("monitored_barrier", (0, 1, 2))


def test_a_rank_in_an_operation_that_is_not_recorded_does_not_enter_that_of_the_others() -> None:
    told = changed("not-entered")
    told["stacks"]["3"] = [in_function(told["stacks"]["0"][0], "recv")]
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.MISMATCH, (("node2", 3),))
    assert [(side.ranks, side.operation) for side in verdict.sides] == [
        ((3,), "recv"),
        ((0, 1, 2), "all_reduce"),
    ]


def test_a_rank_that_has_begun_an_operation_and_sleeps_is_what_the_others_wait_for() -> None:
    """Rank 3 has begun a collective of another group, which rank 2 will enter later."""
    told = changed("not-entered")
    entry = copy.deepcopy(told["collectives"]["0"]["told"]["entries"][-1])
    for rank in "23":
        groups = told["collectives"][rank]["told"]["groups"]
        groups.append({"name": "9", "description": "tensor", "ranks": [2, 3]})
    told["collectives"]["3"]["told"]["entries"].append(entry | {"group": "9", "seq": 1})
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.NOT_ENTERED, (("node2", 3),))
    assert (verdict.operation, verdict.waiting) == ("all_reduce", (0, 1, 2))


@pytest.mark.parametrize(
    ("syscall", "state_of_rank_3", "code"),
    [
        # PyTorch's store, and transfers that were begun asynchronously
        ("poll", "S", HangCode.NOT_ENTERED),
        ("futex", "S", HangCode.NOT_ENTERED),
        # the threads of a computation wait for each other, too
        ("poll", "R", HangCode.BUSY),
        ("futex", "R", HangCode.SLOW),
    ],
)
def test_most_ranks_may_wait_for_the_others_where_no_frame_shows_it(
    syscall: str, state_of_rank_3: str, code: HangCode
) -> None:
    told = changed("not-entered")
    without_current(told, "012")
    for rank in "012":
        process = told["stacks"][rank][0]
        process.update(state="S", syscall=syscall, on="")
        process["threads"] = [main_thread(("train.py", 14, "prepare"))]
    told["stacks"]["3"][0].update(state=state_of_rank_3)
    verdict = verdict_of(told)
    assert verdict.code is code
    if code is not HangCode.SLOW:
        assert (verdict.ranks, verdict.waiting) == ((("node2", 3),), (0, 1, 2))
        assert verdict.waiting_place == Place("train.py", 14, "prepare")


@pytest.mark.parametrize("syscall", ["poll", "futex"])
def test_a_rank_in_native_code_may_wait_for_another_one_that_has_not_entered(syscall: str) -> None:
    """Rank 2 waits for what it receives from rank 3, which sleeps."""
    told = changed("not-entered")
    without_current(told, "2")
    process = told["stacks"]["2"][0]
    process.update(state="S", syscall=syscall, on="")
    process["threads"] = [main_thread(("train.py", 14, "exchange"))]
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.NOT_ENTERED, (("node2", 3),))
    assert (verdict.operation, verdict.waiting) == ("all_reduce", (0, 1))


def test_the_last_rank_is_named_if_all_others_have_ended() -> None:
    told = changed("lock")
    for rank in "012":
        del told["stacks"][rank]
        del told["collectives"][rank]
    verdict = verdict_of({**told, "ended": [0, 1, 2]})
    assert (verdict.code, verdict.ranks) == (HangCode.LOCK, (("node2", 3),))
    one_of_four = changed("slow")
    del one_of_four["stacks"]["0"]
    del one_of_four["collectives"]["0"]
    verdict = verdict_of({**one_of_four, "ended": [0]})
    assert (verdict.code, verdict.ranks) == (HangCode.DEAD, (("node1", 0),))


def test_both_ranks_of_a_transfer_that_does_not_complete_are_named() -> None:
    told = changed("not-entered")
    for rank, function in (("2", "send"), ("3", "recv")):
        without_current(told, rank)
        told["stacks"][rank] = [in_function(told["stacks"]["0"][0], function)]
    verdict = verdict_of(told)
    assert verdict.code is HangCode.MISMATCH
    assert verdict.ranks == (("node2", 2), ("node2", 3))
    assert (verdict.waiting, verdict.operation) == ((0, 1), "all_reduce")


@pytest.mark.parametrize(
    ("of_rank_3", "code"), [("send", HangCode.ONE_WAY), ("recv", HangCode.UNKNOWN)]
)
def test_ranks_that_all_send_wait_for_one_that_receives(of_rank_3: str, code: HangCode) -> None:
    told = changed("not-entered")
    without_current(told, "012")
    told["collectives"]["3"] = copy.deepcopy(told["collectives"]["0"])
    told["stacks"]["3"] = [in_function(told["stacks"]["0"][0], of_rank_3)]
    for rank in "012":
        told["stacks"][rank][0] = in_function(told["stacks"][rank][0], "send")
    verdict = verdict_of(told)
    assert (verdict.code, verdict.operation) == (code, "send")
    assert verdict.waiting == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("transfers", "stuck", "waiting"),
    [
        ({2: ("recv", 3), 3: ("recv", 2)}, (2, 3), (0, 1)),
        ({0: ("recv", 1), 1: ("recv", 2), 2: ("recv", 1), 3: ("recv", 2)}, (1, 2), (0, 3)),
        ({0: ("send", 1), 1: ("send", 2), 2: ("send", 3), 3: ("send", 0)}, (0, 1, 2, 3), ()),
        ({0: ("send", 1), 1: ("send", 0), 2: ("recv", 3), 3: ("recv", 2)}, (0, 1, 2, 3), ()),
    ],
    ids=["pair", "stages-of-a-pipeline", "ring", "two-pairs"],
)
def test_ranks_in_a_circle_of_equal_transfers_wait_for_each_other(
    transfers: dict[int, tuple[str, int]], stuck: tuple[int, ...], waiting: tuple[int, ...]
) -> None:
    verdict = verdict_of(with_transfers(changed("not-entered"), transfers))
    assert verdict.code is HangCode.ONE_WAY
    assert tuple(rank for _, rank in verdict.ranks) == stuck
    assert verdict.waiting == waiting
    assert {(side.operation, side.ranks) for side in verdict.sides} == {
        (kind, tuple(rank for rank in stuck if transfers[rank][0] == kind))
        for kind in {transfers[rank][0] for rank in stuck}
    }


@pytest.mark.parametrize(
    "transfers",
    [
        {2: ("send", 3), 3: ("recv", 2)},
        {2: ("recv", 3), 3: ("recv", None)},
        {2: ("recv", 3)},
        {2: ("recv", 3), 3: ("recv", 99)},
    ],
    ids=["counterparts", "from-any-rank", "other-rank-is-elsewhere", "no-rank-of-the-run"],
)
def test_transfers_that_may_still_complete_are_no_circle(
    transfers: dict[int, tuple[str, int | None]],
) -> None:
    verdict = verdict_of(with_transfers(changed("not-entered"), transfers))
    assert verdict.code is not HangCode.ONE_WAY


def with_transfers(
    told: dict[str, Any], transfers: Mapping[int, tuple[str, int | None]]
) -> dict[str, Any]:
    """Let ranks wait in transfers: of each its kind, and the other rank."""
    model = copy.deepcopy(told["stacks"]["0"][0])
    for rank, (kind, peer) in transfers.items():
        without_current(told, str(rank))
        told["stacks"][str(rank)] = [in_function(copy.deepcopy(model), kind)]
        told["collectives"][str(rank)]["told"]["transfer"] = {"kind": kind, "peer": peer}
    return told


def test_only_ranks_that_have_not_completed_an_operation_wait_in_it() -> None:
    told = changed("not-entered")
    told["collectives"]["3"] = copy.deepcopy(told["collectives"]["0"])
    for entry in told["collectives"]["3"]["told"]["entries"]:
        entry["completed"] = True
    verdict = verdict_of(told)
    assert (verdict.code, verdict.waiting) == (HangCode.NETWORK, (0, 1, 2))


def over_nccl(entries: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
    """Return ranks that have all entered a collective, as NCCL's recorder tells, with further
    fields of some ranks."""
    told = changed("not-entered")
    told["collectives"]["3"] = copy.deepcopy(told["collectives"]["0"])
    told["stacks"]["3"] = copy.deepcopy(told["stacks"]["0"])
    for rank, answer in told["collectives"].items():
        last = max(answer["told"]["entries"], key=lambda entry: entry["entered"])
        last.update(backend="nccl", **entries.get(rank, {}))
    return told


def test_a_gpu_that_has_not_begun_what_the_others_have_is_what_they_wait_for() -> None:
    begun = {"started": True}
    verdict = verdict_of(over_nccl({"0": begun, "1": begun, "2": begun}))
    assert (verdict.code, verdict.ranks) == (HangCode.GPU_BUSY, (("node2", 3),))
    assert verdict.waiting == (0, 1, 2)


def test_a_gpu_that_has_completed_a_collective_has_begun_it() -> None:
    """A rank whose recorder has no times does not tell when it began."""
    begun, completed = {"started": True}, {"completed": True}
    told = over_nccl({"0": begun, "1": begun, "2": begun, "3": completed})
    told["stacks"]["3"] = changed("not-entered")["stacks"]["3"]
    verdict = verdict_of(told)
    assert (verdict.code, verdict.waiting) == (HangCode.NETWORK, (0, 1, 2))


def test_without_the_begin_of_any_collective_no_gpu_is_named() -> None:
    assert verdict_of(over_nccl({})).code is HangCode.NETWORK


@pytest.mark.parametrize(("innermost", "is_in_it"), [("all_reduce", True), ("train", False)])
def test_a_call_of_nccl_that_has_not_returned_is_not_complete(
    innermost: str, is_in_it: bool
) -> None:
    """It connects the ranks of the group still; PyTorch takes it for completed."""
    told = over_nccl({rank: {"completed": True} for rank in "0123"})
    process = told["stacks"]["3"][0]
    main = next(thread for thread in process["threads"] if thread["main"])
    main["frames"][0]["function"] = innermost
    record = seen(told)[3].record
    assert record is not None
    assert (record.current is not None) == is_in_it


def test_a_call_of_nccl_after_what_another_rank_has_completed_is_a_later_one() -> None:
    """It is not recorded yet: the ranks that have called it wait for the communicator."""
    told = over_nccl({rank: {"completed": True} for rank in "0123"})
    told["stacks"]["3"] = changed("not-entered")["stacks"]["3"]
    verdict = verdict_of(told)
    assert (verdict.code, verdict.ranks) == (HangCode.NOT_ENTERED, (("node2", 3),))
    assert verdict.waiting == (0, 1, 2)


def test_collectives_of_nccl_have_the_names_of_their_functions() -> None:
    told = over_nccl({"3": {"operation": "all_reduce_barrier"}})
    sides = verdict_of(told).sides
    assert [side.operation for side in sides] == ["barrier", "all_reduce"]
