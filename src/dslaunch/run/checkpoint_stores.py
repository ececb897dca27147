"""Stores of checkpoint files: nodes, over their connections, and this machine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from dslaunch.cluster.model import Cluster, Node
from dslaunch.errors import DslaunchError, NodeError, NodeFailure
from dslaunch.json_text import json_text
from dslaunch.node import shards
from dslaunch.protocol.checkpoints import Survey, answer_type, query
from dslaunch.protocol.queries import Answers
from dslaunch.protocol.values import parse
from dslaunch.run.reach import ReachedNodes, reach
from dslaunch.run.session import Session
from dslaunch.transport.fulfill import fulfill
from dslaunch.transport.future import Future, wait_for
from dslaunch.transport.wire import LostError

HERE = "here"
"""The name of this machine among the nodes."""
ANSWER_TIMEOUT = 60.0
"""Seconds for a short operation."""
LONG = 24 * 3600.0
"""Seconds for reading a whole large file."""


class StoreError(DslaunchError):
    """An operation on a store failed; the message names the store and the file."""


class CheckpointStore(Protocol):
    """Performs the operations of `node/shards.py`; `answer_type` has the types of the answers."""

    name: str

    def ask(self, operation: str, path: str, **more: Any) -> Future[Any]:
        """Perform an operation in a directory, absolute or relative to the user's home there; the
        future raises whatever failed."""


class NodeStore:
    """A node, through its agent."""

    def __init__(self, session: Session) -> None:
        self.name = session.host
        self._session = session

    def ask(self, operation: str, path: str, **more: Any) -> Future[Any]:
        """Send the operation to the node."""
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
        """Perform it in a thread."""
        answer: Future[Any] = Future()
        question = {"do": operation, "path": path, **more}
        self._pool.submit(fulfill, answer, partial(self._do, question))
        return answer

    def _do(self, question: dict[str, Any]) -> Any:
        path = str(Path(question["path"]).expanduser().absolute())
        where = str(PurePosixPath(path, question.get("name", "")))
        try:
            answer = shards.do({**question, "path": path})
            # from JSON, as it comes from a node
            return parse(answer_type(question["do"]), json.loads(json_text(answer)))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise StoreError(f"{where}: {why}") from None


def result(future: Future[Any], timeout: float = ANSWER_TIMEOUT) -> Any:
    """Return the answer of a store. Raises StoreError, and NodeError if the node is lost."""
    try:
        return future.result(timeout)
    except LostError as error:
        raise NodeError((error.failure,)) from None
    except TimeoutError:
        raise StoreError(
            f"no answer within {timeout:.0f} s", hint="check for a hung file system there"
        ) from None


@contextlib.contextmanager
def open_places(
    cluster: Cluster, nodes: Sequence[Node]
) -> Iterator[tuple[list[NodeStore], ReachedNodes]]:
    """Connect to nodes; give the stores of those that answer, and why the others do not."""
    with reach(cluster, nodes) as reached:
        yield [NodeStore(session) for session in reached.sessions.values()], reached


def survey(
    places: Sequence[NodeStore], reached: ReachedNodes, directory: str
) -> tuple[dict[str, Survey], dict[str, float]]:
    """Return the checkpoints below a directory by node, and by how much each clock is ahead.

    A missing directory has none. Nodes that do not answer are in `reached.failures`.
    """
    clocks = [session.measure_clock() for session in reached.sessions.values()]
    asked = {place.name: place.ask("survey", directory) for place in places}
    wait_for([*clocks, *asked.values()], ANSWER_TIMEOUT)
    told: dict[str, Survey] = {}
    for host, future in asked.items():
        try:
            told[host] = result(future, 0)
        except NodeError as error:
            reached.failures[host] = error.failures[0]
        except StoreError as error:
            reached.failures[host] = NodeFailure(host, "protocol", error.message, error.hint)
    return told, {host: session.offset for host, session in reached.sessions.items()}
