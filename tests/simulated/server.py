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
from dataclasses import asdict, dataclass
from typing import Any

from dslaunch.transport.login_shell import STARTED
from tests.simulated.agent import Cluster, SimulatedAgent
from tests.simulated.drawn import Scenario, from_json, node_draw, node_of
from tests.simulated.transport import ACCEPTED, REFUSED, SIZE

BACKLOG = 4096
PIECE = 1 << 20
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

    async def listen(self, path: str) -> None:
        """Take the connections of the launcher, until cancelled."""
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen(BACKLOG)
            server.setblocking(False)
            print("listening", flush=True)
            while True:
                connection, _ = await self.loop.sock_accept(server)
                task = self.loop.create_task(self._serve(connection))
                self._open.add(task)
                task.add_done_callback(self._open.discard)

    async def _serve(self, connection: socket.socket) -> None:
        """Log the launcher in, and run the program that it sends."""
        try:
            await self._login(connection)
        except ConnectionError:  # the launcher has left
            connection.close()

    async def _login(self, connection: socket.socket) -> None:
        host = (await self._text(connection)).decode()
        draw = node_draw(self.cluster.scenario, node_of(host))
        await asyncio.sleep(draw.login)
        if draw.refused:
            await self.loop.sock_sendall(connection, REFUSED)
            connection.close()
            return
        await self.loop.sock_sendall(connection, ACCEPTED)
        await self._text(connection)  # the shell line
        await self.loop.sock_sendall(connection, STARTED)
        arguments = await self._program(connection)
        await asyncio.sleep(draw.boot)
        if not arguments["join"]:
            self.cluster.agents[host] = SimulatedAgent(self.cluster, host, arguments["run"])
        self.cluster.agents[host].welcome(connection)

    async def _text(self, connection: socket.socket) -> bytes:
        (size,) = SIZE.unpack(await self._exactly(connection, SIZE.size))
        return await self._exactly(connection, size)

    async def _program(self, connection: socket.socket) -> dict[str, Any]:
        """Read a program that `transport.program` sends; return its arguments."""
        length = b""
        while not length.endswith(b"\n"):
            length += await self._exactly(connection, 1)
        loader = await self._exactly(connection, int(length))
        sizes, arguments = _SIZES.search(loader), _ARGUMENTS.search(loader)
        assert sizes is not None
        assert arguments is not None
        await self._skip(connection, sum(ast.literal_eval(sizes[1].decode())))
        found: dict[str, Any] = ast.literal_eval(arguments[1].decode())
        return found

    async def _exactly(self, connection: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self.loop.sock_recv(connection, size - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data

    async def _skip(self, connection: socket.socket, size: int) -> None:
        while size:
            piece = await self.loop.sock_recv(connection, min(size, PIECE))
            if not piece:
                raise ConnectionResetError
            size -= len(piece)

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
