"""Find, gather, spread, verify and prune checkpoints on many nodes."""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
from collections.abc import Mapping, Sequence

from msgspec import Struct

from dslaunch.cluster.failures import folded
from dslaunch.cluster.model import Allocation
from dslaunch.cluster.nodeset import fold
from dslaunch.deepspeed.checkpoint import Checkpoint, Copy, find
from dslaunch.deepspeed.placement import Readers, check_world, rank_map, ranks_place
from dslaunch.errors import (
    ConfigError,
    ErrorCode,
    NodeError,
    NodeFailure,
    PlanError,
    PreflightError,
    Problem,
    SelectionError,
)
from dslaunch.json_text import json_text
from dslaunch.plural import first_few
from dslaunch.protocol.checkpoints import Survey
from dslaunch.protocol.queries import DIRECTORIES, MARK, MARKS, UNMARK
from dslaunch.run.checkpoint_stores import (
    HERE,
    LONG,
    CheckpointStore,
    NodeStore,
    StoreError,
    result,
    survey,
)
from dslaunch.run.reach import ReachedNodes, answer_of, ask
from dslaunch.run.shards import CopyProgress, Notify, Transfer, copy

SHOWN_SHARDS, SHOWN_FILES = 4, 10
"""Names in an error; the others are counted."""


class Holdings(Struct, frozen=True):
    """The checkpoints below one directory of some places."""

    places: Mapping[str, CheckpointStore]
    paths: Mapping[str, str]
    """CheckpointStore -> the directory's absolute path there."""
    checkpoints: list[Checkpoint]
    failures: Mapping[str, NodeFailure]
    """The nodes that did not answer, or cannot read the directory."""
    missing: frozenset[str] = frozenset()
    """The nodes on which the directory does not exist."""

    def check_readable(self, directory: str, *, may_be_missing: bool) -> None:
        """Raise ConfigError if the directory cannot be read on any node that answered, and
        NodeError if none answered. `may_be_missing`: whether it need not exist."""
        if self.paths.keys() - self.missing or (self.missing and may_be_missing):
            return
        missing = [NodeFailure(host, "checkpoint", _error_text("ENOENT")) for host in self.missing]
        here = [each for each in self.failures.values() if each.kind == "checkpoint"]
        unreadable = folded([*missing, *here])
        if not unreadable:
            raise NodeError(tuple(self.failures.values()))
        raise ConfigError(
            tuple(
                Problem(
                    file=directory,
                    line=0,
                    column=0,
                    path="",
                    message=f"{each.message}{_on(each.hosts)}",
                    rule="unreadable",
                )
                for each in unreadable
            ),
            hint=ErrorCode.NO_CHECKPOINT.hint,
        )


def _on(hosts: tuple[str, ...]) -> str:
    """Return ` on n[1-2]`; empty for this machine."""
    return "" if hosts == (HERE,) else f" on {fold(hosts)}"


def look(places: Sequence[NodeStore], reached: ReachedNodes, directory: str) -> Holdings:
    """Find the checkpoints of the nodes."""
    told, offsets = survey(places, reached, directory)
    return _holdings(places, told, offsets, reached.failures)


def look_here(place: CheckpointStore, directory: str) -> Holdings:
    """Find the checkpoints of one place, such as a gathered one. Raises StoreError."""
    told = {place.name: result(place.ask("survey", directory), LONG)}
    return _holdings([place], told, {}, {})


def _holdings(
    places: Sequence[CheckpointStore],
    told: Mapping[str, Survey],
    offsets: Mapping[str, float],
    failures: Mapping[str, NodeFailure],
) -> Holdings:
    unusable = {**_refuse_one_checkpoint(told), **_unreadable(told)}
    usable = {host: survey for host, survey in told.items() if host not in unusable}
    return Holdings(
        {place.name: place for place in places},
        {host: survey.path for host, survey in usable.items()},
        find(usable, offsets),
        {**failures, **unusable},
        frozenset(host for host, survey in usable.items() if survey.missing),
    )


def _unreadable(told: Mapping[str, Survey]) -> dict[str, NodeFailure]:
    """Return failures of nodes that have the directory but cannot read it."""
    return {
        host: NodeFailure(host, "checkpoint", _error_text(survey.unreadable))
        for host, survey in told.items()
        if survey.unreadable is not None and not survey.missing
    }


def _error_text(name: str) -> str:
    """Return the text of an error of the system by its name, which a node may have made up."""
    return os.strerror(getattr(errno, name)) if name in errno.errorcode.values() else "unreadable"


def _refuse_one_checkpoint(told: Mapping[str, Survey]) -> dict[str, NodeFailure]:
    """Return failures of nodes on which the directory itself is a checkpoint, unlike on others.

    Raises SelectionError if it is one on all nodes with a checkpoint.
    """
    found = {host: survey for host, survey in told.items() if survey.checkpoints}
    itself = [h for h, s in found.items() if any(part.tag == "." for part in s.checkpoints)]
    if itself and len(itself) == len(found):
        raise SelectionError(
            f"{found[itself[0]].path} is the directory of a single checkpoint",
            hint="use its parent directory, which has the file `latest`, and select it with --tag",
        )
    why = "the directory itself is a checkpoint here, unlike on other nodes"
    return {host: NodeFailure(host, "checkpoint", why) for host in itself}


def require(checkpoint: Checkpoint, holdings: Holdings) -> None:
    """Raise PreflightError if a shard is on none of the nodes that answered."""
    _refuse_left_out(checkpoint)
    missing = checkpoint.missing()
    if not missing:
        return
    names = [posixpath.basename(path) for path in missing]
    some = ", ".join(first_few(names, SHOWN_SHARDS))
    broken = [
        f"{copy.host}: {posixpath.basename(path)} is {copy.broken}"
        for path in missing
        for copy in checkpoint.files.get(path, ())
    ]
    count = f"{len(missing)} of {len(checkpoint.wanted())} shards"
    what = f"{checkpoint.name} is incomplete: {count} missing or broken: {some}"
    if holdings.failures:
        unresponsive = [
            f"{failure.host}: {failure.message}" for failure in holdings.failures.values()
        ]
        what = "\n".join([what, *broken, *unresponsive])
        raise PreflightError(
            what,
            hint="make those nodes reachable, or choose an older --tag",
            code=ErrorCode.CHECKPOINT_INCOMPLETE,
        )
    raise PreflightError(
        "\n".join([what, *broken]),
        hint="choose an older --tag; `dslaunch checkpoint ls` shows which are complete",
        code=ErrorCode.CHECKPOINT_INCOMPLETE,
    )


def _refuse_left_out(checkpoint: Checkpoint) -> None:
    """Raise PreflightError for files that cannot be copied, such as links."""
    left = [f"{c.host}: {path} {c.broken}" for path, c in checkpoint.left_out().items()]
    if left:
        raise PreflightError(
            "\n".join(
                [f"{checkpoint.name} cannot be copied as a whole", *first_few(left, SHOWN_FILES)]
            ),
            hint="replace links by files, or remove them: below the checkpoint directory links are "
            "not followed, since other users could point them to your private files",
            code=ErrorCode.CHECKPOINT_LINKS,
        )


def gather(
    checkpoint: Checkpoint,
    holdings: Holdings,
    target: CheckpointStore,
    directory: str,
    notify: Notify,
) -> CopyProgress:
    """Copy a whole checkpoint to one place, as if its storage had been shared.

    `latest` is written last: if it names the tag, the tag is complete. Raises as `require` and
    `shards.copy` do.
    """
    require(checkpoint, holdings)
    _refuse_mixed_up(checkpoint)
    transfers = [
        _transfer(holdings, copied, target, directory) for copied in checkpoint.contents().values()
    ]
    progress = copy(transfers, notify)
    write_latest(checkpoint, {target.name: target}, {target.name: directory})
    return progress


def _transfer(
    holdings: Holdings, copied: Copy, target: CheckpointStore, directory: str
) -> Transfer:
    return Transfer(
        source=holdings.places[copied.host],
        source_directory=holdings.paths[copied.host],
        target=target,
        target_directory=directory,
        path=copied.path,
        size=copied.size,
        mtime=copied.mtime,
        mode=copied.mode,
    )


def _refuse_mixed_up(checkpoint: Checkpoint) -> None:
    """Raise PlanError for tensors from NVMe: those of several nodes have the same names."""
    if checkpoint.offloaded and checkpoint.header.node_local:
        raise PlanError(
            f"{checkpoint.name} has tensors offloaded to NVMe, with the same names on every node",
            hint="load it where it was saved: on the same nodes in the same order",
        )


def spread(
    checkpoint: Checkpoint,
    source: Holdings,
    allocation: Allocation,
    targets: Holdings,
    notify: Notify,
) -> CopyProgress:
    """Copy every file to the nodes whose ranks will read it; then `latest` to all of them.

    Raises PlanError if those ranks cannot load it, else as `require` and `shards.copy` do.
    """
    check_world(checkpoint, allocation.world_size)
    _refuse_mixed_up(checkpoint)
    require(checkpoint, source)
    lost = [targets.failures[host] for host in allocation.hosts if host in targets.failures]
    if lost:
        raise NodeError(tuple(lost))
    contents = checkpoint.contents()
    readers = Readers.of_files(checkpoint)
    transfers = [
        _transfer(source, contents[path], targets.places[host], targets.paths[host])
        for placement in allocation.placements
        for host in [placement.node.host]
        for path in readers.needed(placement)
    ]
    progress = copy(transfers, notify)
    chosen = {host: targets.places[host] for host in allocation.hosts}
    write_latest(checkpoint, chosen, targets.paths)
    write_ranks(rank_map("spread", allocation), chosen, targets.paths)
    return progress


def write_latest(
    checkpoint: Checkpoint, places: Mapping[str, CheckpointStore], paths: Mapping[str, str]
) -> None:
    """Let `latest` name this checkpoint's tag at all these places."""
    name = posixpath.normpath(posixpath.join(checkpoint.root, "latest"))
    asked = [
        place.ask("text", paths[host], name=name, text=checkpoint.tag)
        for host, place in places.items()
    ]
    for future in asked:
        result(future)


def write_ranks(
    ranks: Mapping[str, object], places: Mapping[str, CheckpointStore], paths: Mapping[str, str]
) -> None:
    """Write the rank map beside the checkpoints."""
    text = json_text(ranks) + "\n"
    for host, place in places.items():
        directory, name = ranks_place(paths[host])
        result(place.ask("text", directory, name=name, text=text))


def read_through(checkpoint: Checkpoint, holdings: Holdings) -> dict[str, dict[str, str]]:
    """Read every byte of every shard where it is; return node -> path -> why it is broken."""
    names = {
        host: [path for path in checkpoint.on(host) if path in checkpoint.shards]
        for host in holdings.places
    }
    asked = {
        host: place.ask("check", holdings.paths[host], names=names[host])
        for host, place in holdings.places.items()
        if names[host]
    }
    said = {host: result(future, LONG) for host, future in asked.items()}
    found = {host: _broken(names[host], told) for host, told in said.items()}
    return {host: broken for host, broken in found.items() if broken}


def _broken(names: Sequence[str], told: Mapping[str, str | None]) -> dict[str, str]:
    """Return why files are broken; a file without an answer counts as broken."""
    said = {name: told.get(name, "not read") for name in names}
    return {name: why for name, why in said.items() if why is not None}


def prune(checkpoints: Sequence[Checkpoint], holdings: Holdings) -> int:
    """Remove checkpoints wherever their files are; return the number of files.

    Raises NodeError if a node did not answer: what it holds is not known.
    """
    if holdings.failures:
        raise NodeError(tuple(holdings.failures.values()))
    asked = []
    for host, place in holdings.places.items():
        names = [path for c in checkpoints for path in own_files(c, host)]
        asked.append(place.ask("remove", holdings.paths[host], names=names))
    return sum(result(future, LONG) for future in asked)


def own_files(checkpoint: Checkpoint, host: str) -> list[str]:
    """Return the files on a node that belong to this checkpoint only."""
    inside = f"{checkpoint.name}/"
    own_root = posixpath.basename(checkpoint.root).startswith("checkpoint-")
    inside = f"{checkpoint.root}/" if own_root else inside
    latest = [posixpath.join(checkpoint.root, "latest")] if own_root else []
    return [path for path in (*checkpoint.on(host), *latest) if path.startswith(inside)]


def check_apart(reached: ReachedNodes, directory: str) -> None:
    """Raise PlanError if nodes share the directory: each would write its own part of it."""
    unique = f".dslaunch-{secrets.token_hex(8)}"
    names = {host: f"{unique}-{number}" for number, host in enumerate(reached.sessions)}
    for host, session in reached.sessions.items():
        mark = {"paths": [directory], "name": names[host]}
        answers = answer_of(host, session.ask({DIRECTORIES: [directory], MARK: mark}))
        made = answers[DIRECTORIES][directory]
        error = made.error or answers[MARK][directory]
        if error:
            raise StoreError(f"{host}: {made.path}: {error}")
    seen = ask(reached, {MARKS: {"paths": [directory], "names": list(names.values())}})
    for host, session in reached.sessions.items():
        session.ask({UNMARK: {names[host]: [directory]}})
    for host, answers in seen.items():
        marks = answers[MARKS][directory]
        others = [other for other, name in names.items() if name in marks]
        if others != [host]:
            raise PlanError(
                f"{directory} is shared by {fold(others)}",
                hint="do not spread a checkpoint on shared storage; copy it there with `dslaunch "
                f"checkpoint gather --to {host}:{directory}`",
            )
