"""The page of codes names every code and parameter that there is, and no other."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest

from dslaunch.cluster import mistakes
from dslaunch.cluster.discover import DiscoveryNote
from dslaunch.errors import ErrorCode, FailureKind
from dslaunch.launch.decisions import DecisionCode, parameters
from dslaunch.notes import NoteCode
from dslaunch.registry import PluginNote
from dslaunch.rehearsal.findings import FindingKind
from dslaunch.rehearsal.judge import Gap
from dslaunch.render.notes import RenderNote
from dslaunch.run.endings import BY_EVIDENCE
from dslaunch.run.events import Event, Kind
from dslaunch.run.hang_verdict import HangCode, HangVerdict
from dslaunch.run.known_endings import built_in
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.slurm.directive_settings import DirectiveNote
from dslaunch.slurm.partition import PartitionNote
from dslaunch.slurm.query_failures import QueryFailure
from dslaunch.slurm.refusal import Refused
from dslaunch.slurm.requeue import RequeueNote
from dslaunch.slurm.verdict import Ending, JobVerdict
from dslaunch.texts import parameter_names
from dslaunch.topology import advice_codes
from dslaunch.topology.notes import MatrixNote

PAGE = Path(__file__).parents[2] / "docs/reference/codes.md"


def rows(heading: str) -> dict[str, set[str]]:
    """The first cell of each row of a section's table, with the names in the last one."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if "| `" in line]
    return {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[-1])) for row in cells}


def test_every_reason_of_an_end_is_documented() -> None:
    told = rows("Reasons of an end")
    assert told.keys() == {code.value for code in EndCode}
    assert set.union(*told.values()) <= set(EndReason.__struct_fields__)


def test_every_finding_of_a_rehearsal_is_documented_with_its_parameters() -> None:
    expected: dict[str, set[str]] = defaultdict(set)
    for kind in FindingKind:
        expected[kind.code] |= set(parameter_names(kind.text, kind.hint))
    assert rows("Findings of rehearsals") == expected


def test_every_gap_of_a_rehearsal_is_documented() -> None:
    assert rows("What a rehearsal does not show").keys() == {gap.value for gap in Gap}


def test_every_hang_is_documented() -> None:
    told = rows("Hangs")
    assert told.keys() == {code.value for code in HangCode}
    assert set.union(*told.values()) <= set(HangVerdict.__struct_fields__)


def test_every_error_is_documented_with_its_parameters() -> None:
    assert rows("Errors") == {code.value: set(code.parameters) for code in ErrorCode}


def test_every_event_is_documented() -> None:
    told = rows("Events")
    assert told.keys() == set(get_args(Kind))
    assert set.union(*told.values()) <= set(Event.__struct_fields__)


def test_every_failure_of_a_node_is_documented() -> None:
    assert rows("Failures of nodes").keys() == set(get_args(FailureKind))


def test_every_decision_is_documented_with_its_parameters() -> None:
    expected = {code.value: set(parameters(code)) for code in DecisionCode}
    assert rows("Decisions") == expected


def test_every_known_ending_is_documented() -> None:
    assert rows("Known endings").keys() == {
        *built_in(),
        *(known.code for known in BY_EVIDENCE),
    }


def test_every_mistake_in_a_cluster_file_is_documented_with_its_parameters() -> None:
    expected = {code.value: set(mistakes.parameters(code)) for code in mistakes.MistakeCode}
    assert rows("Mistakes in cluster files") == expected


def test_every_end_of_a_slurm_job_is_documented() -> None:
    told = rows("Ends of SLURM jobs")
    assert told.keys() == {code.value for code in Ending}
    known = set(JobVerdict.__struct_fields__) | {"root_cause"}
    assert set.union(*told.values()) <= known


@pytest.mark.parametrize(
    ("heading", "codes"),
    [
        ("Failed queries to SLURM", QueryFailure),
        ("Notes of rendered texts", RenderNote),
        ("Notes of topologies", MatrixNote),
        ("Notes of partitions", PartitionNote),
        ("Notes of discovered hosts", DiscoveryNote),
        ("Notes of directives", DirectiveNote),
        ("Notes of requeues", RequeueNote),
        ("Notes of plugins", PluginNote),
    ],
)
def test_every_note_is_documented_with_its_parameters(heading: str, codes: type[NoteCode]) -> None:
    expected = {
        code.value: {name for _, name, _, _ in Formatter().parse(code.text) if name}
        for code in codes
    }
    assert rows(heading) == expected


def test_every_reason_of_slurm_for_refusing_a_job_is_documented() -> None:
    told = rows("Reasons of SLURM for refusing a job")
    assert told.keys() == {reason.value for reason in Refused}


def test_every_kind_of_note_is_documented() -> None:
    page = PAGE.read_text()
    codes = {code for kind in _kinds(NoteCode) for code in kind}
    assert [code for code in codes if f"| `{code.value}` |" not in page] == []


def _kinds(base: type[NoteCode]) -> list[type[NoteCode]]:
    """The enums of codes that the program has; those imported by this test and what it imports."""
    return [kind for kind in base.__subclasses__() if kind.__module__.startswith("dslaunch.")]


def test_every_advice_of_topo_is_documented_with_its_parameters() -> None:
    expected = {code.value: set(advice_codes.parameters(code)) for code in advice_codes.AdviceCode}
    assert rows("Advice of topo") == expected
