"""The program that answers questions on a node: alone, late, wrong, and under every Python."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pythons import interpreter

from dslaunch.cluster.model import Node
from dslaunch.node import frames, interfaces, network, paths, processes, questions, survey
from dslaunch.node.surveyor import Surveyor
from dslaunch.transport import login_shell, program


def question(kind: str, argument: Any = None, timeout: float = 60) -> dict[str, Any]:
    return {"kind": kind, "argument": argument, "timeout": timeout}


def ask(*rounds: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The answers to all rounds of questions, in the order in which they came."""
    children = survey.Children()
    answers = {}
    for asked in rounds:
        answers |= survey.ask(asked, children)
    children.end()
    return answers


def converse(python: str, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """What the program replies under an interpreter to each request."""
    text = b"".join(program.text("survey", {}))
    packed = b"".join(frames.pack_message(request) for request in requests)
    done = subprocess.run(
        ["/bin/sh", "-c", program.line(Node("n", (0,), python=python))],
        input=text + packed,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return replies(done.stdout)


def replies(said: bytes) -> list[dict[str, Any]]:
    """The messages behind the greeting."""
    before, greeting, rest = said.partition(frames.GREETING)
    assert (before, greeting) == (login_shell.STARTED, frames.GREETING)
    return [message for message in frames.Decoder().feed(rest) if isinstance(message, dict)]


@pytest.mark.parametrize("minor", range(8, 15))
def test_it_runs_under_every_python_of_a_node(minor: int) -> None:
    python = interpreter(minor)
    asked = {"a": question("limits", ["NOFILE"]), "b": question("path", "/")}
    (reply,) = converse(python, {"op": "survey", "id": 1, "questions": asked})
    hello, answers = reply["value"]["hello"], reply["value"]["answers"]
    assert hello["python"][:2] == [3, minor]
    assert answers["b"]["value"]["kind"] == "directory"
    assert len(answers["a"]["value"]["NOFILE"]) == 2


def test_it_answers_every_request_and_sends_the_time() -> None:
    nothing = {"op": "survey", "questions": {}}
    said = converse(
        sys.executable, {**nothing, "id": 1}, {"op": "clock", "id": 2}, {**nothing, "id": 3}
    )
    assert [message["reply"] for message in said] == [1, 2, 3]
    assert [message["value"] is None for message in said] == [False, True, False]
    for message in said:  # the time between both is no part of the round trip
        assert message["received"] <= message["time"]
        assert abs(message["time"] - time.time()) < 60


@pytest.mark.parametrize("heard", [True, False], ids=["after-the-answer", "before-the-answer"])
def test_its_files_are_removed_also_if_the_client_was_killed(heard: bool, tmp_path: Path) -> None:
    mark = {"name": "mark", "paths": [str(tmp_path)]}
    request = frames.pack_message(leaving(mark))
    with subprocess.Popen(
        ["/bin/sh", "-c", program.line(Node("n", (0,), python=sys.executable))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"".join(program.text("survey", {})))
        process.stdin.flush()
        assert process.stdout.readline() == login_shell.STARTED
        assert process.stdout.readline() == frames.GREETING
        if not heard:
            process.stdout.close()
        process.stdin.write(request)
        process.stdin.flush()
        if heard:
            assert len(process.stdout.read1(1 << 16)) > frames.HEADER.size
            assert [path.name for path in tmp_path.iterdir()] == ["mark"]
            process.stdout.close()
        process.stdin.close()
        assert process.wait(300) == 0
    assert not list(tmp_path.iterdir())


def leaving(mark: dict[str, Any]) -> dict[str, Any]:
    """A request that leaves a mark, and removes it at the end."""
    return {
        "op": "survey",
        "id": 1,
        "questions": {"m": question("mark", mark)},
        "last": {"u": question("unmark", {mark["name"]: mark["paths"]})},
    }


def test_a_request_that_was_cut_ends_it_as_the_end_does(tmp_path: Path) -> None:
    mark = {"name": "mark", "paths": [str(tmp_path)]}
    request = frames.pack_message(leaving(mark))
    text = b"".join(program.text("survey", {})) + request + request[:-9]
    line = program.line(Node("n", (0,), python=sys.executable))
    done = subprocess.run(["/bin/sh", "-c", line], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stderr, len(replies(done.stdout))) == (0, b"", 1)
    assert not list(tmp_path.iterdir())


def test_bytes_that_are_no_request_end_it_as_the_end_does(tmp_path: Path) -> None:
    mark = {"name": "mark", "paths": [str(tmp_path)]}
    request = frames.pack_message(leaving(mark))
    text = b"".join(program.text("survey", {})) + request + b"x" * 100
    line = program.line(Node("n", (0,), python=sys.executable))
    done = subprocess.run(["/bin/sh", "-c", line], input=text, capture_output=True, check=False)
    assert (done.returncode, len(replies(done.stdout))) == (0, 1)
    assert b"FrameError" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_question_that_hangs_costs_its_own_answer_only() -> None:
    began = time.monotonic()
    answers = ask(
        {
            "hangs": question("run", {"argv": ["sleep", "600"]}, 0.3),
            "fine": question("run", {"argv": ["echo", "hi"]}),
        }
    )
    assert time.monotonic() - began < 300
    assert answers["hangs"] == {"error": "no answer within 0 s"}
    assert answers["fine"]["value"] == {"code": 0, "out": "hi\n", "err": ""}


def test_what_hangs_among_quick_questions_leaves_the_others_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = questions.KINDS["path"]
    hangs = str(tmp_path / "hangs")

    def path(argument: str) -> Any:
        return time.sleep(600) if argument == hangs else real(argument)

    monkeypatch.setitem(questions.KINDS, "path", path)
    began = time.monotonic()
    asked = {"before": "/", "a": hangs, "between": "/tmp", "b": hangs, "behind": "/"}
    # only what hangs is given little time: a loaded machine may be slow with the rest
    answers = ask(
        {name: question("path", p, 0.5 if p == hangs else 60) for name, p in asked.items()}
    )
    assert time.monotonic() - began < 300
    assert [name for name, answer in sorted(answers.items()) if "value" in answer] == [
        "before",
        "behind",
        "between",
    ]
    assert all(answers[name]["error"].startswith("no answer within") for name in ("a", "b"))


def test_nothing_waits_long_behind_a_question_that_may_hang(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = tmp_path / "answered"

    def slow(_: object) -> int:
        while not answered.exists():
            time.sleep(0.01)
        return os.getpid()

    def quick(_: object) -> int:
        answered.touch()
        return os.getpid()

    monkeypatch.setattr(survey, "HOLD_UP", 0.2)
    monkeypatch.setitem(questions.KINDS, "names", slow)
    monkeypatch.setitem(questions.KINDS, "resolve", quick)
    asked = {name: question(kind) for name, kind in (("a", "names"), ("b", "resolve"))}
    first = ask(asked, {"c": question("resolve")})
    # "a" is answered after "b", which therefore was not behind it
    assert set(first) == {"a", "b", "c"}
    assert first["a"]["value"] != first["b"]["value"]


def test_the_child_that_answered_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(questions.KINDS, "names", lambda _: os.getpid())
    rounds = [{str(i): question("names")} for i in range(3)]
    assert len({answer["value"] for answer in ask(*rounds).values()} - {os.getpid()}) == 1


def test_one_child_suffices_for_one_question_that_may_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(survey, "HOLD_UP", 300.0)
    for kind in ("names", "job"):
        monkeypatch.setitem(questions.KINDS, kind, lambda _: os.getpid())
    asked = {"slow": question("job"), "quick": question("names")}
    answers = ask(asked)
    assert answers["slow"]["value"] == answers["quick"]["value"]


def test_a_child_that_ended_meanwhile_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(questions.KINDS, "names", lambda _: os.getpid())
    children = survey.Children()
    first = survey.ask({"a": question("names")}, children)["a"]["value"]
    os.kill(first, 9)
    os.waitpid(first, 0)
    assert survey.ask({"b": question("names")}, children) == {"b": {"error": "it crashed"}}
    assert survey.ask({"c": question("names")}, children)["c"]["value"] != first
    children.end()


def test_a_child_that_crashes_costs_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(questions.KINDS, "names", lambda _: os.kill(os.getpid(), 9))
    answers = ask({"a": question("names"), "b": question("path", "/")})
    assert answers["a"] == {"error": "it crashed"}
    assert answers["b"]["value"]["kind"] == "directory"


def test_a_child_that_is_late_is_gone_with_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    shell = f"echo $$ > {note}; sleep 600"
    for seconds in (3, 30):  # a busy machine has not begun after the first
        ask({"late": question("run", {"shell": shell}, seconds)})
        if note.exists():
            break
    pid = int(note.read_text())
    deadline = time.monotonic() + 300
    while (processes.stat(pid) or "Z")[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_more_questions_than_are_asked_at_a_time_are_all_answered() -> None:
    asked = {str(i): question("run", {"argv": ["echo", str(i)]}) for i in range(50)}
    assert [a["value"]["out"] for _, a in sorted(ask(asked).items())] == sorted(
        f"{i}\n" for i in range(50)
    )


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (question("nonsense"), "KeyError"),
        (question("path", "/nowhere"), "No such file or directory"),
        (question("limits", ["NOTHING"]), "AttributeError"),
        (question("list", 3), "TypeError"),
    ],
)
def test_a_wrong_question_gets_an_error_and_no_traceback(asked: dict[str, Any], why: str) -> None:
    assert why in ask({"q": asked})["q"]["error"]


def test_a_missing_program_is_distinguished_from_one_that_fails() -> None:
    answers = ask(
        {
            "absent": question("run", {"argv": ["no-such-program"]}),
            "failing": question("run", {"shell": "echo no >&2; exit 3"}),
        }
    )
    assert answers["absent"]["value"]["code"] == 127
    assert answers["failing"]["value"] == {"code": 3, "out": "", "err": "no\n"}


def test_only_the_beginning_of_a_long_output_is_kept_and_no_program_must_read_its_input() -> None:
    long = 4 * paths.MOST_TEXT
    shell = f"head -c {long} /dev/zero; head -c {long} /dev/zero >&2"
    deaf = {**question("run", {"argv": ["true"]}), "text": "x" * long}
    answers = ask({"long": question("run", {"shell": shell}), "deaf": deaf})
    kept = "\0" * paths.MOST_TEXT
    assert answers["long"]["value"] == {"code": 0, "out": kept, "err": kept}
    assert answers["deaf"]["value"] == {"code": 0, "out": "", "err": ""}


def test_a_write_leaves_nothing_behind(tmp_path: Path) -> None:
    answers = ask({"w": question("write", {"path": str(tmp_path)})})
    assert "value" in answers["w"]
    assert not list(tmp_path.iterdir())


@given(st.binary())
def test_a_file_name_that_is_no_text_passes_as_json(data: bytes) -> None:
    name = os.fsdecode(data)
    shown = data.decode(errors="surrogateescape").encode(errors="replace").decode()
    assert json.loads(survey._line({name: name})) == {shown: shown}


def test_a_pattern_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for name in ("b1", "a*", "a1", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state").write_text(name)
    answers = ask({"q": question("read", [f"{tmp_path}/a*/state", f"{tmp_path}/*/no"])})
    assert answers["q"]["value"] == {
        f"{tmp_path}/a*/state": "a*",
        f"{tmp_path}/a1/state": "a1",
    }


@pytest.mark.skipif(not shutil.which("ip"), reason="ip (iproute2) is not installed")
def test_the_addresses_are_those_that_the_kernel_shows() -> None:
    shown = subprocess.run(["ip", "-j", "addr"], capture_output=True, check=True).stdout
    wanted = {
        (device["ifname"], address["local"])
        for device in json.loads(shown)
        for address in device["addr_info"]
        if not (address["family"] == "inet6" and address["scope"] == "link")
    }
    held = interfaces.held()
    assert {(one["name"], one["address"]) for one in held} == wanted
    assert [one["up"] for one in held if one["name"] == "lo"][:1] == [True]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "a" * 300, ""])
def test_a_name_has_the_addresses_that_the_resolver_gives(name: str) -> None:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found = []
    assert interfaces.resolve([name]) == {name: [*dict.fromkeys(entry[4][0] for entry in found)]}


def test_a_nodes_own_name_is_the_one_that_the_library_finds() -> None:
    names = interfaces.own_names()
    assert (names["hostname"], names["fqdn"]) == (socket.gethostname(), socket.getfqdn())


# ---------------------------------------------------------------- beside an agent


@pytest.fixture
def surveyor() -> Iterator[Surveyor]:
    made = Surveyor()
    yield made
    made.end()


def test_a_surveyor_answers_like_the_program(surveyor: Surveyor) -> None:
    first = surveyor.ask({"id": 1, "questions": {"a": question("path", "/")}})
    again = surveyor.ask({"id": 2, "questions": {}})
    assert first["answers"]["a"]["value"]["kind"] == "directory"
    assert first["hello"] == again["hello"]
    assert first["hello"]["uid"] == os.getuid()


def test_a_surveyor_that_was_killed_is_an_error_and_not_a_wait(surveyor: Surveyor) -> None:
    kill = {"shell": "kill -9 $(ps -o ppid= -p $PPID)"}
    with pytest.raises(OSError, match="gone"):
        surveyor.ask({"id": 1, "questions": {"k": question("run", kill)}})
    with pytest.raises(OSError):
        surveyor.ask({"id": 2, "questions": {}})


def test_a_surveyor_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    made = Surveyor()
    mark = {"name": "mark", "paths": [str(tmp_path)]}
    made.ask(leaving(mark))
    assert [path.name for path in tmp_path.iterdir()] == ["mark"]
    made.end()
    deadline = time.monotonic() + 300
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- who reaches whom


@pytest.fixture
def port() -> Iterator[int]:
    """Where our token is said."""
    yield network.listen({"ports": [0], "token": "T"})["port"]
    network.hang_up()


def dial(targets: dict[str, Any], payload: int = 0, token: str = "T") -> dict[str, Any]:
    sent = dict.fromkeys(targets, payload)
    return network.dial({"targets": targets, "token": token, "timeout": 30, "payload": sent})


def test_a_listener_answers_many_at_once_and_takes_a_payload(port: int) -> None:
    targets = {f"n{i}": ["127.0.0.1", port] for i in range(100)}
    found = dial(targets, payload=200_000)
    assert set(map(str, found.values())) == {"{'local': '127.0.0.1'}"}


def test_a_peer_without_the_token_is_rejected(port: int) -> None:
    found = dial({"n": ["127.0.0.1", port]}, token="other")
    assert found == {"n": {"error": "another program answers there"}}


def test_a_connection_to_an_unused_port_is_refused(port: int) -> None:
    network.hang_up()
    assert dial({"n": ["127.0.0.1", port]}) == {"n": {"error": "Connection refused"}}


def test_a_used_port_is_reported_with_the_reason(port: int) -> None:
    told = network.listen({"ports": [port, 0], "token": "T"})
    assert told["taken"] == [{"port": port, "error": "Address already in use"}]
    assert told["port"] not in (None, port)


def test_a_port_can_be_held_instead_of_those_before(port: int) -> None:
    other = network.listen({"ports": [0], "token": "T", "instead": True})["port"]
    found = dial({"before": ["127.0.0.1", port], "now": ["127.0.0.1", other]})
    assert found == {"before": {"error": "Connection refused"}, "now": {"local": "127.0.0.1"}}


def own(what: str) -> int:
    """How many threads (`task`) or open files (`fd`) this process has."""
    return len([*Path(f"/proc/self/{what}").iterdir()])


def test_who_hangs_up_leaves_no_thread_and_no_file(port: int) -> None:
    network.hang_up()
    threads, files = own("task"), own("fd")
    for _ in range(50):
        assert network.listen({"ports": [port], "token": "T"})["port"] == port
        network.hang_up()
    deadline = time.monotonic() + 300
    while own("task") > threads and time.monotonic() < deadline:
        time.sleep(0.01)  # after its last word a thread needs a moment to be gone
    # a thread of an earlier test may have ended meanwhile
    assert own("task") <= threads
    assert own("fd") <= files
