"""How far detached runs are, by the end of what their nodes have kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.node import frames
from dslaunch.protocol.messages import Incoming, ProtocolError
from dslaunch.protocol.queries import JOURNAL, Answers, JournalPiece
from dslaunch.run.interrupts import Interrupts, Until, never
from dslaunch.run.journal_tail import first_frame
from dslaunch.run.progress import Progress, RunProgress
from dslaunch.run.view import View
from dslaunch.run.watch import Watch
from dslaunch.transport.future import Future

if TYPE_CHECKING:
    from dslaunch.run.events import Event, Line, LineBlock
    from dslaunch.run.reach import ReachedNodes
    from dslaunch.run.session import Session
    from dslaunch.run.status import RunStatus

WINDOW = 64 * 1024
"""Bytes that are read of each node, at most."""
LEAST_WINDOW = 16 * 1024
TOGETHER = 4 << 20
"""Bytes that are read of all nodes of one run, unless `LEAST_WINDOW` of each are more."""
TIMEOUT = 2.0
"""Seconds for all nodes together: without an answer the progress is unknown."""


class RunsOfCluster(Struct, frozen=True):
    """Runs whose progress is asked for, and the nodes that report them."""

    runs: Mapping[str, RunStatus]
    """By the name that the agents carry."""
    reached: ReachedNodes
    formats: Sequence[str]
    """`Cluster.progress`."""


class _Asked(Struct, frozen=True):
    """A node that was asked for the end of its journal of one run."""

    run: str
    session: Session
    most: int
    answer: Future[Answers]


def kept_progress(several: Sequence[RunsOfCluster], *, until: Until = never) -> dict[str, Progress]:
    """Ask all nodes of these runs at once, for `TIMEOUT` seconds; return the progress of the runs
    for which a node has any. Raises Interrupted."""
    asked = [(each, list(_ask(each))) for each in several]
    answers = [one.answer for _, ones in asked for one in ones]
    Interrupts(until=until).wait(answers, TIMEOUT)
    found: dict[str, Progress] = {}
    for each, ones in asked:
        for run in each.runs:
            progress = RunProgress(each.formats)
            for one in ones:
                if one.run == run:
                    _read(one, progress)
            latest = progress.latest_of_all()
            if latest is not None:
                found[run] = latest
    return found


def _ask(runs: RunsOfCluster) -> Iterator[_Asked]:
    for run, status in runs.runs.items():
        hosts = [host for host, node in status.nodes.items() if node.ranks]
        most = max(LEAST_WINDOW, min(WINDOW, TOGETHER // max(len(hosts), 1)))
        for host in hosts:
            session = runs.reached.sessions.get(host)
            if session is not None:
                question = {JOURNAL: {"run": run, "position": -most, "most": most}}
                yield _Asked(run, session, most, session.ask(question))


def _read(asked: _Asked, progress: RunProgress) -> None:
    """Note the lines that a node has sent, if it has answered."""
    answer = asked.answer
    if not answer.done() or answer.exception() is not None:
        return
    piece = answer.result().get(JOURNAL)
    if piece is None:
        return
    watch = Watch(_Noted(progress))
    for output in _outputs(piece, asked):
        watch.output(asked.session.host, output, asked.session.offset)
    watch.flush_all()


def _outputs(piece: JournalPiece, asked: _Asked) -> Iterator[frames.Output]:
    """Yield the output in the end of a journal; none if it is damaged."""
    data = piece.data[: asked.most]
    try:
        start = first_frame(data) if piece.size > len(data) else 0
        if start is None:
            return
        for arrived in Incoming(asked.session.ranks).feed(data[start:]):
            if isinstance(arrived, frames.Output):
                yield arrived
    except ProtocolError:
        return


@dataclass(frozen=True, slots=True)
class _Noted(View):
    """A view that notes the progress in the lines that it gets."""

    progress: RunProgress

    def line(self, line: Line) -> None:
        self.progress.note(line)

    def block(self, block: LineBlock) -> None:
        self.progress.note_block(block)

    def event(self, event: Event) -> None:
        """Do nothing."""
