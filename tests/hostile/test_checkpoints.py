"""`dslaunch checkpoint` with nodes that lie: nothing is written outside, and nothing goes wrong."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dslaunch.cluster.model import Allocation, Cluster, Node
from dslaunch.deepspeed.checkpoint import choose
from dslaunch.deepspeed.placement import lacking
from dslaunch.errors import DslaunchError, NodeError
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided, Rendezvous
from dslaunch.node import shards
from dslaunch.report.checkpoint import as_data, detail, rows
from dslaunch.run.checkpoint_stores import LocalStore
from dslaunch.run.checkpoints import gather, read_through, spread
from dslaunch.run.evidence import Inquiry
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.resume import Attempt, ResumePreparation
from tests.growth import result_within
from tests.hostile.lying_stores import (
    Lying,
    Tamper,
    a_checkpoint,
    honest,
    looked,
    place,
    tree,
)
from tests.hostile.mutations import sample


def gathered(world: Path, here: LocalStore, tamper: Tamper) -> None:
    """Gather what a lying node says that it has."""
    holdings = looked(world / "node", Lying("evil", tamper))
    if holdings.failures:
        raise NodeError(tuple(holdings.failures.values()))
    chosen = choose(holdings.checkpoints, None, "out")
    gather(chosen, holdings, here, str(world / "copy"), lambda progress: None)


def changed(**fields: Any) -> Tamper:
    """Changes fields of the checkpoint that a survey tells of."""

    def tamper(operation: str, reply: Any) -> Any:
        if operation == "survey":
            reply["value"]["checkpoints"][0].update(fields)
        return reply

    return tamper


def renamed(path: str) -> Tamper:
    """Calls a shard by another name."""

    def tamper(operation: str, reply: Any) -> Any:
        if operation == "survey":
            reply["value"]["checkpoints"][0]["files"][0]["path"] = path
        return reply

    return tamper


PATHS = (
    *("/etc/owned", "../owned", "step5/../../owned", "step5/../owned", "./step5/x", "step5//x"),
    *("step5/a\0b", "", ".", "..", "step5", "step5/", "other/x", "owned", "latest", ".ssh/config"),
    *("step5x/y", "step5/../step5/x", "~/x", "step5\n/x", "step5/\ud800"),
)


@pytest.mark.parametrize("path", PATHS)
def test_a_file_outside_of_its_checkpoint_is_an_invalid_answer(
    world: Path, here: LocalStore, path: str
) -> None:
    with pytest.raises(NodeError) as raised:
        gathered(world, here, renamed(path))
    (failure,) = raised.value.failures
    assert (failure.host, failure.kind) == ("evil", "protocol")
    assert not (world / "copy").exists()


NAMES = (
    *("..", "../up", "/abs", "a\nb", "\x1b[2J", "-rf", ".ssh", "", "a\0b", "a/../../b", "\u202e"),
    *("x" * 5000,),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", ["root", "tag"])
def test_a_checkpoint_cannot_have_a_name_that_is_no_plain_directory(
    world: Path, here: LocalStore, field: str, name: str
) -> None:
    with pytest.raises(NodeError):
        gathered(world, here, changed(**{field: name, "files": []}))

    def all_of_it(operation: str, reply: Any) -> Any:
        if operation == "survey":
            part = reply["value"]["checkpoints"][0]
            part[field] = name
            for file in part["files"]:
                file["path"] = f"{part['root']}/{part['tag']}/{file['path'].split('/')[-1]}"
        return reply

    with pytest.raises(NodeError):
        gathered(world, here, all_of_it)
    assert not (world / "copy").exists()


@pytest.mark.parametrize("tag", ["a\nb", "\x1b]0;owned\x07", "--tag", "../x", "/x", ""])
def test_what_latest_names_is_a_plain_name(world: Path, here: LocalStore, tag: str) -> None:
    def tamper(operation: str, reply: Any) -> Any:
        if operation == "survey":
            reply["value"]["latest"]["."] = tag
        return reply

    with pytest.raises(NodeError):
        gathered(world, here, tamper)


@pytest.mark.parametrize("path", PATHS)
def test_spreading_writes_nothing_outside_on_another_node(world: Path, path: str) -> None:
    (world / "copy").mkdir()
    source = looked(world / "node", Lying("evil", renamed(path)))
    targets = looked(world / "copy", Lying("good"))
    allocation = Allocation.of([(Node("good", (0, 1)), (0, 1))])
    with pytest.raises(DslaunchError):
        chosen = choose(source.checkpoints, None, "out")
        spread(chosen, source, allocation, targets, lambda progress: None)
    assert tree(world / "copy") == {}


@pytest.mark.parametrize(
    ("operation", "field", "value"),
    [
        ("read", "data", "QUJD"),
        ("read", "data", "not base64"),
        ("read", "data", "A" * 2_000_000),
        ("read", "size", 10**15),
        ("read", "mtime", 0),
        ("sha256", None, "0" * 64),
        ("sha256", None, "../../x"),
        ("sha256", None, "A" * 64),
    ],
)
def test_pieces_that_are_not_what_was_asked_for_never_become_a_file(
    world: Path, here: LocalStore, operation: str, field: str | None, value: Any
) -> None:
    def tamper(asked: str, reply: Any) -> Any:
        if asked == operation and field is not None:
            reply["value"][field] = value
        elif asked == operation:
            reply["value"] = value
        return reply

    with pytest.raises(DslaunchError):
        gathered(world, here, tamper)
    assert not list((world / "copy").rglob("*.pt"))
    assert not (world / "copy/latest").exists()


MOST_SECONDS = 5.0
"""Of processor time, 20 times what a slow machine needs."""
OPERATIONS = ("survey", "read", "sha256")
TARGET_OPERATIONS = ("survey", "begin", "write", "finish", "room", "text")


def tampered_at(operation: str, value: Any) -> Tamper:
    """Gives another reply to one operation."""
    return lambda asked, reply: value if asked == operation else reply


def replies(world: Path, operation: str) -> Any:
    """An honest reply to an operation of a copy."""
    seen: dict[str, Any] = {}

    def watch(asked: str, reply: Any) -> Any:
        seen.setdefault(asked, reply)
        return reply

    source = looked(world / "node", Lying("evil", watch))
    chosen = choose(source.checkpoints, None, "out")
    target = place(Lying("target", watch))
    gather(chosen, source, target, str(world / "copy"), lambda progress: None)
    read_through(chosen, source)
    return seen[operation]


def completes(world: Path, here: LocalStore, tamper: Tamper, target: Tamper = honest) -> None:
    """Decide everything about a lying node's checkpoints, and gather one, onto another one that
    lies: it ends with a result or one error, soon."""

    def complete() -> None:
        try:
            good, evil = Lying("good"), Lying("evil", tamper)
            holdings = looked(world / "node", evil, good)
            rows(holdings.checkpoints)
            for checkpoint in holdings.checkpoints[:5]:
                as_data(checkpoint)
                detail(checkpoint, ["good", "evil"])
                lacking(checkpoint, Allocation.of([(Node("evil", (0, 1)), (0, 1))]))
            chosen = choose(holdings.checkpoints, None, "out")
            read_through(chosen, holdings)
            goal = place(Lying("target", target)) if target is not honest else here
            gather(chosen, holdings, goal, str(world / "copy"), lambda progress: None)
        except DslaunchError as error:
            assert len(error.message) < 5000

    result_within(MOST_SECONDS, complete)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_changed_answer_of_a_source_ends_in_a_result_or_one_error(
    world: Path, here: LocalStore, operation: str
) -> None:
    for mutation in sample(replies(world, operation), 150, seed=1):
        completes(world, here, tampered_at(operation, mutation.value))


@pytest.mark.parametrize("operation", [*TARGET_OPERATIONS, "check"])
def test_every_changed_answer_of_a_target_ends_in_a_result_or_one_error(
    world: Path, here: LocalStore, operation: str
) -> None:
    for mutation in sample(replies(world, operation), 40, seed=2):
        tamper = tampered_at(operation, mutation.value)
        completes(world, here, tamper, target=tamper)


def test_one_lying_node_does_not_hide_the_checkpoints_of_the_others(world: Path) -> None:
    holdings = looked(world / "node", Lying("evil", renamed("../x")), Lying("good"))
    assert list(holdings.failures) == ["evil"]
    assert [checkpoint.complete for checkpoint in holdings.checkpoints] == [True]


def test_one_node_that_calls_the_directory_a_checkpoint_does_not_hide_the_others(
    world: Path,
) -> None:
    lying = Lying("evil", changed(root=".", tag="."))
    holdings = looked(world / "node", lying, Lying("good"))
    assert list(holdings.failures) == ["evil"]
    assert [checkpoint.name for checkpoint in holdings.checkpoints] == ["step5"]


@pytest.mark.parametrize(
    "fields",
    [
        {"header": {"world": 10**9}},
        {"header": {"world": 10**400}},
        {"header": {"world": 2**17, "parallel": 2**10}},
        {"header": {"world": -1}},
        {"header": {"world": 2**17}},
        {"header": {"params": -1, "steps": 2**70}},
    ],
)
def test_numbers_of_a_lying_header_cost_no_time(
    world: Path, here: LocalStore, fields: dict[str, Any]
) -> None:
    completes(world, here, changed(**fields))


@pytest.mark.parametrize(
    "name",
    [
        "zero_pp_rank_999999_mp_rank_999999_optim_states.pt",
        "zero_pp_rank_131071_mp_rank_1023_model_states.pt",
        f"zero_pp_rank_{'9' * 5000}_mp_rank_00_optim_states.pt",
        "layer_999999-model_999999-model_states.pt",
    ],
)
def test_numbers_in_names_cost_no_time(world: Path, here: LocalStore, name: str) -> None:
    completes(world, here, renamed(f"step5/{name}"))


# ---------------------------------------------------------------- before a run


def settling(directory: Path, *sessions: Lying) -> ResumePreparation:
    """What a run does about the checkpoints of these nodes before it starts."""
    nodes = [(Node(session.host, (0,)), (0,)) for session in sessions]
    cluster = Cluster("two", tuple(node for node, _ in nodes))
    inquiry = Inquiry(cluster, Allocation.of(nodes), (str(directory),), None)
    listed: list[Any] = list(sessions)
    return ResumePreparation(inquiry, listed, str(directory), Attempt("r1", 0), Interrupts())


def settle(top: Path, sessions: tuple[Lying, Lying], job: Job, decided: Decided) -> None:
    with contextlib.suppress(DslaunchError):
        settling(top, *sessions).before(job, decided)
        settling(top, *sessions).after()


def test_a_run_on_lying_nodes_starts_or_ends_with_one_error(world: Path) -> None:
    (world / "copy").mkdir()
    top = a_checkpoint(world / "copy/out")
    job, decided = Job(program="train.py"), Decided(Rendezvous("10.0.0.1", 29500), "/w")
    for operation in ("survey", "text"):
        for mutation in sample(replies_of_a_run(top)[operation], 150, seed=3):
            sessions = Lying("evil", tampered_at(operation, mutation.value)), Lying("good")
            result_within(MOST_SECONDS, partial(settle, top, sessions, job, decided))
            assert (top / "latest").read_text() == "step5"


def replies_of_a_run(top: Path) -> dict[str, Any]:
    """Honest replies to what a run asks before it starts."""
    survey = {"do": "survey", "path": str(top)}
    return {"survey": json.loads(json.dumps({"value": shards.do(survey)})), "text": {"value": None}}


def test_a_checkpoint_nested_too_deeply_is_an_error_and_not_left_out(
    tmp_path: Path,
) -> None:
    a_checkpoint(tmp_path)
    deep = tmp_path / "step5" / "/".join("d" * 25)
    deep.mkdir(parents=True)
    (deep / "state.bin").write_bytes(b"x")
    found = looked(tmp_path, Lying("node1"))
    assert [failure.kind for failure in found.failures.values()] == ["protocol"]
    assert found.checkpoints == []
