"""One attempt, while its nodes are on their way: ask, decide, ship, plan, run, record."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dslaunch import log
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.launch.facts import facts_to_json
from dslaunch.launch.plan import plan_to_json
from dslaunch.launch.planner import make_plan
from dslaunch.run.detach import control, detach
from dslaunch.run.ds_config import config_errors, offloads_to_host, refuse, warnings
from dslaunch.run.events import Event
from dslaunch.run.evidence import ask_all, gather
from dslaunch.run.gate import Gate
from dslaunch.run.prepare import config_files, decide, inquiry, ship
from dslaunch.run.request import agent_run, counted
from dslaunch.run.resume import Attempt, prepare_resume
from dslaunch.run.supervisor import Supervisor
from dslaunch.run.watch import Watch

if TYPE_CHECKING:
    from dslaunch.launch.plan import Plan
    from dslaunch.run.agent_starter import AgentStarter
    from dslaunch.run.detach import Control
    from dslaunch.run.launch import RunController
    from dslaunch.run.outcome import Outcome
    from dslaunch.run.run_directory import RunDirectory
    from dslaunch.run.session import Inbox, Session


_log = log.Log(__name__)


def start(controller: RunController, count: int, starter: AgentStarter, inbox: Inbox) -> Outcome:
    """Start the job and stay to its end; a detached one is only started.

    Raises a DslaunchError for whatever prevents the start.
    """
    request, allocation, interrupts = (
        controller.request,
        controller.allocation,
        controller.interrupts,
    )
    job = counted(request, count)
    question = inquiry(request.cluster, allocation, job, request.cwd)
    in_code = config_files(question, request.cwd)
    errors = config_errors(job, request.cwd, allocation, in_code)
    if not request.force:
        refuse(errors)
    gate = None
    if request.preflight:
        gate = Gate(question, job, starter.begun, request.cwd)
    sessions = _greeted(controller, starter)
    if count:
        question = replace(question, before=agent_run(controller.run, count - 1))
    facts = gather(question, sessions, interrupts)
    decided, job, shipments = decide(question, facts, job, request.cwd, request.sync)
    attempt = Attempt(controller.run, count)
    kept = prepare_resume(question, request.job, sessions, facts, attempt, interrupts)
    decided = kept.before(request.job, decided) if kept else decided
    if gate:
        decided = gate.passed(decided, interrupts, shipping=bool(shipments))
    decided = replace(
        decided,
        decisions=(*_transport_decisions(controller), *decided.decisions, *warnings(errors)),
    )
    plan = make_plan(allocation, job, decided, cluster=request.cluster.name)
    record = controller.recorded(plan, count)
    record.write(numbered("plan", count), plan_to_json(plan))
    record.write(numbered("facts", count), facts_to_json(facts))
    _log_plan(controller.run, plan)
    controller.view.plan(plan, record.directory)
    ship(question.source, shipments, sessions, interrupts)
    if gate:
        gate.after_shipping(interrupts)
    interrupts.check()
    listens = control(request.cluster.network, facts, decided.rendezvous)
    offloads = offloads_to_host(request.job, request.cwd, in_code)
    outcome = _run(controller, sessions, inbox, plan, record, control=listens, offloads=offloads)
    if kept is not None and not request.detached:
        kept.after()
    return outcome


def _log_plan(run: str, plan: Plan) -> None:
    for decided in plan.decisions:
        _log.info("decided", run=run, code=decided.code, **decided.values)
    for node in plan.nodes:
        for each in node.processes:
            one = _log.bind(run=run, node=node.host, rank=each.rank)
            one.info("planned", argv=each.command.words())
            env = [f"{name}={value}" for name, value in (*node.env, *each.env)]
            one.debug("environment", env=env, cwd=node.cwd)


def numbered(name: str, count: int) -> str:
    """The file of one attempt: `plan.json`, `plan-1.json`."""
    return f"{name}-{count}.json" if count else f"{name}.json"


def _transport_decisions(controller: RunController) -> tuple[Decision, ...]:
    """How the nodes are reached, if that is not as always."""
    chosen = controller.transport
    if chosen is None or not chosen.notable:
        return ()
    code = DecisionCode.TRANSPORT_CHOSEN
    return (decision(code, transport=chosen.name, reason=chosen.why),)


def _greeted(controller: RunController, starter: AgentStarter) -> list[Session]:
    """The sessions whose agents have greeted. Raises NodeError, Interrupted."""
    sessions = starter.sessions(controller.interrupts)
    ask_all([session.hello for session in sessions], sessions, controller.interrupts)
    for session in sessions:
        controller.view.event(Event(time.time(), "connected", session.host))
    return sessions


def _run(
    controller: RunController,
    sessions: list[Session],
    inbox: Inbox,
    plan: Plan,
    record: RunDirectory,
    *,
    control: Control,
    offloads: bool,
) -> Outcome:
    request = controller.request
    view, interrupts = controller.view, controller.interrupts
    watch = Watch(view, record, lambda: view.unseen or interrupts.count > 1)
    watch.history.offloads = offloads
    if controller.elastic:
        watch.history.least = request.min_nodes or len(plan.nodes)
    if request.detached:
        return detach(
            sessions=sessions,
            inbox=inbox,
            watch=watch,
            plan=plan,
            secrets=controller.secrets,
            timeouts=request.timeouts,
            control=control,
        )
    supervisor = Supervisor(sessions, inbox, watch, controller.interrupts, request.timeouts)
    return supervisor.run(plan, controller.secrets)
