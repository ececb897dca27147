"""Read the end of what the nodes of a detached run have kept, instead of all of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from dslaunch.errors import NodeError, NodeFailure
from dslaunch.node import frames
from dslaunch.protocol.messages import Incoming, ProtocolError
from dslaunch.protocol.queries import JOURNAL, JournalPiece
from dslaunch.run.interrupts import Until
from dslaunch.run.log_selection import SelectedLines
from dslaunch.run.reach import answer_of
from dslaunch.run.session import Session
from dslaunch.run.watch import Watch

FIRST_WINDOW = 64 * 1024
"""Bytes of each node that are read first in search of the last lines."""
GROWTH = 4
"""How many times as much is read if they were not enough."""
PIECE = 1 << 20
"""Bytes of a journal that are asked for at a time."""
MOST_KEPT = 4 << 30
"""Bytes of one node's journal. Agents keep half of it at most."""
MOST_READ = 64 << 20
"""Bytes of one node that are read at most in search of the last lines."""
CHAIN = 64
"""Frames with consecutive numbers that show that the first of them is one."""
MOST_CANDIDATES = 10_000
"""Places that are tried as the beginning of a frame. Output that is no text has one in millions of
bytes, but a node can send bytes in which there is one at every place."""
AT_ONCE = 32
"""Nodes that are read at the same time."""
_HEADER = re.compile(rb"(?=[\x00\x01][\x00-\xff]{3}[\x01\x02]\x00)")
"""Where a numbered frame of a message or of output may begin (`frames.HEADER`)."""


@dataclass(frozen=True, slots=True)
class KeptTail:
    """The last output that one node has kept."""

    session: Session
    output: tuple[frames.Output, ...] = ()
    number: int = 0
    """Of the last frame that was read; 0: none."""
    whole: bool = True
    """Whether there is nothing before it."""


def show_last_lines(
    sessions: Sequence[Session], run: str, chosen: SelectedLines, until: Until
) -> Watch:
    """Keep the last selected lines of these nodes in `chosen`, by time; return the watch to
    continue with. Each session continues behind what was read. They are fewer than selected if the
    last `MOST_READ` bytes of the nodes do not have as many.

    Raises NodeError if a journal is damaged, Interrupted if `until` returns True.
    """
    size = FIRST_WINDOW
    while True:
        tails = _read_tails(sessions, run, size, until)
        chosen.forget()
        watch = Watch(chosen)
        _show(tails, watch)
        if chosen.full or size >= MOST_READ or all(tail.whole for tail in tails):
            break
        size = min(GROWTH * size, MOST_READ)
    for tail in tails:
        tail.session.skip(tail.number)
    return watch


def _read_tails(sessions: Sequence[Session], run: str, size: int, until: Until) -> list[KeptTail]:
    if not sessions:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(sessions)), thread_name_prefix="journal") as pool:
        return list(pool.map(lambda session: read_tail(session, run, size, until), sessions))


def _show(tails: Sequence[KeptTail], watch: Watch) -> None:
    """Show the output of several nodes by time. Where there is more before it, a stream may begin
    within a line, which is left out."""
    timed = [
        (output.time - tail.session.offset, tail, output)
        for tail in tails
        for output in tail.output
    ]
    timed.sort(key=lambda entry: entry[0])
    begun: set[tuple[str, int, int]] = set()
    for _, tail, output in timed:
        host = tail.session.host
        stream = (host, output.rank, output.stream)
        data = output.data
        if not tail.whole and stream not in begun:
            _, end, data = data.partition(b"\n")
            if not end:
                continue
            begun.add(stream)
        rest = frames.Output(output.rank, output.stream, output.time, data)
        watch.output(host, rest, tail.session.offset)


def read_tail(session: Session, run: str, size: int, until: Until) -> KeptTail:
    """Return about the last `size` bytes that a node has kept; nothing where it has no journal.

    Raises NodeError if it is no journal of ours, Interrupted.
    """

    def piece(position: int, most: int) -> JournalPiece | None:
        wanted = {"run": run, "position": position, "most": most}
        answers = answer_of(session.host, session.ask({JOURNAL: wanted}), until=until)
        return answers.get(JOURNAL)

    first = piece(0, 1)
    if first is None or first.size > MOST_KEPT:
        return KeptTail(session, number=session.hello.result().last)
    begin = max(0, first.size - size)
    data = b"".join(_pieces(piece, begin, first.size))
    start = first_frame(data) if begin else 0
    if start is None:
        return KeptTail(session, whole=False)
    incoming = Incoming(session.ranks)
    try:
        arrived = list(incoming.feed(data[start:]))
    except ProtocolError as error:
        why = f"its journal is damaged: {error}"
        raise NodeError((NodeFailure(session.host, "protocol", why),)) from None
    output = tuple(frame for frame in arrived if isinstance(frame, frames.Output))
    return KeptTail(session, output, incoming.number, whole=not begin)


def _pieces(
    piece: Callable[[int, int], JournalPiece | None], begin: int, end: int
) -> Iterator[bytes]:
    position = begin
    while position < end:
        found = piece(position, min(PIECE, end - position))
        if found is None or not found.data:  # or the loop would not end
            return
        yield found.data
        position += len(found.data)


def first_frame(data: bytes) -> int | None:
    """Return where the first whole frame begins in the last bytes of a journal; None: nowhere.

    From there frames follow each other with consecutive numbers; the last may be incomplete.
    """
    for found in islice(_HEADER.finditer(data), MOST_CANDIDATES):
        if _frames_follow(data, found.start()):
            return found.start()
    return None


def _frames_follow(data: bytes, start: int) -> bool:
    position, before, count = start, 0, 0
    while position + frames.HEADER.size <= len(data) and count < CHAIN:
        length, kind, number = frames.HEADER.unpack_from(data, position)
        known = kind in (frames.MESSAGE, frames.OUTPUT) and length <= frames.LONGEST[kind]
        if not known or number == 0 or (before and number != before + 1):
            return False
        position += frames.HEADER.size + length
        before = number
        count += 1
    return count > 1
