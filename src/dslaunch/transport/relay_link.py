"""The launcher's end of a relay on an inner node of a tree: logins by that node, as channels.

See `node/relay.py` for the other end and `node/relay_frames.py` for the frames between them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from queue import SimpleQueue
from typing import TYPE_CHECKING

from dslaunch.json_text import json_text
from dslaunch.node import relay_frames
from dslaunch.transport.login_shell import LoginOutput
from dslaunch.transport.waiting import SharingChannel

if TYPE_CHECKING:
    from dslaunch.transport.node_login import Child
    from dslaunch.transport.waiting import WaitingChannel

REPORTED_AT_ONCE = relay_frames.WINDOW // 4
"""Bytes that were read before the relay may send as many more."""
SHARED_LEAST = 4096
"""Bytes of a text that is worth to be kept by a relay."""
END_TIMEOUT = 4.0
"""Seconds for a relay to end its logins and to exit."""


class RelayLostError(OSError):
    """The connection to the relay has ended, or the relay sent no frames."""


class LoginRefusedError(Exception):
    """The node of the relay could not log in to a child."""

    def __init__(self, how: int, words: str) -> None:
        """`how`: NO_SSH, NO_LOGIN, INVALID or EXITED of `relay_frames`; `words`: what ssh wrote."""
        super().__init__(words)
        self.how, self.words = how, words


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """Bytes for the relay, and after them a text that other relays get too."""

    data: bytes
    text: bytes = b""


class RelayLink:
    """One relay. A thread reads its frames, another writes: no caller waits for other logins."""

    def __init__(self, channel: WaitingChannel) -> None:
        """`channel`: where the program `relay` has been started; nothing was sent to it yet."""
        self._channel = channel
        self._changing = threading.Lock()
        self._logins: dict[int, RelayedChannel] = {}
        self._next = 1
        self._greeted = threading.Event()
        self._outbox: SimpleQueue[_Outgoing | None] = SimpleQueue()
        self._places: OrderedDict[bytes, int] = OrderedDict()
        """The texts that the relay keeps, by SHA-256; the one that was used last is the last."""
        self._heard_at = time.monotonic()
        self.sent = 0
        """Bytes that were sent to the relay."""
        self.over = False
        self.ended_at = 0.0
        """When it was lost, on the monotonic clock."""

    def begin(self, text: bytes, timeout: float) -> None:
        """Send the relay its program, and wait until it greets. Raises RelayLostError."""
        self._outbox.put(_Outgoing(b"", text))
        for name, work in (("reads", self._read), ("writes", self._write)):
            threading.Thread(target=work, name=f"relay {name}", daemon=True).start()
        self._greeted.wait(timeout)
        if self.over or not self._greeted.is_set():
            self.abandon()
            raise RelayLostError("the relay did not start")

    def open(self, child: Child) -> RelayedChannel:
        """Log in to a child. Raises LoginRefusedError, RelayLostError."""
        with self._changing:
            if self.over:
                raise RelayLostError("the relay has ended")
            number = self._next
            self._next += 1
            channel = self._logins[number] = RelayedChannel(self, number)
        body = json_text(child.as_data()).encode()
        self.send(relay_frames.frame(relay_frames.OPEN, number, body))
        channel.wait_for_login()
        return channel

    def send(self, data: bytes) -> None:
        """Queue bytes. What a channel may queue is bounded by its window."""
        self._outbox.put(_Outgoing(data))

    def send_text(self, number: int, text: bytes) -> None:
        """Queue input of a channel, of at most PIECE bytes, which other channels get too."""
        digest = sha256(text).digest()
        with self._changing:  # another text must not take its place before it is used
            if digest not in self._places:
                place = self._free_place()
                self._places[digest] = place
                header = relay_frames.header(relay_frames.DEFINE, place, len(text))
                self._outbox.put(_Outgoing(header, text))
            self._places.move_to_end(digest)
            self.send(relay_frames.text(number, self._places[digest]))

    def _free_place(self) -> int:
        """Return a place for a text: where they are all taken, that of the one longest unused."""
        if len(self._places) < relay_frames.PLACES:
            return len(self._places)
        return self._places.popitem(last=False)[1]

    def unheard_for(self) -> float:
        """Return for how many seconds the relay has sent nothing."""
        return time.monotonic() - self._heard_at

    def ping(self) -> None:
        """Make the relay send something."""
        self.send(relay_frames.frame(relay_frames.PING, 0))

    def close(self) -> None:
        """Let the relay end its logins and exit, and wait for that. Never raises."""
        self._outbox.put(None)
        if not self.over:
            self._channel.wait(END_TIMEOUT)
        self.abandon()

    def abandon(self) -> None:
        """End the connection to the relay now; all its logins are lost. Safe to call twice."""
        self._lose()
        self._channel.close()

    def forget(self, number: int) -> None:
        """Release a channel that has ended."""
        with self._changing:
            self._logins.pop(number, None)

    # ------------------------------------------------------------ the two threads

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the reading thread notices it too
            while (outgoing := self._outbox.get()) is not None:
                self._write_one(outgoing)
        self._channel.close_input()

    def _write_one(self, outgoing: _Outgoing) -> None:
        self.sent += len(outgoing.data) + len(outgoing.text)
        if outgoing.data:
            self._channel.write(outgoing.data)
        if outgoing.text and isinstance(self._channel, SharingChannel):
            self._channel.write_shared(outgoing.text)
        elif outgoing.text:
            self._channel.write(outgoing.text)

    def _read(self) -> None:
        login = LoginOutput(relay_frames.GREETING)
        decoder = relay_frames.Decoder()
        try:
            while data := self._channel.read():
                self._heard_at = time.monotonic()
                if not login.greeted:
                    data = login.add(data)
                    if login.greeted:
                        self._greeted.set()
                    if login.endless:
                        break
                for kind, number, body in decoder.feed(data) if login.greeted else ():
                    self._take(kind, number, body)
        except (OSError, relay_frames.RelayFrameError):
            pass
        finally:
            self._lose()

    def _take(self, kind: int, number: int, body: bytes) -> None:
        with self._changing:
            channel = self._logins.get(number)
        if channel is None:  # a pong, or about a channel that was closed meanwhile
            return
        channel.take(kind, body)
        if kind == relay_frames.FINISHED:
            self.forget(number)

    def _lose(self) -> None:
        with self._changing:
            if not self.over:
                self.over, self.ended_at = True, time.monotonic()
            lost, self._logins = list(self._logins.values()), {}
        self._greeted.set()
        self._outbox.put(None)
        for channel in lost:
            channel.lose()


class RelayedChannel:
    """A program on a child of a relay's node."""

    def __init__(self, link: RelayLink, number: int) -> None:
        self._link, self._number = link, number
        self._changed = threading.Condition()
        self._logged_in = False
        self._pieces: list[bytes] = []
        self._unread = 0
        """Bytes in `_pieces`."""
        self._unreported = 0
        """Bytes that were read since the relay was last told."""
        self._window = relay_frames.WINDOW
        """Bytes that the relay still takes."""
        self._input_closed = self._output_ended = self._closed = False
        self._end: tuple[int, int, bytes] | None = None
        self._lost = False

    # ------------------------------------------------------------ as every channel

    def read(self) -> bytes:
        """Wait for standard output and return it; empty at its end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._output_over)
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._unread = 0
            self._unreported += len(data)
            report = self._unreported if self._unreported >= REPORTED_AT_ONCE else 0
            self._unreported -= report
        if report:
            self._link.send(relay_frames.passed(self._number, report))
        return data

    def write(self, data: bytes) -> None:
        """Send all of `data`. Raises OSError if the program has exited or the relay is lost."""
        rest = memoryview(data)
        while rest:
            size = self._take_window(len(rest))
            body = bytes(rest[:size])
            self._link.send(relay_frames.frame(relay_frames.DATA, self._number, body))
            rest = rest[size:]

    def write_shared(self, data: bytes) -> None:
        """As `write`, for data that other nodes get too: it is sent to the relay once."""
        for start in range(0, len(data), relay_frames.PIECE):
            piece = data[start : start + relay_frames.PIECE]
            if len(piece) < SHARED_LEAST:
                self.write(piece)
            else:
                self._take_window(len(piece), whole=True)
                self._link.send_text(self._number, piece)

    def close_input(self) -> None:
        """Close its standard input."""
        with self._changed:
            if self._input_closed or self._over:
                return
            self._input_closed = True
            self._changed.notify_all()
        self._link.send(relay_frames.frame(relay_frames.INPUT_ENDED, self._number))

    def close(self) -> None:
        """End the login; its end is not waited for."""
        with self._changed:
            was_over = self._over
            self._closed = True
            self._pieces.clear()
            self._changed.notify_all()
        if not was_over:
            self._link.send(relay_frames.frame(relay_frames.CLOSE, self._number))

    def wait(self, timeout: float) -> int | None:
        """Return its exit code; None if it has not exited in time or the connection was lost."""
        with self._changed:
            self._changed.wait_for(lambda: self._end is not None or self._lost, timeout)
            if self._end is None or self._end[0] < 0:
                return None
            return self._end[0]

    def stderr(self) -> str:
        """Return the last 64 KiB of standard error, once the program has ended."""
        with self._changed:
            return self._end[2].decode(errors="replace") if self._end is not None else ""

    # ------------------------------------------------------------ for the link

    def wait_for_login(self) -> None:
        """Wait until the login has succeeded. Raises LoginRefusedError, RelayLostError.

        The relay limits the time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._logged_in or self._over)
            if self._logged_in:
                return
            if self._end is None:
                raise RelayLostError("the relay was lost during a login")
            _, how, words = self._end
            raise LoginRefusedError(how, words.decode(errors="replace"))

    def take(self, kind: int, body: bytes) -> None:
        """Take a frame of the relay. Raises RelayFrameError for one that it may not send."""
        with self._changed:
            if kind == relay_frames.DATA:
                self._take_output(body)
            elif kind == relay_frames.PASSED:
                self._window += relay_frames.amount_of(body)
                if self._window > relay_frames.WINDOW:
                    raise relay_frames.RelayFrameError("more was passed on than was sent")
            elif kind == relay_frames.OPENED:
                self._logged_in = True
            elif kind == relay_frames.OUTPUT_ENDED:
                self._output_ended = True
            elif kind == relay_frames.FINISHED:
                self._end = relay_frames.end_of(body)
            else:
                raise relay_frames.RelayFrameError(f"kind {kind} from a relay")
            self._changed.notify_all()

    def lose(self) -> None:
        """The relay is lost."""
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def _take_output(self, data: bytes) -> None:
        if self._unread + self._unreported + len(data) > relay_frames.WINDOW:
            raise relay_frames.RelayFrameError("more output than the window allows")
        if not self._closed:
            self._pieces.append(data)
            self._unread += len(data)

    def _take_window(self, wanted: int, *, whole: bool = False) -> int:
        """Wait until the relay takes more, with `whole` all that is wanted; return how much may be
        sent now. Raises OSError."""
        least = wanted if whole else 1
        with self._changed:
            self._changed.wait_for(lambda: self._window >= least or self._input_over)
            if self._input_over:
                raise BrokenPipeError("closed")
            size = min(wanted, self._window, relay_frames.PIECE)
            self._window -= size
            return size

    @property
    def _over(self) -> bool:
        return self._closed or self._lost or self._end is not None

    @property
    def _output_over(self) -> bool:
        return self._output_ended or self._over

    @property
    def _input_over(self) -> bool:
        return self._input_closed or self._over
