"""The one program on each node: starts, watches, streams and ends that node's processes.

It exchanges frames with its clients. The launcher of a run holds it: when the launcher is gone and
does not reconnect in time, the agent ends everything that it started and exits. A detached run has
no launcher and lasts until its processes end. A guardian process, the agent's parent, ends the
processes if the agent itself is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import threading
import time
from collections import deque

from dslaunch.node import (
    agent_socket,
    bridge,
    cgroup,
    collectives,
    directories,
    frames,
    network,
    paths,
    peer,
    private,
    probe,
    processes,
    questions,
    rank_environment,
    rank_signals,
    run_files,
    stacks,
)
from dslaunch.node.activity import Activity
from dslaunch.node.client import AgentClient
from dslaunch.node.gathering import Gatherer
from dslaunch.node.journal import FileJournal, Journal
from dslaunch.node.ranks import Ranks
from dslaunch.node.redact import Secrets
from dslaunch.node.shipping import Shipping
from dslaunch.node.surveyor import Surveyor
from dslaunch.node.usage import UsageMeter

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

    from dslaunch.node import gpu_meter, links

TICK = 0.05
PACE = 0.005
"""Seconds in which pipes fill while output waits anyway: to wake up for each write of a rank that
writes much takes several times the work. A pipe holds 64 KiB."""
BEAT = 5.0
STRAY_GRACE = 2.0
LOST_GRACE = 5.0
FAREWELL = 10.0
JOURNAL_FULL, JOURNAL_LOW = 8 << 20, 1 << 20
MOST_OF_ERROR, MOST_OF_TRACE = 300, 16 * 1024
"""Characters of an error of the agent itself that are sent."""
KEPT_OUTPUT = 2 << 30
"""Bytes of output that a detached run keeps on each node."""


class Agent:
    """One node's end of a run. It has a single thread; questions that may hang have their own."""

    def __init__(
        self,
        run: str,
        host: str,
        timeouts: Dict[str, float],
        guardian: int,
        waits: bool = False,
        surveyor: Optional[Surveyor] = None,
        gpus: Optional[gpu_meter.GpuMeter] = None,
    ) -> None:
        """`timeouts`, in seconds: `heartbeat` without a message until a launcher counts as gone,
        `reconnect` in which it may reconnect. `guardian`: the process that is our parent while it
        lives. `waits`: a launcher that has sent a message may reconnect also before it has started
        the ranks. `surveyor`: answers questions that may hang, before the start. `gpus`: reads the
        GPUs, if there are any."""
        self.run = run
        self.host = host
        self.timeouts = timeouts
        self.surveyor = surveyor
        self.waits = waits
        self.spoken_to = False
        """Whether a client has sent a message: one that leaves before may not have known us."""
        self.home = os.path.expanduser("~")
        self.directory: Optional[str] = None
        self.selector = selectors.DefaultSelector()
        self.journal: Any = Journal()
        self.clients: List[AgentClient] = []
        self.holder: Optional[AgentClient] = None
        self.free_since: Optional[float] = time.monotonic()
        """When the run was last held by a launcher; None while one holds it."""
        self.left_at: Optional[float] = None
        """`free_since`, once it is known that the launcher has left and its machine answers."""
        self.left_limit = 0.0
        """Seconds that such a launcher has to reconnect."""
        self.dismissed: Optional[float] = None
        """Time of the request to exit; other clients are sent the rest for `FAREWELL`
        seconds."""
        self.detached = False
        self.replies: Deque[Tuple[AgentClient, frames.Message]] = deque()
        self.shipping = Shipping(self)
        self.ranks: Optional[Ranks] = None
        self.environment: Dict[str, str] = {}
        """What the node's processes were started with."""
        self.group: Optional[str] = None
        """The control group of the ranks. Without one, the ranks are known as descendants of the
        agent and by their environment."""
        self.secrets = Secrets()
        """The run's secrets, once it has started. Every text is masked before it is kept or
        sent."""
        self.activity = Activity()
        self.gatherer = Gatherer()
        self.usage = UsageMeter(gpus)
        self.idle = 0.0
        """Seconds since a rank printed or computed, as of the last beat."""
        self.links: Optional[links.Links] = None
        self.door: Optional[bridge.Door] = None
        self.deadline: Optional[float] = None
        """When ranks that were asked to end are killed; None: they were not asked."""
        self.done = False
        """Whether all processes of the run have ended here."""
        self.done_at: Optional[float] = None
        """When that was found out."""
        self.beaten = time.monotonic()
        """When the last heartbeat was sent."""
        self.guardian = guardian

    # ------------------------------------------------------------ the loop

    def serve(self, first: socket.socket) -> None:
        """Serve clients until the run is over and no client needs the agent any more."""
        self.prepare(first)
        while not self.over():
            for key, _ in self.selector.select(self.wait_timeout()):
                key.data()
            self.tick()
            until_output = self.gatherer.wait
            if until_output is not None:
                # not time.sleep(): Python 3.11's is refused where libfaketime shifts the clock
                select.select((), (), (), min(PACE, until_output))
        self.usage.end()
        self.shipping.end()
        run_files.remove_run(self.run, self.host, self.home)

    def over(self) -> bool:
        """Return whether the agent may exit."""
        if self.ranks is not None and not self.done:
            return False
        if self.links is not None and self.links.busy():
            return False
        if not self.clients:
            return self.detached or self.dismissed is not None or self.abandoned()
        # clients that still read are sent the rest, but cannot keep the agent alive
        since = self.done_at if self.detached else self.dismissed
        return since is not None and time.monotonic() - since > FAREWELL

    def abandoned(self) -> bool:
        """Return whether the launcher is gone and its time to reconnect is over."""
        if self.free_since is None or self.detached:
            return False
        waits = self.ranks is not None or (self.waits and self.spoken_to)
        limit = self.timeouts["reconnect"] if waits else 0
        if self.left_at == self.free_since:
            limit = min(limit, self.left_limit)
        return time.monotonic() - self.free_since >= limit

    def wait_timeout(self) -> float:
        """Return the seconds to wait for an event before the next `tick`."""
        if self.ranks is None or self.done:
            return min(BEAT, self.timeouts["heartbeat"]) / 5
        timeout = TICK if self.deadline is not None else self.ranks.wait_timeout()
        until_output = self.gatherer.wait
        return timeout if until_output is None else min(timeout, until_output)

    def prepare(self, first: socket.socket) -> None:
        """Set up signals and the loop, and greet the first client."""
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for number in (signal.SIGINT, signal.SIGHUP):
            # a handler that does nothing: ranks would inherit it if they were ignored
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.asked_to_end())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        wake, self.wake = os.pipe()
        for fd in (wake, self.wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        self.listen(wake, lambda: self.woken(wake))
        if self.waits:
            with contextlib.suppress(OSError):  # the start reports it
                self.open_door()
        self.welcome(first, holds=True)

    def woken(self, wake: int) -> None:
        """Handle a wake-up: a child ended, or a thread has an answer."""
        os.read(wake, 4096)
        while self.replies:
            client, reply = self.replies.popleft()
            client.say({**reply, "time": time.time()})

    def tick(self) -> None:
        """Do the periodic work: heartbeats, timeouts and the state of the ranks."""
        now = time.monotonic()
        if now - self.beaten >= min(BEAT, self.timeouts["heartbeat"] / 3):
            self.beaten = now
            self.beat()
        self.check_heartbeat()
        self.check_guardian()
        if self.abandoned():
            self.end(LOST_GRACE, "the launcher is gone")
        if self.links is not None:
            self.links.tick(now)
        if self.door is not None:
            self.door.tick(now)
        self.shipping.tick(now)
        if self.gatherer.is_due():
            self.send_output()
        if self.ranks and not self.done:
            self.ranks.watch()
            self.advance()

    def check_heartbeat(self) -> None:
        """Close the launcher's connection after its heartbeat timeout."""
        timeout = self.timeouts["heartbeat"]
        if self.holder is None or time.monotonic() - self.holder.heard <= timeout:
            return
        self.holder.read()  # this process may have been stopped, and messages may be waiting
        if self.holder is not None and time.monotonic() - self.holder.heard > timeout:
            self.holder.close()

    def check_guardian(self) -> None:
        """End the run if the guardian is dead: if the agent were killed then, its processes would
        stay."""
        if os.getppid() != self.guardian:
            self.end(0, "the agent's guardian was killed", process="guardian")
            if self.ranks is None:
                self.dismissed = time.monotonic()

    def beat(self) -> None:
        """Send all clients a heartbeat, with the seconds for which the ranks have been idle."""
        if processes.is_stopped(self.guardian):
            processes.resume([self.guardian])
        pids = self.ranks.pids() if self.ranks and not self.done else {}
        self.idle = self.activity.idle(pids.values()) if pids else 0.0
        for client in list(self.clients):
            client.beat(self.idle)

    # ------------------------------------------------------------ clients

    def welcome(self, connection: socket.socket, *, holds: bool = False) -> None:
        """Add a new client and greet it. With `holds` it is the launcher of the run."""
        client = AgentClient(connection, self)
        self.clients.append(client)
        self.listen(connection.fileno(), client.read)
        if holds:
            # before anything is written: a failing write closes the client, which must be noticed
            client.ssh = peer.connection()
            self.hold(client)
        known: frames.Message = {"run": self.run, "last": self.journal.last}
        known["started"] = self.ranks is not None
        known["peer"] = peer.address(client.ssh)
        client.say({"event": "hello", "time": time.time(), **known, **questions.identity()})

    def hold(self, client: AgentClient) -> None:
        """Let this client hold the run, unless it is closed already: its end was handled then."""
        if not client.closed:
            self.holder, self.free_since = client, None

    def watch_client(self, client: AgentClient, *, writing: bool) -> None:
        """Watch the client for writability while output is pending."""
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

    def forget(self, client: AgentClient) -> None:
        """Remove a client that is gone; if it was the launcher, it may reconnect."""
        self.ignore(client.socket.fileno())
        self.clients.remove(client)
        if client is self.holder:
            # at the latest: a stopped agent notices the end of a connection later
            gone = client.heard + self.timeouts["heartbeat"]
            since = min(time.monotonic(), gone)
            self.holder, self.free_since = None, since
            if client.ended and client.closed_limit is not None:
                self.left_limit = client.closed_limit
                look = threading.Thread(target=self.look_for, args=(client.ssh, since), daemon=True)
                look.start()

    def look_for(self, connection: str, since: float) -> None:
        """Find out, in a thread, whether the launcher that was lost at `since` has exited."""
        if peer.has_left(connection):
            self.left_at = since

    def say(self, message: frames.Message) -> None:
        """Record an event of the run, with the node's time, and send it to the clients that
        follow, after all output before it."""
        self.send_output()
        message = {"time": time.time(), **self.secrets.values(message)}
        self.journal.append(frames.MESSAGE, frames.message_body(message))
        if self.directory is not None:
            run_files.append_event(self.directory, message)
        if self.links is not None:
            self.links.note(message)
        self.publish()

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Take a piece of output, and send it now or with what follows."""
        self.activity.spoke()
        self.usage.output(rank, data)
        self.gatherer.add(rank, stream, data)
        if self.gatherer.is_due():
            self.send_output()

    def send_output(self) -> None:
        """Record and send what was gathered; stop reading the ranks while the launcher is far
        behind."""
        pieces = self.gatherer.take()
        if not pieces:
            return
        for rank, stream, when, data in pieces:
            self.journal.append(frames.OUTPUT, frames.output_body(rank, stream, when, data))
        if self.journal.waiting > JOURNAL_FULL and self.ranks:
            self.ranks.pause()
        self.publish()

    def publish(self) -> None:
        """Send what is new to all clients that follow."""
        for client in list(self.clients):
            if client.sent is not None:
                client.write()

    def take(self, client: AgentClient, frame: frames.Frame) -> None:
        """Carry out a client's message.

        A command may be of another version of dslaunch: whatever it sends, it must not end the run.
        """
        self.spoken_to = True
        if isinstance(frame, frames.Data):
            self.shipping.receive(client, frame)
        elif isinstance(frame, dict):
            try:
                self.operation(frame)(client, frame)
            except Exception as error:
                if client is self.holder:
                    raise
                if "id" in frame:
                    client.refuse(frame["id"], f"invalid request: {error!r:.200}")
                else:
                    client.close()

    def operation(self, message: frames.Message) -> Callable[[AgentClient, frames.Message], None]:
        """Return what carries out a message; one of an unknown kind is a heartbeat."""
        found: Callable[[AgentClient, frames.Message], None] = getattr(
            self, f"do_{message['op']}", self.do_ping
        )
        return found

    def do_ping(self, client: AgentClient, message: frames.Message) -> None:
        """Do nothing: any message counts as a heartbeat."""

    def do_coming(self, client: AgentClient, message: frames.Message) -> None:
        """Note that the launcher is reconnecting, and restart its reconnect timeout."""
        client.ssh = message.get("ssh", "")
        if self.free_since is not None:
            self.free_since = time.monotonic()

    def do_clock(self, client: AgentClient, message: frames.Message) -> None:
        """Reply with the node's time."""
        client.reply(message["id"], None)

    def do_follow(self, client: AgentClient, message: frames.Message) -> None:
        """Send the journal from a frame on; with `hold`, the client is the launcher of the run."""
        if message.get("hold"):
            client.closed_limit = message.get("closed")
            self.hold(client)
        client.follow(message["after"])

    def do_got(self, client: AgentClient, message: frames.Message) -> None:
        """Release the frames of the journal that the launcher has received."""
        if client is self.holder:
            self.journal.release(message["number"])
            if self.journal.waiting < JOURNAL_LOW and self.ranks:
                self.ranks.resume()

    def do_bye(self, client: AgentClient, message: frames.Message) -> None:
        """Close a client's connection; if it is the launcher of an attached run, end the run."""
        if client is self.holder and not self.detached:
            self.dismissed = time.monotonic()
            self.end(LOST_GRACE, "the launcher left")
            if self.ranks is None or self.done:
                # before the connection ends: the launcher then assumes that all processes have
                # exited
                run_files.remove_run(self.run, self.host, self.home)
        client.close()

    def do_stop(self, client: AgentClient, message: frames.Message) -> None:
        """End the processes; notify the launcher if another client requested it."""
        if client is not self.holder and not self.done:
            self.say({"event": "stopping", "rank": frames.NO_RANK, "by": message.get("by")})
        self.end(message["grace"], message.get("why") or "asked to stop")

    def do_signal(self, client: AgentClient, message: frames.Message) -> None:
        """Send the ranks a signal, and reply which got it."""
        pids = self.ranks.pids() if self.ranks is not None and not self.done else {}
        try:
            signaled = rank_signals.deliver(
                pids,
                message["number"],
                message["ranks"],
                force=message["force"],
                check=message["check"],
            )
        except ValueError as error:
            client.refuse(message["id"], str(error))
        else:
            client.reply(message["id"], signaled)

    def do_stacks(self, client: AgentClient, message: frames.Message) -> None:
        """Reply with the stacks of every rank; with `jobs`, as `do_usage`."""
        started = self.ranks.pids() if self.ranks else {}
        jobs, timeout = message.get("jobs"), message["timeout"]

        def look() -> Any:
            pids = rank_signals.ranks_of_job(jobs) if jobs else started
            return stacks.collect(pids, timeout)

        self.in_thread(client, message["id"], look)

    def do_collectives(self, client: AgentClient, message: frames.Message) -> None:
        """Reply with what every rank has recorded of its collectives."""
        pids = self.ranks.pids() if self.ranks else {}
        directory = self.directory
        what, timeout, since = message["what"], message["timeout"], message.get("since", 0.0)

        def ask() -> Dict[str, Any]:
            if not directory:
                return {}
            return collectives.collect(pids, directory, what, timeout, since=since)

        self.in_thread(client, message["id"], ask)

    def do_usage(self, client: AgentClient, message: frames.Message) -> None:
        """Reply with what the node and every rank use; with `jobs`, the ranks of SLURM jobs, which
        SLURM has started."""
        started = self.ranks.pids() if self.ranks else {}
        jobs, output = message.get("jobs"), message["output"]

        def measure() -> Any:
            pids = rank_signals.ranks_of_job(jobs) if jobs else started
            return self.usage.read(pids, output)

        self.in_thread(client, message["id"], measure)

    def do_rehearsal(self, client: AgentClient, message: frames.Message) -> None:
        """Reply with what the ranks of a rehearsal have recorded since."""
        from dslaunch.node import rehearsal

        directory = self.node_directory()
        ranks = self.ranks.expected if self.ranks else ()
        after = message["after"]
        self.in_thread(client, message["id"], lambda: rehearsal.records(directory, ranks, after))

    # ------------------------------------------------------------ questions and files

    def in_thread(self, client: AgentClient, id: int, work: Callable[[], Any]) -> None:
        """Do work in a thread that may take long or hang on a dead file system, and reply.

        With the time of its arrival, a request tells the launcher how far our clock is ahead,
        however long the work takes.
        """
        received = time.time()

        def run() -> None:
            try:
                reply = {"reply": id, "value": self.secrets.values(work())}
            except (OSError, ValueError) as error:
                reply = {"reply": id, "error": self.secrets.text(str(error))}
            except Exception as error:  # noqa: BLE001 - a question must not end the run
                text = f"{type(error).__name__}: {error}"
                reply = {"reply": id, "error": self.secrets.text(text)}
            self.replies.append((client, {**reply, "received": received}))
            os.write(self.wake, b"r")

        threading.Thread(target=run, daemon=True).start()

    def do_ask(self, client: AgentClient, message: frames.Message) -> None:
        """Answer questions."""
        asked = message["questions"]
        self.in_thread(client, message["id"], lambda: self.answers(asked))

    def answers(self, asked: Dict[str, Any]) -> Dict[str, Any]:
        """Return the answers to questions, by name. May take long."""
        context = probe.Context(self.home, self.host, self.run, self.environment)
        return probe.answer(asked, context)

    def do_survey(self, client: AgentClient, message: frames.Message) -> None:
        """Answer the questions of a preflight, in the surveyor."""
        surveyor = self.surveyor
        if surveyor is not None:
            self.in_thread(client, message["id"], lambda: surveyor.ask(message))

    def do_put(self, client: AgentClient, message: frames.Message) -> None:
        """Expect an archive, whose pieces follow as data."""
        self.shipping.expect(client, message)

    def do_received(self, client: AgentClient, message: frames.Message) -> None:
        """Reply how many pieces of an archive have arrived."""
        client.reply(message["id"], self.shipping.received(message["archive"]))

    def do_hand_on(self, client: AgentClient, message: frames.Message) -> None:
        """Send an archive to another node while it arrives."""
        self.shipping.hand_on(client, message)

    def node_directory(self) -> str:
        """Return this run's directory on this node; the first call makes it."""
        if self.directory is None:
            made = directories.make(self.run, self.host, self.home, lasting=self.detached)
            self.directory = made
            self.lock = run_files.hold(self.directory)
        return self.directory

    def open_door(self) -> None:
        """Take further clients, over a socket in this run's directory. Raises OSError."""
        if self.door is None:
            door = agent_socket.listen(self.node_directory())
            self.door = bridge.Door(door, self, self.let_in)

    # ------------------------------------------------------------ processes

    def do_detach(self, client: AgentClient, message: frames.Message) -> None:
        """Detach the run: it has no launcher from now on, and ends by itself or with its nodes."""
        from dslaunch.node import links  # with hmac and hashlib: only detached runs need them

        self.detached = True
        try:
            directory = self.node_directory()
            self.journal = FileJournal(os.path.join(directory, run_files.JOURNAL), KEPT_OUTPUT)
            self.links = links.make(message["link"], self)
        except OSError as error:
            client.refuse(message["id"], str(error))
            return
        discarded = os.open(os.devnull, os.O_RDWR)
        os.dup2(discarded, 2)
        os.close(discarded)
        client.reply(message["id"], {"directory": directory, "port": self.links.port})

    def do_start(self, client: AgentClient, message: frames.Message) -> None:
        """Start the node's processes, unless an earlier message has: the launcher sends it again if
        the connection was lost meanwhile."""
        if self.ranks is not None or self.done:
            return
        self.secrets = Secrets(message["env"][name] for name in message["secret"])
        self.shipping.end()
        self.gatherer = Gatherer(message["output_interval"])
        notice = message.get("notice")
        if notice is not None:  # ignored signals are inherited until a program sets a handler
            signal.signal(notice, signal.SIG_IGN)
        try:
            directory = self.node_directory()
            self.write_files(directory, message["files"])
            self.open_door()
            self.environment = rank_environment.prepare(directory, message, self.run, self.host)
        except OSError as error:
            self.refuse(str(error))
            return
        self.contain(directory, message["about"])
        self.ranks = Ranks(message, self.environment, self, self.group)
        threading.Thread(target=run_files.sweep, args=(self.home, self.host), daemon=True).start()
        network.hang_up()
        if self.surveyor is not None:
            self.surveyor.end()
        if self.links is not None and message.get("link"):
            self.links.connect_to(message["link"])
        try:
            self.ranks.start(paths.absolute(message["cwd"]))
        except OSError as error:
            self.refuse(f"no pipes for the ranks' output: {error}")

    def write_files(self, directory: str, given: List[Dict[str, str]]) -> None:
        """Write the files of a `start` message into the run's directory. Raises OSError."""
        with private.opened(directory) as within:
            for file in given:
                private.write(file["name"], file["text"], within)

    def contain(self, directory: str, about: Dict[str, Any]) -> None:
        """Make the control group of the ranks, and record and report how they can be found."""
        self.group = cgroup.make(self.run)
        own = run_files.these_processes(self.guardian)
        known = {"run": self.run, "detached": self.detached, run_files.GROUP: self.group}
        run_files.write(directory, run_files.ABOUT, {**about, **known, **own})
        contained = "cgroup" if self.group is not None else "descendants"
        self.say({"event": "contained", "rank": frames.NO_RANK, "contained": contained})

    def refuse(self, why: str) -> None:
        """Report that no process can be started on this node."""
        self.say({"event": "unstarted", "rank": frames.NO_RANK, "error": why})
        self.say({"event": "done", "left": []})
        self.done = True

    def let_in(self, connection: socket.socket, _: Any) -> None:
        """Add another client if it belongs to this user or root."""
        with contextlib.suppress(OSError):
            if agent_socket.user_of(connection) in (0, os.geteuid()):
                self.welcome(connection)
                return
        connection.close()

    def crashed(self, error: BaseException, trace: str) -> None:
        """Record an error of the agent and send it to the launcher; the guardian ends the rest."""
        last = f"{type(error).__name__}: {error}"
        told = {"how": "failed", "error": last[:MOST_OF_ERROR], "trace": trace[-MOST_OF_TRACE:]}
        note = {"event": "gone", "time": time.time(), **self.secrets.values(told)}
        with contextlib.suppress(Exception):  # whatever has failed may fail again
            self.send_output()
        if self.directory is not None:
            run_files.write(self.directory, run_files.GONE, note)
        if self.holder is not None:
            self.holder.say_last(note)

    def listen(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` is readable."""
        self.selector.register(fd, selectors.EVENT_READ, callback)

    def ignore(self, fd: int) -> None:
        """Undo `listen`."""
        if fd in self.selector.get_map():
            self.selector.unregister(fd)

    def asked_to_end(self) -> None:
        """Handle SIGTERM: end the ranks, or exit if none has been started."""
        if self.ranks is None:
            self.dismissed = time.monotonic()
        why = "the agent received SIGTERM"
        self.end(LOST_GRACE, why, process="agent", signal=int(signal.SIGTERM))

    def end(self, grace: float, why: str, **cause: Any) -> None:
        """End the ranks: TERM, and KILL after `grace` seconds. A second call can only shorten that.

        `cause`: which `process` of dslaunch was ended, and by which `signal` if known; of a `hang`,
        the seconds for which no rank had made progress.
        """
        deadline = time.monotonic() + grace
        if self.ranks is None or self.done:
            return
        if self.deadline is None:
            self.say({"event": "ending", "rank": frames.NO_RANK, "error": why, **cause})
            if grace:
                self.ranks.ask_to_end()
        self.deadline = min(deadline, self.deadline or deadline)

    def advance(self) -> None:
        """Continue the end: all started processes, then what they left, then the final check."""
        if self.ranks is None or (self.deadline is None and self.ranks.running()):
            return
        living = self.living()
        if living and self.deadline is None:
            self.deadline = time.monotonic() + STRAY_GRACE
            processes.send(living, signal.SIGTERM)
        elif living and self.deadline is not None and time.monotonic() >= self.deadline:
            processes.send(living, signal.SIGKILL)
            if self.group is not None:
                cgroup.kill(self.group)
        elif not living and not self.ranks.running():
            self.finish()

    def living(self) -> Set[int]:
        """Return the living processes of the run, without dslaunch's own."""
        found = processes.descendants(os.getpid()) | processes.tagged(self.run, self.host)
        return found if self.group is None else found | processes.alive(cgroup.members(self.group))

    def finish(self) -> None:
        """Report that all processes have ended, with those that still live nevertheless."""
        assert self.ranks is not None
        self.ranks.finish()
        if self.group is not None:
            cgroup.remove(self.group)
        self.done, self.done_at = True, time.monotonic()
        self.say({"event": "done", "left": sorted(processes.tagged(self.run, self.host))})
