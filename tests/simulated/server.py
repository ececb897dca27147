"""The process of a simulated cluster: it listens for the launcher, and runs all agents.

    python -m tests.simulated.server SOCKET SCENARIO

Prints a line when it listens. When its standard input ends, it prints what its ranks have printed
and whether all have ended, as a `Report`, and exits.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import resource
import socket
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from dslaunch.run.agent_program import NO_AGENT
from dslaunch.transport.login_shell import STARTED
from tests.simulated import streams
from tests.simulated.agent import Cluster, SimulatedAgent
from tests.simulated.drawn import Scenario, from_json, node_draw, node_of
from tests.simulated.relay import RelayedStream, SimulatedRelay, Turns
from tests.simulated.streams import SocketStream, Stream
from tests.simulated.transport import ACCEPTED, REFUSED

BACKLOG = 4096
_SIZES = re.compile(rb"for size in (\([0-9, ]+\))\]")
_ARGUMENTS = re.compile(rb"^main\((.+)\)$", re.MULTILINE)
"""The sizes of the packed modules, and the arguments of the program, in `transport.program`'s
loader."""


@dataclass(frozen=True, slots=True)
class Report:
    """What has happened on the simulated nodes."""

    printed: dict[int, int]
    """Lines of each rank; not that of its failure."""
    running: int
    """Ranks that have not ended."""
    connections: int
    """Connections of the launcher that are open."""
    cpu: float
    """CPU seconds of the simulation."""


def report_from_json(text: str) -> Report:
    """Return the report of the server's last line."""
    values = json.loads(text)
    printed = {int(rank): count for rank, count in values.pop("printed").items()}
    return Report(printed=printed, **values)


class Server:
    """Logs the launcher in, and starts the agents."""

    def __init__(self, scenario: Scenario) -> None:
        self.cluster = Cluster(scenario)
        self.loop = self.cluster.loop
        self._open: set[asyncio.Task[None]] = set()
        self._turns = Turns()

    async def listen(self, path: str) -> None:
        """Take the connections of the launcher, until cancelled."""
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen(BACKLOG)
            server.setblocking(False)
            print("listening", flush=True)
            while True:
                connection, _ = await self.loop.sock_accept(server)
                self._begin(self._log_in(SocketStream(connection)))

    def _begin(self, serving: Coroutine[Any, Any, None]) -> None:
        """Serve a connection, beside all others."""
        task = self.loop.create_task(serving)
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _log_in(self, stream: Stream) -> None:
        """Log the launcher in, and run the program that it sends."""
        with _closed_at_its_end(stream):
            host = (await streams.line(stream)).decode()
            if await self._lets_in(host):
                stream.send(ACCEPTED)
                await self._serve(host, stream)
            else:
                stream.send(REFUSED)
                stream.close()

    def _log_in_through(self, host: str, stream: RelayedStream) -> None:
        self._begin(self._log_in_child(host, stream))

    async def _log_in_child(self, host: str, stream: RelayedStream) -> None:
        """Log a relay in, and run the program that the launcher sends."""
        with _closed_at_its_end(stream):
            if await self._lets_in(host):
                stream.let_in()
                await self._serve(host, stream)
            else:
                stream.refuse("Permission denied (publickey).")

    async def _lets_in(self, host: str) -> bool:
        draw = node_draw(self.cluster.scenario, node_of(host))
        await asyncio.sleep(draw.login)
        return not draw.refused

    async def _serve(self, host: str, stream: Stream) -> None:
        """Run the program that the launcher sends to a node."""
        draw = node_draw(self.cluster.scenario, node_of(host))
        await streams.line(stream)  # the shell line
        stream.send(STARTED)
        arguments = await self._program(stream)
        await asyncio.sleep(draw.boot)
        if "login_timeout" in arguments:
            relay = SimulatedRelay(stream, draw.one_way, self._log_in_through, self._turns)
            self.cluster.relays[host] = relay
            return
        if not arguments["join"]:
            self.cluster.agents[host] = SimulatedAgent(self.cluster, host, arguments["run"])
        elif host not in self.cluster.agents:  # the first connection was lost before it began
            stream.exit(NO_AGENT)
            return
        self.cluster.agents[host].welcome(stream)

    async def _program(self, stream: Stream) -> dict[str, Any]:
        """Read a program that `transport.program` sends; return its arguments."""
        length = await streams.line(stream)
        loader = await streams.exactly(stream, int(length))
        sizes, arguments = _SIZES.search(loader), _ARGUMENTS.search(loader)
        assert sizes is not None
        assert arguments is not None
        await streams.skip(stream, sum(ast.literal_eval(sizes[1].decode())))
        found: dict[str, Any] = ast.literal_eval(arguments[1].decode())
        return found

    def report(self) -> Report:
        """Return what has happened."""
        agents = self.cluster.agents.values()
        ranks = [rank for agent in agents for rank in agent.ranks]
        return Report(
            printed={rank.number: rank.lines for rank in ranks},
            running=sum(rank.running for rank in ranks),
            connections=sum(agent.client is not None for agent in agents),
            cpu=_cpu(),
        )


@contextmanager
def _closed_at_its_end(stream: Stream) -> Iterator[None]:
    """Close a connection whose other end has left."""
    try:
        yield
    except OSError:
        stream.close()


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main(path: str, scenario: Scenario) -> None:
    """Serve until standard input ends; print what has happened."""
    server = Server(scenario)
    listening = asyncio.create_task(server.listen(path))
    ended = asyncio.Event()
    server.loop.add_reader(sys.stdin, ended.set)
    await ended.wait()
    listening.cancel()
    print(json.dumps(asdict(server.report())), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], from_json(sys.argv[2])))
