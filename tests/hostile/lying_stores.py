"""Nodes that lie about their checkpoints: the real operations, with answers changed on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dslaunch.deepspeed.shards import model_name, optimizer_name
from dslaunch.errors import NodeFailure
from dslaunch.node import shards
from dslaunch.protocol.queries import Answers, Questions, parse_answers
from dslaunch.protocol.values import InvalidAnswer
from dslaunch.run.checkpoint_stores import NodeStore
from dslaunch.run.checkpoints import Holdings, look
from dslaunch.run.reach import ReachedNodes
from dslaunch.transport.future import Future
from dslaunch.transport.wire import LostError
from tests.unit.node.test_shards import save

Tamper = Callable[[str, Any], Any]


def honest(operation: str, reply: Any) -> Any:
    """Change nothing."""
    return reply


class Lying:
    """A node's session whose agent does what it is asked, and changes what it answers."""

    def __init__(self, host: str, tamper: Tamper = honest) -> None:
        self.host, self.tamper, self.offset = host, tamper, 0.0

    def ask(self, questions: Questions) -> Future[Answers]:
        """Answer as the agent does: through JSON, with a value or an error."""
        answer: Future[Answers] = Future()
        raw = {
            query.name: self.tamper(question["do"], json.loads(json.dumps(_reply(question))))
            for query, question in questions.items()
        }
        try:
            answer.set_result(parse_answers(self.host, questions, raw))
        except InvalidAnswer as error:
            answer.set_exception(LostError(NodeFailure(self.host, "protocol", str(error))))
        return answer

    def measure_clock(self) -> Future[Any]:
        """As a session's."""
        done: Future[Any] = Future()
        done.set_result(None)
        return done


def _reply(question: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": shards.do(question)}
    except OSError as error:
        return {"error": error.strerror or str(error)}
    except (KeyError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def place(session: Lying) -> NodeStore:
    """The node as the launcher sees it."""
    return NodeStore(session)  # type: ignore[arg-type]


def looked(directory: Path, *sessions: Lying) -> Holdings:
    """What these nodes have in a directory, by their own words."""
    reached = ReachedNodes({session.host: session for session in sessions})  # type: ignore[arg-type]
    return look([place(session) for session in sessions], reached, str(directory))


def a_checkpoint(top: Path, tag: str = "step5", ranks: int = 2) -> Path:
    """What DeepSpeed leaves of a training with ZeRO-2."""
    save(top / tag / model_name(0), {"mp_world_size": 1, "global_steps": 5})
    for rank in range(ranks):
        state = {"zero_stage": 2, "partition_count": ranks}
        save(top / tag / optimizer_name(rank, 0), {"optimizer_state_dict": state})
    (top / "latest").write_text(tag)
    return top


def tree(top: Path) -> dict[str, Any]:
    """Everything below a directory: types, links, contents and modes."""
    return {str(path.relative_to(top)): _described(path) for path in sorted(top.rglob("*"))}


def _described(path: Path) -> Any:
    if path.is_symlink():
        return path.readlink()
    return (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
