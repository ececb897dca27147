"""The prefixes of output lines, which say who has written them."""

from __future__ import annotations

from collections.abc import Iterable

from dslaunch.cluster.nodeset import fold as fold_hosts
from dslaunch.cluster.nodeset import fold_numbers
from dslaunch.plural import counted
from dslaunch.report.folding import FoldedLine
from dslaunch.run.events import Line, LineBlock
from dslaunch.terminal import PLAIN, one_line, without_color

BAR = "│"
_NODE_COLORS = tuple(f"\x1b[{number}m" for number in (36, 33, 32, 35, 34, 96, 93, 92, 95, 94))
_LONGEST_RANKS = 16
"""Characters of a list of ranks before a line; a longer one is counted instead."""


def prefix(line: Line | LineBlock) -> str:
    """Return `node01:3│`; `node01│` for output of the node's launcher; `12_3 node01:3│` for a task
    of a SLURM array."""
    host = one_line(f"{line.task} {line.host}" if line.task else line.host)
    return f"{host}{BAR}" if line.rank is None else f"{host}:{line.rank}{BAR}"


def all_of(count: int, noun: str) -> str:
    """Return `[64 ranks]`."""
    return f"[{counted(count, noun)}]"


class PrefixedLines:
    """Makes the texts of lines with their prefixes.

    On a terminal prefixes have one width and each node has a color; programs get neither.
    """

    def __init__(self, *, aligned: bool, color: bool) -> None:
        self.aligned, self.color = aligned, color
        self.ranks = self.nodes = 0
        """How many ranks and nodes the run has; 0: not known."""
        self._width = 0
        """Of the widest prefix so far, without its bar."""
        self._known: dict[tuple[str, str, int | None], str] = {}
        """The prefixes of single ranks, of that width."""
        self._colors: dict[str, str] = {}

    def make_room(self, prefixes: Iterable[str]) -> None:
        """Make all prefixes as wide as the widest of these, which have no bar."""
        self._width = max(map(len, prefixes), default=0)
        self._known.clear()

    def text(self, line: Line) -> str:
        """Return a line of one rank, or of the launcher of a node."""
        return f"{self._prefix(line)}{self._content(line)}"

    def block(self, block: LineBlock, before: str = "") -> str:
        """Return several lines of one rank, each with the prefix and a newline. `before`: what is
        before each prefix."""
        text = block.text if self.color else without_color(block.text)
        prefix = f"{before}{self._prefix(block)}"
        following = f"\n{prefix}"
        return f"{prefix}{text.replace(chr(10), following)}\n"

    def folded(self, group: FoldedLine) -> str:
        """Return a line with all who have written it."""
        if len(group.sources) == 1:
            return self.text(group.line)
        label = self._as_wide_as_others(f"{self._label(group)}{BAR}")
        return f"{label}{self._content(group.line)}"

    def _content(self, line: Line) -> str:
        return line.text if self.color else without_color(line.text)

    def _prefix(self, line: Line | LineBlock) -> str:
        source = (line.task, line.host, line.rank)
        known = self._known.get(source)
        if known is not None:
            return known
        label = self._as_wide_as_others(prefix(line))
        if self.color:
            label = f"{self._color_of(line.host)}{label}{PLAIN}"
        self._known[source] = label
        return label

    def _as_wide_as_others(self, label: str) -> str:
        """Return a prefix as wide as the widest one so far, where prefixes are aligned."""
        if not self.aligned:
            return label
        width = len(label) - len(BAR)
        if width > self._width:
            self._width = width
            self._known.clear()
        return f"{label[: -len(BAR)]:<{self._width}}{BAR}"

    def _color_of(self, host: str) -> str:
        if host not in self._colors:
            self._colors[host] = _NODE_COLORS[len(self._colors) % len(_NODE_COLORS)]
        return self._colors[host]

    def _label(self, group: FoldedLine) -> str:
        """Return who wrote a line: `[64 ranks]`, `[0,2-3]`, `[3 nodes]`, `[node[1-2]]`."""
        count = len(group.sources)
        task = f"{one_line(group.line.task)} " if group.line.task else ""
        if group.line.rank is None:
            every, noun = self.nodes, "node"
            listed = one_line(fold_hosts(host for host, _ in group.sources))
        else:
            every, noun = self.ranks, "rank"
            listed = fold_numbers(rank for _, rank in group.sources if rank is not None)
        if count == every or not every:
            return task + all_of(count, noun)
        if len(listed) <= _LONGEST_RANKS:
            return f"{task}[{listed}]"
        return f"{task}[{count} of {counted(every, noun)}]"
