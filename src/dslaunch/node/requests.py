"""What the clients of an agent ask for: an operation for each kind of message."""

from __future__ import annotations

import time

from dslaunch.node import collectives, frames, probe, rank_signals, stacks, threads

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict

    from dslaunch.node.agent import Agent
    from dslaunch.node.client import AgentClient

    Operation = Callable[[AgentClient, frames.Message], None]


class Requests:
    """Carries out the messages of clients. What may take long has a thread for itself."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def take(self, client: AgentClient, message: frames.Message) -> None:
        """Carry out a client's message.

        What is replied to must not end the run, and nothing of a command, which may be of another
        version of dslaunch.
        """
        try:
            self._operation(message)(client, message)
        except Exception as error:
            if "id" in message:
                client.refuse(message["id"], f"invalid request: {error!r:.200}")
            elif client is self._agent.holder.client:
                raise
            else:
                client.close()

    def _operation(self, message: frames.Message) -> Operation:
        """Return what carries out a message; one of an unknown kind is a heartbeat."""
        found: Operation = getattr(self, f"do_{message['op']}", self.do_ping)
        return found

    def in_thread(self, client: AgentClient, id: int, work: Callable[[], Any]) -> None:
        """Do work in a thread that may take long or hang on a dead file system, and reply.

        With the time of its arrival, a request tells the launcher how far our clock is ahead,
        however long the work takes.
        """
        received = time.time()
        secrets = self._agent.secrets

        def answer() -> Dict[str, Any]:
            try:
                return {"value": secrets.values(work())}
            except (OSError, ValueError) as error:
                return {"error": secrets.text(str(error))}
            except Exception as error:  # noqa: BLE001 - a question must not end the run
                return {"error": secrets.text(f"{type(error).__name__}: {error}")}

        def run() -> None:
            reply = {"reply": id, **answer(), "received": received}
            self._agent.loop.hand_over(lambda: client.say({**reply, "time": time.time()}))

        if not threads.start(run):
            client.refuse(id, "no more threads can be started on this node")

    def answers(self, asked: Dict[str, Any]) -> Dict[str, Any]:
        """Return the answers to questions, by name. May take long."""
        agent = self._agent
        return probe.answer(
            asked, probe.Context(agent.home, agent.host, agent.run, agent.environment)
        )

    # ------------------------------------------------------------ the connection

    def do_ping(self, client: AgentClient, message: frames.Message) -> None:
        """Do nothing: any message counts as a heartbeat."""

    def do_coming(self, client: AgentClient, message: frames.Message) -> None:
        """Note that the launcher is reconnecting, and restart its reconnect timeout."""
        client.ssh = message.get("ssh", "")
        client.reconnecting = True
        self._agent.holder.note_contact()

    def do_clock(self, client: AgentClient, message: frames.Message) -> None:
        """Reply with the node's time."""
        client.reply(message["id"], None)

    def do_follow(self, client: AgentClient, message: frames.Message) -> None:
        """Send the journal from a frame on; with `hold`, the client is the launcher of the run."""
        if message.get("hold"):
            client.closed_limit = message.get("closed")
            self._agent.holder.take(client)
        client.follow(message["after"])

    def do_got(self, client: AgentClient, message: frames.Message) -> None:
        """Release the frames of the journal that the launcher has received."""
        if client is self._agent.holder.client:
            self._agent.release(message["number"])

    def do_bye(self, client: AgentClient, message: frames.Message) -> None:
        """Close a client's connection; if it is the launcher of an attached run, end the run."""
        if client is self._agent.holder.client and not self._agent.detached:
            self._agent.dismiss()
        client.close()

    # ------------------------------------------------------------ the run

    def do_detach(self, client: AgentClient, message: frames.Message) -> None:
        """Detach the run, and reply where this node listens for the others."""
        try:
            reply = self._agent.detach(message["link"])
        except OSError as error:
            client.refuse(message["id"], str(error))
            return
        client.reply(message["id"], reply)

    def do_start(self, client: AgentClient, message: frames.Message) -> None:
        """Start the node's processes, unless an earlier message has: the launcher sends it again if
        the connection was lost meanwhile."""
        if self._agent.ranks is None and not self._agent.done:
            self._agent.start(message)

    def do_stop(self, client: AgentClient, message: frames.Message) -> None:
        """End the processes; notify the launcher if another client requested it."""
        agent = self._agent
        is_launcher = client is agent.holder.client or client.reconnecting
        if not is_launcher and not agent.done:
            agent.say({"event": "stopping", "rank": frames.NO_RANK, "by": message.get("by")})
        agent.end(message["grace"], message.get("why") or "asked to stop")

    def do_signal(self, client: AgentClient, message: frames.Message) -> None:
        """Send the ranks a signal, and reply which got it."""
        try:
            signaled = rank_signals.deliver(
                self._agent.running_pids(),
                message["number"],
                message["ranks"],
                force=message["force"],
                check=message["check"],
            )
        except ValueError as error:
            client.refuse(message["id"], str(error))
        else:
            client.reply(message["id"], signaled)

    # ------------------------------------------------------------ the ranks

    def do_stacks(self, client: AgentClient, message: frames.Message) -> None:
        """Reply with the stacks of every rank; with `jobs`, as `do_usage`."""
        started = self._agent.pids()
        jobs, timeout = message.get("jobs"), message["timeout"]

        def look() -> Any:
            pids = rank_signals.ranks_of_job(jobs) if jobs else started
            return stacks.collect(pids, timeout)

        self.in_thread(client, message["id"], look)

    def do_collectives(self, client: AgentClient, message: frames.Message) -> None:
        """Reply with what every rank has recorded of its collectives."""
        pids, directory = self._agent.pids(), self._agent.directory
        what, timeout, since = message["what"], message["timeout"], message.get("since", 0.0)

        def ask() -> Dict[str, Any]:
            if not directory:
                return {}
            return collectives.collect(pids, directory, what, timeout, since=since)

        self.in_thread(client, message["id"], ask)

    def do_usage(self, client: AgentClient, message: frames.Message) -> None:
        """Reply with what the node and every rank use; with `jobs`, the ranks of SLURM jobs, which
        SLURM has started."""
        started = self._agent.pids()
        jobs, output = message.get("jobs"), message["output"]

        def measure() -> Any:
            pids = rank_signals.ranks_of_job(jobs) if jobs else started
            return self._agent.usage.read(pids, output)

        self.in_thread(client, message["id"], measure)

    def do_rehearsal(self, client: AgentClient, message: frames.Message) -> None:
        """Reply with what the ranks of a rehearsal have recorded since."""
        from dslaunch.node import rehearsal

        directory = self._agent.node_directory()
        ranks = self._agent.ranks.expected if self._agent.ranks else ()
        after = message["after"]
        self.in_thread(client, message["id"], lambda: rehearsal.records(directory, ranks, after))

    # ------------------------------------------------------------ questions and files

    def do_ask(self, client: AgentClient, message: frames.Message) -> None:
        """Answer questions."""
        asked = message["questions"]
        self.in_thread(client, message["id"], lambda: self.answers(asked))

    def do_survey(self, client: AgentClient, message: frames.Message) -> None:
        """Answer the questions of a preflight, in the surveyor."""
        surveyor = self._agent.surveyor
        if surveyor is not None:
            self.in_thread(client, message["id"], lambda: surveyor.ask(message))

    def do_put(self, client: AgentClient, message: frames.Message) -> None:
        """Expect an archive, whose pieces follow as data."""
        self._agent.shipping.expect(client, message)

    def do_received(self, client: AgentClient, message: frames.Message) -> None:
        """Reply how many pieces of an archive have arrived."""
        client.reply(message["id"], self._agent.shipping.received(message["archive"]))

    def do_hand_on(self, client: AgentClient, message: frames.Message) -> None:
        """Send an archive to another node while it arrives."""
        self._agent.shipping.hand_on(client, message)
