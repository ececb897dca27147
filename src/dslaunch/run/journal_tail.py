"""Read the end of what the nodes of a detached run have kept, instead of all of it.

A journal is what a node says it is: the bytes that are read of it, the work to find its first frame
and the frames in memory are bounded, and a damaged one is a failure of its node alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from dslaunch.errors import Interrupted, NodeError, NodeFailure
from dslaunch.node import frames
from dslaunch.protocol.messages import Incoming, ProtocolError
from dslaunch.protocol.queries import JOURNAL, JournalPiece
from dslaunch.run.interrupts import Until, never
from dslaunch.run.log_selection import SelectedLines
from dslaunch.run.reach import answer_of
from dslaunch.run.session import Session
from dslaunch.run.watch import Watch

FIRST_WINDOW = 64 * 1024
"""Bytes of each node that are read first in search of the last lines."""
GROWTH = 4
"""How many times as much is read if they were not enough."""
LARGEST_WINDOW = 64 << 20
"""Bytes of one node that are searched for the last lines, at most."""
LARGEST_TOGETHER = 1 << 30
"""Bytes of all nodes together that are searched, at most; of each at least `FIRST_WINDOW`."""
PIECE = 1 << 20
"""Bytes of a journal that are asked for at a time."""
MOST_KEPT = 4 << 30
"""Bytes of one node's journal. Agents keep half of it at most."""
AT_ONCE = 32
"""Nodes that are read at the same time."""
MOST_TRIED = 1 << 20
"""False headers after which a journal counts as damaged. One frame of output may resemble half of
that number, if a rank writes integers."""
ENOUGH = 1 << 17
"""Frames in a row that are believed: more than one frame of output can resemble."""
LOOK_UP = 1024
"""Steps between two checks whether to continue."""
NoteFailure = Callable[[NodeFailure], object]
"""Called with the failure of a node whose journal cannot be read."""
_REACH = max(frames.LONGEST.values()) + 2 * frames.HEADER.size
"""Bytes in which a frame begins, wherever a journal is cut."""
_HEADER = re.compile(rb"(?=[\x00\x01][\x00-\xff]{3}[\x01\x02]\x00)")
"""Where a numbered frame of a message or of output may begin (`frames.HEADER`)."""


class KeptTail(Struct, frozen=True):
    """The last output that one node has kept."""

    session: Session
    output: tuple[frames.Output, ...] = ()
    number: int = 0
    """Of the last frame that was read; 0: none."""
    whole: bool = True
    """Whether there is nothing before it."""


def show_last_lines(
    sessions: Sequence[Session],
    run: str,
    chosen: SelectedLines,
    until: Until,
    note_failure: NoteFailure,
) -> Watch:
    """Keep the last selected lines of these nodes in `chosen`, by time; return the watch to
    continue with. Each session continues behind what was read.

    Lines before the last `LARGEST_WINDOW` bytes of a node are not searched. A node whose journal
    cannot be read is given to `note_failure`.

    Raises NodeError if that is so for all nodes, Interrupted if `until` returns True.
    """
    size = FIRST_WINDOW
    largest = largest_window(len(sessions))
    while True:
        found = _read_tails(sessions, run, size, until)
        tails = [tail for tail in found if isinstance(tail, KeptTail)]
        chosen.forget()
        watch = Watch(chosen)
        _show(tails, watch)
        if chosen.full or size >= largest or all(tail.whole for tail in tails):
            break
        size = min(size * GROWTH, largest)
    failures = tuple(tail for tail in found if isinstance(tail, NodeFailure))
    if failures and not tails:
        raise NodeError(failures)
    for session, tail in zip(sessions, found, strict=True):
        session.skip(tail.number if isinstance(tail, KeptTail) else newest(session))
    for failure in failures:
        note_failure(failure)
    return watch


def largest_window(nodes: int) -> int:
    """Return how many bytes of each of these nodes are searched, at most."""
    share = LARGEST_TOGETHER // max(nodes, 1)
    return max(FIRST_WINDOW, min(LARGEST_WINDOW, share))


def _read_tails(
    sessions: Sequence[Session], run: str, size: int, until: Until
) -> list[KeptTail | NodeFailure]:
    """Return the tail of each node, or why it cannot be read. Raises Interrupted."""

    def read(session: Session) -> KeptTail | NodeFailure:
        try:
            return read_tail(session, run, size, until)
        except NodeError as error:
            return error.failures[0]

    if not sessions:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(sessions)), thread_name_prefix="journal") as pool:
        return list(pool.map(read, sessions))


def newest(session: Session) -> int:
    """Return the number of the newest frame of a node, as its agent says."""
    return session.hello.result().last


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
        return KeptTail(session, number=newest(session))
    begin = max(0, first.size - size)
    data = b"".join(_pieces(piece, begin, first.size))
    try:
        start = first_frame(data, until) if begin else 0
        if start is None:
            return KeptTail(session, number=newest(session), whole=False)
        incoming = Incoming(session.ranks)
        output = tuple(_output(incoming.feed(data[start:]), until))
    except ProtocolError as error:
        why = f"its journal is damaged: {error}"
        raise NodeError((NodeFailure(session.host, "protocol", why),)) from None
    return KeptTail(session, output, incoming.number, whole=not begin)


def _pieces(
    piece: Callable[[int, int], JournalPiece | None], begin: int, end: int
) -> Iterator[bytes]:
    position = begin
    while position < end:
        wanted = min(PIECE, end - position)
        found = piece(position, wanted)
        if found is None:
            return
        yield found.data[:wanted]
        if len(found.data) < wanted:  # or a node could give a byte at a time
            return
        position += wanted


def _output(arrived: Iterable[object], until: Until) -> Iterator[frames.Output]:
    for count, frame in enumerate(arrived):
        _check(count, until)
        if isinstance(frame, frames.Output):
            yield frame


def _check(count: int, until: Until) -> None:
    """Raise Interrupted if it is enough; asks in every `LOOK_UP`th step."""
    if count % LOOK_UP == 0 and until():
        raise Interrupted("interrupted")


def first_frame(data: bytes, until: Until = never) -> int | None:
    """Return where the first whole frame begins in the last bytes of a journal; None: nowhere yet.

    From there all frames follow each other with consecutive numbers; the last may be incomplete.
    Headers from which no chain reaches the end are remembered, so that chains which meet are
    followed once; their number is limited.

    Raises ProtocolError if no journal has such an end, Interrupted.
    """
    chains = Chains(data)
    for tried, found in enumerate(_HEADER.finditer(data, 0, min(len(data), _REACH))):
        _check(tried, until)
        if chains.leads_on(found.start()):
            return found.start()
        if tried + len(chains.wrong) > MOST_TRIED:
            raise ProtocolError("no frames follow each other at its end")
    if len(data) >= _REACH:
        raise ProtocolError("no frame begins at its end")
    return None


class Chains:
    """Follows frames from header to header."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.wrong: set[int] = set()
        """Places of headers from which frames do not follow each other."""

    def leads_on(self, start: int) -> bool:
        """Return whether frames follow each other from there to the end, or for long enough."""
        passed: list[int] = []
        position, before = start, 0
        while position + frames.HEADER.size <= len(self.data) and len(passed) < ENOUGH:
            length, kind, number = frames.HEADER.unpack_from(self.data, position)
            is_header = kind in (frames.MESSAGE, frames.OUTPUT) and length <= frames.LONGEST[kind]
            follows = number > 0 and before in (0, number - 1)
            if position in self.wrong or not is_header or not follows:
                self.wrong.update(passed)
                return False
            passed.append(position)
            position += frames.HEADER.size + length
            before = number
        return len(passed) > 1
