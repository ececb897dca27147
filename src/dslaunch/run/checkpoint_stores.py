"""Where a checkpoint's files can be: nodes, over their connections, and this machine."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from dslaunch.cluster.model import Cluster, Node
from dslaunch.errors import DslaunchError, NodeError, NodeFailure
from dslaunch.node import shards
from dslaunch.protocol.checkpoints import Survey, answer_type, query
from dslaunch.protocol.queries import Answers
from dslaunch.protocol.values import parse
from dslaunch.run.reach import ReachedNodes, reach
from dslaunch.run.session import LostError, Session

HERE = "here"
"""What this machine is called beside the nodes."""
PATIENCE = 60.0
"""Seconds that a node may take for a small thing."""
LONG = 24 * 3600.0
"""Seconds for reading all of a large file."""
BEAT = 4.0
"""Seconds between signs of life; an agent that hears none for 15 hangs up."""


class StoreError(DslaunchError):
    """A place could not do what it was asked; names it and the file."""


class CheckpointStore(Protocol):
    """Does what `node/shards.py` offers. Every answer is of the type that `answer_type` gives."""

    name: str

    def ask(self, operation: str, path: str, **more: Any) -> Future[Any]:
        """Have an operation done in a directory, which is absolute or relative to the user's home
        there; the future raises whatever went wrong."""


class NodeStore:
    """A node, through its agent."""

    def __init__(self, session: Session) -> None:
        self.name = session.host
        self._session = session

    def ask(self, operation: str, path: str, **more: Any) -> Future[Any]:
        """Have the node do it."""
        answer: Future[Any] = Future()
        where = str(PurePosixPath(path, more.get("name", "")))
        asked = query(operation)

        def told(done: Future[Answers]) -> None:
            lost = done.exception()
            if lost is not None:
                answer.set_exception(lost)
                return
            answers = done.result()
            why = answers.error(asked)
            if why is None:
                answer.set_result(answers[asked])
            else:
                answer.set_exception(StoreError(f"{self.name}: {where}: {why}"))

        question = {"do": operation, "path": path, **more}
        self._session.ask({asked: question}).add_done_callback(told)
        return answer


class LocalStore:
    """This machine. The files on it may have come from nodes."""

    name = HERE

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def ask(self, operation: str, path: str, **more: Any) -> Future[Any]:
        """Do it in a thread."""
        return self._pool.submit(self._do, {"do": operation, "path": path, **more})

    def _do(self, question: dict[str, Any]) -> Any:
        path = str(Path(question["path"]).expanduser().absolute())
        where = str(PurePosixPath(path, question.get("name", "")))
        try:
            answer = shards.do({**question, "path": path})
            # from JSON, as it comes from a node
            return parse(answer_type(question["do"]), json.loads(json.dumps(answer)))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise StoreError(f"{where}: {why}") from None


def result(future: Future[Any], timeout: float = PATIENCE) -> Any:
    """What a place said. Raises StoreError, and NodeError when the node is gone or silent."""
    try:
        return future.result(timeout)
    except LostError as error:
        raise NodeError((error.failure,)) from None
    except TimeoutError:
        raise StoreError(
            f"no answer within {timeout:.0f} s", hint="look for a hung file system there"
        ) from None


@contextlib.contextmanager
def open_places(
    cluster: Cluster, nodes: Sequence[Node]
) -> Iterator[tuple[list[NodeStore], ReachedNodes]]:
    """The nodes that answer, and why the others do not; kept alive however long it lasts."""
    over = threading.Event()

    def beat(reached: ReachedNodes) -> None:
        while not over.wait(BEAT):
            for session in reached.sessions.values():
                session.ping()

    with reach(cluster, nodes) as reached:
        thread = threading.Thread(target=beat, args=(reached,), daemon=True)
        thread.start()
        try:
            yield [NodeStore(session) for session in reached.sessions.values()], reached
        finally:
            over.set()
            thread.join()


def survey(
    places: Sequence[NodeStore], reached: ReachedNodes, directory: str
) -> tuple[dict[str, Survey], dict[str, float]]:
    """What every place says of the checkpoints below a directory, and how far its clock is ahead.

    A directory that is not there holds none. Whoever does not answer is in `reached.failures`.
    """
    clocks = [session.measure_clock() for session in reached.sessions.values()]
    asked = {place.name: place.ask("survey", directory) for place in places}
    wait([*clocks, *asked.values()], PATIENCE)
    told: dict[str, Survey] = {}
    for host, future in asked.items():
        try:
            told[host] = result(future, 0)
        except NodeError as error:
            reached.failures[host] = error.failures[0]
        except StoreError as error:
            reached.failures[host] = NodeFailure(host, "protocol", error.message, error.hint)
    return told, {host: session.offset for host, session in reached.sessions.items()}
