"""Plans as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from dslaunch.errors import ConfigError
from dslaunch.launch.command import Command, Var
from dslaunch.launch.decisions import DecisionCode, decision
from dslaunch.launch.plan import (
    File,
    NodePlan,
    Plan,
    Process,
    Rendezvous,
)
from dslaunch.launch.serialise import from_json, to_json

TEXT = st.text(max_size=12)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)
NUMBER = st.integers(0, 2**31)
WORD = TEXT | st.lists(TEXT | st.builds(Var, TEXT), max_size=3).map(tuple)
COMMAND = st.builds(Command, st.lists(WORD, max_size=4).map(tuple))
PROCESS = st.builds(Process, COMMAND, PAIRS, st.none() | NUMBER)
NODE = st.builds(
    NodePlan,
    host=TEXT,
    node_rank=NUMBER,
    slots=st.lists(NUMBER, max_size=3).map(tuple),
    first_rank=NUMBER,
    cwd=TEXT,
    env=PAIRS,
    processes=st.lists(PROCESS, max_size=2).map(tuple),
    files=st.lists(st.builds(File, TEXT, TEXT), max_size=2).map(tuple),
)
DECISION = st.builds(
    partial(decision, DecisionCode.CHECK_WARNING),
    assumed=st.booleans(),
    hosts=st.lists(TEXT, max_size=2).map(tuple),
    found=TEXT,
    check=NUMBER,
    fix=st.booleans(),
)
PLAN = st.builds(
    Plan,
    cluster=TEXT,
    launcher=TEXT,
    world_size=NUMBER,
    rendezvous=st.builds(Rendezvous, TEXT, NUMBER, PAIRS),
    nodes=st.lists(NODE, max_size=2).map(tuple),
    secrets=st.lists(TEXT, max_size=2).map(tuple),
    decisions=st.lists(DECISION, max_size=2).map(tuple),
)


@given(plan=PLAN)
def test_a_plan_is_written_as_its_reader_would_write_it_and_comes_back_equal(plan: Plan) -> None:
    text = to_json(plan)
    as_read = TypeAdapter(Plan).dump_python(plan, mode="json")
    for told, made in zip(as_read["decisions"], plan.decisions, strict=True):
        told |= {"what": made.what, "value": made.value, "why": made.why}
    assert text == json.dumps(as_read, indent=2) + "\n"
    assert from_json(text) == plan
    assert to_json(from_json(text)) == text


def small(name: str) -> Plan:
    return Plan(name, "direct", 0, Rendezvous("a", 1), ())


def test_a_name_that_is_not_utf8_comes_back() -> None:
    plan = small("caf\udce9")
    assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize(
    ("text", "place"),
    [("{", "p.json:1:2"), ("", "p.json:1:1"), ('{"a": 1}\n}', "p.json:2:1")],
    ids=["cut", "empty", "extra"],
)
def test_text_that_is_not_json_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(ConfigError, match=f"^{place}: not JSON"):
        from_json(text, "p.json")


def test_a_number_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^plan\.json: cannot be read: .*digits"):
        from_json(f'{{"world_size": {"9" * 5000}}}')


def test_writing_a_plan_costs_no_import_of_pydantic() -> None:
    code = """if True:
        import sys
        from dslaunch.launch.plan import Plan, Rendezvous
        from dslaunch.launch.serialise import to_json
        print(to_json(Plan("a", "direct", 0, Rendezvous("b", 1), ())), "pydantic" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("}\n False\n")


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        from_json("[" * 200_000)


def test_all_that_is_wrong_in_a_plan_is_said_at_once() -> None:
    data = json.loads(to_json(small("a")))
    data["world_size"] = "many"
    data["rendezvous"]["port"] = None
    del data["nodes"]
    with pytest.raises(ConfigError) as caught:
        from_json(json.dumps(data))
    assert {p.path for p in caught.value.problems} == {"world_size", "rendezvous.port", "nodes"}
