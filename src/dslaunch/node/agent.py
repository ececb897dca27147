"""The one program on each node: starts, watches, streams and ends that node's processes.

It talks frames on its standard input and output. When its input ends, or the launcher falls
silent, it ends everything that it started and leaves. A guardian process, its parent, does the
same should the agent itself be killed.
"""

from __future__ import annotations

import os
import queue
import selectors
import signal
import sys
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from dslaunch.node import files, frames, probe, processes
from dslaunch.node.ranks import Ranks

TICK = 0.05
BEAT = 5.0
STRAY_GRACE = 2.0
LOST_GRACE = 5.0
OUTBOX_FULL, OUTBOX_LOW = 8 << 20, 1 << 20


class Agent:
    """One node's end of a run. A single thread; questions that may hang have their own."""

    def __init__(self, run: str, host: str, silence: float) -> None:
        self.run, self.host, self.silence = run, host, silence
        self.home = os.path.expanduser("~")
        self.directory: Optional[str] = None
        self.selector = selectors.DefaultSelector()
        self.decoder = frames.Decoder()
        self.outbox: Deque[bytes] = deque()
        self.pending = 0
        self.replies: "queue.SimpleQueue[frames.Message]" = queue.SimpleQueue()
        self.archives: Dict[int, Any] = {}
        self.ranks: Optional[Ranks] = None
        self.deadline: Optional[float] = None
        self.connected, self.done = True, False
        self.heard = self.beaten = time.monotonic()
        self.guardian = os.getppid()

    # ------------------------------------------------------------ the loop

    def serve(self) -> None:
        """Serve the launcher until it says goodbye or is gone."""
        self.prepare()
        while self.connected or (self.ranks and not self.done):
            for key, _ in self.selector.select(self.patience()):
                key.data()
            self.tick()
        files.remove_node_directory(self.run, self.host)

    def patience(self) -> float:
        """Seconds to wait for something to happen before looking ourselves."""
        if self.ranks is None or self.done:
            return BEAT / 5
        return TICK if self.deadline is not None else self.ranks.patience()

    def prepare(self) -> None:
        """Set up signals and streams, and greet."""
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.end(LOST_GRACE))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        wake, self.wake = os.pipe()
        for fd in (0, 1, wake, self.wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        self.selector.register(0, selectors.EVENT_READ, self.hear)
        self.selector.register(wake, selectors.EVENT_READ, lambda: self.woken(wake))
        self.post(frames.GREETING)
        self.say({"event": "hello", **probe.identity(self.home)})

    def woken(self, wake: int) -> None:
        """A child ended, or a thread has an answer."""
        os.read(wake, 4096)
        while not self.replies.empty():
            self.say(self.replies.get())

    def tick(self) -> None:
        """What is done whether or not something happened."""
        now = time.monotonic()
        if now - self.beaten >= BEAT:
            self.beaten = now
            self.say({"event": "beat"})
        if now - self.heard > self.silence:
            self.connected = False
        if os.getppid() != self.guardian:
            self.connected = False
            self.end(0)
        if not self.connected:
            self.end(LOST_GRACE)
        if self.ranks and not self.done:
            self.ranks.watch()
            self.advance()

    # ------------------------------------------------------------ speaking and hearing

    def say(self, message: frames.Message) -> None:
        """Send an event or a reply, with our time."""
        message.setdefault("time", time.time())
        self.post(frames.pack_message(message))

    def post(self, data: bytes) -> None:
        """Queue bytes for the launcher; if it reads too slowly, stop reading the ranks."""
        self.outbox.append(data)
        self.pending += len(data)
        self.flush()
        if self.pending > OUTBOX_FULL and self.ranks:
            self.ranks.pause()

    def flush(self) -> None:
        """Write what can be written now."""
        while self.outbox and self.connected:
            try:
                sent = os.write(1, self.outbox[0])
            except BlockingIOError:
                break
            except OSError:
                self.connected = False
                return
            self.pending -= sent
            rest = self.outbox.popleft()[sent:]
            if rest:
                self.outbox.appendleft(rest)
        self.want_to_write(bool(self.outbox) and self.connected)
        if self.pending < OUTBOX_LOW and self.ranks:
            self.ranks.resume()

    def want_to_write(self, wanted: bool) -> None:
        """Be told, or no longer, when the launcher can take more."""
        registered = 1 in self.selector.get_map()
        if wanted and not registered:
            self.selector.register(1, selectors.EVENT_WRITE, self.flush)
        elif registered and not wanted:
            self.selector.unregister(1)

    def hear(self) -> None:
        """Read what the launcher says; the end of it means that it is gone."""
        try:
            data = os.read(0, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.heard = time.monotonic()
        if not data:
            self.connected = False
            self.selector.unregister(0)
            return
        for frame in self.decoder.feed(data):
            if isinstance(frame, frames.Data):
                self.receive(frame)
            elif isinstance(frame, dict):
                self.obey(frame)

    def obey(self, message: frames.Message) -> None:
        """Do what a message says."""
        operations: Dict[str, Callable[[frames.Message], None]] = {
            "ask": self.ask,
            "clock": lambda m: self.say({"reply": m["id"], "value": None}),
            "put": self.put,
            "start": self.start,
            "stop": lambda m: self.end(m["grace"]),
            "ping": lambda m: None,
            "bye": self.leave,
        }
        operations[message["op"]](message)

    def in_thread(self, id: int, work: Callable[[], Any]) -> None:
        """Do what may take long, or hang on a dead file system, without holding up the rest."""

        def run() -> None:
            try:
                reply = {"reply": id, "value": work()}
            except (OSError, ValueError) as error:
                reply = {"reply": id, "error": str(error)}
            self.replies.put(reply)
            os.write(self.wake, b"r")

        threading.Thread(target=run, daemon=True).start()

    def ask(self, message: frames.Message) -> None:
        """Answer questions."""
        questions = message["questions"]
        self.in_thread(message["id"], lambda: probe.answer(questions, home=self.home))

    def put(self, message: frames.Message) -> None:
        """Take an archive that follows as data, and unpack it below `root`."""
        path = os.path.join(self.node_directory(), f"archive-{message['id']}")
        root = probe.absolute(message["root"], self.home)
        self.archives[message["id"]] = (open(path, "wb"), path, root)  # noqa: SIM115 - open over many frames

    def receive(self, frame: frames.Data) -> None:
        """A piece of an archive; the empty one is its end."""
        archive, path, root = self.archives[frame.id]
        if frame.data:
            archive.write(frame.data)
            return
        archive.close()
        del self.archives[frame.id]
        self.in_thread(frame.id, lambda: files.unpack(path, root))

    def node_directory(self) -> str:
        """This run's directory on this node, made when first needed."""
        if self.directory is None:
            self.directory = files.make_node_directory(self.run, self.host)
        return self.directory

    # ------------------------------------------------------------ processes

    def start(self, message: frames.Message) -> None:
        """Start the node's processes."""
        directory = self.node_directory()
        logs = os.path.join(directory, "logs")
        os.makedirs(logs, exist_ok=True)
        for file in message["files"]:
            files.write_private(os.path.join(directory, file["name"]), file["text"])
        own = {
            processes.RUN_ID: self.run,
            processes.HOST: self.host,
            "DSLAUNCH_NODE_DIR": directory,
            "DSLAUNCH_LOGS": logs,
        }
        self.ranks = Ranks(message, {**os.environ, **message["env"], **own}, self)
        probe.hang_up()
        self.ranks.start(probe.absolute(message["cwd"], self.home))

    def listen(self, fd: int, callback: Callable[[], None]) -> None:
        """Have `callback` called when `fd` has something."""
        self.selector.register(fd, selectors.EVENT_READ, callback)

    def ignore(self, fd: int) -> None:
        """Undo `listen`."""
        if fd in self.selector.get_map():
            self.selector.unregister(fd)

    def end(self, grace: float) -> None:
        """Ask what runs to end, and make it after `grace` seconds. A second call can only hurry."""
        deadline = time.monotonic() + grace
        if self.ranks is None or self.done:
            return
        if self.deadline is None and grace:
            self.ranks.ask_to_end()
        self.deadline = min(deadline, self.deadline or deadline)

    def advance(self) -> None:
        """Go on towards the end: all started processes, then what they left, then the proof."""
        if self.ranks is None or (self.deadline is None and self.ranks.running()):
            return
        living = processes.descendants(os.getpid()) | processes.tagged(self.run, self.host)
        if living and self.deadline is None:
            self.end(STRAY_GRACE)
            processes.send(living, signal.SIGTERM)
        elif living and self.deadline is not None and time.monotonic() >= self.deadline:
            processes.send(living, signal.SIGKILL)
        elif not living and not self.ranks.running():
            self.ranks.finish()
            self.done = True
            self.say({"event": "done", "left": sorted(processes.tagged(self.run, self.host))})

    def leave(self, message: frames.Message) -> None:
        """Goodbye: nothing more is wanted."""
        self.connected = False


def guard(agent: int, run: str, host: str) -> None:
    """Wait for the agent; if it was killed, end all that it started. Never returns."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(agent, signal.SIGTERM))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.close(0)
    while True:
        pid, status = os.wait()
        if pid == agent:
            break
    while status:
        living = processes.descendants(os.getpid()) | processes.tagged(run, host)
        if not living:
            break
        processes.send(living, signal.SIGKILL)
        time.sleep(TICK)
    if status:
        files.remove_node_directory(run, host)
    os._exit(1 if status else 0)


def main(arguments: List[str]) -> None:
    """Run the agent under its guardian: `[run, host, seconds of silence]`."""
    run, host, silence = arguments
    processes.become_subreaper()
    agent = os.fork()
    if agent:
        guard(agent, run, host)
    processes.become_subreaper()
    Agent(run, host, float(silence)).serve()
    sys.stdout.flush()
    os._exit(0)
