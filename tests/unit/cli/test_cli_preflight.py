"""What `dslaunch preflight` refuses before a node is asked, and how saved answers are judged."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import typer
from tests.checks.recorded import HELLO

from dslaunch.cli import preflight as command
from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import ConfigError, NodeFailure, UsageError
from dslaunch.launch.job import Job
from dslaunch.preflight.check import Scope
from dslaunch.preflight.recording import NodeRecording, Recording

TEXT = "name: pod\nnodes: [{host: 'n[1-2]', slots: 1}]\n"
CLUSTER = parse_cluster(TEXT, "cluster.yaml")
ANSWERS = Recording(
    Scope(CLUSTER, CLUSTER.nodes, token="t"),
    1_700_000_000.0,
    {
        "n1": NodeRecording(HELLO, {}, (0.0, 0.0), 0.1),
        "n2": NodeRecording(HELLO, {}, (2.5, 0.0), 0.1),
    },
    {},
    cluster=TEXT,
    file="cluster.yaml",
)
"""The clock of one is 2.5 s ahead of the other's."""


@pytest.fixture(autouse=True)
def a_cluster_that_must_not_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> NoReturn:
        raise AssertionError("nodes were asked")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_ask", asked)
    Path("cluster.yaml").write_text(TEXT, "utf-8")
    Path("saved.json").write_text(ANSWERS.to_json(), "utf-8")


@pytest.mark.parametrize("option", ["save", "junit", "html"])
def test_a_file_that_cannot_be_written_is_known_before_nodes_are_asked(option: str) -> None:
    with pytest.raises(UsageError, match=f"--{option} nowhere/f: there is no directory nowhere"):
        command.preflight(**{option: Path("nowhere/f")})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"--{option} .*: Is a directory"):
        command.preflight(**{option: Path.cwd()})  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_known_before_nodes_are_asked() -> None:
    Path("locked").mkdir(0o500)
    with pytest.raises(UsageError, match="--save locked/f: Permission denied"):
        command.preflight(save=Path("locked/f"))


def test_a_baseline_that_is_none_is_known_before_nodes_are_asked() -> None:
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        command.preflight(baseline=Path("none.json"))


def test_a_baseline_of_other_nodes_is_known_before_nodes_are_asked() -> None:
    Path("other.yaml").write_text("nodes: [{host: other, slots: 1}]\n")
    with pytest.raises(UsageError, match=r"--baseline saved\.json: holds no answer of these nodes"):
        command.preflight(file=Path("other.yaml"), baseline=Path("saved.json"))


def test_a_change_from_the_baseline_ends_with_its_own_code_where_that_is_asked() -> None:
    changed = replace(ANSWERS, nodes={**ANSWERS.nodes, "n2": ANSWERS.nodes["n1"]})
    Path("now.json").write_text(changed.to_json(), "utf-8")
    paths = {"saved": Path("now.json"), "baseline": Path("saved.json")}
    only = ["clock.skew"]
    command.preflight(**paths, only=only)  # type: ignore[arg-type]
    with pytest.raises(typer.Exit) as left:
        command.preflight(**paths, only=only, fail_on_change=True)  # type: ignore[arg-type]
    assert left.value.exit_code == 4
    same = {"saved": Path("saved.json"), "baseline": Path("saved.json")}
    command.preflight(**same, only=["py.interpreter"], fail_on_change=True)  # type: ignore[arg-type]


def test_a_launcher_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no launcher is named `torchrum`"):
        command.preflight(launcher="torchrum")


def test_two_forms_of_output_are_refused() -> None:
    with pytest.raises(UsageError, match="--json and --markdown: one of them"):
        command.preflight(json=True, markdown=True)


def test_no_check_at_all_is_no_pass() -> None:
    with pytest.raises(UsageError, match="--only and --skip leave no check"):
        command.preflight(only=["clock"], skip=["clock"])


def levels(capsys: pytest.CaptureFixture[str], file: str | None, include: str = "") -> list[str]:
    """Of the clocks' findings, judged from the saved answers."""
    path = None if file is None else Path(file)
    command.preflight(
        file=path, saved=Path("saved.json"), include=include, only=["clock.skew"], json=True
    )
    found = json.loads(capsys.readouterr().out)["findings"]
    return [finding["level"] for finding in found if finding["check"] == "clock.skew"]


def test_saved_answers_are_judged_by_the_thresholds_of_a_file_that_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("lax.yaml").write_text(f"{TEXT}preflight: {{limits: {{clock.skew: {{warn: 9}}}}}}\n")
    assert "warn" in levels(capsys, None)
    assert levels(capsys, "lax.yaml") == ["pass"]


def test_of_saved_answers_only_the_chosen_nodes_are_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "warn" not in levels(capsys, None, "n1")


def checks_of(capsys: pytest.CaptureFixture[str], *words: str, tier: str | None = None) -> set[str]:
    """The checks that saved answers are judged by, but for that every node answered."""
    with suppress(typer.Exit):
        command.preflight(saved=Path("saved.json"), only=list(words) or None, tier=tier, json=True)
    found = json.loads(capsys.readouterr().out)["findings"]
    return {finding["check"] for finding in found} - {"ssh.connect"}


def test_saved_answers_are_judged_by_the_checks_that_were_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert {"lim.stack", "clock.skew"} < checks_of(capsys)
    Path("saved.json").write_text(replace(ANSWERS, tier="gate").to_json(), "utf-8")
    assert "lim.stack" not in checks_of(capsys) >= {"clock.skew"}
    assert "lim.stack" in checks_of(capsys, tier="static")
    named = replace(ANSWERS.scope, named=frozenset(("clock.skew",)))
    Path("saved.json").write_text(replace(ANSWERS, scope=named).to_json(), "utf-8")
    assert checks_of(capsys) == {"clock.skew"}
    assert checks_of(capsys, "lim.stack") == {"lim.stack"}


def test_saved_answers_for_a_launcher_that_is_not_installed_here_are_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    theirs = replace(ANSWERS.scope, job=Job("", launcher="theirs"))
    Path("saved.json").write_text(replace(ANSWERS, scope=theirs).to_json(), "utf-8")
    assert "warn" in levels(capsys, None)
    with pytest.raises(UsageError, match="no launcher is named `torchrum`"):
        command.preflight(saved=Path("saved.json"), launcher="torchrum")


def test_saved_answers_of_another_cluster_are_refused() -> None:
    Path("other.yaml").write_text("nodes: [{host: other, slots: 1}]\n")
    with pytest.raises(UsageError, match=r"saved\.json: holds no answer of a node of other\.yaml"):
        command.preflight(file=Path("other.yaml"), saved=Path("saved.json"))


def test_what_is_no_utf8_is_spelt_in_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    silent = {"n2": NodeFailure("n2", "noisy-shell", "it says \udcff.py")}
    facts = replace(ANSWERS, nodes={"n1": ANSWERS.nodes["n1"]}, failures=silent)
    Path("saved.json").write_text(facts.to_json(), "utf-8")
    with pytest.raises(typer.Exit):
        command.preflight(saved=Path("saved.json"), html=Path("page.html"), json=True)
    assert capsys.readouterr().out.isascii()
    assert "\\udcff.py" in Path("page.html").read_text("utf-8")


def test_saved_answers_know_no_script() -> None:
    with pytest.raises(UsageError, match="--script: with --from no node is asked"):
        command.preflight(saved=Path("saved.json"), script="train.py")
