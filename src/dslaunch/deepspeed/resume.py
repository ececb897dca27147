"""Decide whether a run could resume its checkpoints, and which checkpoints it can resume. Pure.

DeepSpeed detects these problems only when the checkpoint is loaded, hours later, and some never: if
one node has no `latest`, ZeRO-1 and 2 silently continue with the states of two trainings.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dslaunch.deepspeed.checkpoint import Checkpoint
from dslaunch.deepspeed.placement import check_world, lacking
from dslaunch.errors import ErrorCode, PlanError
from dslaunch.plural import first_few

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
"""Options of Megatron-DeepSpeed and its derivatives."""
DIRECTORIES = ("output_dir", "save_dir", "checkpoint_dir", "save")
"""Common options for the checkpoint directory; the first is Hugging Face's."""
RESUMING = (
    "resume",
    "resume_from_checkpoint",
    "auto_resume",
    "load_checkpoint",
    "load",
    "load_dir",
)
SHOWN_NODES = 20
"""Nodes that lack shards, of those that are named."""
NO = ("", "0", "false", "no", "none", "off")


def options(args: Sequence[Word]) -> Iterator[tuple[str, str]]:
    """Yield the options among a script's arguments with their values, as far as known.

    `-` and `_` are equal. An option without a value has the value `true`.
    """
    texts = [word if isinstance(word, str) else "" for word in args]
    for text, after in zip(texts, [*texts[1:], "--"], strict=False):
        if text.startswith("--"):
            flag, equals, value = text.removeprefix("--").partition("=")
            if not equals:
                value = "true" if after.startswith("-") else after
            yield flag.replace("-", "_"), value


def is_on(args: Sequence[Word], name: str) -> bool:
    """Return whether a switch is given, as Hugging Face's `--save_on_each_node [True]`."""
    return any(flag == name and value.lower() not in NO for flag, value in options(args))


def resuming(args: Sequence[Word]) -> str | None:
    """Return the option by which the script resumes; None: no such option."""
    found = (f for f, value in options(args) if f in RESUMING and value.lower() not in NO)
    return next((f"--{flag}" for flag in found), None)


def resumed_path(args: Sequence[Word]) -> str | None:
    """Return the path of the checkpoint that Hugging Face's Trainer resumes, if it is set."""
    value = dict(options(args)).get("resume_from_checkpoint", "")
    return value if value.lower() not in (*NO, "true", "1", "yes", "on") else None


def directory(args: Sequence[Word]) -> str | None:
    """Return the directory in which the script saves, from common options; numbers are
    intervals."""
    given = {flag: v for flag, v in options(args) if v.lower() != "true" and not v.isdecimal()}
    return next((given[name] for name in DIRECTORIES if given.get(name)), None)


# ---------------------------------------------------------------- before the first step


def check_arguments(args: Sequence[Word], shared: bool) -> None:
    """Raise PlanError for arguments that damage checkpoints on this kind of storage."""
    if shared and is_on(args, "save_on_each_node"):
        raise PlanError.coded(ErrorCode.SAVES_COLLIDE)


def check_config(config: Mapping[str, Any], args: Sequence[Word], shared: bool) -> None:
    """Raise PlanError for a config whose checkpoints could not be loaded on these nodes."""
    if shared:
        return
    if _at(config, "checkpoint", "load_universal") is True:
        raise PlanError.coded(ErrorCode.UNIVERSAL_NEEDS_SHARED)
    if _at(config, "zero_optimization", "elastic_checkpoint") is True:
        raise PlanError.coded(ErrorCode.ELASTIC_NEEDS_SHARED)
    setting = _model_parallel(config, args)
    if setting and _at(config, "zero_optimization", "stage") != 3:
        raise PlanError.coded(ErrorCode.MODEL_PARALLEL_NEEDS_SHARED, setting=setting)


def _model_parallel(config: Mapping[str, Any], args: Sequence[Word]) -> str | None:
    """Return the setting that turns on tensor or pipeline parallelism; None: no setting does."""
    for keys in (("tensor_parallel", "autotp_size"), ("tensor_parallel", "tp", "tp_size")):
        value = _at(config, *keys)
        if isinstance(value, int) and value > 1:
            return f"{'.'.join(keys)} is {value}"
    for flag, text in options(args):
        if flag in PARALLEL and text.isdecimal() and text.lstrip("0") not in ("", "1"):
            return f"--{flag} is {text}"
    return None


def _at(config: Mapping[str, Any], *keys: str) -> Any:
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def lacks_save_on_each_node(args: Sequence[Word], shared: bool) -> bool:
    """Return whether a Hugging Face Trainer needs --save_on_each_node and does not have it."""
    given = dict(options(args))
    hugging_face = "output_dir" in given and given.get("deepspeed", "").endswith(".json")
    return hugging_face and not shared and not is_on(args, "save_on_each_node")


# ---------------------------------------------------------------- existing checkpoints


class Resumable(Struct, frozen=True):
    """The checkpoints that a run could resume from the directories of its nodes."""

    newest: Checkpoint | None = None
    """The newest checkpoint, which a load without a tag uses."""
    problem: PlanError | None = None
    """Why these nodes, in this order, cannot load the newest one, with what to do."""
    cause: PlanError | None = None
    """The same without another checkpoint that could be loaded instead."""
    in_place: tuple[Checkpoint, ...] = ()
    """The checkpoints that every rank can load from its own node."""


def judge(
    checkpoints: Sequence[Checkpoint],
    allocation: Allocation,
    ranks: RankMap | None = None,
    path: str | None = None,
) -> Resumable:
    """Return what a run on this allocation could resume.

    `ranks` is the rank map that the earlier run left there. `path` is the checkpoint that the
    script is to load, if there are several.
    """
    named = meant(checkpoints, allocation.hosts[0])
    if path is not None:
        root = posixpath.basename(posixpath.normpath(path))
        named = [c for c in named if posixpath.basename(c.root) == root] or named
    if not named:
        return Resumable()
    problems = [_problem(checkpoint, allocation, ranks) for checkpoint in named]
    good = [c for c, problem in zip(named, problems, strict=True) if problem is None]
    problem = cause = problems[-1]
    if problem is not None and good:
        problem = PlanError.coded(
            ErrorCode.OTHER_CHECKPOINT_RESUMABLE,
            error=problem.message,
            problem=problem.error_code.value,
            checkpoint=good[-1].root,
        )
    return Resumable(named[-1], problem, cause, tuple(good))


def meant(checkpoints: Sequence[Checkpoint], first: str) -> list[Checkpoint]:
    """Return the checkpoint that `latest` names in each directory, oldest first.

    The file of the first node decides, since DeepSpeed writes only that one. Without it, the newest
    checkpoint that another node's file names, for example if the first node is now a spare.
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
        return PlanError.coded(
            ErrorCode.SHARDS_MISSING_ON_NODES,
            checkpoint=checkpoint.name,
            lines=tuple(first_few([str(lack) for lack in lacks], SHOWN_NODES)),
        )
    if checkpoint.offloaded and ranks is not None and tuple(ranks.hosts) != allocation.hosts:
        # files of local ranks have the same names on every node, so a wrong one would be loaded
        return PlanError.coded(
            ErrorCode.NVME_ORDER_DIFFERS,
            checkpoint=checkpoint.name,
            saved_hosts=tuple(ranks.hosts),
            hosts=allocation.hosts,
        )
    return None
