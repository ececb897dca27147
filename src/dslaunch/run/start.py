"""One attempt, from its questions to its end: ask, decide, plan, record, ship, run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dslaunch import log
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.launch.facts import facts_pieces
from dslaunch.launch.plan import plan_pieces
from dslaunch.launch.planner import make_plan
from dslaunch.run.attempt_inputs import attempt_inputs
from dslaunch.run.detours import detour_decisions
from dslaunch.run.ds_config import offloads_to_host, warnings
from dslaunch.run.events import Event
from dslaunch.run.evidence import ask_all, gather
from dslaunch.run.prepare import decide
from dslaunch.run.request import agent_run
from dslaunch.run.resume import Attempt, prepare_resume
from dslaunch.run.run_directory import numbered
from dslaunch.run.shipping import NodeLogins, ship
from dslaunch.run.start_message import start_ranks
from dslaunch.run.view import StartStep
from dslaunch.run.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dslaunch.launch.facts import Facts
    from dslaunch.launch.plan import Plan
    from dslaunch.lint import Remark
    from dslaunch.run.agent_starter import AgentStarter
    from dslaunch.run.inbox import Inbox
    from dslaunch.run.inquired import Inquired
    from dslaunch.run.job_files import JobFiles, Shipment
    from dslaunch.run.launch import RunController
    from dslaunch.run.outcome import Outcome
    from dslaunch.run.resume import ResumePreparation
    from dslaunch.run.run_directory import RunDirectory
    from dslaunch.run.session import Session


_log = log.Log(__name__)


class _Ready(Struct, frozen=True):
    """A job that is ready to be started on its nodes."""

    sessions: list[Session]
    plan: Plan
    facts: Facts | None
    """None: not needed any more, and those of thousands of nodes take memory."""
    record: RunDirectory
    config_errors: tuple[Remark, ...]
    """Errors of the DeepSpeed config files that did not prevent the start."""
    offloads: bool
    """Whether DeepSpeed offloads to the memory of the nodes."""
    resume: ResumePreparation | None
    """Has prepared the nodes, if the job may resume; it has work after the end of the ranks too."""


def start(
    controller: RunController,
    count: int,
    starter: AgentStarter,
    inbox: Inbox,
    inquired: Inquired,
) -> Outcome:
    """Start the job and stay to its end; a detached one is only started.

    Raises a DslaunchError for whatever prevents the start.
    """
    ready = _prepared(controller, count, starter, inquired)
    controller.interrupts.check()
    watch = _watch(controller, ready)
    controller.view.begin(StartStep.STARTING, [node.host for node in ready.plan.nodes])
    if controller.request.detached:
        return _detached(controller, ready, watch, inbox)
    outcome = _supervised(controller, ready, watch, inbox)
    if ready.resume is not None:
        ready.resume.after()
    return outcome


def _prepared(
    controller: RunController, count: int, starter: AgentStarter, inquired: Inquired
) -> _Ready:
    """Ask, decide, plan, record and ship: what an attempt needs before its ranks can start.

    Raises a DslaunchError for whatever prevents the start.
    """
    request, interrupts = controller.request, controller.interrupts
    job, question, gate = inquired.job, inquired.question, inquired.gate
    errors = inquired.config_errors
    sessions = _greeted(controller, starter)
    if count:
        question = replace(question, before=agent_run(controller.run, count - 1))
    facts = gather(question, sessions, interrupts, _step(controller, StartStep.CHECKING))
    decided, job, shipments = decide(question, facts, job, cwd=request.cwd, sync=request.sync)
    resume = prepare_resume(
        question=question,
        job=request.job,
        sessions=sessions,
        facts=facts,
        attempt=Attempt(controller.run, count),
        interrupts=interrupts,
    )
    if resume is not None:
        decided = resume.before(request.job, decided)
    if gate is not None:
        decided = gate.passed(decided, interrupts, shipping=bool(shipments))
    decisions = (*_transport_decisions(controller), *decided.decisions, *warnings(errors))
    decided = replace(decided, decisions=decisions)
    plan = make_plan(controller.allocation, job, decided, cluster=request.cluster.name)
    record = _recorded(controller, count, plan, facts)
    inputs = attempt_inputs(
        request,
        question,
        files=decided.files,
        shipments=shipments,
        report=None if gate is None else gate.report,
    )
    record.write(numbered("inputs", count), inputs.as_json())
    if shipments:
        _ship(
            controller,
            count,
            record=record,
            source=question.source,
            shipments=shipments,
            sessions=sessions,
        )
    if gate is not None:
        gate.after_shipping(interrupts)
        gate.release()
    needs_facts = request.detached or request.rehearsal is not None
    return _Ready(
        sessions=sessions,
        plan=plan,
        facts=facts if needs_facts else None,
        record=record,
        config_errors=errors,
        offloads=offloads_to_host(request.job, request.cwd, inquired.in_code),
        resume=resume,
    )


def _ship(
    controller: RunController,
    count: int,
    *,
    record: RunDirectory,
    source: JobFiles | None,
    shipments: Sequence[Shipment],
    sessions: list[Session],
) -> None:
    """Send the job's files to the nodes, and record which nodes have them."""
    resent = ship(
        source,
        shipments,
        sessions,
        controller.interrupts,
        logins=_node_logins(controller, count),
        notify=_step(controller, StartStep.COPYING),
    )
    for event in resent:
        record.event(event)
        controller.view.event(event)
    for shipment in shipments:
        record.event(Event(time.time(), "shipped", shipment.host))


def _node_logins(controller: RunController, count: int) -> NodeLogins | None:
    """Return how the nodes log in to each other; None: they are not reached over SSH either."""
    cluster = controller.request.cluster
    return NodeLogins(cluster, agent_run(controller.run, count)) if cluster.over_ssh else None


def _recorded(controller: RunController, count: int, plan: Plan, facts: Facts) -> RunDirectory:
    """Record and show the plan; return the run directory."""
    record = controller.recorded(plan, count)
    for host, when in controller.connected.items():
        record.event(Event(when, "connected", host))
    controller.connected.clear()
    record.write_pieces(numbered("plan", count), plan_pieces(plan))
    record.write_pieces(numbered("facts", count), facts_pieces(facts))
    _log_plan(controller.run, plan)
    controller.view.plan(plan, record.directory)
    return record


def _log_plan(run: str, plan: Plan) -> None:
    for decided in plan.decisions:
        _log.info("decided", run=run, code=decided.code, **decided.values)
    if not _log.records_info:
        return
    for node in plan.nodes:
        for each in node.processes:
            one = _log.bind(run=run, node=node.host, rank=each.rank)
            one.info("planned", argv=each.command.words())
            env = [f"{name}={value}" for name, value in (*node.env, *each.env)]
            one.debug("environment", env=env, cwd=node.cwd)


def _transport_decisions(controller: RunController) -> tuple[Decision, ...]:
    """Return the decision about the transport, unless it is the default, and what it could not do
    as intended."""
    chosen = controller.transport
    detours = detour_decisions(controller.detours())
    if chosen is None or not chosen.notable:
        return detours
    code = DecisionCode.TRANSPORT_CHOSEN
    return (decision(code, transport=chosen.name, reason=chosen.why), *detours)


def _greeted(controller: RunController, starter: AgentStarter) -> list[Session]:
    """Wait until all agents have greeted; return the sessions. Raises NodeError, Interrupted."""
    controller.connected = {}
    view, late = controller.view, dict.fromkeys(starter.begun)

    def tell_new() -> None:
        """Show the nodes that are connected, one by one."""
        for host in starter.new_greetings():
            del late[host]
            controller.connected[host] = now = time.time()
            view.event(Event(now, "connected", host))
        view.begin(StartStep.CONNECTING, tuple(late))

    sessions = starter.sessions(controller.interrupts, tell_new)
    greetings = [session.hello for session in sessions]
    ask_all(greetings, sessions, controller.interrupts, notify=lambda late: tell_new())
    return sessions


def _step(controller: RunController, step: StartStep) -> Callable[[tuple[str, ...]], object]:
    """Return what shows the nodes that a step of the start waits for, when they change."""
    before: list[tuple[str, ...]] = []

    def show(late: tuple[str, ...]) -> None:
        if before != [late]:
            before[:] = [late]
            controller.view.begin(step, late)

    return show


def _watch(controller: RunController, ready: _Ready) -> Watch:
    """Return what shows and records the run."""
    request, view = controller.request, controller.view
    watch = Watch(
        view,
        ready.record,
        unseen=lambda: view.unseen or controller.interrupts.count > 1,
        output_closed=lambda: view.output_closed,
    )
    watch.history.offloads = ready.offloads
    if controller.elastic:
        watch.history.min_nodes = request.min_nodes or len(ready.plan.nodes)
    return watch


def _detached(controller: RunController, ready: _Ready, watch: Watch, inbox: Inbox) -> Outcome:
    """Start the ranks, and leave them to their nodes."""
    from dslaunch.run.detach import control, detach

    assert ready.facts is not None
    network = controller.request.cluster.network
    return detach(
        sessions=ready.sessions,
        inbox=inbox,
        watch=watch,
        plan=ready.plan,
        secrets=controller.secrets,
        timeouts=controller.request.timeouts,
        control=control(network, ready.facts, ready.plan.rendezvous),
    )


def _supervised(controller: RunController, ready: _Ready, watch: Watch, inbox: Inbox) -> Outcome:
    """Start the ranks and stay to their end; of a rehearsal, keep what it has shown."""
    request = controller.request
    start_ranks(
        ready.sessions,
        ready.plan,
        controller.secrets,
        notice=controller.interrupts.notice,
        rehearsal=request.rehearsal,
    )
    from dslaunch.run.supervisor import Supervisor  # imported while the ranks start

    monitor = None
    if request.rehearsal is not None:
        from dslaunch.run.rehearsal import RehearsalMonitor

        hang_timeout = request.timeouts.hang_timeout
        monitor = RehearsalMonitor(request.rehearsal, ready.plan, hang_timeout)
    supervisor = Supervisor(
        sessions=ready.sessions,
        inbox=inbox,
        watch=watch,
        interrupts=controller.interrupts,
        timeouts=request.timeouts,
        usage=controller.usage_recorder(),
        rehearsal=monitor,
    )
    outcome = supervisor.run(near=ready.plan.rendezvous.address)
    if monitor is not None:
        assert ready.facts is not None
        controller.rehearsed = monitor.result(ready.facts, outcome, ready.config_errors)
    return outcome
