"""Prepare a start: the questions, the decisions from the answers, and the files to ship."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster.model import Allocation, Cluster
from dslaunch.cluster.nodeset import fold
from dslaunch.deepspeed.named_configs import NamedConfig
from dslaunch.deepspeed.resume import check_arguments, check_config, lacks_save_on_each_node
from dslaunch.deepspeed.storage import SUFFIXES, find_config, localize, parse, replace_config
from dslaunch.errors import ErrorCode, PlanError
from dslaunch.launch import decide as judged
from dslaunch.launch import launchers
from dslaunch.launch.command import Var
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.launch.devices import check_devices
from dslaunch.launch.facts import Facts, NodeFacts
from dslaunch.launch.job import Job
from dslaunch.launch.plan import DS_CONFIG, RUN_DIRECTORY, Decided, File, thread_limit
from dslaunch.plural import byte_count, counted, first_few
from dslaunch.registry import LAUNCHERS
from dslaunch.run.code_configs import (
    CodeConfigs,
    JobPlace,
    configs_in_code,
    fit_configs,
    local_file,
    own_copy,
)
from dslaunch.run.cpu_training import for_accelerate
from dslaunch.run.evidence import Inquiry
from dslaunch.run.job_files import JobFiles, Shipment, find_source

SHOWN_PATHS = 3


def inquiry(cluster: Cluster, allocation: Allocation, job: Job, cwd: Path) -> Inquiry:
    """Return what to ask the nodes for this job. Raises PlanError."""
    workdir = cluster.storage.workdir or str(cwd)
    source = find_source(job, cwd, workdir)
    wanted = [workdir, cluster.storage.checkpoints or workdir]
    here = cwd if source is not None else None
    if source is not None and not f"{source.remote}/".startswith(f"{workdir}/"):
        wanted.append(source.remote)
        here = source.local
    return Inquiry(
        cluster=cluster,
        allocation=allocation,
        directories=tuple(dict.fromkeys(wanted)),
        source=source,
        here=here,
        configs=configs_in_code(job, cwd, source),
    )


def config_files(question: Inquiry, cwd: Path) -> tuple[Path, ...]:
    """Return the DeepSpeed configs that the job's code names and that are on this machine."""
    return _files(question.configs, question.source, cwd, question.directories[0])


def _files(
    configs: tuple[NamedConfig, ...], source: JobFiles | None, cwd: Path, workdir: str
) -> tuple[Path, ...]:
    files = (local_file(each, source, cwd, workdir) for each in configs)
    return tuple(dict.fromkeys(file for file in files if file is not None))


def _options(configs: tuple[NamedConfig, ...]) -> tuple[str, ...]:
    """Return the script's own options that name a config."""
    return tuple(each.option for each in configs if each.option is not None)


class ConfigsInCode(Struct, frozen=True):
    """The DeepSpeed configs that a job's code names, if nothing is shipped."""

    files: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """What to tell the user about them."""


def find_configs_in_code(
    job: Job, cwd: Path, workdir: str, *, shared: bool | None
) -> ConfigsInCode:
    """Find the DeepSpeed configs in a job's code; none is changed.

    Raises ConfigError, PlanError.
    """
    try:
        source = find_source(job, cwd, workdir)
    except PlanError:  # too large to ship, but nothing is shipped here
        return ConfigsInCode()
    configs = configs_in_code(job, cwd, source)
    place = JobPlace(job=job, source=source, cwd=cwd, workdir=workdir)
    found = fit_configs(configs, place, shared=shared, can_ship=False)
    return ConfigsInCode(
        files=_files(configs, source, cwd, workdir),
        options=_options(configs),
        decisions=found.decisions,
    )


def decide(
    question: Inquiry, facts: Facts, job: Job, *, cwd: Path, sync: bool
) -> tuple[Decided, Job, tuple[Shipment, ...]]:
    """Decide by the answers: the rendezvous, the storage, the code, the DeepSpeed config.

    Raises PreflightError or PlanError for what must stop a run before it starts.
    """
    cluster = question.cluster
    if launchers.starts_python(job):
        judged.check_interpreters(question.allocation, facts)
    devices = check_devices(question.allocation, facts)
    rendezvous, decisions = judged.decide_rendezvous(cluster, facts)
    workdir = question.directories[0]
    checkpoints = cluster.storage.checkpoints or workdir
    shared, storage = judged.decide_shared(cluster, facts, checkpoints)
    configs = CodeConfigs()
    if len(facts.nodes) > 1:
        place = JobPlace(job=job, source=question.source, cwd=cwd, workdir=workdir)
        configs = fit_configs(question.configs, place, shared=shared, can_ship=True)
    shipments, code = plan_shipments(question, facts, configs.changed, sync=sync)
    job, on_cpu = for_accelerate(question.allocation, job, facts, cwd)
    named = _options(question.configs)
    job, files, config = localize_config(
        job, cwd, shared=shared, node_count=len(facts.nodes), options=named
    )
    groups = (
        decisions,
        devices,
        on_cpu,
        _threads(question.allocation, job),
        judged.decide_workdir(facts, workdir),
        (storage,),
        code,
        config,
        configs.decisions,
    )
    decided = Decided(rendezvous, workdir, tuple(chain.from_iterable(groups)), files)
    return decided, job, shipments


def _threads(allocation: Allocation, job: Job) -> tuple[Decision, ...]:
    """Return the decision about OpenMP threads, if dslaunch limits them."""
    limited = any(thread_limit(job, p.node, len(p.slots)) for p in allocation.placements)
    if not (limited and LAUNCHERS.get(job.launcher).limits_threads):
        return ()
    return (decision(DecisionCode.THREADS_LIMITED),)


# ---------------------------------------------------------------- code


def plan_shipments(
    question: Inquiry,
    facts: Facts,
    changed: Mapping[str, str] | None = None,
    *,
    sync: bool,
) -> tuple[tuple[Shipment, ...], tuple[Decision, ...]]:
    """Return which nodes are sent which files, and why. Raises PlanError.

    `changed`: the files that nodes need with another text. Nodes that see the user's own files
    keep them unchanged.
    """
    source = question.source
    changed = changed or {}
    if source is None:
        return (), ()
    if not source.digests:
        judged.check_program(
            facts,
            source.script,
            program=source.program,
            similar=source.similar,
            same=source.same,
        )
        return (), (decision(DecisionCode.CODE_ON_NODES, path=source.script or ""),)
    directory = _directory_with(source, question.directories)
    shipments: list[Shipment] = []
    unchanged: list[str] = []
    for group in _sharing(facts, directory):
        # the nodes of a group see the same files; one that looked before another wrote differs
        lacking = next((node for node in group if node.different), group[0])
        own = any(node.host in facts.own_files for node in group)
        texts = _texts_for(lacking, changed, own=own, sync=sync)
        if len(texts) < len(changed):
            unchanged += [node.host for node in group]
        paths = _to_ship(lacking, texts)
        if paths:
            shipments.append(Shipment(lacking.host, paths, texts))
    if not sync:
        _refuse_differences(source, shipments)
    judged.check_destination(facts, directory, [shipment.host for shipment in shipments])
    code = _code_decision(source, shipments, facts)
    return tuple(shipments), (code, *_own_configs(changed, unchanged, facts))


def _directory_with(source: JobFiles, directories: Sequence[str]) -> str:
    """Return which of the tested directories has the job's files; empty: none."""
    for directory in directories:
        if f"{source.remote}/".startswith(f"{directory}/"):
            return directory
    return ""


def _refuse_differences(source: JobFiles, shipments: Sequence[Shipment]) -> None:
    """Raise PlanError if nodes need files that are not to be shipped."""
    if shipments:
        hosts = fold(shipment.host for shipment in shipments)
        raise PlanError(
            f"{source.local} differs on {hosts}: {_some(shipments[0].paths)}",
            hint="leave out --no-sync to ship the files",
            code=ErrorCode.CODE_DIFFERS,
        )


def _sharing(facts: Facts, directory: str) -> Iterable[list[NodeFacts]]:
    """Return the nodes in groups that share this directory."""
    groups: dict[str, list[NodeFacts]] = {}
    for node in facts.nodes:
        groups.setdefault(judged.directory_at(node, directory).first, []).append(node)
    return groups.values()


def _texts_for(
    node: NodeFacts, changed: Mapping[str, str], *, own: bool, sync: bool
) -> Mapping[str, str]:
    """Return the changed files that a group of nodes is sent.

    The user's `own` files are never changed. Without `sync` nothing new is shipped, and files that
    an earlier run has changed there are accepted.
    """
    if own:
        return {}
    if sync:
        return changed
    there = dict(node.different)
    return {path: text for path, text in changed.items() if path in there}


def _own_configs(
    changed: Mapping[str, str], hosts: Sequence[str], facts: Facts
) -> tuple[Decision, ...]:
    """Return the decisions about nodes that use the user's own configs. The node of rank 0 saves
    everything in any case (DeepSpeed 0.19.8, runtime/engine.py, `_configure_checkpointing`)."""
    others = tuple(host for host in hosts if host != facts.nodes[0].host)
    return tuple(own_copy(path, others) for path in changed if others)


def _to_ship(node: NodeFacts, changed: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files that a node lacks or has with another text."""
    there = dict(node.different)
    wanted = {path: _digest(text) for path, text in changed.items()}
    lacking = [path for path, digest in there.items() if digest != wanted.get(path, "")]
    return (*lacking, *(path for path in wanted if path not in there))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _code_decision(source: JobFiles, shipments: list[Shipment], facts: Facts) -> Decision:
    if not shipments:
        files, nodes = counted(len(source.digests), "file"), counted(len(facts.nodes), "node")
        return decision(DecisionCode.CODE_SAME, path=source.remote, files=files, nodes=nodes)
    size = sum((source.local / path).stat().st_size for path in shipments[0].paths)
    count = max(len(s.paths) for s in shipments)
    return decision(
        DecisionCode.CODE_SHIPPED,
        files=counted(count, "file"),
        size=byte_count(size),
        nodes=tuple(s.host for s in shipments),
        path=source.remote,
        examples=_some(shipments[0].paths),
    )


def _some(paths: tuple[str, ...]) -> str:
    return ", ".join(first_few(paths, SHOWN_PATHS))


# ---------------------------------------------------------------- DeepSpeed


def localize_config(
    job: Job,
    cwd: Path,
    *,
    shared: bool | None,
    node_count: int,
    options: Sequence[str] = (),
) -> tuple[Job, tuple[File, ...], tuple[Decision, ...]]:
    """Let the DeepSpeed config among the arguments tell whether checkpoints are shared.

    The nodes get a changed copy in their run directory; the user's file is not touched. `options`:
    those of the script's own that name a config.
    Raises ConfigError if it cannot be read as DeepSpeed would, PlanError if what it saves could
    not be loaded again.
    """
    found = find_config(job.args, options)
    if shared is not None and node_count > 1:
        check_arguments(job.args, shared)
    if found is None:
        return job, (), ()
    path = Path(os.path.join(cwd, found.path))  # noqa: PTH118 - an absolute path wins
    if not path.is_file():
        return job, (), _config_not_here(found.path)
    if shared is None or node_count == 1:
        return job, (), ()
    text = path.read_text("utf-8")
    check_config(parse(text, found.path), job.args, shared)
    lacks_option = lacks_save_on_each_node(job.args, shared)
    more = (decision(DecisionCode.TRAINER_ADVICE),) if lacks_option else ()
    localized = localize(text, shared, found.path)
    if localized.change is None:
        fits = decision(DecisionCode.CONFIG_FITS, path=found.path)
        return job, (), (fits, *more)
    new: tuple[str | Var, ...] = (RUN_DIRECTORY, f"/{DS_CONFIG}")
    changed = replace(job, args=replace_config(job.args, found, new))
    copied = decision(
        DecisionCode.CONFIG_COPIED, path=found.path, change=localized.change, shared=shared
    )
    return changed, (File(DS_CONFIG, localized.text),), (copied, *more)


def _config_not_here(path: str) -> tuple[Decision, ...]:
    """Return the decision about a config that only the nodes can have. DeepSpeed also accepts one
    that is encoded in the argument itself (0.19.8, runtime/config.py), which is not a path."""
    if not path.endswith(SUFFIXES):
        return ()
    return (decision(DecisionCode.CONFIG_NOT_HERE, path=path),)
