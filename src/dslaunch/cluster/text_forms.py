"""Forms of texts and numbers that several sections of a cluster file share."""

from __future__ import annotations

from dslaunch.cluster.forms import MappingOf, Number, Text
from dslaunch.cluster.model import MOST_SLOTS

MOST_PORT = 65535
_HOP = r"(?:[^\s@,-][^\s@,]*@)?(?:\[[^\s@,\[\]]+\]|[^\s@,:\[\]-][^\s@,:\[\]]*)(?::[0-9]{1,5})?"


def _in_order(text: str) -> bool:
    """Return whether the first port of a range is not above the last."""
    first, last = map(int, text.split("-"))
    return 1 <= first <= last <= MOST_PORT


def _ascending(text: str) -> bool:
    """Return whether no range in a list of ranks ends below its start."""
    ranges = (part.split("-") for part in text.split(","))
    return all(int(each[0]) <= int(each[-1]) for each in ranges)


TEXT = Text(at_least=1)
WRITTEN = Text(written=True)
"""Text exactly as written in the file, also if it looks like a number."""
ONE_LINE = Text(r"[^\s\x00](?:[^\r\n\x00]*[^\s\x00])?", "text of one line", written=True)
VARIABLE = Text(
    r"[A-Za-z_][A-Za-z0-9_]*",
    "a variable name of letters, digits and `_`, not starting with a digit",
)
ENVIRONMENT = MappingOf(VARIABLE, WRITTEN)
WORD = Text(r"[^\s@,-][^\s@,]*", "one word without `@` and `,`")
JUMP = Text(f"{_HOP}(?:,{_HOP})*", "jump hosts such as `user@bastion:22`, separated by commas")
INTERFACE = Text(r"[^\s/:=^,]{1,15}", "an interface name of at most 15 characters")
LABEL = Text(r"[A-Za-z0-9][A-Za-z0-9._/-]*", "a label's name of letters, digits, `.`, `_`, `-`")
RANKS = Text(
    r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*",
    "ranks such as `0` or `0,8-9`",
    written=True,
    holds=_ascending,
)
PORT = Number(at_least=1, at_most=MOST_PORT)
PORT_RANGE = Text(
    r"[0-9]{1,5}-[0-9]{1,5}",
    "`auto`, a port or a range of ports such as `29600-29610`",
    holds=_in_order,
)
SLOT = Number(at_least=0, at_most=MOST_SLOTS - 1)
SLOT_COUNT = Number(at_least=1, at_most=MOST_SLOTS)
