"""Whether the user's quota leaves room."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dslaunch.preflight.check import Answers, Check, Level, Question, Verdict, passed, skipped
from dslaunch.preflight.flow import NodeFlow, each

_N = r"(\d{1,18})"
PRESENT = Question("present", ["quota"])
QUOTA = Question("run", {"argv": ["quota", "-w", "-p"]}, 8)


def _flow(a: Answers) -> NodeFlow:
    if "quota" not in a["present"]:
        return [skipped("no program there tells quotas")]
    a = yield {"quota": QUOTA}
    return _judge(a)


def _judge(a: Answers) -> Iterator[Verdict]:
    bad = False
    for place, used, limit in usage(a.value(QUOTA)["out"]):
        share = 100 * used / limit
        if share > a.limits["warn"]:
            bad = True
            level: Level = "fail" if share >= 100 else "warn"
            words = f"{share:.0f} % of the quota on {place} used"
            yield Verdict(level, words, f"less than {a.limits['warn']:g} %")
    if not bad:
        yield passed("no quota is near its end")


def usage(text: str) -> Iterator[tuple[str, int, int]]:
    """Place, used and allowed, in blocks of 1 KiB and in files; a star marks what is exceeded."""
    for line in text.splitlines():
        found = re.match(rf"\s*(\S+)\s+{_N}\*?\s+{_N}\s+{_N}\s+\S+\s+{_N}\*?\s+{_N}\s+{_N}", line)
        if not found or (not found[1].startswith(("/", ".")) and ":" not in found[1]):
            continue
        blocks, soft, hard, files, few, many = (int(found[n]) for n in range(2, 8))
        if hard or soft:
            yield found[1], blocks, hard or soft
        if many or few:
            yield f"{found[1]} (files)", files, many or few


CHECK = Check(
    title="the user's quota leaves room",
    tier="static",
    why="A quota ends a checkpoint as a full disk does, while `df` shows room.",
    fix="remove old checkpoints, or ask for more",
    see="quota -w; lfs quota -h -u $USER PATH",
    source="quota(1)",
    ask=lambda scope: {"present": PRESENT},
    flow=each(_flow),
    limits={"warn": 90},
    limits_mean="per cent of the quota above which it warns",
)
