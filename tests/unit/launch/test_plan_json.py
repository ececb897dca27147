"""Plans as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from msgspec import json as struct_json
from msgspec import to_builtins

from dslaunch.launch.command import Command, Var
from dslaunch.launch.decisions import DecisionCode, decision
from dslaunch.launch.plan import (
    File,
    NodePlan,
    Plan,
    Process,
    Rendezvous,
    plan_to_json,
)

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
def test_a_plan_has_the_content_that_msgspec_would_write(plan: Plan) -> None:
    text = plan_to_json(plan)
    as_read = to_builtins(plan)
    for told, made in zip(as_read["decisions"], plan.decisions, strict=True):
        told |= {"what": made.what, "value": made.value, "why": made.why}
    assert json.dumps(json.loads(text)) == json.dumps(as_read)
    assert struct_json.decode(text, type=Plan) == plan


def small(name: str) -> Plan:
    return Plan(name, "direct", 0, Rendezvous("a", 1), ())


def test_a_name_that_is_not_utf8_is_kept() -> None:
    plan = small("caf\udce9")
    assert json.loads(plan_to_json(plan))["cluster"] == plan.cluster


def test_writing_a_plan_costs_no_import_of_pydantic() -> None:
    code = """if True:
        import sys
        from dslaunch.launch.plan import Plan, Rendezvous, plan_to_json
        text = plan_to_json(Plan("a", "direct", 0, Rendezvous("b", 1), ()))
        print(text, "pydantic" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("}\n False\n")
