"""What must not start since it could not be resumed, and what can be resumed on which nodes. Pure.

DeepSpeed finds each of these out after hours, when the checkpoint is needed; some never: where one
node finds no `latest`, ZeRO-1 and 2 go on with states of two trainings, and say nothing.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dslaunch.deepspeed.checkpoint import Checkpoint
from dslaunch.deepspeed.placement import check_world, lacking, same_order
from dslaunch.errors import PlanError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation
    from dslaunch.launch.command import Word
    from dslaunch.protocol.checkpoints import RankMap

PARALLEL = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "model_parallel_size",
    "pipe_parallel_size",
)
"""Options of Megatron-DeepSpeed and those who follow it."""
DIRECTORIES = ("output_dir", "save_dir", "checkpoint_dir", "save")
"""Options that commonly say where a training saves; the first is Hugging Face's."""
RESUMING = (
    "resume",
    "resume_from_checkpoint",
    "auto_resume",
    "load_checkpoint",
    "load",
    "load_dir",
)
NO = ("", "0", "false", "no", "none", "off")
GATHER = (
    "`dslaunch checkpoint spread` brings every shard to the node that needs it, from the nodes or "
    "from a gathered copy; to begin afresh, name another directory"
)


def options(args: Sequence[Word]) -> Iterator[tuple[str, str]]:
    """The options among a script's arguments, and their values as far as they can be known.

    `-` and `_` count as equal; an option that no value follows has the value `true`.
    """
    texts = [word if isinstance(word, str) else "" for word in args]
    for text, after in zip(texts, [*texts[1:], "--"], strict=False):
        if text.startswith("--"):
            flag, equals, value = text.removeprefix("--").partition("=")
            if not equals:
                value = "true" if after.startswith("-") else after
            yield flag.replace("-", "_"), value


def is_on(args: Sequence[Word], name: str) -> bool:
    """Whether a switch is given, as Hugging Face's `--save_on_each_node [True]`."""
    return any(flag == name and value.lower() not in NO for flag, value in options(args))


def resuming(args: Sequence[Word]) -> str | None:
    """The option that says that the script resumes."""
    found = (f for f, value in options(args) if f in RESUMING and value.lower() not in NO)
    return next((f"--{flag}" for flag in found), None)


def resumed_path(args: Sequence[Word]) -> str | None:
    """The checkpoint that Hugging Face's Trainer is told to resume, if it is one of a name."""
    value = dict(options(args)).get("resume_from_checkpoint", "")
    return value if value.lower() not in (*NO, "true", "1", "yes", "on") else None


def directory(args: Sequence[Word]) -> str | None:
    """Where the script saves, if a common option says so. Numbers say how often."""
    given = {flag: v for flag, v in options(args) if v.lower() != "true" and not v.isdigit()}
    return next((given[name] for name in DIRECTORIES if given.get(name)), None)


# ---------------------------------------------------------------- before the first step


def check_arguments(args: Sequence[Word], shared: bool) -> None:
    """Raise PlanError for arguments that storage like this makes harmful."""
    if shared and is_on(args, "save_on_each_node"):
        raise PlanError(
            "--save_on_each_node, but the checkpoint directory is shared: the first rank of every "
            "node would write the same files at once",
            hint="leave it out: on shared storage one node saves for all (transformers, "
            "training_args.py)",
        )


def check_config(config: Mapping[str, Any], args: Sequence[Word], shared: bool) -> None:
    """Raise PlanError for a config whose checkpoints these nodes could not load again."""
    if shared:
        return
    if _at(config, "checkpoint", "load_universal") is True:
        raise PlanError(
            "checkpoint.load_universal: a universal checkpoint is read as a whole by every rank, "
            "and these nodes share no storage",
            hint="put it on storage that all nodes share, or resume the original with as many "
            "ranks as saved it",
        )
    if _at(config, "zero_optimization", "elastic_checkpoint") is True:
        raise PlanError(
            "zero_optimization.elastic_checkpoint: every rank reads the shards of all ranks, and "
            "these nodes share no storage",
            hint="leave it out; the number of ranks must then stay the same",
        )
    if (why := _model_parallel(config, args)) and _at(config, "zero_optimization", "stage") != 3:
        raise PlanError(
            f"{why}, and these nodes share no storage: with checkpoint.use_node_local_storage only "
            "each node's first rank writes, so that mp_rank_01_model_states.pt is written nowhere",
            hint="save to storage that all nodes share: `storage.checkpoints`",
        )


def _model_parallel(config: Mapping[str, Any], args: Sequence[Word]) -> str | None:
    """What says that the model is divided in other ways than ZeRO's."""
    for keys in (("tensor_parallel", "autotp_size"), ("tensor_parallel", "tp", "tp_size")):
        value = _at(config, *keys)
        if isinstance(value, int) and value > 1:
            return f"{'.'.join(keys)} is {value}"
    for flag, text in options(args):
        if flag in PARALLEL and text.isdigit() and int(text) > 1:
            return f"--{flag} is {text}"
    return None


def _at(config: Mapping[str, Any], *keys: str) -> Any:
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def trainer_advice(args: Sequence[Word], shared: bool) -> str | None:
    """What Hugging Face's Trainer should be told on nodes that share nothing."""
    given = dict(options(args))
    hugging_face = "output_dir" in given and given.get("deepspeed", "").endswith(".json")
    if shared or not hugging_face or is_on(args, "save_on_each_node"):
        return None
    return (
        "--save_on_each_node is not given: trainer_state.json is on the first node alone, "
        "the others cannot resume and never remove old checkpoints"
    )


# ---------------------------------------------------------------- what is there already


@dataclass(frozen=True, slots=True)
class Resumable:
    """What was found in the checkpoint directories of a run's nodes."""

    newest: Checkpoint | None = None
    """The newest of those that a load without a tag would take."""
    problem: PlanError | None = None
    """Why these nodes, in this order, cannot load it."""
    in_place: tuple[Checkpoint, ...] = ()
    """Those of them that every rank can load."""


def judge(
    checkpoints: Sequence[Checkpoint],
    allocation: Allocation,
    ranks: RankMap | None = None,
    path: str | None = None,
) -> Resumable:
    """What a run on this allocation could resume. `ranks` is the rank map that was left there;
    `path` the checkpoint that the script is told to take, where there are several."""
    named = meant(checkpoints, allocation.hosts[0])
    if path is not None:
        root = posixpath.basename(posixpath.normpath(path))
        named = [c for c in named if posixpath.basename(c.root) == root] or named
    if not named:
        return Resumable()
    problems = [_problem(checkpoint, allocation, ranks) for checkpoint in named]
    good = [c for c, problem in zip(named, problems, strict=True) if problem is None]
    problem = problems[-1]
    if problem is not None and good:
        words = f"{good[-1].root} can be resumed here: name it, --resume_from_checkpoint"
        problem = PlanError(problem.message, hint=words)
    return Resumable(named[-1], problem, tuple(good))


def meant(checkpoints: Sequence[Checkpoint], first: str) -> list[Checkpoint]:
    """Of each directory the checkpoint that its `latest` means, in the order of their saving.

    That is what the first node's says, since DeepSpeed writes only that; without one, the newest
    that another node's names, as where a spare is the first.
    """
    newest = {c.root: c for c in checkpoints if c.is_latest}
    of_first = {c.root: c for c in checkpoints if c.latest.get(first) == c.tag}
    return sorted((newest | of_first).values(), key=lambda c: (c.saved, c.name))


def _problem(
    checkpoint: Checkpoint, allocation: Allocation, ranks: RankMap | None
) -> PlanError | None:
    try:
        check_world(checkpoint, allocation.world_size)
    except PlanError as error:
        return error
    if lacks := lacking(checkpoint, allocation):
        words = "\n".join(map(str, lacks))
        return PlanError(
            f"{checkpoint.name} cannot be resumed on these nodes:\n{words}", hint=GATHER
        )
    if checkpoint.offloaded and (moved := same_order(ranks, allocation)):
        # by local rank they are named alike on every node, so that nothing would be missed
        return PlanError(
            f"{checkpoint.name} has tensors of NVMe, each node those of its own ranks: {moved}",
            hint="put the nodes into that order again",
        )
    return None
