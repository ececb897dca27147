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
import signal
import socket
import time

from dslaunch.node import (
    agent_socket,
    bridge,
    cgroup,
    directories,
    frames,
    network,
    paths,
    peer,
    private,
    processes,
    questions,
    rank_environment,
    run_files,
    threads,
)
from dslaunch.node.activity import Activity
from dslaunch.node.client import AgentClient
from dslaunch.node.event_loop import READ, WRITE, EventLoop
from dslaunch.node.gathering import Gatherer
from dslaunch.node.holder import Holder
from dslaunch.node.journal import FileJournal, Journal
from dslaunch.node.ranks import Ranks
from dslaunch.node.redact import Secrets
from dslaunch.node.requests import Requests
from dslaunch.node.run_end import RunEnd
from dslaunch.node.shipping import Shipping
from dslaunch.node.surveyor import Surveyor
from dslaunch.node.usage import UsageMeter

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Set

    from dslaunch.node import gpu_meter
    from dslaunch.node.link_end import LinkEnd

TICK = 0.05
PACE = 0.005
"""Seconds in which pipes fill while output waits anyway: to wake up for each write of a rank that
writes much takes several times the work. A pipe holds 64 KiB."""
BEAT = 5.0
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
        self.events: Optional[run_files.EventFile] = None
        """In the directory, once there is one."""
        self.loop = EventLoop()
        self.journal: Any = Journal()
        self.requests = Requests(self)
        self.clients: List[AgentClient] = []
        self.pending: Set[AgentClient] = set()
        """Those that could not be written all that they are to get."""
        self.holder = Holder(timeouts)
        self.dismissed: Optional[float] = None
        """Time of the request to exit; other clients are sent the rest for `FAREWELL`
        seconds."""
        self.detached = False
        self.shipping = Shipping(self)
        self.ranks: Optional[Ranks] = None
        self.environment: Dict[str, str] = {}
        """What the node's processes were started with."""
        self.run_end = RunEnd(self)
        self.secrets = Secrets()
        """The run's secrets, once it has started. Every text is masked before it is kept or
        sent."""
        self.activity = Activity()
        self.gatherer = Gatherer()
        self.usage = UsageMeter(gpus)
        self.idle = 0.0
        """Seconds since a rank printed or computed, as of the last beat."""
        self.links: Optional[LinkEnd] = None
        self.door: Optional[bridge.Door] = None
        self.beaten = time.monotonic()
        """When the last heartbeat was sent."""
        self.guardian = guardian

    # ------------------------------------------------------------ the loop

    def serve(self, first: socket.socket) -> None:
        """Serve clients until the run is over and no client needs the agent any more."""
        self.prepare(first)
        while not self.over():
            self.loop.turn(self.wait_timeout())
            self.tick()
            self.publish()
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
        since = self.run_end.done_at if self.detached else self.dismissed
        return since is not None and time.monotonic() - since > FAREWELL

    @property
    def done(self) -> bool:
        """Whether all processes of the run have ended here."""
        return self.run_end.done

    @property
    def is_ending(self) -> bool:
        """Whether the processes of the run were asked to end."""
        return self.run_end.deadline is not None

    def abandoned(self) -> bool:
        """Return whether the launcher is gone and its time to reconnect is over."""
        if self.detached:
            return False
        waits = self.ranks is not None or (self.waits and self.spoken_to)
        return self.holder.is_abandoned(may_reconnect=waits)

    def wait_timeout(self) -> float:
        """Return the seconds to wait for an event before the next `tick`."""
        if self.ranks is None or self.done:
            return min(BEAT, self.timeouts["heartbeat"]) / 5
        timeout = TICK if self.is_ending else self.ranks.wait_timeout()
        until_output = self.gatherer.wait
        return timeout if until_output is None else min(timeout, until_output)

    def prepare(self, first: socket.socket) -> None:
        """Set up signals and the loop, and greet the first client."""
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for number in (signal.SIGINT, signal.SIGHUP):
            # a handler that does nothing: ranks would inherit it if they were ignored
            signal.signal(number, lambda *_: None)
        # not at once: it may come in the midst of a message that is being written
        signal.signal(signal.SIGTERM, lambda *_: self.loop.hand_over(self.asked_to_end))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.loop.wake_fd, warn_on_full_buffer=False)
        if self.waits:
            with contextlib.suppress(OSError):  # the start reports it
                self.open_door()
        self.welcome(first, holds=True)

    def tick(self) -> None:
        """Do the periodic work: heartbeats, timeouts and the state of the ranks."""
        now = time.monotonic()
        if now - self.beaten >= min(BEAT, self.timeouts["heartbeat"] / 3):
            self.beaten = now
            self.beat()
            if self.events is not None:
                self.events.retry()
        self.holder.check_heartbeat()
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
            self.run_end.advance()

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
        pids = self.running_pids()
        self.idle = self.activity.idle(pids.values()) if pids else 0.0
        for client in list(self.clients):
            client.beat(self.idle)

    # ------------------------------------------------------------ clients

    def welcome(self, connection: socket.socket, *, holds: bool = False) -> None:
        """Add a new client and greet it. With `holds` it is the launcher of the run."""
        client = AgentClient(connection, self)
        self.clients.append(client)
        self.loop.watch(connection.fileno(), client.read)
        if holds:
            # before anything is written: a failing write closes the client, which must be noticed
            client.ssh = peer.connection()
            self.holder.take(client)
        known: frames.Message = {"run": self.run, "last": self.journal.last}
        known["started"] = self.ranks is not None
        known["peer"] = peer.address(client.ssh)
        client.say({"event": "hello", "time": time.time(), **known, **questions.identity()})

    def watch_client(self, client: AgentClient, *, writing: bool) -> None:
        """Watch the client for writability while output is pending."""
        if writing == (client in self.pending):
            return
        fd = client.socket.fileno()
        if writing:
            self.pending.add(client)
            self.loop.watch(fd, client.ready, READ | WRITE)
        else:
            self.pending.discard(client)
            self.loop.watch(fd, client.read)

    def forget(self, client: AgentClient) -> None:
        """Remove a client that is gone; if it was the launcher, it may reconnect."""
        self.loop.ignore(client.socket.fileno())
        self.clients.remove(client)
        self.pending.discard(client)
        self.holder.forget(client)

    def take(self, client: AgentClient, frame: frames.Frame) -> None:
        """Take what a client has sent."""
        self.spoken_to = True
        if isinstance(frame, frames.Data):
            self.shipping.receive(client, frame)
        elif isinstance(frame, dict):
            self.requests.take(client, frame)

    def say(self, message: frames.Message) -> None:
        """Record an event of the run, with the node's time, after all output before it. It is sent
        to the clients that follow with all else that happens in this turn of the loop."""
        self.send_output()
        message = {"time": time.time(), **self.secrets.values(message)}
        self.journal.append(frames.MESSAGE, frames.message_body(message))
        if self.events is not None:
            self.events.add(message)
        if self.links is not None:
            self.links.note(message)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Take a piece of output, which is sent in this turn of the loop or with what follows."""
        self.activity.spoke()
        self.usage.output(rank, data)
        self.gatherer.add(rank, stream, data)
        if self.gatherer.is_due():
            self.send_output()

    def send_output(self) -> None:
        """Record what was gathered, to be sent; stop reading the ranks while the launcher is far
        behind."""
        pieces = self.gatherer.take()
        if not pieces:
            return
        for rank, stream, when, data in pieces:
            self.journal.append(frames.OUTPUT, frames.output_body(rank, stream, when, data))
        if self.journal.waiting > JOURNAL_FULL and self.ranks:
            self.ranks.output.pause()

    def release(self, number: int) -> None:
        """Release the frames of the journal up to this one, and read the ranks again if their
        reading was stopped."""
        self.journal.release(number)
        if self.journal.waiting < JOURNAL_LOW and self.ranks:
            self.ranks.output.resume()

    def publish(self) -> None:
        """Send what is new to all clients that follow."""
        for client in list(self.clients):
            if client.sent is not None:
                client.write()

    def node_directory(self) -> str:
        """Return this run's directory on this node; the first call makes it."""
        if self.directory is None:
            made = directories.make(self.run, self.host, self.home, lasting=self.detached)
            self.directory = made
            self.events = run_files.EventFile(made)
            self.lock = run_files.hold(self.directory)
        return self.directory

    def open_door(self) -> None:
        """Take further clients, over a socket in this run's directory. Raises OSError."""
        if self.door is None:
            door = agent_socket.listen(self.node_directory())
            self.door = bridge.Door(door, self, self.let_in)

    # ------------------------------------------------------------ processes

    def pids(self) -> Dict[int, int]:
        """Return the processes of the ranks: rank -> process."""
        return self.ranks.pids() if self.ranks is not None else {}

    def running_pids(self) -> Dict[int, int]:
        """Return the same, unless the run has ended here."""
        return {} if self.done else self.pids()

    def detach(self, link: Dict[str, Any]) -> Dict[str, Any]:
        """Detach the run: it has no launcher from now on, and ends by itself or with its nodes.

        Returns the run's directory, and the port at which this node listens if it is the first.
        Raises OSError.
        """
        from dslaunch.node import links  # with hmac and hashlib: only detached runs need them

        self.detached = True
        directory = self.node_directory()
        self.journal = FileJournal(os.path.join(directory, run_files.JOURNAL), KEPT_OUTPUT)
        self.links = links.make(link, self)
        discarded = os.open(os.devnull, os.O_RDWR)
        os.dup2(discarded, 2)
        os.close(discarded)
        return {"directory": directory, "port": self.links.port}

    def start(self, message: frames.Message) -> None:
        """Start the node's processes, or report why that is not possible."""
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
            self.run_end.give_up(str(error))
            return
        self.contain(directory, message["about"])
        self.ranks = Ranks(message, self.environment, self, self.run_end.group)
        threads.start(lambda: run_files.sweep(self.home, self.host))
        network.hang_up()
        if self.surveyor is not None:
            self.surveyor.end()
        if self.links is not None and message.get("link"):
            self.links.connect_to(message["link"])
        try:
            self.ranks.start(paths.absolute(message["cwd"]))
        except OSError as error:
            self.run_end.give_up(f"no pipes for the ranks' output: {error}")

    def write_files(self, directory: str, given: List[Dict[str, str]]) -> None:
        """Write the files of a `start` message into the run's directory. Raises OSError."""
        with private.opened(directory) as within:
            for file in given:
                private.write(file["name"], file["text"], within)

    def contain(self, directory: str, about: Dict[str, Any]) -> None:
        """Make the control group of the ranks, and record and report how they can be found."""
        group = self.run_end.group = cgroup.make(self.run)
        own = run_files.these_processes(self.guardian)
        known = {"run": self.run, "detached": self.detached, run_files.GROUP: group}
        run_files.write(directory, run_files.ABOUT, {**about, **known, **own})
        contained = "cgroup" if group is not None else "descendants"
        self.say({"event": "contained", "rank": frames.NO_RANK, "contained": contained})

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
        for last_work in (self.send_output, self.publish):
            with contextlib.suppress(Exception):  # whatever has failed may fail again
                last_work()
        if self.directory is not None:
            run_files.write(self.directory, run_files.GONE, note)
        if self.holder.client is not None:
            self.holder.client.say_last(note)

    # ------------------------------------------------------------ the end

    def dismiss(self) -> None:
        """End the run: its launcher has left."""
        self.dismissed = time.monotonic()
        self.end(LOST_GRACE, "the launcher left")
        if self.ranks is None or self.done:
            # before the connection ends: the launcher then assumes that all processes have exited
            run_files.remove_run(self.run, self.host, self.home)

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
        self.run_end.begin(grace, why, **cause)
