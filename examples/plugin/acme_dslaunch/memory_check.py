"""A check of each node by itself: whether it has the memory that Acme's data loaders need."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.plugin import Check, Finding, NodeAnswers, Question, judged

MEMORY = "/proc/meminfo"


def too_little(answers: NodeAnswers) -> Iterator[Finding]:
    """Yield a finding for a node with too little memory. Raises UnansweredError."""
    first_line = answers["memory"][MEMORY].splitlines()[0]  # MemTotal:  131900 kB
    gigabytes = int(first_line.split()[1]) / 1e6
    least = answers.limits["warn"]
    if gigabytes < least:
        yield Finding("warn", f"{gigabytes:.0f} GB of memory", f"at least {least:g} GB")


CHECK = Check(
    title="data loaders have enough memory",
    why="With less memory the data loaders read each file again in every epoch.",
    fix="use nodes with more memory, or fewer data loaders",
    see="head -1 /proc/meminfo",
    source="Acme's handbook, data",
    flow=judged(
        too_little,
        lambda scope: {"memory": Question("read", [MEMORY])},
        fine="enough memory",
    ),
    limits={"warn": 1},
    limits_mean="GB of memory",
)
