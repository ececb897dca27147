"""Which ranks the others wait for by NCCL's own report (`node/nccl_ras.py`). Pure.

The formats are those of NCCL 2.24 to 2.29 (src/ras/client_support.cc). NCCL lists the processes
that do not answer it, and, where the ranks of a communicator have launched different numbers of
operations, those of the smaller group.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dslaunch.run.rank_views import RankView

_MISSING = re.compile(r"^  Process (\d{1,7}) on node \S{1,64} managing GPU", re.MULTILINE)
_BLOCK = re.compile(r"^  Communicator ranks have different (?:\w+ )?operation counts$")
_GROUP = re.compile(r"^  \d+ ranks have (?:launched up to operation (\d{1,18})|not launched any)")
_ONE = re.compile(
    r"^  Rank \d+ has (?:launched up to operation (\d{1,18})|not launched any operations)"
    r" -- GPU \S+ managed by process (\d{1,7}) on node"
)
_OF_GROUP = re.compile(r"^  Rank \d+ -- GPU \S+ managed by process (\d{1,7}) on node")


class _Listed(NamedTuple):
    """Ranks of a communicator that have launched so many operations."""

    launched: int
    pids: tuple[int, ...]
    """Of those that NCCL lists; empty: it lists none, since they are most."""


def ranks_waited_for(reports: Sequence[str], views: Mapping[int, RankView]) -> tuple[int, ...]:
    """Return the ranks that have launched fewer operations than the others, or do not answer NCCL:
    by their processes, of which a number that two nodes use is left out."""
    pids = {pid for text in reports for pid in waited_for(text)}
    used = Counter(view.process.pid for view in views.values() if view.process is not None)
    return tuple(
        rank
        for rank, view in views.items()
        if view.process is not None and view.process.pid in pids and used[view.process.pid] == 1
    )


def waited_for(text: str) -> frozenset[int]:
    """Return the processes that a report shows to be waited for."""
    missing = frozenset(int(pid) for pid in _MISSING.findall(text))
    return missing.union(*map(_behind, _blocks(text)))


def _blocks(text: str) -> list[list[_Listed]]:
    """Return the groups of ranks of each communicator and kind of operation that differ."""
    blocks: list[list[_Listed]] = []
    inside = False
    for line in text.splitlines():
        if _BLOCK.match(line):
            blocks.append([])
            inside = True
        elif not line.startswith("  "):
            inside = False
        elif inside:
            _add(blocks[-1], line)
    return blocks


def _add(block: list[_Listed], line: str) -> None:
    group, one, member = _GROUP.match(line), _ONE.match(line), _OF_GROUP.match(line)
    if group:
        block.append(_Listed(int(group[1] or 0), ()))
    elif one:
        block.append(_Listed(int(one[1] or 0), (int(one[2]),)))
    elif member and block:
        last = block.pop()
        block.append(_Listed(last.launched, (*last.pids, int(member[1]))))


def _behind(block: list[_Listed]) -> frozenset[int]:
    """Return the listed ranks that have launched fewer operations than any other."""
    most = max((listed.launched for listed in block), default=0)
    return frozenset(pid for listed in block if listed.launched < most for pid in listed.pids)
