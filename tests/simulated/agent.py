"""A simulated agent: it answers the launcher as `dslaunch.node.agent` does, without processes.

What it says goes through the modules of the real agent: frames, the journal, and the connection to
a client. Questions about the machine are answered by `dslaunch.node` itself, once for all nodes;
those whose answer differs between nodes are answered from the number of the node.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from dslaunch.node import frames, paths, probe, questions, survey
from dslaunch.node.client import AgentClient
from dslaunch.node.gathering import Gatherer
from dslaunch.node.journal import Journal
from tests.simulated.drawn import (
    MISTAKE,
    PEER_LOST,
    NodeDraw,
    RankDraw,
    Scenario,
    from_json,
    line,
    node_draw,
    node_of,
    rank_draw,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulated.relay import SimulatedRelay
    from tests.simulated.streams import Stream

BEAT = 5.0
"""Seconds between two heartbeats, as of the real agent."""
JOIN_INTERVAL = 1.5
"""Seconds after the start in which the ranks have joined, as of the real agent."""
STDOUT, STDERR = 1, 2
FAILED = 1
"""The exit code of a rank that fails."""
TERM = 15
_FIRST_ADDRESS = ipaddress.IPv4Address("10.0.0.1")
Answer = dict[str, Any]


class Cluster:
    """What the nodes of a simulated cluster have in common."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.loop = asyncio.get_running_loop()
        self.agents: dict[str, SimulatedAgent] = {}
        self.relays: dict[str, SimulatedRelay] = {}
        self.identity = questions.identity()
        self.claims: dict[str, str] = {}
        """What the first node has written into each directory, if the nodes share them."""
        self._answers: dict[str, Answer] = {}

    def answer(self, kind: str, argument: Any, answer: Callable[[], Answer]) -> Answer:
        """Return the answer of this machine to a question, which is answered once."""
        key = f"{kind} {json.dumps(argument, sort_keys=True)}"
        if key not in self._answers:
            self._answers[key] = answer()
        return self._answers[key]

    def rank_failed(self) -> None:
        """Let the ranks fail that lose another one."""
        for agent in self.agents.values():
            agent.lost_a_rank()


class Rank:
    """A simulated rank."""

    def __init__(self, number: int, draw: RankDraw) -> None:
        self.number, self.draw = number, draw
        self.lines = 0
        """That it has printed."""
        self.running = True


class SimulatedAgent:
    """The agent of one node. It has the methods of the real one that `AgentClient` calls."""

    def __init__(self, cluster: Cluster, host: str, run: str) -> None:
        self.cluster, self.host, self.run = cluster, host, run
        self.node = node_of(host)
        self.loop = cluster.loop
        self.draw: NodeDraw = node_draw(cluster.scenario, self.node)
        self.journal = Journal()
        self.gatherer = Gatherer()
        self.client: AgentClient | None = None
        self.ranks: list[Rank] = []
        self.printing: list[Rank] = []
        """The ranks that have not printed all of their lines."""
        self.started = self.asked = self.done = False
        self.drops_when_asked = self.draw.drops_when_asked
        self._is_publishing = False
        self._interval, self._burst = 0.0, 1
        self._claims: dict[str, str] = {}
        self._missing: dict[int, int] = {}
        """Bytes of each archive."""
        self._beat: asyncio.TimerHandle | None = None

    def time(self) -> float:
        """Return the time by the node's clock."""
        return time.time() + self.draw.clock

    def later(self, seconds: float, work: Callable[[], object]) -> None:
        """Do something later."""
        self.loop.call_later(seconds, work)

    # ------------------------------------------------------------ its client

    def welcome(self, stream: Stream) -> None:
        """Greet the launcher, which has connected or reconnected."""
        if self.client is not None:
            self.client.close()
        self.client = client = AgentClient(stream, self)  # type: ignore[arg-type]
        stream.on_readable(client.read)
        identity = {**self.cluster.identity, "hostname": self.host, "boot": f"boot-{self.node}"}
        hello = {"run": self.run, "last": self.journal.last, "started": self.started, "peer": None}
        client.say({"event": "hello", "time": self.time(), **hello, **identity})
        self._beat = self.loop.call_later(BEAT, self.beat)

    def beat(self) -> None:
        """Send a heartbeat, and again later."""
        if self.client is not None:
            self.client.say({"event": "beat", "time": self.time(), "idle": 0.0})
            self._beat = self.loop.call_later(BEAT, self.beat)

    def watch_client(self, client: AgentClient, *, writing: bool) -> None:
        """Watch the client for writability while output is pending."""
        _stream_of(client).on_writable(client.write if writing else None)

    def forget(self, client: AgentClient) -> None:
        """Remove a client that is gone."""
        _stream_of(client).on_readable(None)
        _stream_of(client).on_writable(None)
        if client is self.client:
            self.client = None
            if self._beat is not None:
                self._beat.cancel()

    def take(self, client: AgentClient, frame: frames.Frame) -> None:
        """Carry out a message of the launcher, once it has arrived."""
        if self.draw.one_way:
            self.later(self.draw.one_way, partial(self._take, client, frame))
        else:
            self._take(client, frame)

    def _take(self, client: AgentClient, frame: frames.Frame) -> None:
        if client.closed:
            return
        if isinstance(frame, frames.Data):
            self._receive(client, frame)
        elif isinstance(frame, dict):
            operation: Callable[[AgentClient, frames.Message], None]
            operation = getattr(self, f"do_{frame['op']}")
            operation(client, frame)

    def _reply(self, client: AgentClient, id: int, value: Any) -> None:
        now = self.time()
        client.say({"reply": id, "value": value, "time": now, "received": now})

    def say(self, event: str, rank: int = frames.NO_RANK, **more: Any) -> None:
        """Report an event, after all output before it."""
        self._send_output()
        message = {"time": self.time(), "event": event, "rank": rank, **more}
        self.journal.append(frames.MESSAGE, frames.message_body(message))
        self._publish_soon()

    def output(self, rank: int, stream: int, text: str) -> None:
        """Take what a rank has printed; it is sent when it is due."""
        self.gatherer.add(rank, stream, f"{text}\n".encode())

    def _send_output(self) -> None:
        for rank, stream, when, data in self.gatherer.take():
            body = frames.output_body(rank, stream, when + self.draw.clock, data)
            self.journal.append(frames.OUTPUT, body)
        self._publish_soon()

    def _publish_soon(self) -> None:
        """Send what happens in a turn of the loop at once, as the real agent does."""
        if not self._is_publishing:
            self._is_publishing = True
            self.loop.call_soon(self._publish)

    def _publish(self) -> None:
        self._is_publishing = False
        if self.client is not None and self.client.sent is not None:
            self.client.write()

    # ------------------------------------------------------------ requests

    def do_ping(self, client: AgentClient, message: frames.Message) -> None:
        """Do nothing."""

    def do_clock(self, client: AgentClient, message: frames.Message) -> None:
        """Reply with the node's time."""
        self._reply(client, message["id"], None)

    def do_follow(self, client: AgentClient, message: frames.Message) -> None:
        """Send the journal from a frame on."""
        client.follow(message["after"])

    def do_got(self, client: AgentClient, message: frames.Message) -> None:
        """Release what has arrived."""
        self.journal.release(message["number"])

    def do_bye(self, client: AgentClient, message: frames.Message) -> None:
        """Close the connection."""
        client.close()

    def do_put(self, client: AgentClient, message: frames.Message) -> None:
        """Begin to receive an archive, which is thrown away."""
        self._missing[message["id"]] = len(message["pieces"])

    def _receive(self, client: AgentClient, frame: frames.Data) -> None:
        self._missing[frame.id] -= 1
        if not self._missing[frame.id]:
            self._reply(client, frame.id, 1)

    def do_usage(self, client: AgentClient, message: frames.Message) -> None:
        """Reply that this node measures nothing."""
        reply = {"reply": message["id"], "error": "not simulated", "time": self.time()}
        client.say(reply)

    do_signal = do_usage

    def do_collectives(self, client: AgentClient, message: frames.Message) -> None:
        """Reply that no rank has recorded a collective."""
        self._reply(client, message["id"], {})

    do_stacks = do_collectives

    # ------------------------------------------------------------ questions

    def do_ask(self, client: AgentClient, message: frames.Message) -> None:
        """Answer questions of a run."""
        if self.drops_when_asked:
            self.drops_when_asked = False
            self._drop()
            return
        answers = {name: self._asked(name, value) for name, value in message["questions"].items()}
        self._reply(client, message["id"], answers)

    def _asked(self, name: str, argument: Any) -> Answer:
        own = self._own_answer(name, argument)
        if own is not None:
            return own
        context = probe.Context(paths.home(), self.host, self.run, {})
        return self.cluster.answer(
            f"ask {name}", argument, lambda: probe.answer({name: argument}, context)[name]
        )

    def do_survey(self, client: AgentClient, message: frames.Message) -> None:
        """Answer questions of the gate or a preflight."""
        value: Answer | None = None
        if "questions" in message:
            asked = message["questions"].items()
            answers = {key: self._surveyed(question) for key, question in asked}
            value = {"hello": {**self.cluster.identity, "umask": 0o022}, "answers": answers}
        self._reply(client, message["id"], value)

    def _surveyed(self, question: Answer) -> Answer:
        kind = question["kind"]
        own = self._own_answer(kind, question["argument"])
        if own is not None:
            return {**own, "seconds": 0.0}
        # a job is asked about with the environment of each node, which makes no difference here
        asked = question["argument"] if kind == "job" else question
        return self.cluster.answer(kind, asked, lambda: survey.answered(question))

    def _own_answer(self, kind: str, argument: Any) -> Answer | None:
        """Return the answer that differs between nodes; None: this machine's holds for all."""
        answers: Mapping[str, Callable[[Any], Any]] = {
            "interfaces": lambda _: [_interface(self.node)],
            "resolve": lambda hosts: {host: [_address(node_of(host))] for host in hosts},
            "listen": lambda told: {"port": told["ports"][0]},
            "dial": lambda told: {name: {"local": _address(self.node)} for name in told["targets"]},
            "mark": lambda told: dict.fromkeys(told["paths"]),
            "claim": self._claim,
            "unmark": lambda _: None,
        }
        answer = answers.get(kind)
        return None if answer is None else {"value": answer(argument)}

    def _claim(self, told: Answer) -> Answer:
        claims = self.cluster.claims if self.cluster.scenario.shared else self._claims
        return {path: claims.setdefault(path, told["text"]) for path in told["paths"]}

    # ------------------------------------------------------------ ranks

    def do_start(self, client: AgentClient, message: frames.Message) -> None:
        """Start the ranks."""
        command = message["processes"][0]["argv"]
        scenario = from_json(paths.expanded(command[-1], message["env"]))
        self._interval, self._burst = scenario.interval, scenario.burst
        self.started = True
        self.gatherer = Gatherer(message["output_interval"])
        self.say("contained", contained="cgroup")
        first = message["first_rank"]
        for number in range(first, first + message["slots"]):
            rank = Rank(number, rank_draw(scenario, number))
            self.ranks.append(rank)
            self.printing.append(rank)
            self.say("started", number, pid=self._pid(number))
        self.later(JOIN_INTERVAL, self._joined)
        if self.draw.drops_after is not None:
            self.later(self.draw.drops_after, self._drop)
        self._print()

    def _pid(self, rank: int) -> int:
        return 1000 + rank % 1_000_000

    def _joined(self) -> None:
        if not self.done:
            self.say("joined")

    def _drop(self) -> None:
        """Let the connections break, also that of the node's relay."""
        if self.client is not None:
            self.client.close()
        relay = self.cluster.relays.get(self.host)
        if relay is not None:
            relay.end()

    def _print(self) -> None:
        """Let every rank print, and again later: the ranks of a node print together."""
        self.printing = [rank for rank in self.printing if rank.running]
        for rank in list(self.printing):
            if rank.lines < rank.draw.lines:
                last = min(rank.lines + self._burst, rank.draw.lines)
                lines = [line(rank.number, number) for number in range(rank.lines, last)]
                self.output(rank.number, STDOUT, "\n".join(lines))
                rank.lines = last
            else:
                self.printing.remove(rank)
                self.later(rank.draw.rest, partial(self._complete, rank))
        if self.gatherer.is_due():
            self._send_output()
        if self.printing:
            self.later(self._interval, self._print)

    def _complete(self, rank: Rank) -> None:
        """Let a rank end by itself."""
        if not rank.running:
            return
        if rank.draw.fails:
            self._fail(rank, MISTAKE)
            self.cluster.rank_failed()
        else:
            self._end(rank, code=0)

    def _fail(self, rank: Rank, why: str) -> None:
        if rank.running:
            self.output(rank.number, STDERR, why)
            self._end(rank, code=FAILED, evidence={})

    def lost_a_rank(self) -> None:
        """Let the ranks fail that lose another one."""
        for rank in self.ranks:
            if rank.draw.consequence is not None:
                self.later(rank.draw.consequence, partial(self._fail, rank, PEER_LOST))

    def do_stop(self, client: AgentClient, message: frames.Message) -> None:
        """End the ranks."""
        if self.asked or self.done or not self.started:
            return
        self.asked = True
        self.say("ending", error=message.get("why") or "asked to stop")
        for rank in self.ranks:
            self.later(rank.draw.ending, partial(self._end, rank, signal=TERM))

    def _end(self, rank: Rank, **how: Any) -> None:
        """Report the end of a rank, and of the node's part after the last one."""
        if not rank.running:
            return
        rank.running = False
        self.say("exit", rank.number, **{"code": None, "signal": None, "asked": self.asked, **how})
        if not any(each.running for each in self.ranks):
            self.done = True
            self.say("done", left=[])


def _stream_of(client: AgentClient) -> Stream:
    return cast("Stream", client.socket)


def _address(node: int) -> str:
    return str(_FIRST_ADDRESS + node)


def _interface(node: int) -> Answer:
    state = {"loopback": False, "up": True, "speed": 100_000, "mtu": 9000}
    return {"name": "eth0", "address": _address(node), **state}
