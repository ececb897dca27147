"""`dslaunch topo` with recorded texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from tests.many_nodes import topology_text
from tests.unit.topology.printed import BRIDGED, H100, topo_m
from typer.testing import CliRunner, Result

from dslaunch.cli.topo import LARGEST, topo
from dslaunch.errors import ConfigError, SelectionError, UsageError

CLUSTER = "nodes:\n  - host: n[1-2]  # both\n    slots: 8\n"


def call(*words: str | Path, stdin: str | bytes | None = None) -> Result:
    app = typer.Typer()
    app.command()(topo)
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Two nodes' recorded texts."""
    for name in ("n1", "n2"):
        text = topo_m(BRIDGED) + "10.0.0.9 dev ib0 src 10.0.0.1\n"
        (tmp_path / f"{name}.txt").write_text(text)
    return sorted(tmp_path.glob("*.txt"))


def test_nodes_are_named_as_their_files(two: list[Path]):
    done = call(*two)
    assert done.exit_code == 0
    assert done.stdout.startswith("n[1-2]: 4x GPU, NV12 islands 2+2, ")
    assert "2 nodes have the same topology" in done.stdout


def test_standard_input_is_read(two: list[Path]):
    assert call(stdin=topo_m(H100)).stdout.startswith("stdin: 8x GPU, NV18 full mesh")
    assert call("-", stdin=topo_m(H100)).stdout.startswith("stdin: 8x GPU, NV18 full mesh")


def test_text_of_other_systems_is_read():
    assert call(stdin=topo_m(H100).encode("utf-16")).stdout.startswith("stdin: 8x GPU")


def test_a_text_that_is_too_large_is_refused_rather_than_cut(tmp_path: Path):
    file = tmp_path / "hall.txt"
    with file.open("wb") as written:
        written.truncate(LARGEST + 1)
    done = call(file)
    assert isinstance(done.exception, ConfigError)
    assert [problem.rule for problem in done.exception.problems] == ["too-large"]


def test_the_outputs_of_a_thousand_nodes_in_one_text_are_read(tmp_path: Path):
    (tmp_path / "hall.txt").write_text(topology_text(1_000))
    found = json.loads(call(tmp_path / "hall.txt", "--json").stdout)
    assert [len(each["hosts"]) for each in found["comparison"]["groups"]] == [500, 500]


def test_programs_read_json(two: list[Path]):
    found = json.loads(call(*two, "--json").stdout)
    assert list(found["nodes"]) == ["n1", "n2"]
    assert found["comparison"]["equal"] is True


def test_a_drawing_is_a_file(two: list[Path], tmp_path: Path):
    assert call(two[0], "--svg", tmp_path / "n1.svg").exit_code == 0
    assert (tmp_path / "n1.svg").read_text().startswith("<svg ")


def test_a_drawing_that_cannot_be_written_is_known_before_anything_is_shown(two: list[Path]):
    done = call(two[0], "--svg", "nowhere/n1.svg")
    assert isinstance(done.exception, UsageError)
    assert "--svg nowhere/n1.svg: " in done.exception.message
    assert done.stdout == ""


def test_advice_is_written_into_a_cluster_file_when_asked(two: list[Path], tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text(CLUSTER)
    done = call(*two, "--apply", file)
    assert file.read_text() == (
        "nodes:\n  - host: n[1-2]  # both\n    slots: 4\nnetwork:\n  interface: ib0\n"
    )
    assert f"{file}: set network.interface: ib0" in done.stderr
    assert f"{file}: set nodes[0].slots: 4" in done.stderr


def test_nothing_is_written_unless_asked(two: list[Path], tmp_path: Path):
    (tmp_path / "c.yaml").write_text(CLUSTER)
    call(*two)
    assert (tmp_path / "c.yaml").read_text() == CLUSTER


def test_nodes_that_the_cluster_does_not_have_are_an_error(two: list[Path], tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text(CLUSTER.replace("n[1-2]", "m[1-2]"))
    done = call(*two, "--apply", file)
    assert isinstance(done.exception, SelectionError)
    assert "n1, n2" in done.exception.message


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path):
    done = call(tmp_path / "n1.txt")
    assert isinstance(done.exception, ConfigError)
    assert [problem.rule for problem in done.exception.problems] == ["unreadable"]


def test_all_files_that_cannot_be_read_are_named(two: list[Path], tmp_path: Path):
    done = call(tmp_path / "n8.txt", *two, tmp_path / "n9.txt")
    assert isinstance(done.exception, ConfigError)
    assert [Path(each.file).name for each in done.exception.problems] == ["n8.txt", "n9.txt"]
    assert done.stdout == ""


def test_two_files_of_one_name_are_an_error(two: list[Path], tmp_path: Path):
    done = call(two[0], tmp_path / "other" / "n1.log")
    assert isinstance(done.exception, UsageError)
    assert "second file for node n1" in done.exception.message


def test_where_nothing_could_be_read_it_fails_and_says_why():
    done = call(stdin=b"\x00\xff no matrix \xfe")
    assert isinstance(done.exception, ConfigError)
    assert done.exception.message == "-: no topology matrix found"
    assert done.stdout.startswith("stdin: unknown: ")


def test_the_output_of_several_nodes_in_one_file_is_taken_apart(tmp_path: Path):
    lines = [f"{host}: {line}" for host in ("a", "b") for line in topo_m(BRIDGED).split("\n")]
    (tmp_path / "all.txt").write_text("\n".join(lines))
    found = json.loads(call("--json", tmp_path / "all.txt").stdout)
    assert list(found["nodes"]) == ["all-a", "all-b"]
    assert found["comparison"]["equal"]


def test_a_second_matrix_in_a_file_is_not_dropped(tmp_path: Path):
    (tmp_path / "n1.txt").write_text(topo_m(BRIDGED) + topo_m(H100))
    found = json.loads(call("--json", tmp_path / "n1.txt").stdout)
    assert {name: len(each["gpus"]) for name, each in found["nodes"].items()} == {
        "n1": 4,
        "n1-2": 8,
    }


def test_a_broken_matrix_is_refused_with_the_reason(tmp_path: Path):
    text = topo_m(H100).expandtabs(8).replace("NV18", "NV1", 1)
    broken = [line[at : at + 40] for line in text.split("\n") for at in range(0, len(line), 40)]
    (tmp_path / "n1.txt").write_text("\n".join(broken))
    done = call(tmp_path / "n1.txt")
    assert isinstance(done.exception, ConfigError)
    assert "n1: unknown: " in done.stdout
