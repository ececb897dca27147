"""Between asking and starting: what is asked, what follows from the answers, what is shipped."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from dslaunch.cluster.model import Allocation, Cluster
from dslaunch.deepspeed.named_configs import NamedConfig
from dslaunch.deepspeed.resume import check_arguments, check_config, trainer_advice
from dslaunch.deepspeed.storage import SUFFIXES, find_config, localise, parse, replace_config
from dslaunch.errors import ErrorCode, PlanError
from dslaunch.launch import decide as judged
from dslaunch.launch import launchers
from dslaunch.launch.command import Var
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.launch.devices import check_devices
from dslaunch.launch.facts import Facts, NodeFacts
from dslaunch.launch.job import Job
from dslaunch.launch.plan import RUN_DIRECTORY, Decided, File
from dslaunch.plural import counted
from dslaunch.run.code_configs import (
    CodeConfigs,
    configs_in_code,
    fit_configs,
    local_file,
    own_copy,
)
from dslaunch.run.cpu_training import for_accelerate
from dslaunch.run.evidence import Inquiry, ask_all
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.session import Session
from dslaunch.run.source import JobFiles, archive, find_source

SHIP_TIMEOUT = 600.0
DS_CONFIG = "ds_config.json"


@dataclass(frozen=True, slots=True)
class Shipment:
    """Files that one node is sent; the nodes that share its directory see them too."""

    host: str
    paths: tuple[str, ...]
    changed: Mapping[str, str] = field(default_factory=dict)
    """The files among them that are shipped with another text."""


def inquiry(cluster: Cluster, allocation: Allocation, job: Job, cwd: Path) -> Inquiry:
    """What to ask the nodes for this job."""
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
    """The DeepSpeed configs that the job's code names, as far as they are on this machine."""
    return _files(question.configs, question.source, cwd, question.directories[0])


def _files(
    configs: tuple[NamedConfig, ...], source: JobFiles | None, cwd: Path, workdir: str
) -> tuple[Path, ...]:
    files = (local_file(each, source, cwd, workdir) for each in configs)
    return tuple(dict.fromkeys(file for file in files if file is not None))


def _options(configs: tuple[NamedConfig, ...]) -> tuple[str, ...]:
    """The script's own options that name a config."""
    return tuple(each.option for each in configs if each.option is not None)


@dataclass(frozen=True, slots=True)
class Code:
    """The DeepSpeed configs that a job's code names, where nothing is shipped."""

    files: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """What to say of them."""


def code_of(job: Job, cwd: Path, workdir: str, shared: bool | None) -> Code:
    """Read a job's code for DeepSpeed configs; none is changed. Raises ConfigError, PlanError."""
    try:
        source = find_source(job, cwd, workdir)
    except PlanError:  # too large to ship, which is not asked for here
        return Code()
    configs = configs_in_code(job, cwd, source)
    found = fit_configs(configs, job, source, cwd, workdir, shared=shared, can_ship=False)
    return Code(_files(configs, source, cwd, workdir), _options(configs), found.decisions)


def decide(
    question: Inquiry, facts: Facts, job: Job, cwd: Path, sync: bool
) -> tuple[Decided, Job, tuple[Shipment, ...]]:
    """Judge the answers: the rendezvous, the storage, the code, the DeepSpeed config.

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
        configs = fit_configs(
            question.configs, job, question.source, cwd, workdir, shared=shared, can_ship=True
        )
    shipments, code = plan_shipments(question, facts, sync, configs.changed)
    job, on_cpu = for_accelerate(question.allocation, job, facts, cwd)
    named = _options(question.configs)
    job, files, config = localise_config(job, cwd, shared, len(facts.nodes), named)
    groups = (
        decisions,
        devices,
        on_cpu,
        judged.decide_workdir(facts, workdir),
        (storage,),
        code,
        config,
        configs.decisions,
    )
    decided = Decided(rendezvous, workdir, tuple(chain.from_iterable(groups)), files)
    return decided, job, shipments


# ---------------------------------------------------------------- code


def plan_shipments(
    question: Inquiry, facts: Facts, sync: bool, changed: Mapping[str, str] | None = None
) -> tuple[tuple[Shipment, ...], tuple[Decision, ...]]:
    """Who must be sent which files, and why. Raises PlanError.

    `changed`: the files that nodes need with another text. Nodes that see the user's own files
    keep them as they are.
    """
    source = question.source
    if source is None:
        return (), ()
    if not source.digests:
        judged.check_program(facts, source.script, same=source.same)
        return (), (decision(DecisionCode.CODE_ON_NODES, path=source.script or ""),)
    inside = next((d for d in question.directories if f"{source.remote}/".startswith(f"{d}/")), "")
    shipments = []
    unchanged: list[str] = []
    for members in _sharing(facts, inside):
        # the nodes of a group see the same files; one that looked before another wrote differs
        lacking = next((node for node in members if node.different), members[0])
        own = any(node.host in facts.own_files for node in members)
        texts = _texts_for(lacking, changed or {}, own=own, sync=sync)
        if len(texts) < len(changed or {}):
            unchanged += [node.host for node in members]
        paths = _to_ship(lacking, texts)
        if paths:
            shipments.append(Shipment(lacking.host, paths, texts))
    if shipments and not sync:
        where = ", ".join(s.host for s in shipments)
        raise PlanError(
            f"{source.local} is not the same on {where}: {_some(shipments[0].paths)}",
            hint="leave --no-sync out to have it shipped",
            code=ErrorCode.CODE_DIFFERS,
        )
    judged.check_destination(facts, inside, [shipment.host for shipment in shipments])
    return tuple(shipments), (
        _code_decision(source, shipments, facts),
        *_own_configs(changed or {}, unchanged, facts),
    )


def _sharing(facts: Facts, directory: str) -> Iterable[list[NodeFacts]]:
    """The nodes in groups of those that see one and the same directory."""
    groups: dict[frozenset[str], list[NodeFacts]] = {}
    for node in facts.nodes:
        seen = judged.directory_at(node, directory).seen
        groups.setdefault(frozenset(seen) or frozenset([node.host]), []).append(node)
    return groups.values()


def _texts_for(
    node: NodeFacts, changed: Mapping[str, str], *, own: bool, sync: bool
) -> Mapping[str, str]:
    """Those of the changed files that a group of nodes is sent.

    The user's `own` files are never changed. Without `sync` nothing new is shipped, and what an
    earlier run has changed there fits.
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
    """What to say of nodes that use the user's own configs. The node of rank 0 saves all that is to
    be saved there in any case (DeepSpeed 0.19.8, runtime/engine.py, `_configure_checkpointing`)."""
    others = tuple(host for host in hosts if host != facts.nodes[0].host)
    return tuple(own_copy(path, others) for path in changed if others)


def _to_ship(node: NodeFacts, changed: Mapping[str, str]) -> tuple[str, ...]:
    """The files that a node lacks or has with another text."""
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
        size=_bytes(size),
        nodes=tuple(s.host for s in shipments),
        path=source.remote,
        examples=_some(shipments[0].paths),
    )


def _some(paths: tuple[str, ...]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"


def ship(
    source: JobFiles | None,
    shipments: tuple[Shipment, ...],
    sessions: list[Session],
    interrupts: Interrupts,
) -> None:
    """Send the files. Raises NodeError for nodes that could not take them, Interrupted."""
    if source is None or not shipments:
        return
    by_host = {session.host: session for session in sessions}
    chosen = [by_host[shipment.host] for shipment in shipments]
    sent = []
    for shipment, session in zip(shipments, chosen, strict=True):
        interrupts.check()
        with archive(source, shipment.paths, shipment.changed) as file:
            sent.append(session.put(source.remote, file))
    ask_all(sent, chosen, interrupts, timeout=SHIP_TIMEOUT)


# ---------------------------------------------------------------- DeepSpeed


def localise_config(
    job: Job,
    cwd: Path,
    shared: bool | None,
    node_count: int,
    options: Sequence[str] = (),
) -> tuple[Job, tuple[File, ...], tuple[Decision, ...]]:
    """Have the DeepSpeed config among the arguments say whether checkpoints are shared.

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
    advice = trainer_advice(job.args, shared)
    more = (decision(DecisionCode.TRAINER_ADVICE, advice=advice),) if advice else ()
    localised = localise(text, shared, found.path)
    if localised.change is None:
        fits = decision(DecisionCode.CONFIG_FITS, path=found.path)
        return job, (), (fits, *more)
    new: tuple[str | Var, ...] = (RUN_DIRECTORY, f"/{DS_CONFIG}")
    changed = replace(job, args=replace_config(job.args, found, new))
    copied = decision(
        DecisionCode.CONFIG_COPIED, path=found.path, change=localised.change, shared=shared
    )
    return changed, (File(DS_CONFIG, localised.text),), (copied, *more)


def _config_not_here(path: str) -> tuple[Decision, ...]:
    """What to say of a config that only the nodes can have. DeepSpeed also takes one that is
    encoded in the argument itself (0.19.8, runtime/config.py), which is no path."""
    if not path.endswith(SUFFIXES):
        return ()
    return (decision(DecisionCode.CONFIG_NOT_HERE, path=path),)
