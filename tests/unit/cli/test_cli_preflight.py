"""What `dslaunch preflight` refuses before a node is asked, and how saved answers are judged."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Literal, NoReturn

import pytest
import typer
from msgspec.structs import replace
from tests.checks.recorded import HELLO

from dslaunch.cli import preflight as command
from dslaunch.cli.signatures import with_option_groups
from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import ConfigError, NodeFailure, SelectionError, UsageError
from dslaunch.launch.job import Job
from dslaunch.preflight.check import Scope
from dslaunch.preflight.recording import NodeRecording, Recording

preflight = with_option_groups(command.preflight)
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
)
"""The clock of one is 2.5 s ahead of the other's."""


@pytest.fixture(autouse=True)
def a_cluster_that_must_not_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> NoReturn:
        raise AssertionError("nodes were asked")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_ask", asked)
    Path("cluster.yaml").write_text(TEXT, "utf-8")
    Path("saved.json").write_text(ANSWERS.as_json(), "utf-8")


def test_a_baseline_that_is_none_is_known_before_nodes_are_asked() -> None:
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        preflight(baseline=Path("none.json"))


def test_a_baseline_of_other_nodes_is_known_before_nodes_are_asked() -> None:
    Path("other.yaml").write_text("nodes: [{host: other, slots: 1}]\n")
    with pytest.raises(SelectionError, match=r"--baseline saved\.json: "):
        preflight(file=Path("other.yaml"), baseline=Path("saved.json"))


def test_a_change_from_the_baseline_ends_with_its_own_code_where_that_is_asked() -> None:
    changed = replace(ANSWERS, nodes={**ANSWERS.nodes, "n2": ANSWERS.nodes["n1"]})
    Path("now.json").write_text(changed.as_json(), "utf-8")
    paths = {"saved": Path("now.json"), "baseline": Path("saved.json")}
    only = ["clock.skew"]
    preflight(**paths, only=only)  # type: ignore[arg-type]
    with pytest.raises(typer.Exit) as left:
        preflight(**paths, only=only, fail_on_change=True)  # type: ignore[arg-type]
    assert left.value.exit_code == 4
    same = {"saved": Path("now.json"), "baseline": Path("now.json")}
    preflight(**same, only=only, fail_on_change=True)  # type: ignore[arg-type]


def test_nodes_without_any_answer_to_a_check_are_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit) as left:
        preflight(saved=Path("saved.json"), only=["py.interpreter"])
    assert left.value.exit_code == 4
    assert capsys.readouterr().out.splitlines()[-1] == "unknown: n[1-2] (2)"


def test_a_launcher_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="`torchrum`"):
        preflight(launcher="torchrum")


@pytest.mark.parametrize("other", ["markdown", "list_fit", "list_unfit", "drain"])
def test_two_forms_of_output_are_refused(other: str) -> None:
    with pytest.raises(UsageError, match="--json and --"):
        preflight(json=True, **{other: True})  # type: ignore[arg-type]


def verdicts_of(
    capsys: pytest.CaptureFixture[str], option: str, stream: Literal["out", "err"] = "out"
) -> str:
    """What is printed for a cluster in which n2 is unfit and n3 did not answer."""
    text = "nodes: [{host: 'n[1-4]', slots: 1}]\npreflight: {limits: {clock.skew: {fail: 1}}}\n"
    cluster = parse_cluster(text, "c.yaml")
    clocks = {"n1": (0.0, 0.0), "n2": (9.0, 0.0), "n4": (0.0, 0.0)}
    nodes = {host: NodeRecording(HELLO, {}, clock, 0.1) for host, clock in clocks.items()}
    silent = {"n3": NodeFailure("n3", "timeout", "no answer")}
    scope = replace(ANSWERS.scope, cluster=cluster, nodes=cluster.nodes)
    facts = replace(ANSWERS, scope=scope, nodes=nodes, failures=silent)
    Path("three.json").write_text(facts.as_json(), "utf-8")
    with pytest.raises(typer.Exit) as left:
        preflight(
            saved=Path("three.json"),
            only=["clock.skew"],
            **{option: True},  # type: ignore[arg-type]
        )
    assert left.value.exit_code == 4
    printed: str = getattr(capsys.readouterr(), stream)
    return printed


@pytest.mark.parametrize(
    ("option", "printed"),
    [
        ("list_fit", "n[1,4]\n"),
        ("list_unfit", "n[2-3]\n"),
        (
            "drain",
            "scontrol update nodename=n2 state=drain 'reason=dslaunch preflight: clock.skew'\n",
        ),
    ],
)
def test_verdicts_of_nodes_are_printed_for_scripts(
    capsys: pytest.CaptureFixture[str], option: str, printed: str
) -> None:
    assert verdicts_of(capsys, option) == printed


def test_nodes_that_are_not_drained_since_they_did_not_answer_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "n3" in verdicts_of(capsys, "drain", "err")


def test_json_has_a_verdict_for_each_node(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = json.loads(verdicts_of(capsys, "json"))["verdicts"]
    assert [(each["host"], each["fitness"], each["checks"]) for each in verdicts] == [
        ("n1", "fit", []),
        ("n2", "unfit", ["clock.skew"]),
        ("n3", "unknown", ["ssh.connect"]),
        ("n4", "fit", []),
    ]


def test_no_check_at_all_is_no_pass() -> None:
    with pytest.raises(UsageError, match="--only and --skip"):
        preflight(only=["clock"], skip=["clock"])


def levels(capsys: pytest.CaptureFixture[str], file: str | None, include: str = "") -> list[str]:
    """Of the clocks' findings, judged from the saved answers."""
    path = None if file is None else Path(file)
    preflight(file=path, saved=Path("saved.json"), include=include, only=["clock.skew"], json=True)
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
        preflight(saved=Path("saved.json"), only=list(words) or None, tier=tier, json=True)
    found = json.loads(capsys.readouterr().out)["findings"]
    return {finding["check"] for finding in found} - {"ssh.connect"}


def test_saved_answers_are_judged_by_the_checks_that_were_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert {"lim.stack", "clock.skew"} < checks_of(capsys)
    Path("saved.json").write_text(replace(ANSWERS, tier="gate").as_json(), "utf-8")
    assert "lim.stack" not in checks_of(capsys) >= {"clock.skew"}
    assert "lim.stack" in checks_of(capsys, tier="static")
    named = replace(ANSWERS.scope, named=frozenset(("clock.skew",)))
    Path("saved.json").write_text(replace(ANSWERS, scope=named).as_json(), "utf-8")
    assert checks_of(capsys) == {"clock.skew"}
    assert checks_of(capsys, "lim.stack") == {"lim.stack"}


def test_saved_answers_for_a_launcher_that_is_not_installed_here_are_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    theirs = replace(ANSWERS.scope, job=Job("", launcher="theirs"))
    Path("saved.json").write_text(replace(ANSWERS, scope=theirs).as_json(), "utf-8")
    assert "warn" in levels(capsys, None)
    with pytest.raises(UsageError, match="`torchrum`"):
        preflight(saved=Path("saved.json"), launcher="torchrum")


def test_nodes_that_were_left_out_of_the_recording_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scope = replace(ANSWERS.scope, nodes=CLUSTER.nodes[:1])
    part = replace(ANSWERS, scope=scope, nodes={"n1": ANSWERS.nodes["n1"]})
    Path("part.json").write_text(part.as_json(), "utf-8")
    preflight(file=Path("cluster.yaml"), saved=Path("part.json"), only=["clock.skew"])
    without = "not judged, since the recording was made without them: n2\n"
    assert capsys.readouterr().err == without


def test_nodes_that_are_new_in_the_cluster_file_have_no_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("larger.yaml").write_text(TEXT.replace("n[1-2]", "n[1-3]"))
    with suppress(typer.Exit):
        preflight(file=Path("larger.yaml"), saved=Path("saved.json"), only=["clock.skew"])
    assert "n3: no recorded answer" in capsys.readouterr().out


def test_saved_answers_of_another_cluster_are_refused() -> None:
    Path("other.yaml").write_text("nodes: [{host: other, slots: 1}]\n")
    with pytest.raises(SelectionError, match=r"other\.yaml"):
        preflight(file=Path("other.yaml"), saved=Path("saved.json"))


def test_what_is_no_utf8_is_spelt_in_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    silent = {"n2": NodeFailure("n2", "noisy-shell", "it says \udcff.py")}
    facts = replace(ANSWERS, nodes={"n1": ANSWERS.nodes["n1"]}, failures=silent)
    Path("saved.json").write_text(facts.as_json(), "utf-8")
    with pytest.raises(typer.Exit):
        preflight(saved=Path("saved.json"), html=Path("page.html"), json=True)
    assert capsys.readouterr().out.isascii()
    assert "\\udcff.py" in Path("page.html").read_text("utf-8")


def test_saved_answers_know_no_script() -> None:
    with pytest.raises(UsageError, match="--script"):
        preflight(saved=Path("saved.json"), script="train.py")
