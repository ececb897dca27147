"""Which ranks are waited for by NCCL's own report."""

from __future__ import annotations

from dslaunch.run.hang import judge
from dslaunch.run.hang_verdict import HangCode
from dslaunch.run.nccl_ras import ranks_waited_for, waited_for
from dslaunch.run.rank_views import Process, RankView

# excerpts of the output that NCCL's user guide shows (2.24), with addresses and numbers as there
BEHIND = """\
Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210

"""
STOPPED = """\
Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""
HEALTHY = """\
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         8         4         1         4        32   RUNNING      OK
"""
# in the formats of src/ras/client_support.cc (2.29)
ONE_BEHIND = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 12
  Rank 3 has not launched any operations -- GPU 1 managed by process 103 on node 10.0.0.2
  Communicator ranks have different Broadcast operation counts
  3 ranks have launched up to operation 4
  Rank 0 has launched up to operation 5 -- GPU 0 managed by process 100 on node 10.0.0.1
"""
VIEWS = {
    rank: RankView(rank, f"node{rank // 2 + 1}", process=Process(100 + rank, state="R"))
    for rank in range(4)
}


def test_ranks_that_have_launched_fewer_operations_are_waited_for() -> None:
    assert waited_for(BEHIND) == {483072, 483074}


def test_processes_that_do_not_answer_nccl_are_waited_for() -> None:
    assert waited_for(STOPPED) == {3487984}


def test_a_job_without_differences_has_no_rank_that_is_waited_for() -> None:
    assert waited_for(HEALTHY) == frozenset()
    assert waited_for("") == frozenset()


def test_a_rank_that_is_ahead_of_the_others_is_not_waited_for() -> None:
    assert waited_for(ONE_BEHIND) == {103}


def test_ranks_are_found_by_their_processes_unless_two_nodes_use_the_number() -> None:
    assert ranks_waited_for([ONE_BEHIND], VIEWS) == (3,)
    twice = VIEWS | {2: RankView(2, "node2", process=Process(103))}
    assert ranks_waited_for([ONE_BEHIND], twice) == ()


def test_the_rank_that_nccl_names_is_judged_where_no_recorder_and_no_stack_shows_any() -> None:
    verdict = judge(VIEWS, behind=ranks_waited_for([ONE_BEHIND], VIEWS))
    assert (verdict.code, verdict.ranks) == (HangCode.BUSY, (("node2", 3),))
    assert judge(VIEWS).code is HangCode.SLOW
