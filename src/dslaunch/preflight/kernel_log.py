"""What the kernel has logged of GPUs and links. Often only root may read it: then it is unknown."""

from __future__ import annotations

import re

from dslaunch.preflight.check import NodeAnswers, Question, UnansweredError

_SCRIPT = (
    "keep() { echo log; grep -E 'NVRM: Xid|SXid|[Ll]ink (DOWN|[Dd]own)|Lost carrier'; true; }; "
    'echo "uptime $(cut -d" " -f1 /proc/uptime)"; '
    'if all=$(dmesg 2>/dev/null); then echo "$all" | keep; '
    'elif [ -n "$(journalctl -kqn1 --no-pager 2>/dev/null)" ]; then '
    "journalctl -kq --since -1d -o short-monotonic --no-pager | keep; fi"
)
LOG = Question("run", {"shell": _SCRIPT}, 10)
"""The node's uptime and, after `log`, its lines: of all its time, or of a day of the journal."""
_LINES = re.compile(r"^log\n+(?=[^\n])", re.MULTILINE)
_UPTIME = re.compile(r"^uptime (\d+(?:\.\d+)?)$", re.MULTILINE)


def log(a: NodeAnswers) -> str:
    """Return what was kept of the log. Raises UnansweredError if it may not be read."""
    return a.part(_log)


def _log(a: NodeAnswers) -> str:
    text = kept(a.value(LOG)["out"])
    # nodes without lines are alike, however long they have been up
    return text if _LINES.search(text) else ""


def kept(text: str) -> str:
    """Return an answer to LOG. Raises UnansweredError if the log may not be read."""
    if not re.search(r"^log$", text, re.MULTILINE):
        raise UnansweredError("no permission to read the kernel log")
    return text


def since(text: str, hours: float) -> float:
    """How many seconds after the node's start that many hours ago were."""
    up = _UPTIME.search(text)
    return float(up[1]) - hours * 3600 if up else 0.0
