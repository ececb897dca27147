"""What is otherwise than it was when all was well. Pure."""

from __future__ import annotations

from msgspec import Struct

from dslaunch.preflight.check import LEVELS, Level
from dslaunch.preflight.judge import Report

Said = tuple[Level, str]


class FindingChange(Struct, frozen=True):
    """A check with another result on some nodes than before."""

    check: str
    hosts: tuple[str, ...]
    before: Said | None
    """None: the node, or the check, was not there."""
    now: Said | None

    @property
    def worse(self) -> bool:
        """Whether it is worse than it was."""
        return self.now is not None and _rank(self.now) < _rank(self.before)


def compare_reports(before: Report, now: Report) -> tuple[FindingChange, ...]:
    """All changes, what became worse first; equal changes of several nodes are one."""
    was, is_ = _said(before), _said(now)
    groups: dict[tuple[str, tuple[Said, ...], tuple[Said, ...]], list[str]] = {}
    for check, host in dict.fromkeys([*is_, *was]):
        pair = was.get((check, host), ()), is_.get((check, host), ())
        if pair[0] != pair[1]:
            groups.setdefault((check, *pair), []).append(host)
    found = [
        FindingChange(check, tuple(hosts), _one(old, new), _one(new, old))
        for (check, old, new), hosts in groups.items()
    ]
    return tuple(sorted(found, key=lambda c: (not c.worse, c.check)))


def _said(report: Report) -> dict[tuple[str, str], tuple[Said, ...]]:
    said: dict[tuple[str, str], tuple[Said, ...]] = {}
    for finding in report.findings:
        for host in finding.hosts:
            key = (finding.check, host)
            said[key] = tuple(sorted({*said.get(key, ()), (finding.level, finding.found)}))
    return said


def _one(mine: tuple[Said, ...], other: tuple[Said, ...]) -> Said | None:
    """Return the worst result of one side that the other does not have."""
    own = [said for said in mine if said not in other] or list(mine)
    return min(own, key=_rank, default=None)


def _rank(said: Said | None) -> int:
    """What was not there before got worse only by what is wrong: a new pass is none."""
    return LEVELS.index("info" if said is None else said[0])
