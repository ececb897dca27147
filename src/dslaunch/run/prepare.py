"""Between asking and starting: what is asked, what follows from the answers, what is shipped."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from dslaunch.cluster.model import Allocation, Cluster
from dslaunch.deepspeed.resume import check_arguments, check_config, trainer_advice
from dslaunch.deepspeed.storage import find_config, localise, parse, replace_config
from dslaunch.errors import PlanError
from dslaunch.launch import decide as judged
from dslaunch.launch.command import Var
from dslaunch.launch.facts import Facts, NodeFacts
from dslaunch.launch.job import Job
from dslaunch.launch.plan import RUN_DIRECTORY, Decided, Decision, File
from dslaunch.plural import counted
from dslaunch.run.evidence import Inquiry, ask_all
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.session import Session
from dslaunch.run.source import Source, archive, find_source

SHIP_TIMEOUT = 600.0
DS_CONFIG = "ds_config.json"


@dataclass(frozen=True, slots=True)
class Shipment:
    """Files that one node is sent; the nodes that share its directory see them too."""

    host: str
    paths: tuple[str, ...]


def inquiry(cluster: Cluster, allocation: Allocation, job: Job, cwd: Path) -> Inquiry:
    """What to ask the nodes for this job."""
    workdir = cluster.storage.workdir or str(cwd)
    source = find_source(job, cwd, workdir)
    wanted = [workdir, cluster.storage.checkpoints or workdir]
    if source is not None and not f"{source.remote}/".startswith(f"{workdir}/"):
        wanted.append(source.remote)
    return Inquiry(cluster, allocation, tuple(dict.fromkeys(wanted)), source)


def decide(
    question: Inquiry, facts: Facts, job: Job, cwd: Path, sync: bool
) -> tuple[Decided, Job, tuple[Shipment, ...]]:
    """Judge the answers: the rendezvous, the storage, the code, the DeepSpeed config.

    Raises PreflightError or PlanError for what must stop a run before it starts.
    """
    cluster = question.cluster
    judged.check_interpreters(question.allocation, facts)
    devices = judged.check_gpus(question.allocation, facts)
    rendezvous, decisions = judged.decide_rendezvous(cluster, facts)
    workdir = question.directories[0]
    checkpoints = cluster.storage.checkpoints or workdir
    shared, storage = judged.decide_shared(cluster, facts, checkpoints)
    shipments, code = plan_shipments(question, facts, sync)
    job = for_devices(job, facts)
    job, files, config = localise_config(job, cwd, shared, len(facts.nodes))
    decided = Decided(rendezvous, workdir, (*decisions, *devices, storage, *code, *config), files)
    return decided, job, shipments


def for_devices(job: Job, facts: Facts) -> Job:
    """Tell accelerate that there is no GPU: without, its ranks would train each alone
    (accelerate 1.15, state.py, `_prepare_backend`)."""
    wanted = ("ACCELERATE_USE_CPU", "true")
    no_gpu = all(node.gpus is None for node in facts.nodes)
    if job.launcher != "accelerate" or not no_gpu or wanted[0] in dict((*job.env, *job.overrides)):
        return job
    return replace(job, env=(*job.env, wanted))


# ---------------------------------------------------------------- code


def plan_shipments(
    question: Inquiry, facts: Facts, sync: bool
) -> tuple[tuple[Shipment, ...], tuple[Decision, ...]]:
    """Who must be sent which files, and why. Raises PlanError."""
    source = question.source
    if source is None:
        return (), ()
    if not source.digests:
        judged.check_program(facts, source.script)
        return (), (Decision("code", source.script or "", "on the nodes, the same everywhere"),)
    groups: dict[frozenset[str], list[NodeFacts]] = {}
    inside = next((d for d in question.directories if f"{source.remote}/".startswith(f"{d}/")), "")
    for node in facts.nodes:
        seen = judged.directory_at(node, inside).seen
        groups.setdefault(frozenset(seen) or frozenset([node.host]), []).append(node)
    shipments = []
    for members in groups.values():
        lacking = [node for node in members if node.different]
        if lacking:
            paths = tuple(path for path, _ in lacking[0].different)
            shipments.append(Shipment(lacking[0].host, paths))
    if shipments and not sync:
        where = ", ".join(s.host for s in shipments)
        raise PlanError(
            f"{source.local} is not the same on {where}: {_some(shipments[0].paths)}",
            hint="leave --no-sync out to have it shipped",
        )
    return tuple(shipments), (_code_decision(source, shipments, facts),)


def _code_decision(source: Source, shipments: list[Shipment], facts: Facts) -> Decision:
    if not shipments:
        files, nodes = counted(len(source.digests), "file"), counted(len(facts.nodes), "node")
        why = f"{files} compared on {nodes}"
        return Decision("code", f"{source.remote} is the same everywhere", why)
    size = sum((source.local / path).stat().st_size for path in shipments[0].paths)
    count = max(len(s.paths) for s in shipments)
    hosts = ", ".join(s.host for s in shipments)
    what = f"{count} files, {_bytes(size)} to {hosts}:{source.remote}"
    return Decision("code", what, f"missing or different there: {_some(shipments[0].paths)}")


def _some(paths: tuple[str, ...]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"


def ship(
    source: Source | None,
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
        with archive(source, list(shipment.paths)) as file:
            sent.append(session.put(source.remote, file))
    ask_all(sent, chosen, interrupts, timeout=SHIP_TIMEOUT)


# ---------------------------------------------------------------- DeepSpeed


def localise_config(
    job: Job, cwd: Path, shared: bool | None, node_count: int
) -> tuple[Job, tuple[File, ...], tuple[Decision, ...]]:
    """Have the DeepSpeed config among the arguments say whether checkpoints are shared.

    The nodes get a changed copy in their run directory; the user's file is not touched.
    Raises ConfigError if it cannot be read as DeepSpeed would, PlanError if what it saves could
    not be loaded again.
    """
    found = find_config(job.args)
    if shared is not None and node_count > 1:
        check_arguments(job.args, shared)
    if found is None or shared is None or node_count == 1:
        return job, (), ()
    path = Path(os.path.join(cwd, found.path))  # noqa: PTH118 - an absolute path wins
    if not path.is_file():
        return job, (), ()
    text = path.read_text("utf-8")
    check_config(parse(text, found.path), job.args, shared)
    advice = trainer_advice(job.args, shared)
    more = (Decision("Trainer", advice, "checkpoints are not shared"),) if advice else ()
    localised = localise(text, shared, found.path)
    if localised.change is None:
        fits = Decision("DeepSpeed config", found.path, "fits the storage as it is")
        return job, (), (fits, *more)
    new: tuple[str | Var, ...] = (RUN_DIRECTORY, f"/{DS_CONFIG}")
    changed = replace(job, args=replace_config(job.args, found, new))
    why = "checkpoints are shared" if shared else "checkpoints are not shared"
    decision = Decision("DeepSpeed config", f"a copy of {found.path}: {localised.change}", why)
    return changed, (File(DS_CONFIG, localised.text),), (decision, *more)
