"""Log records: codes, fields, and no secret in any of them."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator

import pytest

from dslaunch import log
from dslaunch.cluster.model import Node
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.slurm.client import run_command
from dslaunch.transport.logged import LoggedTransport

SECRET = "correct horse battery staple"


def fields(record: logging.LogRecord) -> dict[str, object]:
    found = vars(record)["fields"]
    assert isinstance(found, dict)
    return found


class Kept(logging.Handler):
    """Keeps records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """What a handler of a program that uses dslaunch is given."""
    kept, ours = Kept(), logging.getLogger("dslaunch")
    ours.addHandler(kept)
    ours.setLevel(logging.DEBUG)
    yield kept.records
    ours.setLevel(logging.NOTSET)
    ours.removeHandler(kept)


def test_a_record_has_a_code_and_the_fields_of_its_log(records: list[logging.LogRecord]):
    log.Log("dslaunch.x", node="n1").bind(run="r").info("done", seconds=1.23456, rank=None)
    (record,) = records
    assert (record.levelno, vars(record)["event"]) == (logging.INFO, "done")
    assert fields(record) == {"node": "n1", "run": "r", "seconds": 1.235}


def test_a_message_quotes_values_with_spaces(records: list[logging.LogRecord]):
    log.Log("dslaunch.x").debug("asked", text="a b", questions=["gpus"])
    assert records[0].getMessage() == 'asked text="a b" questions=["gpus"]'


def test_secrets_are_masked_for_every_handler(records: list[logging.LogRecord]):
    log.conceal([SECRET])
    encoded = base64.b64encode(SECRET.encode()).decode()
    argv = ["train.py", f"--token={SECRET}", encoded]
    log.Log("dslaunch.x").info("planned", argv=argv, env=[f"COPY={SECRET}"])
    assert fields(records[0]) == {"argv": ["train.py", "--token=***", "***"], "env": ["COPY=***"]}
    assert SECRET not in records[0].getMessage()
    assert log.masked(f"banner {SECRET}") == "banner ***"


class Nowhere:
    """A transport that reaches `there` only."""

    def connect(self, node: Node) -> object:
        if node.host != "there":
            raise NodeError((NodeFailure(node.host, "refused", "no"),))
        return self

    def close(self) -> None:
        pass


def test_connections_are_logged_with_node_transport_and_time(records: list[logging.LogRecord]):
    way = LoggedTransport("fake", Nowhere())  # type: ignore[arg-type]
    way.connect(Node("there", (0,)))
    with pytest.raises(NodeError):
        way.connect(Node("away", (0,)))
    steps = [(vars(each)["event"], fields(each)["node"]) for each in records]
    assert steps == [
        ("connecting", "there"),
        ("connected", "there"),
        ("connecting", "away"),
        ("connect-failed", "away"),
    ]
    assert fields(records[-1])["kind"] == "refused"
    assert all(fields(each)["transport"] == "fake" for each in records)
    assert isinstance(fields(records[1])["seconds"], float)


def test_commands_of_slurm_are_logged_with_their_exit_code(
    records: list[logging.LogRecord],
):
    run_command(["/bin/sh", "-c", "exit 3"], "", {})
    found = fields(records[-1])
    assert (found["argv"], found["code"]) == (["/bin/sh", "-c", "exit 3"], 3)
