"""Ways to hang over NCCL, what must be said of them, and the table of what was said on a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dslaunch.run.hang_text import hang_text
from dslaunch.run.hang_verdict import HangVerdict

RECORDED = Path(__file__).with_name("recorded_hangs.jsonl")
"""Verdicts of runs on an NVIDIA H200, which `DSLAUNCH_HANGS=FILE make gpu` records."""
HEAD = """
## Over NCCL on a GPU

Four nodes that share one NVIDIA H200 ({versions}; {date}): each has its own host identity
(`NCCL_HOSTID`), so that NCCL connects their ranks by the network, as on four machines.
`--hang-timeout 10`; the rank that hangs is 3. Of 21 ways to hang, 20 were judged right by rules
that had never met NCCL. The one that was not is the kernel below: which GPU has not begun a
collective is known only where `TORCH_NCCL_ENABLE_TIMING=1` is set, and the rule for it
(`gpu-busy`), made afterwards, has not run on a GPU. A broadcast from different ranks does not hang
over NCCL: the ranks get different values and continue.

| the rank | code | waited | dslaunch |
|---|---|---|---|
"""
NODES = 4


@dataclass(frozen=True, slots=True)
class Case:
    """A way to hang, and what must be said of it."""

    how: str
    about: str
    """What the last rank does, or all of them."""
    code: str
    operation: str = "all_reduce"
    """What the others are in."""
    function: str = ""
    """Where the rank that they wait for is; "": not asserted."""
    last_alone: bool = True
    """Whether the last rank is the one that is named; else all of them."""
    options: tuple[str, ...] = ()


CASES = (
    Case("not-entered", "sleeps in other code", "not-entered", function="save_checkpoint"),
    Case("busy", "computes in a loop that does not end", "busy", function="compute"),
    Case("lock", "waits for a lock", "lock", function="lock"),
    Case("dataloader", "waits for a worker of its data loader", "dataloader", function="load"),
    Case("stopped", "is stopped by SIGSTOP", "stopped"),
    Case("exited", "has exited with 0; a child holds its connections", "dead"),
    Case(
        "kernel",
        "has launched a kernel that does not end",
        "gpu-busy",
        options=("--env", "TORCH_NCCL_ENABLE_TIMING=1"),
    ),
    Case("barrier", "is at a barrier", "mismatch", function="evaluate"),
    Case("operation", "calls another collective", "mismatch"),
    Case("order", "calls collectives of two groups in another order", "mismatch", function="main"),
    Case("sizes", "reduces another number of elements", "mismatch"),
    Case("gather", "gathers metrics", "mismatch", function="gather_metrics"),
    Case(
        "receive",
        "receives first, as all others do",
        "one-way",
        operation="recv",
        function="main",
        last_alone=False,
    ),
    Case(
        "sharded",
        "sleeps in other code, with FSDP",
        "not-entered",
        "all_gather_into_tensor",
        "save_checkpoint",
    ),
    Case(
        "uneven",
        "has no more batches and is at a barrier, with FSDP",
        "mismatch",
        "all_gather_into_tensor",
        "evaluate",
    ),
)


def section(lines: Iterable[str]) -> str:
    """Return the section of docs/reference/hangs.md from recorded lines of JSON; the last one of a
    way counts."""
    rows: dict[str, Mapping[str, Any]] = {}
    for line in lines:
        row = json.loads(line)
        rows[row["how"]] = row
    shown = [(case, rows[case.how]) for case in CASES if case.how in rows]
    _, latest = shown[-1]
    head = HEAD.format(versions=latest["versions"], date=latest["date"])
    return head + "".join(_row(case, row) for case, row in shown)


def _row(case: Case, row: Mapping[str, Any]) -> str:
    verdict = msgspec.convert(row["hang"], HangVerdict)
    waited = f"{row['seconds']:.0f} s"
    return f"| {case.about} | `{verdict.code}` | {waited} | {hang_text(verdict)} |\n"
