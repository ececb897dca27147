"""The one program on each node: starts, watches, streams and ends that node's processes.

It talks frames with its clients. The launcher of a run holds it: when the launcher is gone, and
does not come back in time, the agent ends everything that it started and leaves. A detached run
is held by nobody and lasts until its processes end. A guardian process, the agent's parent, does
the same should the agent itself be killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque

from dslaunch.node import bridge, files, frames, keeping, network, probe, processes, stacks
from dslaunch.node.activity import Activity
from dslaunch.node.client import Client
from dslaunch.node.journal import FileJournal, Journal
from dslaunch.node.ranks import Ranks

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

    from dslaunch.node import links

TICK = 0.05
BEAT = 5.0
STRAY_GRACE = 2.0
LOST_GRACE = 5.0
FAREWELL = 10.0
JOURNAL_FULL, JOURNAL_LOW = 8 << 20, 1 << 20
KEPT_OUTPUT = 2 << 30
"""Bytes of output that a detached run keeps on each node."""


class Agent:
    """One node's end of a run. A single thread; questions that may hang have their own."""

    def __init__(self, run: str, host: str, times: Dict[str, float]) -> None:
        """`times`, in seconds: `silence` after which a launcher is not there, `reconnect` in
        which it may come back."""
        self.run, self.host, self.times = run, host, times
        self.home = os.path.expanduser("~")
        self.directory: Optional[str] = None
        self.selector = selectors.DefaultSelector()
        self.journal: Any = Journal()
        self.clients: List[Client] = []
        self.holder: Optional[Client] = None
        self.free_since: Optional[float] = None
        """When the last launcher that held the run was lost; None while one is there."""
        self.dismissed: Optional[float] = None
        """When the launcher said goodbye; what others still read is sent for a moment."""
        self.detached = False
        self.replies: Deque[Tuple[Client, frames.Message]] = deque()
        self.archives: Dict[int, files.Archive] = {}
        self.ranks: Optional[Ranks] = None
        self.activity = Activity()
        self.idle = 0.0
        """Seconds since a rank printed or computed, as of the last beat."""
        self.links: Optional[links.Links] = None
        self.deadline: Optional[float] = None
        self.done = False
        self.done_at: Optional[float] = None
        self.beaten = time.monotonic()
        self.guardian = os.getppid()

    # ------------------------------------------------------------ the loop

    def serve(self, first: socket.socket) -> None:
        """Serve clients until the run is over and nobody wants anything more."""
        self.prepare(first)
        while not self.over():
            for key, _ in self.selector.select(self.patience()):
                key.data()
            self.tick()
        files.remove_node_directories(self.run, self.host, self.home)

    def over(self) -> bool:
        """Whether the agent may leave."""
        if self.ranks is not None and not self.done:
            return False
        if self.links is not None and self.links.busy():
            return False
        if not self.clients:
            return self.detached or self.dismissed is not None or self.abandoned()
        # whoever still reads is sent what there is, but cannot keep us
        since = self.done_at if self.detached else self.dismissed
        return since is not None and time.monotonic() - since > FAREWELL

    def abandoned(self) -> bool:
        """Whether the launcher is gone and has had time to come back."""
        if self.free_since is None or self.detached:
            return False
        patience = self.times["reconnect"] if self.ranks else 0
        return time.monotonic() - self.free_since >= patience

    def patience(self) -> float:
        """Seconds to wait for something to happen before looking ourselves."""
        if self.ranks is None or self.done:
            return min(BEAT, self.times["silence"]) / 5
        return TICK if self.deadline is not None else self.ranks.patience()

    def prepare(self, first: socket.socket) -> None:
        """Set up signals and streams, and greet."""
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.end(LOST_GRACE, "the agent was asked to end"))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        wake, self.wake = os.pipe()
        for fd in (wake, self.wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        self.listen(wake, lambda: self.woken(wake))
        self.holder = self.welcome(first)

    def woken(self, wake: int) -> None:
        """A child ended, or a thread has an answer."""
        os.read(wake, 4096)
        while self.replies:
            client, reply = self.replies.popleft()
            client.say({**reply, "time": time.time()})

    def tick(self) -> None:
        """What is done whether or not something happened."""
        now = time.monotonic()
        if now - self.beaten >= min(BEAT, self.times["silence"] / 3):
            self.beaten = now
            self.beat()
        if self.holder is not None and now - self.holder.heard > self.times["silence"]:
            self.holder.close()
        if os.getppid() != self.guardian:
            self.end(0, "the agent's guardian was killed")
        if self.abandoned():
            self.end(LOST_GRACE, "the launcher is gone")
        if self.links is not None:
            self.links.tick(now)
        if self.ranks and not self.done:
            self.ranks.watch()
            self.advance()

    def beat(self) -> None:
        """Show that we are there, and how long the ranks have been idle."""
        pids = self.ranks.pids() if self.ranks and not self.done else {}
        self.idle = self.activity.idle(pids.values()) if pids else 0.0
        for client in list(self.clients):
            client.say({"event": "beat", "time": time.time(), "idle": self.idle})

    # ------------------------------------------------------------ clients

    def welcome(self, connection: socket.socket) -> Client:
        """Take a new client and greet it."""
        client = Client(connection, self)
        self.clients.append(client)
        self.listen(connection.fileno(), client.read)
        known = {"run": self.run, "started": self.ranks is not None, "last": self.journal.last}
        client.say({"event": "hello", "time": time.time(), **known, **probe.identity(self.home)})
        return client

    def watch_client(self, client: Client, *, writing: bool) -> None:
        """Be told when a client can take more, only while there is more."""
        fd = client.socket.fileno()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        if self.selector.get_key(fd).events == events:
            return

        def ready() -> None:
            if writing:
                client.write()
            if not client.closed:
                client.read()

        self.selector.modify(fd, events, ready)

    def forget(self, client: Client) -> None:
        """A client is gone; if it was the launcher, it may come back."""
        self.ignore(client.socket.fileno())
        self.clients.remove(client)
        if client is self.holder:
            self.holder, self.free_since = None, time.monotonic()

    def say(self, message: frames.Message) -> None:
        """Note an event of the run, with our time; those who follow are sent it."""
        message.setdefault("time", time.time())
        self.journal.append(frames.MESSAGE, frames.message_body(message))
        if self.directory is not None:
            keeping.append_event(self.directory, message)
        if self.links is not None:
            self.links.note(message)
        self.publish()

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Note a piece of output; if the launcher is far behind, stop reading the ranks."""
        self.activity.spoke()
        self.journal.append(frames.OUTPUT, frames.output_body(rank, stream, time.time(), data))
        if self.journal.waiting > JOURNAL_FULL and self.ranks:
            self.ranks.pause()
        self.publish()

    def publish(self) -> None:
        """Send what is new to all who follow."""
        for client in list(self.clients):
            if client.sent is not None:
                client.write()

    def take(self, client: Client, frame: frames.Frame) -> None:
        """Do what a client says."""
        if isinstance(frame, frames.Data):
            self.receive(client, frame)
        elif isinstance(frame, dict):
            operation: Callable[[Client, frames.Message], None] = getattr(
                self, f"do_{frame['op']}", self.do_ping
            )
            operation(client, frame)

    def do_ping(self, client: Client, message: frames.Message) -> None:
        """Nothing: that we were spoken to is all."""

    def do_clock(self, client: Client, message: frames.Message) -> None:
        """Say what time it is."""
        client.say({"reply": message["id"], "value": None, "time": time.time()})

    def do_follow(self, client: Client, message: frames.Message) -> None:
        """Send the journal from there on; with `hold`, this is the launcher of the run."""
        if message.get("hold"):
            self.holder, self.free_since = client, None
        client.follow(message["after"])

    def do_got(self, client: Client, message: frames.Message) -> None:
        """The launcher has what the journal holds up to there."""
        if client is self.holder:
            self.journal.release(message["number"])
            if self.journal.waiting < JOURNAL_LOW and self.ranks:
                self.ranks.resume()

    def do_bye(self, client: Client, message: frames.Message) -> None:
        """Goodbye: of the launcher, the run's end; of another, nothing."""
        if client is self.holder and not self.detached:
            self.dismissed = time.monotonic()
            self.end(LOST_GRACE, "the launcher left")
        client.close()

    def do_stop(self, client: Client, message: frames.Message) -> None:
        """End the processes; if it is not the launcher who asks, it must know."""
        if client is not self.holder and not self.done:
            self.say({"event": "stopping", "rank": frames.NO_RANK, "by": message.get("by")})
        self.end(message["grace"], message.get("why") or "asked to stop")

    def do_stacks(self, client: Client, message: frames.Message) -> None:
        """Tell what every rank is doing."""
        pids = self.ranks.pids() if self.ranks else {}
        directory, timeout = self.directory or "", message["timeout"]
        self.in_thread(client, message["id"], lambda: stacks.collect(pids, directory, timeout))

    # ------------------------------------------------------------ questions and files

    def in_thread(self, client: Client, id: int, work: Callable[[], Any]) -> None:
        """Do what may take long, or hang on a dead file system, without holding up the rest."""

        def run() -> None:
            try:
                reply = {"reply": id, "value": work()}
            except (OSError, ValueError) as error:
                reply = {"reply": id, "error": str(error)}
            self.replies.append((client, reply))
            os.write(self.wake, b"r")

        threading.Thread(target=run, daemon=True).start()

    def do_ask(self, client: Client, message: frames.Message) -> None:
        """Answer questions."""
        questions = message["questions"]
        context = probe.Context(self.home, self.host, self.run)
        self.in_thread(client, message["id"], lambda: probe.answer(questions, context))

    def do_put(self, client: Client, message: frames.Message) -> None:
        """Take an archive that follows as data, and unpack it below `root`."""
        root = probe.absolute(message["root"], self.home)
        self.archives[message["id"]] = files.Archive(root)

    def receive(self, client: Client, frame: frames.Data) -> None:
        """A piece of an archive; the empty one is its end."""
        if frame.data:
            self.archives[frame.id].add(frame.data)
        else:
            self.in_thread(client, frame.id, self.archives.pop(frame.id).unpack)

    def node_directory(self) -> str:
        """This run's directory on this node, made when first needed."""
        if self.directory is None:
            lasting = [files.lasting_place(self.home)] if self.detached else []
            places = [*lasting, *files.temporary_places()]
            self.directory = files.make_node_directory(self.run, self.host, places)
            self.lock = keeping.hold(self.directory)
        return self.directory

    # ------------------------------------------------------------ processes

    def do_detach(self, client: Client, message: frames.Message) -> None:
        """From now on nobody holds this run: it ends by itself, or with its other nodes."""
        from dslaunch.node import links  # with what it needs to show that it is genuine

        self.detached = True
        try:
            directory = self.node_directory()
            self.journal = FileJournal(os.path.join(directory, keeping.JOURNAL), KEPT_OUTPUT)
            self.links = links.make(message["link"], self)
        except OSError as error:
            client.say({"reply": message["id"], "error": str(error), "time": time.time()})
            return
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        reply = {"reply": message["id"], "value": {"directory": directory, "port": self.links.port}}
        client.say({**reply, "time": time.time()})

    def do_start(self, client: Client, message: frames.Message) -> None:
        """Start the node's processes."""
        try:
            directory = self.node_directory()
            logs = os.path.join(directory, "logs")
            os.makedirs(logs, exist_ok=True)
            for file in message["files"]:
                files.write_private(os.path.join(directory, file["name"]), file["text"])
            self.door = bridge.listen(directory)
        except OSError as error:
            self.refuse(str(error))
            return
        about = {**message["about"], "run": self.run, "detached": self.detached}
        keeping.write(directory, keeping.ABOUT, about)
        self.listen(self.door.fileno(), lambda: self.open_door())
        own = {
            processes.RUN_ID: self.run,
            processes.HOST: self.host,
            "DSLAUNCH_NODE_DIR": directory,
            "DSLAUNCH_LOGS": logs,
        }
        environment = {**os.environ, **message["env"], **own}
        environment.update(stacks.arm(directory, environment))
        self.ranks = Ranks(message, environment, self)
        network.hang_up()
        if self.links is not None and message.get("link"):
            self.links.dial(message["link"])
        self.ranks.start(probe.absolute(message["cwd"], self.home))

    def refuse(self, why: str) -> None:
        """Nothing can be started here."""
        self.say({"event": "unstarted", "rank": frames.NO_RANK, "error": why})
        self.say({"event": "done", "left": []})
        self.done = True

    def open_door(self) -> None:
        """Somebody else wants to speak with us."""
        with contextlib.suppress(OSError):
            self.welcome(self.door.accept()[0])

    def crashed(self, trace: str) -> None:
        """Leave a note of an error of our own; the guardian ends the rest."""
        if self.directory is not None:
            keeping.write(self.directory, keeping.CRASH, {"time": time.time(), "trace": trace})

    def listen(self, fd: int, callback: Callable[[], None]) -> None:
        """Have `callback` called when `fd` has something."""
        self.selector.register(fd, selectors.EVENT_READ, callback)

    def ignore(self, fd: int) -> None:
        """Undo `listen`."""
        if fd in self.selector.get_map():
            self.selector.unregister(fd)

    def end(self, grace: float, why: str) -> None:
        """Ask what runs to end, and make it after `grace` seconds. A second call can only hurry."""
        deadline = time.monotonic() + grace
        if self.ranks is None or self.done:
            return
        if self.deadline is None:
            self.say({"event": "ending", "rank": frames.NO_RANK, "error": why})
            if grace:
                self.ranks.ask_to_end()
        self.deadline = min(deadline, self.deadline or deadline)

    def advance(self) -> None:
        """Go on towards the end: all started processes, then what they left, then the proof."""
        if self.ranks is None or (self.deadline is None and self.ranks.running()):
            return
        living = processes.descendants(os.getpid()) | processes.tagged(self.run, self.host)
        if living and self.deadline is None:
            self.deadline = time.monotonic() + STRAY_GRACE
            processes.send(living, signal.SIGTERM)
        elif living and self.deadline is not None and time.monotonic() >= self.deadline:
            processes.send(living, signal.SIGKILL)
        elif not living and not self.ranks.running():
            self.ranks.finish()
            self.done, self.done_at = True, time.monotonic()
            self.say({"event": "done", "left": sorted(processes.tagged(self.run, self.host))})
