"""What a DeepSpeed checkpoint must hold, where, and what cannot be resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.growth import Work, grows

from dslaunch.cluster.model import Allocation, Node
from dslaunch.deepspeed import resume
from dslaunch.deepspeed.checkpoint import Checkpoint, choose, find, shared, to_prune
from dslaunch.deepspeed.placement import Readers, check_world, lacking, rank_map
from dslaunch.deepspeed.shards import (
    Shard,
    model_name,
    optimizer_name,
    parse_name,
    partition_name,
)
from dslaunch.errors import ErrorCode, PlanError, SelectionError
from dslaunch.protocol.checkpoints import RankMap, answer_type
from dslaunch.protocol.values import parse
from dslaunch.report.checkpoint import detail, faults, rows
from dslaunch.run.checkpoints import own_files

SECOND = 10**9


def entry(path: str, at: float = 100, **more: Any) -> dict[str, Any]:
    inode = f"1:{abs(hash((path, at)))}"
    return {
        "path": path,
        "size": 10,
        "mtime": int(at * SECOND),
        "mode": 0o600,
        "file": inode,
        "broken": None,
    } | more


def told(*files: dict[str, Any], tag: str = "t", root: str = ".", **header: Any) -> dict[str, Any]:
    return {"root": root, "tag": tag, "files": list(files), "header": header}


def survey(*checkpoints: dict[str, Any], **latest: str) -> dict[str, Any]:
    names = {"." if root == "here" else root: tag for root, tag in latest.items()}
    return {"path": "/d", "checkpoints": list(checkpoints), "latest": names, "ranks": None}


def two_nodes(stage: int, at: float = 100, tag: str = "t") -> dict[str, Any]:
    """Two nodes with two ranks each that saved with use_node_local_storage."""

    def node(*ranks: int) -> dict[str, Any]:
        names = [optimizer_name(rank, 0) for rank in ranks]
        names += [partition_name(rank, 0) for rank in ranks] if stage == 3 else [model_name(0)]
        files = [entry(f"{tag}/{name}", at) for name in names]
        return survey(told(*files, tag=tag, stage=stage, world=4, parallel=1))

    first, second = node(0, 1), node(2, 3)
    first["latest"] = {".": tag}
    return {"a": first, "b": second}


def allocation(*hosts: str, slots: int = 2) -> Allocation:
    return Allocation.of([(Node(host, tuple(range(slots))), tuple(range(slots))) for host in hosts])


def found_in(surveys: dict[str, Any], offsets: dict[str, float]) -> list[Checkpoint]:
    """What nodes that answer so have."""
    typed = {host: parse(answer_type("survey"), survey) for host, survey in surveys.items()}
    return find(typed, offsets)


def left(ranks: dict[str, object]) -> RankMap:
    """A rank map as it is read again from a node."""
    return RankMap.model_validate(ranks)


def only(surveys: dict[str, Any]) -> Checkpoint:
    (checkpoint,) = found_in(surveys, {})
    return checkpoint


# ---------------------------------------------------------------- names


@given(st.integers(0, 4000), st.integers(0, 200), st.sampled_from(["", "bf16_"]))
def test_names_of_shards_are_read_as_they_are_made(rank: int, parallel: int, prefix: str) -> None:
    made = optimizer_name(rank, parallel, prefix)
    assert parse_name(made) == Shard("optimizer", rank, parallel, prefix)
    assert parse_name(partition_name(rank, parallel)) == Shard("partition", rank, parallel)
    assert parse_name(model_name(parallel)) == Shard("model", 0, parallel)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("layer_02-model_00-model_states.pt", "layer"),
        ("layer_0_expert_3_mp_rank_00_model_states.pt", "expert"),
        ("expp_rank_1_mp_rank_00_optim_states.pt", "expert"),
        ("zero_pp_rank_3_mp_rank_00optim_states.pt", "optimizer"),
        ("rng_state_0.pth", None),
        ("latest", None),
        ("mp_rank_00_model_states.pt.tmp", None),
    ],
)
def test_other_names_are_known_or_not_taken_for_shards(name: str, kind: str | None) -> None:
    shard = parse_name(name)
    assert (shard and shard.kind) == kind


# ---------------------------------------------------------------- completeness


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_union_of_all_nodes_is_complete(stage: int) -> None:
    checkpoint = only(two_nodes(stage))
    assert checkpoint.complete
    assert (checkpoint.world, checkpoint.stage) == (4, stage)
    assert checkpoint.latest == {"a": "t"}


def test_missing_shards_of_the_last_rank_are_found_by_the_header() -> None:
    surveys = two_nodes(3)
    del surveys["b"]
    assert only(surveys).missing() == tuple(
        f"t/{name}"
        for name in (
            *(partition_name(r, 0) for r in (2, 3)),
            *(optimizer_name(r, 0) for r in (2, 3)),
        )
    )


def test_without_a_readable_shard_names_are_all_there_is() -> None:
    surveys = two_nodes(2)
    for said in surveys.values():
        said["checkpoints"][0]["header"] = {}
    checkpoint = only(surveys)
    assert (checkpoint.stage, checkpoint.world, checkpoint.complete) == (None, 4, True)


def test_a_shard_that_was_cut_short_is_missing_unless_another_node_has_it_whole() -> None:
    surveys = two_nodes(2)
    surveys["b"]["checkpoints"][0]["files"][0]["broken"] = "cut short"
    assert only(surveys).missing() == (f"t/{optimizer_name(2, 0)}",)
    surveys["a"]["checkpoints"][0]["files"].append(entry(f"t/{optimizer_name(2, 0)}", 90))
    assert only(surveys).complete
    assert only(surveys).contents()[f"t/{optimizer_name(2, 0)}"].host == "a"


def test_shards_of_an_earlier_run_with_more_ranks_are_left_out() -> None:
    surveys = two_nodes(2)
    surveys["b"]["checkpoints"][0]["files"].append(entry(f"t/{optimizer_name(7, 0)}", 5))
    checkpoint = only(surveys)
    assert checkpoint.strangers() == (f"t/{optimizer_name(7, 0)}",)
    assert f"t/{optimizer_name(7, 0)}" not in checkpoint.contents()


def test_of_two_copies_of_a_shard_the_newer_by_our_clock_is_taken() -> None:
    surveys = two_nodes(2, at=100)
    name = f"t/{optimizer_name(0, 0)}"
    surveys["b"]["checkpoints"][0]["files"].append(entry(name, 150))
    assert found_in(surveys, {})[0].contents()[name].host == "b"
    assert found_in(surveys, {"b": 60.0})[0].contents()[name].host == "a"


def test_a_model_without_zero_needs_one_file() -> None:
    checkpoint = only({"a": survey(told(entry("t/mp_rank_00_model_states.pt")))})
    assert (checkpoint.stage, checkpoint.complete) == (0, True)


def test_each_tensor_parallel_rank_has_separate_files() -> None:
    files = [entry(f"t/{optimizer_name(d, m)}") for d in (0, 1) for m in (0, 1)]
    checkpoint = only({"a": survey(told(*files, entry(f"t/{model_name(0)}"), stage=1, world=2))})
    assert checkpoint.missing() == (f"t/{model_name(1)}",)


def test_a_shared_directory_is_distinguished_from_separate_ones() -> None:
    surveys = two_nodes(2)
    same = {"a": surveys["a"], "b": surveys["a"]}
    assert shared(found_in(same, {}), ["a", "b"])
    assert not shared(found_in(surveys, {}), ["a", "b"])


# ---------------------------------------------------------------- choosing


def three(*, newest_whole: bool) -> list[Checkpoint]:
    surveys: dict[str, Any] = {"a": survey(here="s3"), "b": survey()}
    for number in (1, 2, 3):
        made = two_nodes(2, at=100.0 * number, tag=f"s{number}")
        for host in ("a", "b"):
            surveys[host]["checkpoints"] += made[host]["checkpoints"]
    if not newest_whole:
        del surveys["b"]["checkpoints"][-1]
    return found_in(surveys, {})


def test_the_newest_complete_one_is_chosen_and_a_tag_where_it_is_given() -> None:
    assert choose(three(newest_whole=True), None, "d").tag == "s3"
    assert choose(three(newest_whole=False), None, "d").tag == "s2"
    assert choose(three(newest_whole=False), "s3", "d").tag == "s3"
    with pytest.raises(SelectionError) as unknown:
        choose(three(newest_whole=True), "s9", "d")
    assert unknown.value.error_code is ErrorCode.UNKNOWN_CHECKPOINT
    assert unknown.value.values["name"] == "s9"
    with pytest.raises(SelectionError) as none:
        choose([], None, "d")
    assert none.value.error_code is ErrorCode.NO_CHECKPOINT


def test_pruning_keeps_the_newest_complete_ones_and_what_may_be_being_saved() -> None:
    assert [c.tag for c in to_prune(three(newest_whole=True), 1)] == ["s1", "s2"]
    assert [c.tag for c in to_prune(three(newest_whole=False), 1)] == ["s1"]
    assert to_prune(three(newest_whole=False), 2) == []
    assert to_prune(three(newest_whole=True), 9) == []


def test_pruning_keeps_what_latest_names() -> None:
    old = [replace(c, latest={"a": "s1"}) for c in three(newest_whole=True)]
    assert [c.tag for c in to_prune(old, 1)] == ["s2"]


# ---------------------------------------------------------------- where they must be


def test_every_rank_finds_its_shards_where_they_were_saved() -> None:
    assert lacking(only(two_nodes(2)), allocation("a", "b")) == ()


@pytest.mark.parametrize("stage", [2, 3])
def test_nodes_in_another_order_lack_each_others_shards(stage: int) -> None:
    first, second = lacking(only(two_nodes(stage)), allocation("b", "a"))
    assert (first.host, first.elsewhere, second.elsewhere) == ("b", ("a",), ("b",))
    assert (first.ranks, first.nowhere) == (range(2), ())


def test_a_spare_lacks_what_the_lost_node_had() -> None:
    surveys = {"a": two_nodes(2)["a"], "c": survey()}
    (lack,) = lacking(only(surveys), allocation("a", "c"))
    names = (
        "zero_pp_rank_2_mp_rank_00_optim_states.pt",
        "zero_pp_rank_3_mp_rank_00_optim_states.pt",
    )
    assert (lack.host, lack.ranks) == ("c", range(2, 4))
    assert tuple(path.rpartition("/")[2] for path in lack.nowhere) == names


def test_a_broken_shard_is_on_no_node() -> None:
    surveys = two_nodes(2)
    surveys["b"]["checkpoints"][0]["files"][0]["broken"] = "cut short"
    (lack,) = lacking(only(surveys), allocation("a", "b"))
    assert lack.nowhere == (f"t/{optimizer_name(2, 0)}",)


def test_an_older_shard_of_the_same_name_does_not_do() -> None:
    surveys = two_nodes(2, at=100)
    name = f"t/{optimizer_name(0, 0)}"
    surveys["b"]["checkpoints"][0]["files"].append(entry(name, 5))
    first, _ = lacking(only(surveys), allocation("b", "a"))
    assert name in first.shards


def test_files_of_the_trainer_go_where_they_are_read() -> None:
    names = ("trainer_state.json", "rng_state_0.pth", "rng_state_3.pth", "model.safetensors")
    surveys = two_nodes(2, tag="g")
    for said in surveys.values():
        said["checkpoints"][0]["root"] = "checkpoint-5"
        for file in said["checkpoints"][0]["files"]:
            file["path"] = f"checkpoint-5/{file['path']}"
    surveys["a"]["checkpoints"][0]["files"] += [entry(f"checkpoint-5/{name}") for name in names]
    readers = Readers.of_files(only(surveys))
    one, two = map(readers.needed, allocation("a", "b").placements)
    of_one, of_two = (
        {path.removeprefix("checkpoint-5/") for path in some if "_states.pt" not in path}
        for some in (one, two)
    )
    assert of_one == {"trainer_state.json", "rng_state_0.pth", "model.safetensors"}
    assert of_two == {"trainer_state.json", "rng_state_3.pth"}


def test_another_number_of_ranks_is_refused_in_deepspeeds_words() -> None:
    with pytest.raises(PlanError) as caught:
        check_world(only(two_nodes(2)), 6)
    assert caught.value.error_code is ErrorCode.WORLD_SIZE_DIFFERS
    assert (caught.value.values["saved"], caught.value.values["ranks"]) == (4, 6)
    assert "used a DP world size" in caught.value.message


# ---------------------------------------------------------------- what must not start


def test_what_could_be_resumed_is_found() -> None:
    verdict = resume.judge(found_in(two_nodes(2), {}), allocation("a", "b"))
    assert (verdict.problem, [c.tag for c in verdict.in_place]) == (None, ["t"])
    assert resume.judge([], allocation("a", "b")) == resume.Resumable()


def test_what_the_first_nodes_latest_names_is_meant_and_else_the_newest() -> None:
    found = [replace(c, latest={"a": "s1", "b": "s3"}) for c in three(newest_whole=True)]
    assert [c.tag for c in resume.meant(found, "a")] == ["s1"]
    assert [c.tag for c in resume.meant(found, "b")] == ["s3"]
    assert [c.tag for c in resume.meant(found, "spare")] == ["s3"]


def trainers(number: int, at: float) -> dict[str, Any]:
    """What the two nodes hold of the Trainer's `checkpoint-<number>`."""
    root, made = f"checkpoint-{number}", two_nodes(2, at, tag=f"global_step{number}")
    for said in made.values():
        for checkpoint in said["checkpoints"]:
            checkpoint["root"] = root
            for file in checkpoint["files"]:
                file["path"] = f"{root}/{file['path']}"
    return made


def test_of_several_checkpoints_the_one_that_the_script_names_is_judged() -> None:
    old, new = trainers(4, 100), trainers(8, 200)
    surveys = {
        "a": survey(*old["a"]["checkpoints"], *new["a"]["checkpoints"]),
        "c": survey(*old["b"]["checkpoints"]),
    }
    surveys["a"]["latest"] = {"checkpoint-4": "global_step4", "checkpoint-8": "global_step8"}
    found = found_in(surveys, {})
    refused = resume.judge(found, allocation("a", "c")).problem
    assert refused is not None
    assert refused.error_code is ErrorCode.OTHER_CHECKPOINT_RESUMABLE
    assert refused.values["checkpoint"] == "checkpoint-4"
    path = resume.resumed_path(("--resume_from_checkpoint", "out/checkpoint-4/"))
    verdict = resume.judge(found, allocation("a", "c"), path=path)
    assert (verdict.problem, [c.root for c in verdict.in_place]) == (None, ["checkpoint-4"])
    assert resume.resumed_path(("--resume_from_checkpoint", "True")) is None


def test_tensors_of_nvme_are_refused_in_another_order_though_their_names_fit() -> None:
    checkpoint = only(two_nodes(2))
    header = checkpoint.header.model_copy(update={"nvme": True, "node_local": True})
    moved = left(rank_map("r", allocation("x", "b")))
    verdict = resume.judge([replace(checkpoint, header=header)], allocation("a", "b"), moved)
    assert verdict.problem is not None
    assert verdict.problem.error_code is ErrorCode.NVME_ORDER_DIFFERS
    assert verdict.problem.values["saved_hosts"] == ("x", "b")


@pytest.mark.parametrize(
    ("config", "args", "code"),
    [
        ({"checkpoint": {"load_universal": True}}, (), ErrorCode.UNIVERSAL_NEEDS_SHARED),
        ({"zero_optimization": {"elastic_checkpoint": True}}, (), ErrorCode.ELASTIC_NEEDS_SHARED),
        ({"tensor_parallel": {"autotp_size": 2}}, (), ErrorCode.MODEL_PARALLEL_NEEDS_SHARED),
        ({}, ("--tensor-model-parallel-size", "4"), ErrorCode.MODEL_PARALLEL_NEEDS_SHARED),
        ({}, ("--pipe-parallel-size=2",), ErrorCode.MODEL_PARALLEL_NEEDS_SHARED),
    ],
)
def test_configs_whose_checkpoints_are_lost_are_refused_on_storage_of_each_nodes_own(
    config: dict[str, Any], args: tuple[str, ...], code: ErrorCode
) -> None:
    with pytest.raises(PlanError) as caught:
        resume.check_config(config, args, shared=False)
    assert caught.value.error_code is code
    resume.check_config(config, args, shared=True)


@pytest.mark.parametrize(
    ("config", "args"),
    [
        ({}, ()),
        ({"checkpoint": {"load_universal": False}, "zero_optimization": True}, ()),
        ({"tensor_parallel": {"autotp_size": 1}}, ("--tensor-model-parallel-size", "1")),
        ({"zero_optimization": {"stage": 3}, "tensor_parallel": {"autotp_size": 2}}, ()),
    ],
)
def test_harmless_configs_are_not_refused(config: dict[str, Any], args: tuple[str, ...]) -> None:
    resume.check_config(config, args, shared=False)
    assert resume.resuming(args) is None


@pytest.mark.parametrize("args", [("--save_on_each_node",), ("--save-on-each-node", "True", "x")])
def test_saving_on_each_node_is_refused_on_shared_storage(args: tuple[str, ...]) -> None:
    with pytest.raises(PlanError) as caught:
        resume.check_arguments(args, shared=True)
    assert caught.value.error_code is ErrorCode.SAVES_COLLIDE
    resume.check_arguments(args, shared=False)
    resume.check_arguments(("--save_on_each_node", "false"), shared=True)


def test_arguments_say_whether_a_script_resumes_and_where_it_saves() -> None:
    assert (
        resume.resuming(("--resume_from_checkpoint", "out/checkpoint-5"))
        == "--resume_from_checkpoint"
    )
    assert resume.resuming(("--resume", "--x")) == "--resume"
    assert resume.resuming(("--resume=false",)) is None
    assert resume.directory(("--output_dir", "out", "--save", "other")) == "out"
    assert resume.directory(("--save",)) is None
    assert resume.directory(("--save", "500", "--checkpoint-dir=ck")) == "ck"


def test_the_trainer_is_advised_to_save_on_each_node() -> None:
    given = ("--deepspeed", "ds.json", "--output_dir", "o")
    assert resume.lacks_save_on_each_node(given, shared=False)
    assert not resume.lacks_save_on_each_node(given, shared=True)
    assert not resume.lacks_save_on_each_node((*given, "--save_on_each_node"), shared=False)


# ---------------------------------------------------------------- many nodes


def many_nodes(count: int) -> tuple[Checkpoint, Allocation]:
    """A checkpoint of nodes with 8 ranks each, of which the ranks of every fourth node lack one."""

    def node(number: int) -> dict[str, Any]:
        ranks = range(8 * number + (number % 4 == 3), 8 * number + 8)
        names = [name(rank, 0) for rank in ranks for name in (optimizer_name, partition_name)]
        files = [entry(f"t/{name}") for name in names]
        return survey(told(*files, stage=3, world=8 * count, parallel=1), here="t")

    hosts = [f"n{number:05}" for number in range(count)]
    slots = tuple(range(8))
    allocation = Allocation.of([(Node(host, slots), slots) for host in hosts])
    return only({host: node(number) for number, host in enumerate(hosts)}), allocation


@pytest.mark.parametrize(
    "work",
    [
        lambda checkpoint, nodes: lacking(checkpoint, nodes),
        lambda checkpoint, nodes: detail(checkpoint, nodes.hosts),
        lambda checkpoint, nodes: rows([checkpoint]),
        lambda checkpoint, nodes: faults(checkpoint, {}, ()),
        lambda checkpoint, nodes: [own_files(checkpoint, host) for host in nodes.hosts],
    ],
    ids=["lacking", "detail", "rows", "faults", "own_files"],
)
def test_a_checkpoint_is_judged_in_proportion_to_its_nodes(
    work: Callable[[Checkpoint, Allocation], object],
) -> None:
    def judged(count: int) -> Work:
        checkpoint, nodes = many_nodes(count)
        return lambda: work(replace(checkpoint), nodes)  # a new one has computed nothing yet

    assert not grows(judged, 40)


def test_of_many_nodes_that_lack_shards_a_few_are_named() -> None:
    checkpoint, nodes = many_nodes(400)
    problem = resume.judge([checkpoint], nodes).problem
    assert problem is not None
    assert problem.error_code is ErrorCode.SHARDS_MISSING_ON_NODES
    lines = problem.values["lines"]
    assert isinstance(lines, tuple)
    assert len(lacking(checkpoint, nodes)) == 100
    assert lines[-1] == f"and {100 - resume.SHOWN_NODES} more"
