"""The quick checks before a run, which its agents have answered."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from pydantic import TypeAdapter
from tests.hostile.lying_python import HELLO
from tests.unit.node.test_trial import ends

from dslaunch.cluster.model import Allocation, Cluster, Node, Preflight
from dslaunch.errors import NodeFailure, PreflightError
from dslaunch.launch.decisions import DecisionCode
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided, Rendezvous
from dslaunch.preflight.check import Question
from dslaunch.preflight.checks import load, of_tier
from dslaunch.preflight.conversation import Conversation
from dslaunch.protocol.values import InvalidAnswer, parse
from dslaunch.run.agent_program import AgentStart
from dslaunch.run.agent_starter import close_all
from dslaunch.run.evidence import Inquiry
from dslaunch.run.gate import OWN, Gate
from dslaunch.run.inbox import Inbox
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.session import Session
from dslaunch.transport.future import Future
from dslaunch.transport.transports.local import LocalTransport
from dslaunch.transport.wire import LostError

NODE = Node("n1", (0,), python=sys.executable)
DECIDED = Decided(Rendezvous("127.0.0.1", 29500), "/", ())
PLAIN = Job("train.py", launcher="direct")
SESSIONS: list[Session] = []
Limits = tuple[tuple[str, float], ...]


def gate(tmp_path: Path, node: Node = NODE, job: Job = PLAIN, **limits: Limits) -> Gate:
    own = tuple((name.replace("_", "."), values) for name, values in limits.items())
    nodes = (node, replace(node, host="n2"))
    cluster = Cluster("c", nodes, transport="local", preflight=Preflight(limits=own))
    opened: dict[str, Future[Session]] = {each.host: Future() for each in nodes}
    for each in nodes:
        way = LocalTransport(tmp_path, os.environ)
        agent = AgentStart(f"gate-{secrets.token_hex(4)}", each.host)
        session = Session(each, way.connect(each), agent, Inbox(), way)
        session.begin()
        SESSIONS.append(session)
        opened[each.host].set_result(session)
    allocation = Allocation.of([(each, (0,)) for each in nodes])
    inquiry = Inquiry(cluster, allocation, (str(tmp_path),), None)
    return Gate(inquiry, job, opened, tmp_path)


def passed(opened: Gate) -> Decided:
    return opened.passed(DECIDED, Interrupts(), shipping=False)


@pytest.fixture(autouse=True)
def agents() -> Iterator[None]:
    """Every agent that a test has started is dismissed."""
    yield
    close_all(SESSIONS)
    SESSIONS.clear()


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")


def test_what_a_run_finds_out_by_itself_is_not_asked_again(tmp_path: Path) -> None:
    opened = gate(tmp_path)
    assert set(opened.checks) == set(of_tier(load(), "gate")) - set(OWN)
    assert {"clock.skew", "fs.free"} <= set(opened.checks)
    passed(opened)


def test_what_fails_stops_the_start_with_nodes_check_and_fix(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as refused:
        passed(gate(tmp_path, fs_free=(("fail", 101.0), ("enough", 1e9))))
    assert refused.value.message.startswith("n[1-2]: fs.free: ")
    assert refused.value.hint is not None
    assert "--no-preflight" in refused.value.hint


def test_warnings_stand_among_the_decisions(tmp_path: Path) -> None:
    limits = (("fail", 0.0), ("warn", 101.0), ("enough", 1e9))
    decided = passed(gate(tmp_path, fs_free=limits))
    assert {d.code for d in decided.decisions} == {DecisionCode.CHECK_WARNING}
    assert {d.values["check"] for d in decided.decisions} == {"fs.free"}
    assert decided.decisions


# ---------------------------------------------------------------- the job's environment


def refused_by(opened: Gate) -> list[str]:
    """The lines of the refusal: nodes, check, and what was found."""
    with pytest.raises(PreflightError) as refused:
        passed(opened)
    return refused.value.message.splitlines()


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A Python that has nothing installed."""
    import venv

    venv.EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / "bare")
    return str(tmp_path / "bare/bin/python")


@pytest.mark.parametrize(
    ("launcher", "lacks"),
    [
        ("torchrun", "torch is"),
        ("elastic", "torch is"),
        ("deepspeed", "torch and deepspeed are"),
        ("accelerate", "torch and accelerate are"),
    ],
)
def test_a_launcher_without_its_packages_is_refused_on_all_nodes_in_one_line(
    tmp_path: Path, bare: str, launcher: str, lacks: str
) -> None:
    job = replace(PLAIN, launcher=launcher)
    [line] = refused_by(gate(tmp_path, replace(NODE, python=bare), job))
    assert line.startswith(f"n[1-2]: sw.packages: {lacks} not installed for {bare}")


def test_a_script_that_imports_what_is_missing_is_refused(tmp_path: Path, bare: str) -> None:
    (tmp_path / "train.py").write_text("import os, torch\nimport here\n")
    (tmp_path / "here.py").touch()
    [line] = refused_by(gate(tmp_path, replace(NODE, python=bare)))
    assert line.startswith(f"n[1-2]: sw.packages: torch is not installed for {bare}")


@pytest.mark.parametrize("kind", ["script", "command"])
def test_a_job_that_needs_no_torch_is_not_refused_for_want_of_it(
    tmp_path: Path, bare: str, kind: str
) -> None:
    job = PLAIN if kind == "script" else replace(PLAIN, program="true", kind="command")
    assert passed(gate(tmp_path, replace(NODE, python=bare), job)).decisions == ()


def test_a_command_of_the_nodes_own_needs_no_interpreter(tmp_path: Path) -> None:
    job = replace(PLAIN, program="true", kind="command")
    passed(gate(tmp_path, replace(NODE, python="/nowhere/python"), job))


ACTIVATE = {
    "a missing command": ("conda activate x", "exit code 127: conda is not found"),
    "a missing function": ("module load cuda", "exit code 127: module is not found"),
    "a missing file": ("source venv/bin/activate", "file not found: {work}/venv/bin/activate"),
    "a missing absolute file": (". /nowhere/activate", "file not found: /nowhere/activate"),
    "an exit": ("exit 0", "with exit code 0: "),
    "a failing exit": ("echo no such project >&2; exit 3", "exit code 3: no such project"),
    "a later failure": ("true\nfalse # all lines are read", "fails with exit code 1"),
}


@pytest.mark.parametrize("case", ACTIVATE)
def test_an_activate_line_that_fails_is_refused_with_its_cause(tmp_path: Path, case: str) -> None:
    line, cause = ACTIVATE[case]
    node = replace(NODE, python=None, activate=line)
    [said] = refused_by(gate(tmp_path, node))
    assert said.startswith("n[1-2]: py.activate: `activate: ")
    assert cause.format(work=tmp_path) in said


def test_an_activate_line_that_hangs_is_ended_and_named(tmp_path: Path) -> None:
    node = replace(NODE, python=None, activate="echo waiting; sleep 600")
    [said] = refused_by(gate(tmp_path, node, py_activate=(("seconds", 1.0),)))
    assert "within 1 s" in said and said.endswith("waiting")


def test_an_activate_line_without_python_is_an_error(tmp_path: Path) -> None:
    node = replace(NODE, python=None, activate="PATH=/nowhere")
    [said] = refused_by(gate(tmp_path, node))
    assert said.startswith("n[1-2]: py.interpreter: ")
    assert "'python3'" in said


def test_the_interpreter_of_the_activate_line_is_checked(tmp_path: Path, bare: str) -> None:
    """The agent's own Python has torch."""
    job = replace(PLAIN, launcher="torchrun")
    own = Path(sys.executable).parent / "activate"
    passed(gate(tmp_path, replace(NODE, python=None, activate=f"source {own}"), job))
    node = replace(NODE, python=None, activate=f"source {Path(bare).parent}/activate")
    [said] = refused_by(gate(tmp_path, node, job))
    assert said.startswith("n[1-2]: sw.packages: ")
    assert bare.rpartition("/")[0] in said


def test_an_interpreter_that_does_not_find_its_library_hears_of_pythonhome(tmp_path: Path) -> None:
    """The last line that Python writes then is `<no Python frame>`."""
    line = f"export PYTHONHOME={tmp_path}"
    with pytest.raises(PreflightError) as caught:
        passed(gate(tmp_path, replace(NODE, python=None, activate=line)))
    assert "py.interpreter" in caught.value.message
    assert "PYTHONHOME" in (caught.value.hint or "")


@pytest.mark.parametrize("where", ["cluster", "node", "run"])
def test_the_environment_is_that_of_the_run(tmp_path: Path, where: str) -> None:
    """`env` of the file and of the caller, of the node, and of the command line, the last wins."""
    pairs = (("WHERE", where),)
    job, node = PLAIN, replace(NODE, python=None)
    if where == "cluster":
        job = replace(job, env=pairs)
    elif where == "node":
        job, node = replace(job, env=(("WHERE", "no"),)), replace(node, env=pairs)
    else:
        node = replace(node, env=(("WHERE", "no"),))
        job = replace(job, overrides=pairs)
    line = f"test $WHERE = {where} && test $PWD = {tmp_path}"
    passed(gate(tmp_path, replace(node, activate=line), job))


def test_what_an_activate_line_left_running_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    line = f"(setsid sleep 600 & echo $! >{pid})"
    passed(gate(tmp_path, replace(NODE, python=None, activate=line)))
    assert ends(int(pid.read_text()))


def test_what_waits_for_the_jobs_files_is_asked_again_when_they_are_there(tmp_path: Path) -> None:
    opened = gate(tmp_path, replace(NODE, python=None, activate="source env.sh"))
    opened.passed(DECIDED, Interrupts(), shipping=True)
    (tmp_path / "env.sh").write_text("export READY=1\n")
    opened.after_shipping(Interrupts())


def test_what_the_jobs_files_do_not_heal_is_refused_after_they_are_shipped(tmp_path: Path) -> None:
    opened = gate(tmp_path, replace(NODE, python=None, activate="conda activate x"))
    opened.passed(DECIDED, Interrupts(), shipping=True)
    with pytest.raises(PreflightError, match=r"py\.activate"):
        opened.after_shipping(Interrupts())


# ---------------------------------------------------------------- agents that do not answer


class Replying:
    """A session whose agent replies this, at once or never."""

    def __init__(self, reply: Any = None, error: Exception | None = None) -> None:
        self.reply, self.error = reply, error

    def request_made(
        self, operation: str, answer: TypeAdapter[Any], make: Callable[[], object]
    ) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            if self.error is not None:
                future.set_exception(self.error)
            elif self.reply is not None:
                future.set_result(parse(answer, self.reply))
        except InvalidAnswer as error:
            future.set_exception(LostError(NodeFailure("n1", "protocol", str(error))))
        return future


def talk(session: Replying) -> Conversation:
    return Conversation(NODE, wire=cast(Session, session), of_run=True)


@pytest.mark.parametrize("reply", [{"answers": {}}, {"hello": []}, {"hello": HELLO, "answers": 3}])
def test_a_reply_that_no_agent_sends_is_the_nodes_failure(reply: Any) -> None:
    with pytest.raises(LostError) as caught:
        talk(Replying(reply)).ask([Question("path", "/")])
    assert (caught.value.failure.host, caught.value.failure.kind) == ("n1", "protocol")


def test_an_answer_of_another_type_is_an_error_of_its_question_alone() -> None:
    asked = [Question("path", "/"), Question("present", ["/"])]
    sent = {asked[0].key: {"value": 3}, asked[1].key: {"value": {"/": "/"}}}
    conversation = talk(Replying({"hello": HELLO, "answers": sent}))
    conversation.ask(asked)
    assert conversation.answers[asked[0].key].get("code") == "invalid"
    assert conversation.answers[asked[1].key].get("value") == {"/": "/"}


def test_a_lost_session_is_the_nodes_failure() -> None:
    failure = NodeFailure("n1", "lost", "gone")
    with pytest.raises(LostError) as caught:
        talk(Replying(error=LostError(failure))).ask([Question("path", "/")])
    assert caught.value.failure == replace(failure, hint="try it by hand: `true`")


def test_an_agent_that_does_not_reply_is_waited_for_until_it_is_given_up() -> None:
    conversation = talk(Replying())
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(conversation.ask, [Question("path", "/")])
        conversation.close()
        conversation.end()
        assert isinstance(asking.exception(300), LostError)
