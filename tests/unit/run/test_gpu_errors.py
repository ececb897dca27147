"""Hangs that errors of GPUs explain, by recorded kernel logs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dslaunch.preflight import xid
from dslaunch.run.faulty import faulty_nodes
from dslaunch.run.gpu_errors import with_gpu_errors
from dslaunch.run.hang_text import hang_text
from dslaunch.run.hang_verdict import GpuError, HangCode, HangVerdict
from dslaunch.run.outcome import Outcome
from dslaunch.run.rank_views import Process, RankView
from dslaunch.run.reasons import EndCode, EndReason

(LOGGED,) = xid.xids(
    "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, "
    "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 103 "
    "(GSP_RM_ALLOC) (0x2081 0x4).\n",
    since=0.0,
)
"""As recorded on a node whose GPU did not answer the driver."""
ERROR = GpuError("node2", LOGGED.number, LOGGED.bus, LOGGED.pid)
VIEWS = {
    rank: RankView(rank, f"node{rank // 2 + 1}", process=Process(100 + rank)) for rank in range(4)
}
BUSY = HangVerdict(HangCode.BUSY, ranks=(("node2", 2),), waiting=(0, 1, 3), operation="all_reduce")
NOT_COMPLETED = HangVerdict(HangCode.NETWORK, waiting=(0, 1, 2, 3), operation="all_reduce")


def test_a_recorded_error_has_its_number_address_and_process() -> None:
    assert (LOGGED.number, LOGGED.bus, LOGGED.pid) == (119, "0000:9b:00", 2024380)
    assert LOGGED.is_of_hardware


def test_the_rank_of_the_process_that_used_the_gpu_is_named() -> None:
    error = replace(ERROR, pid=103)
    found = with_gpu_errors(NOT_COMPLETED, [error], VIEWS)
    assert (found.code, found.ranks) == (HangCode.GPU, (("node2", 3),))
    assert (found.waiting, found.gpus) == ((0, 1, 2), (error,))


def test_all_ranks_of_the_node_are_named_where_the_process_is_not_known() -> None:
    found = with_gpu_errors(NOT_COMPLETED, [ERROR], VIEWS)
    assert (found.ranks, found.waiting) == ((("node2", 2), ("node2", 3)), (0, 1))
    assert "Xid 119 (GSP timeout)" in hang_text(found)


def test_a_rank_that_computes_on_the_node_waits_for_its_gpu() -> None:
    found = with_gpu_errors(BUSY, [ERROR], VIEWS)
    assert (found.code, found.ranks) == (HangCode.GPU, BUSY.ranks)


@pytest.mark.parametrize(
    "verdict",
    [
        replace(BUSY, ranks=(("node1", 1),)),
        HangVerdict(HangCode.STOPPED, ranks=(("node2", 2),)),
        HangVerdict(HangCode.MISMATCH, ranks=(("node2", 2),)),
    ],
)
def test_a_hang_that_is_explained_otherwise_stays_as_it_is(verdict: HangVerdict) -> None:
    assert with_gpu_errors(verdict, [ERROR], VIEWS) == verdict


def test_a_restart_excludes_the_node_of_the_gpu() -> None:
    verdict = with_gpu_errors(BUSY, [ERROR], VIEWS)
    hung = Outcome("failed", 1, EndReason(EndCode.HANG, seconds=60.0, hang=verdict))
    assert faulty_nodes([hung]) == ("node2",)
