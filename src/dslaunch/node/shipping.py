"""The archives that a node gets in pieces: it unpacks them, and hands them on to other nodes."""

from __future__ import annotations

from dslaunch.node import frames, paths

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Dict, List

    from dslaunch.node import files, handover
    from dslaunch.node.agent import Agent
    from dslaunch.node.client import AgentClient


class Shipping:
    """The archives of one run on this node."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._archives: Dict[int, files.Archive] = {}
        self._unpacking_for: Dict[int, AgentClient] = {}
        """Who waits for an archive that has not arrived yet."""
        self._handovers: List[handover.Handover] = []

    def expect(self, client: AgentClient, message: frames.Message) -> None:
        """Expect an archive, and unpack it below `root` when all of its pieces have arrived.

        With `from_node` they come from another node, over the agent's socket.
        """
        from dslaunch.node import files  # with hashlib: not every run ships files

        id = message["id"]
        self._archives[id] = files.Archive(paths.absolute(message["root"]), message["pieces"])
        self._unpacking_for[id] = client
        if message["from_node"]:
            try:
                self.agent.open_door()
            except OSError as error:
                client.refuse(id, str(error))

    def receive(self, client: AgentClient, frame: frames.Data) -> None:
        """Add a piece to an archive, and unpack it after the last one."""
        archive = self._archives.get(frame.id)
        try:
            if archive is None:
                raise ValueError("a piece of no archive")
            archive.add(frame.data)
        except ValueError:  # from another node, which may be compromised
            client.close()
            return
        if archive.whole or archive.error is not None:
            waiting = self._unpacking_for.pop(frame.id, None)
            if waiting is not None:
                self.agent.requests.in_thread(waiting, frame.id, archive.unpack)

    def received(self, archive: int) -> int:
        """Return how many pieces of an archive have arrived."""
        return self._archives[archive].received

    def hand_on(self, client: AgentClient, message: frames.Message) -> None:
        """Send an archive to another node while it arrives, and reply how that ended."""
        from dslaunch.node import handover  # few nodes do this

        each = handover.Handover(self._archives[message["archive"]], message)
        self._handovers.append(each)
        self.agent.requests.in_thread(client, message["id"], each.run)

    def tick(self, now: float) -> None:
        """End handovers whose receiver has stopped reading. `now`: on the monotonic clock."""
        for each in self._handovers:
            each.look(now)

    def end(self) -> None:
        """Forget all archives, and end what still sends them."""
        for each in self._handovers:
            each.end()
        for archive in self._archives.values():
            archive.close()
        self._handovers.clear()
        self._archives.clear()
        self._unpacking_for.clear()
