"""The launcher's end of a relay on an inner node of a tree: logins by that node, as channels.

See `node/relay.py` for the other end and `node/relay_frames.py` for the frames between them. All
that a relay sends is taken in the thread of all connections (`loop`).
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from dslaunch import log
from dslaunch.json_text import json_text
from dslaunch.node import relay_frames
from dslaunch.transport import loop
from dslaunch.transport.base import End, others_began
from dslaunch.transport.channel import EXIT_TIMEOUT, QueueingChannel
from dslaunch.transport.future import Future
from dslaunch.transport.login_shell import LoginOutput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dslaunch.transport.base import Channel
    from dslaunch.transport.node_login import Child

REPORTED_AT_ONCE = relay_frames.OUTPUT_WINDOW // 4
"""Bytes that were delivered before the relay may send as many more."""
SHARED_LEAST = 4096
"""Bytes of a text that is worth to be kept by a relay."""
END_TIMEOUT = 4.0
"""Seconds for a relay to end its logins and to exit."""

_log = log.Log(__name__)


class RelayLostError(OSError):
    """The connection to the relay has ended, or the relay does not answer."""


class LoginRefusedError(Exception):
    """The node of the relay could not log in to a child."""

    def __init__(self, how: int, words: str) -> None:
        """`how`: NO_SSH, NO_LOGIN, INVALID or EXITED of `relay_frames`; `words`: what ssh wrote."""
        super().__init__(words)
        self.how, self.words = how, words


class SharedPiece(bytes):
    """Input of at most MOST_TEXT bytes that several nodes get, and in which there are no secrets: a
    relay is sent it once, and keeps it."""


@functools.lru_cache(maxsize=8)
def shared_pieces(text: bytes) -> tuple[SharedPiece, ...]:
    """Return a text in pieces: the same objects for all nodes that get it."""
    most = relay_frames.MOST_TEXT
    starts = range(0, len(text), most)
    return tuple(SharedPiece(text[start : start + most]) for start in starts)


class RelayLink:
    """One relay: takes its frames, and sends it those of all its logins."""

    def __init__(self, channel: Channel) -> None:
        """`channel`: where the program `relay` was started."""
        self._channel = channel
        self._changing = threading.Lock()
        """For `_logins`, `_next` and `over`."""
        self._sending = threading.Lock()
        """For `_places`, and for what must be sent without other frames in between."""
        self._gathered: list[bytes] = []
        """Frames that are written at once, in the loop's next turn: each write costs as much as
        several frames, on every relay on the way."""
        self._logins: dict[int, RelayedChannel] = {}
        self._next = 1
        self._places: OrderedDict[SharedPiece, int] = OrderedDict()
        """Where the relay keeps which text; the one that was used last is the last."""
        self._login = LoginOutput(relay_frames.GREETING)
        self._decoder = relay_frames.Decoder()
        self._greeted = threading.Event()
        """Set when the relay has greeted, or is lost."""
        self._ended = threading.Event()
        """Set when the program has exited, or its connection has ended."""
        self.unanswered = 0
        """Pings since the relay has last sent something, or read what waited to be sent."""
        self._unsent = self._taken = 0
        """Bytes that the connection had not taken, and had taken, at the last ping."""
        self._pinging = False
        """Whether the loop is to send a ping."""
        self.sent = 0
        """Bytes that were sent to the relay, without its program."""
        self.over = False
        self.ended_at = 0.0
        """When it was lost, on the monotonic clock."""
        self._began = 0.0
        """When a login of the relay, or a program on a child, has begun last."""

    def begin(self, timeout: float) -> None:
        """Listen, and wait until the relay greets: at most so many seconds since another program
        behind the same relays has begun. Raises RelayLostError."""
        self._channel.listen(self)
        left = timeout
        while left > 0 and not self._greeted.wait(left):
            left = others_began(self._channel) + timeout - time.monotonic()
        if self.over or not self._greeted.is_set():
            self.abandon()
            raise RelayLostError("the relay did not start")

    def open(self, child: Child, timeout: float) -> RelayedChannel:
        """Log in to a child. Raises LoginRefusedError, RelayLostError.

        The relay limits the time of a login itself: one that has not reported after `timeout`
        seconds how it ended is given up.
        """
        with self._changing:
            if self.over:
                raise RelayLostError("the relay has ended")
            number = self._next
            self._next += 1
            channel = self._logins[number] = RelayedChannel(self, number)
        body = json_text(child.as_data()).encode()
        self.send(relay_frames.frame(relay_frames.OPEN, number, body))
        try:
            channel.login.result(timeout)
        except TimeoutError:
            self.abandon()
            raise RelayLostError("the relay did not report a login") from None
        return channel

    def ping(self) -> None:
        """Make the relay send something.

        A ping counts from when everything is handled that has arrived: a loop that is busy with
        thousands of nodes must not take a relay for silent.
        """
        if not self._pinging:
            self._pinging = True
            loop.shared().call_when_handled(self._ping)

    def _ping(self) -> None:
        self._pinging = False
        self._write_gathered()
        unsent = self._channel.unsent
        taken = self.sent - unsent
        if self._unsent and taken > self._taken:
            # the buffers between here and there were full, so the relay has read something: a ping
            # that waits behind megabytes is not answered earlier
            self.unanswered = 0
        self._unsent, self._taken = unsent, taken
        if not self.unread:
            self.unanswered += 1
        self.send(relay_frames.frame(relay_frames.PING, 0))

    def close(self) -> None:
        """Let the relay end its logins and exit, and wait for that. Never raises."""
        self._write_gathered()
        self._channel.close_input()
        if not self.over:
            self._ended.wait(END_TIMEOUT)
        self.abandon()

    def abandon(self) -> None:
        """End the connection to the relay now; all its logins are lost. Safe to call twice."""
        self._lose()
        self._channel.close()

    # ------------------------------------------------------------ for its channels

    @property
    def unread(self) -> bool:
        """Whether something of the relay has arrived that was not read yet."""
        return self._channel.unread

    def note_beginning(self) -> None:
        """Take note that a login has succeeded, or that a program on a child has begun."""
        self._began = time.monotonic()

    def last_beginning(self) -> float:
        """Return when that has happened last behind this relay, or behind those before it."""
        return max(self._began, others_began(self._channel))

    def send(self, data: bytes) -> None:
        """Send whole frames soon. What a channel may send is bounded by its window."""
        with self._sending:
            self._gather(data)

    def send_shared(self, number: int, piece: SharedPiece) -> None:
        """Send input of a channel which other channels get too."""
        with self._sending:
            place = self._places.get(piece)
            if place is None:
                place = self._places[piece] = self._free_place()
                self._gather(relay_frames.header(relay_frames.DEFINE, place, len(piece)))
                self._gather(piece)
            self._places.move_to_end(piece)
            self._gather(relay_frames.text(number, place))

    def _gather(self, data: bytes) -> None:
        self.sent += len(data)
        self._gathered.append(data)
        if len(self._gathered) == 1:
            loop.shared().call(self._write_gathered)

    def _write_gathered(self) -> None:
        with self._sending:
            gathered, self._gathered = self._gathered, []
            for data in _joined(gathered):
                self._channel.write(data)

    def _free_place(self) -> int:
        """Return a place for a text: where they are all taken, that of the one longest unused."""
        if len(self._places) < relay_frames.PLACES:
            return len(self._places)
        return self._places.popitem(last=False)[1]

    def forget(self, number: int) -> None:
        """Release a channel that has ended."""
        with self._changing:
            self._logins.pop(number, None)

    # ------------------------------------------------------------ what the relay sends

    def received(self, data: bytes) -> None:
        """Take what the login prints, and then frames; the relay is lost if they are none."""
        if self.over:
            return
        self.unanswered = 0
        if not self._login.greeted:
            data = self._take_login(data)
        try:
            for kind, number, body in self._decoder.feed(data):
                self._take(kind, number, body)
        except relay_frames.RelayFrameError as error:
            _log.info("relay-invalid", error=str(error))
            self.abandon()

    def ended(self, end: End) -> None:
        """Take note that the relay has ended."""
        self._lose()
        self._ended.set()

    def _take_login(self, data: bytes) -> bytes:
        """Take what comes before the frames; return the frames."""
        rest = self._login.add(data)
        if self._login.greeted:
            self._greeted.set()
            return rest
        if self._login.endless:
            self.abandon()
        return b""

    def _take(self, kind: int, number: int, body: bytes) -> None:
        with self._changing:
            channel = self._logins.get(number)
        if channel is not None:  # else a pong, or about a channel that was closed meanwhile
            channel.take(kind, body)

    def _lose(self) -> None:
        with self._changing:
            if not self.over:
                self.over, self.ended_at = True, time.monotonic()
            lost, self._logins = list(self._logins.values()), {}
        self._greeted.set()
        for channel in lost:
            channel.lose()


def _joined(frames: list[bytes]) -> Iterator[bytes]:
    """Join what is sent, but for shared pieces: those that a relay before this one keeps too are
    sent to it once."""
    for is_shared, several in itertools.groupby(frames, lambda data: isinstance(data, SharedPiece)):
        if is_shared:
            yield from several
        else:
            yield b"".join(several)


class RelayedChannel(QueueingChannel):
    """A program on a child of a relay's node."""

    __slots__ = (
        "_counting",
        "_end",
        "_link",
        "_number",
        "_output_began",
        "_output_ended",
        "_undelivered",
        "_unreported",
        "_window",
        "login",
    )

    def __init__(self, link: RelayLink, number: int) -> None:
        super().__init__()
        self.login: Future[None] = Future()
        """Done when the child has let the relay in. Raises LoginRefusedError, RelayLostError."""
        self._link, self._number = link, number
        self._undelivered = bytearray()
        """Output for the receiver. Only in the loop's thread, as all about output."""
        self._unreported = 0
        """Bytes that were delivered since the relay was last told."""
        self._counting = threading.Lock()
        self._window = relay_frames.INPUT_WINDOW
        """Bytes of input that the relay still takes."""
        self._output_began = self._output_ended = False
        self._end: End | None = None

    # ------------------------------------------------------------ its input

    def write_text(self, text: bytes) -> None:
        """Send input that other nodes get too, and in which there are no secrets."""
        for piece in shared_pieces(text) if len(text) >= SHARED_LEAST else (text,):
            self.write(piece)

    def send(self, data: memoryview) -> int:
        """Send what the window allows; a shared piece as a whole, or not yet."""
        piece = data.obj
        if isinstance(piece, SharedPiece):
            size = self._take_window(len(data), least=len(data))
            if size:
                self._link.send_shared(self._number, piece)
        else:
            size = self._take_window(min(len(data), relay_frames.PIECE), least=1)
            if size:
                body = bytes(data[:size])
                self._link.send(relay_frames.frame(relay_frames.DATA, self._number, body))
        return size

    def end_input(self) -> None:
        """Close its standard input: everything was sent."""
        self._link.send(relay_frames.frame(relay_frames.INPUT_ENDED, self._number))

    def _take_window(self, wanted: int, *, least: int) -> int:
        """Return how many bytes may be sent now: at least `least`, or none."""
        with self._counting:
            size = min(wanted, self._window)
            if size < least:
                return 0
            self._window -= size
            return size

    def _widen_window(self, amount: int) -> None:
        with self._counting:
            self._window += amount
            is_possible = self._window <= relay_frames.INPUT_WINDOW
        if not is_possible:
            raise relay_frames.RelayFrameError("more was passed on than was sent")
        self.outbox.go_on()

    # ------------------------------------------------------------ its output

    @property
    def unread(self) -> bool:
        """Return whether something has arrived that was not read yet, of any login of the relay."""
        return self._link.unread

    def read_on(self) -> None:
        """Deliver what has come, and let the relay send more."""
        while self.wanted and self._undelivered:
            data = bytes(self._undelivered)
            self._undelivered.clear()
            self._unreported += len(data)
            self.deliver(data)
        if self._unreported >= REPORTED_AT_ONCE and self._end is None:
            self._link.send(relay_frames.passed(self._number, self._unreported))
            self._unreported = 0
        if self.wanted and self._end is not None:
            self.tell_end(self._end)

    def take(self, kind: int, body: bytes) -> None:
        """Take a frame of the relay. Raises RelayFrameError for one that it may not send."""
        if kind == relay_frames.DATA:
            self._take_output(body)
        elif kind == relay_frames.PASSED:
            self._widen_window(relay_frames.amount_of(body))
        elif kind == relay_frames.OPENED:
            self._logged_in()
        elif kind == relay_frames.OUTPUT_ENDED:
            self._end_output()
        elif kind == relay_frames.FINISHED:
            self._take_finish(body)
        else:
            raise relay_frames.RelayFrameError(f"kind {kind} from a relay")

    def _logged_in(self) -> None:
        if not self.login.done():
            self._link.note_beginning()
            self.login.set_result(None)

    def _take_output(self, data: bytes) -> None:
        if len(self._undelivered) + self._unreported + len(data) > relay_frames.OUTPUT_WINDOW:
            raise relay_frames.RelayFrameError("more output than the window allows")
        if not self._output_began:
            self._output_began = True
            self._link.note_beginning()
        self._undelivered += data
        self.read_on()

    def _end_output(self) -> None:
        if not self._output_ended:
            self._output_ended = True
            self.loop.call_later(EXIT_TIMEOUT, lambda: self._finish(End()))

    def others_began(self) -> float:
        """Return when a login or a program behind the same relays has begun last."""
        return self._link.last_beginning()

    # ------------------------------------------------------------ its end

    def close(self) -> None:
        """End the login; nothing waits for the relay, which may be the reason."""
        self.outbox.discard()
        self.loop.call(self._close)

    def lose(self) -> None:
        """The relay is lost."""
        self.loop.call(lambda: self._finish(End(), RelayLostError("the relay was lost")))

    def _close(self) -> None:
        if self._end is None:
            self._link.send(relay_frames.frame(relay_frames.CLOSE, self._number))
            self._link.forget(self._number)
        self._undelivered.clear()
        self._finish(End())

    def _take_finish(self, body: bytes) -> None:
        code, how, errors = relay_frames.end_of(body)
        words = errors.decode(errors="replace")
        self._link.forget(self._number)
        end = End(None if code < 0 else code, words)
        self._finish(end, LoginRefusedError(how, words))

    def _finish(self, end: End, error: Exception | None = None) -> None:
        """Take note of the first end; the receiver gets it after all output."""
        if self._end is None:
            self._end = end
            self.outbox.discard()
            if not self.login.done():
                self.login.set_exception(error or RelayLostError("it has ended"))
            self.read_on()
