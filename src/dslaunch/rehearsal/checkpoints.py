"""What is wrong with the checkpoints that a rehearsal has written. Pure."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator

from dslaunch.cluster.nodeset import fold, ranks_text
from dslaunch.plural import first_few
from dslaunch.protocol.rehearsal import Engine, Saved, Started, TrainerArguments
from dslaunch.rehearsal.findings import Finding, FindingKind, finding
from dslaunch.rehearsal.ranks import RankRecords, Ranks, is_shared
from dslaunch.run.rehearsal import Rehearsed

TEMPORARY = ("/tmp/", "/var/tmp/", "/dev/shm/")
BY_SHARD = "distributed.checkpoint"
BY_ALL = (BY_SHARD, "save_checkpoint")
"""Calls that all ranks make for one checkpoint."""
MOST_PATHS = 4
"""Paths that a finding names."""
LOCAL_STORAGE = 'set "checkpoint": {"use_node_local_storage": true} in the DeepSpeed config'
EACH_NODE = "set save_on_each_node=True, or write to shared storage"
WEIGHTS_ONCE = (
    "write to shared storage; with save_on_each_node=True the weights are still saved by rank 0 "
    "alone (transformers 5.23, `should_save_on_this_rank`): copy the checkpoint to all nodes"
)
SHARED_STORAGE = "write to storage that all nodes share"


def checkpoints(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield what is wrong with the files that ranks save."""
    yield from _outputs_differ(ranks)
    if not any(rank.last(Saved) for rank in ranks):
        yield from _planned(rehearsed, ranks)
        return
    yield from _overwritten(rehearsed, ranks)
    yield from _scattered(rehearsed, ranks)
    yield from _incomplete(rehearsed, ranks)
    yield from _empty(ranks)
    yield from _temporary(ranks)


def _overwritten(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield files that several ranks write. Nodes without shared storage have one each."""
    writers: dict[str, list[RankRecords]] = defaultdict(list)
    for rank in ranks:
        for path in {saved.path for saved in rank.every(Saved) if _is_one_file(saved)}:
            writers[path].append(rank)
    for path, several in list(writers.items())[:8]:
        hosts = {rank.host for rank in several}
        shared = len(hosts) > 1 and is_shared(rehearsed.facts, path, hosts) is True
        at_once = [rank.rank for rank in several] if shared else _on_one_host(several)
        if len(at_once) > 1:
            yield finding(FindingKind.CHECKPOINT_OVERWRITTEN, ranks_text(at_once), path=path)
            return


def _is_one_file(saved: Saved) -> bool:
    """Return whether a record is about a file: calls that all ranks make write one each."""
    return saved.by in ("torch.save", "safetensors", "save_pretrained")


def _on_one_host(ranks: list[RankRecords]) -> list[int]:
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        by_host[rank.host].append(rank.rank)
    return max(by_host.values(), key=len)


def _scattered(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield that ranks give different directories to a call that all make for one checkpoint. On
    storage that their nodes do not share, each node may have another one."""
    for by in BY_ALL:
        saved = {
            rank.rank: [each.path for each in rank.every(Saved) if each.by == by] for rank in ranks
        }
        saving = tuple(rank for rank in ranks if saved[rank.rank])
        first = {rank.rank: saved[rank.rank][0] for rank in saving}
        alike = _with_one_storage(rehearsed, saving, first.values())
        names = sorted({first[rank.rank] for rank in alike})
        if len(names) > 1:
            where = ranks_text(rank.rank for rank in alike)
            paths = ", ".join(first_few(names, MOST_PATHS))
            yield finding(FindingKind.CHECKPOINT_SCATTERED, where, paths=paths)
            return


def _with_one_storage(rehearsed: Rehearsed, ranks: Ranks, paths: Iterable[str]) -> Ranks:
    """Return the ranks whose paths are on the same storage: all, or those of one node."""
    hosts = {rank.host for rank in ranks}
    if all(is_shared(rehearsed.facts, path, hosts) is True for path in paths):
        return ranks
    by_host: dict[str, list[RankRecords]] = defaultdict(list)
    for rank in ranks:
        by_host[rank.host].append(rank)
    largest = sorted(by_host.values(), key=len)[-1:]
    return tuple(rank for several in largest for rank in several)


def _incomplete(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield checkpoints of which some nodes have only a part, or nothing."""
    hosts = {rank.host for rank in ranks}
    if len(hosts) < 2:
        return
    engine = ranks[0].last(Engine)
    writers: dict[str, list[RankRecords]] = defaultdict(list)
    for rank in ranks:
        for by in {saved.by for saved in rank.every(Saved) if _is_local(rehearsed, saved, hosts)}:
            writers[by].append(rank)
    if "save_checkpoint" in writers:
        several = writers["save_checkpoint"]
        local = engine is not None and _uses_local_storage(ranks[0])
        if not local:
            yield _parts(several, "save_checkpoint", LOCAL_STORAGE)
        return
    if BY_SHARD in writers:
        yield _parts(writers[BY_SHARD], BY_SHARD, SHARED_STORAGE)
        return
    writing = {rank.host for several in writers.values() for rank in several}
    if writing and writing < hosts:
        yield _lacking(ranks, writers)


def _is_local(rehearsed: Rehearsed, saved: Saved, hosts: set[str]) -> bool:
    return is_shared(rehearsed.facts, saved.path, hosts) is False


def _parts(ranks: list[RankRecords], by: str, advice: str) -> Finding:
    path = next(saved.path for saved in ranks[0].every(Saved) if saved.by == by)
    hosts = fold({rank.host for rank in ranks})
    code = FindingKind.CHECKPOINT_IN_PARTS
    return finding(code, ranks_text(r.rank for r in ranks), path=path, hosts=hosts, advice=advice)


def _lacking(ranks: Ranks, writers: dict[str, list[RankRecords]]) -> Finding:
    writing = sorted({rank.rank for several in writers.values() for rank in several})
    first = next(rank for rank in ranks if rank.rank == writing[0])
    path = next(saved.path for saved in first.every(Saved))
    where, directory = ranks_text(writing), posixpath.dirname(path)
    if first.last(TrainerArguments) is None:
        return finding(FindingKind.CHECKPOINT_ON_ONE_NODE, where, path=directory, ranks=where)
    # to resume, the Trainer looks for it on all nodes
    kind = FindingKind.CHECKPOINT_INCOMPLETE
    return finding(kind, where, path=directory, ranks=where, advice=_advice(first))


def _advice(rank: RankRecords) -> str:
    """Return what lets the Trainer of a rank resume on all nodes. DeepSpeed's engine saves the
    weights in the shards of all ranks."""
    trainer = rank.last(TrainerArguments)
    has_engine = trainer is not None and trainer.arguments.get("deepspeed") is True
    return EACH_NODE if has_engine else WEIGHTS_ONCE


def _uses_local_storage(rank: RankRecords) -> bool:
    config = rank.config
    if config is None:  # known only as DeepSpeed read it
        return True
    section = config.get("checkpoint")
    return isinstance(section, dict) and bool(section.get("use_node_local_storage"))


def _planned(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield what the Trainer's arguments say of checkpoints that were not written yet."""
    hosts = {rank.host for rank in ranks}
    first = ranks[0]
    trainer, started = first.last(TrainerArguments), first.last(Started)
    if trainer is None or started is None or len(hosts) < 2:
        return
    arguments = trainer.arguments
    output = arguments.get("output_dir")
    if not isinstance(output, str) or arguments.get("save_strategy") == "no":
        return
    path = posixpath.normpath(posixpath.join(started.cwd, output))
    shared = is_shared(rehearsed.facts, path, hosts)
    each_node = arguments.get("save_on_each_node") is True
    if shared is False and not each_node:
        where = ranks_text([first.rank])
        yield finding(
            FindingKind.CHECKPOINT_INCOMPLETE, where, path=path, ranks=where, advice=_advice(first)
        )
    if shared is True and each_node:
        where = ranks_text(rank.rank for rank in ranks)
        yield finding(FindingKind.CHECKPOINT_OVERWRITTEN, where, path=path)


def _outputs_differ(ranks: Ranks) -> Iterator[Finding]:
    """Yield that ranks gave different output directories to the Trainer."""
    given = {rank.rank: rank.last(TrainerArguments) for rank in ranks}
    outputs = {
        rank: str(trainer.arguments.get("output_dir"))
        for rank, trainer in given.items()
        if trainer is not None
    }
    names = sorted(set(outputs.values()))
    if len(names) > 1:
        paths = ", ".join(first_few(names, MOST_PATHS))
        yield finding(FindingKind.OUTPUTS_DIFFER, ranks_text(outputs), paths=paths)


def _empty(ranks: Ranks) -> Iterator[Finding]:
    """Yield files whose tensors are mostly empty, as those of partitioned parameters are."""
    for rank in ranks:
        if not rank.sharded:
            continue
        for saved in rank.every(Saved):
            if saved.tensors and saved.empty > saved.tensors / 2:
                yield finding(
                    FindingKind.CHECKPOINT_EMPTY,
                    ranks_text([rank.rank]),
                    path=saved.path,
                    empty=saved.empty,
                    tensors=saved.tensors,
                )
                return


def _temporary(ranks: Ranks) -> Iterator[Finding]:
    """Yield checkpoints in directories that are emptied, outside of the working directory."""
    for rank in ranks:
        started = rank.last(Started)
        cwd = started.cwd if started is not None else "/"
        for saved in rank.every(Saved):
            is_inside = saved.path.startswith(f"{cwd}/")
            if saved.path.startswith(TEMPORARY) and not is_inside:
                where = ranks_text([rank.rank])
                yield finding(FindingKind.CHECKPOINT_TEMPORARY, where, path=saved.path)
                return
