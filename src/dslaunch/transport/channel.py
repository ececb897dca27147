"""What all channels have in common: one receiver, its pauses, and one end."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING

from dslaunch.transport import loop
from dslaunch.transport.base import End
from dslaunch.transport.outbox import Outbox

if TYPE_CHECKING:
    from dslaunch.transport.base import Channel, Receiver

PIECE = 64 * 1024
"""Bytes that are read at a time, at most."""
STDERR_KEPT = 64 * 1024
EXIT_TIMEOUT = 2.0
"""Seconds for an exit code after the end of a program's output."""


class PushChannel:
    """Gives one receiver all output of a program, and its end.

    A transport calls `deliver` and `tell_end` in the loop's thread, and overrides `read_on`.
    """

    __slots__ = ("_receiver", "_unheard", "loop", "paused", "told")

    def __init__(self) -> None:
        self.loop = loop.shared()
        self.paused = False
        self.told = False
        """Whether the end was reported."""
        self._receiver: Receiver | None = None
        self._unheard: End | None = None
        """The end that came before there was a receiver."""

    def listen(self, receiver: Receiver) -> None:
        """Give all output to `receiver`."""

        def begin() -> None:
            self._receiver = receiver
            if self._unheard is not None:
                self.tell_end(self._unheard)
            self.read_on()

        self.loop.call(begin)

    def pause(self) -> None:
        """Give the receiver no output until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Continue after `pause`."""
        self.paused = False
        self.loop.call(self.read_on)

    @property
    def unread(self) -> bool:
        """Return whether something has arrived that is read by another thread than the loop's."""
        return False

    @property
    def wanted(self) -> bool:
        """Whether there is a receiver that takes output now."""
        return self._receiver is not None and not self.paused and not self.told

    def read_on(self) -> None:
        """Deliver what there is, and what comes, as long as it is wanted."""
        raise NotImplementedError

    def deliver(self, data: bytes) -> None:
        """Give output to the receiver."""
        assert self._receiver is not None
        self._receiver.received(data)

    def tell_end(self, end: End) -> None:
        """Report the end, once."""
        if self._receiver is None:
            self._unheard = end
        elif not self.told:
            self.told = True
            self._receiver.ended(end)


class QueueingChannel(PushChannel):
    """A channel that keeps what is written until the program takes it.

    A transport overrides `send` and `end_input`, which may be called in any thread, and calls
    `outbox.go_on` when more can be sent.
    """

    __slots__ = ("outbox",)

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(self.send, self.end_input)

    def write(self, data: bytes) -> None:
        """Send data to its standard input."""
        self.outbox.put(data)

    @property
    def unsent(self) -> int:
        """How many bytes were not taken yet."""
        return self.outbox.unsent

    def flush(self, timeout: float) -> bool:
        """Wait until all was sent, at most `timeout` seconds; return whether it was."""
        return self.outbox.flush(timeout)

    def close_input(self) -> None:
        """Close its standard input after all that was written."""
        self.outbox.finish()

    def send(self, data: memoryview) -> int:
        """Pass some bytes on without waiting; return how many were taken. See `Outbox`."""
        raise NotImplementedError

    def end_input(self) -> None:
        """Close its standard input: everything was sent."""
        raise NotImplementedError


class ChannelOutput:
    """The output of a program, for a thread that waits for it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._arrived: SimpleQueue[bytes | End] = SimpleQueue()
        self._end: End | None = None
        channel.listen(self)

    def received(self, data: bytes) -> None:
        """Keep one piece; the next one is wanted when this one is read."""
        self._channel.pause()
        self._arrived.put(data)

    def ended(self, end: End) -> None:
        """Keep how the program has ended."""
        self._arrived.put(end)

    def read(self) -> bytes:
        """Wait for standard output and return it; empty at its end."""
        if self._end is not None:
            return b""
        arrived = self._arrived.get()
        if isinstance(arrived, bytes):
            self._channel.resume()
            return arrived
        self._end = arrived
        return b""

    def end(self) -> End:
        """Return how the program has ended; all of its output is left out that was not read."""
        while self._end is None:
            self.read()
        return self._end
