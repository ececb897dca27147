"""`validate`, `nodes`, `schema`, and what all commands have in common."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dslaunch.cli.commands import NAMES

Dslaunch = Callable[..., CompletedProcess[str]]


# ---------------------------------------------------------------- all commands


@pytest.mark.parametrize("command", NAMES)
def test_the_help_of_every_command_has_an_example(dslaunch: Dslaunch, command: str):
    done = dslaunch(command, "--help")
    assert f"Example: dslaunch {command}" in " ".join(done.stdout.split())
    assert done.returncode == 0


@pytest.mark.parametrize("command", NAMES)
def test_help_fits_into_eighty_columns(dslaunch: Dslaunch, command: str):
    assert all(len(line) <= 80 for line in dslaunch(command, "-h").stdout.splitlines())


def test_the_version_is_one_line_on_standard_output(dslaunch: Dslaunch):
    done = dslaunch("--version")
    assert done.stdout.startswith("dslaunch ")
    assert (done.stdout.count("\n"), done.stderr, done.returncode) == (1, "", 0)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param(["rnu"], "did you mean `dslaunch run`?", id="command"),
        pytest.param(["nodes", "--nodse", "2"], "--nodes", id="option"),
        pytest.param(["run", "c.yaml", "--nodse", "2"], "--nodes", id="option-behind-file"),
        pytest.param(["nodes", "--nodes", "two"], "--nodes", id="no-number"),
        pytest.param(["nodes", "--nodes", "0"], "--nodes", id="number-too-small"),
        pytest.param(["nodes", "a.yaml", "b.yaml"], "b.yaml", id="word-too-many"),
        pytest.param(["render", "hostfle"], "did you mean `hostfile`?", id="format"),
        pytest.param(["render"], "formats: accelerate,", id="no-format"),
        pytest.param(["render", "--nodes", "2"], "no format given", id="options-but-no-format"),
    ],
)
def test_a_wrong_command_line_is_code_2_and_says_what_is_right(
    dslaunch: Dslaunch, words: list[str], found: str
):
    done = dslaunch(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert found in done.stderr


@pytest.mark.parametrize("words", [["validate"], ["nodes"], ["run"], ["render", "hostfile"]])
def test_without_a_cluster_file_all_three_places_are_named(dslaunch: Dslaunch, words: list[str]):
    done = dslaunch(*words)
    assert (done.returncode, done.stdout) == (2, "")
    for way in ("$DSLAUNCH_CLUSTER", "./cluster.yaml", "dslaunch init"):
        assert way in done.stderr


def test_the_variable_names_the_cluster_file_before_the_directory_does(
    dslaunch: Dslaunch, cluster_file: Path, monkeypatch: pytest.MonkeyPatch
):
    Path("cluster.yaml").write_text("name: here\nnodes: [{host: a, slots: 1}]")
    assert dslaunch("validate").stdout.startswith("here:")
    monkeypatch.setenv("DSLAUNCH_CLUSTER", str(cluster_file))
    assert dslaunch("validate").stdout.startswith("pod:")


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        pytest.param("gone.yaml", None, "file not found", id="missing"),
        pytest.param("/dev", None, "got a directory", id="directory"),
        pytest.param("empty.yaml", b"", "empty", id="empty"),
        pytest.param("bytes.yaml", b"\x00\xff\xfe", "bytes.yaml", id="no-text"),
        pytest.param("list.yaml", b"[[1], 2]", "list.yaml:1:1", id="no-mapping"),
    ],
)
def test_a_file_that_is_no_cluster_file_is_code_3_in_one_line(
    dslaunch: Dslaunch, name: str, content: bytes | None, found: str
):
    if content is not None:
        Path(name).write_bytes(content)
    done = dslaunch("nodes", name)
    assert (done.returncode, done.stdout) == (3, "")
    assert found in done.stderr
    assert done.stderr.startswith(f"error: {name}")


# ---------------------------------------------------------------- validate

WRONG = """\
nodes:
  - {host: a, slots: eight}
  - {host: b, slots: 1, prot: 22}
"""


def test_a_good_file_is_one_line_with_what_it_has(dslaunch: Dslaunch, cluster_file: Path):
    done = dslaunch("validate", "c.yaml")
    assert (done.stdout, done.stderr) == ("pod: 2 nodes, 16 slots, 1 spare\n", "")
    assert done.returncode == 0


def test_every_problem_is_a_separate_line_with_its_position(dslaunch: Dslaunch):
    Path("w.yaml").write_text(WRONG)
    done = dslaunch("validate", "w.yaml")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [error.split(": ")[1] for error in errors] == ["w.yaml:2:15", "w.yaml:3:25"]
    assert (done.returncode, done.stdout) == (3, "")


def test_json_says_the_same_of_a_good_file(dslaunch: Dslaunch, cluster_file: Path):
    done = dslaunch("validate", "c.yaml", "--json")
    said = json.loads(done.stdout)
    counts = {"name": "pod", "nodes": 2, "slots": 16, "spares": 1}
    assert said == {**counts, "problems": [], "ignored": 0}


def test_json_has_every_problem_with_its_place(dslaunch: Dslaunch):
    Path("w.yaml").write_text(WRONG)
    done = dslaunch("validate", "--json", "w.yaml")
    problems = json.loads(done.stdout)["problems"]
    assert [(p["file"], p["line"], p["column"]) for p in problems] == [
        ("w.yaml", 2, 15),
        ("w.yaml", 3, 25),
    ]
    assert [(p["rule"], p["parameters"]) for p in problems] == [
        ("wrong-type", {"expected": "an integer", "found": "'eight'"}),
        ("unknown-key", {"key": "prot", "similar": "port"}),
    ]
    assert (done.returncode, done.stderr) == (3, "")


def test_problems_show_their_rule_by_which_they_are_ignored(dslaunch: Dslaunch):
    Path("w.yaml").write_text(WRONG)
    done = dslaunch("validate", "w.yaml", "--ignore", "unknown-key")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [error.rpartition(" ")[2] for error in errors] == ["[wrong-type]"]
    assert done.returncode == 3


def test_a_comment_ignores_a_problem_and_says_what_that_means(dslaunch: Dslaunch):
    text = WRONG.replace("slots: eight}", "slots: 8}")
    Path("w.yaml").write_text(text.replace("22}", "22}  # dslaunch: ignore[unknown-key]"))
    done = dslaunch("validate", "w.yaml")
    assert done.stderr.startswith("w.yaml: ")
    assert (done.returncode, done.stdout) == (0, "")


def test_several_files_are_checked_at_once(dslaunch: Dslaunch, cluster_file: Path):
    Path("w.yaml").write_text(WRONG)
    done = dslaunch("validate", "c.yaml", "w.yaml", "--json")
    assert [len(each["problems"]) for each in json.loads(done.stdout)] == [0, 2]
    assert done.returncode == 3


def test_a_misspelt_rule_in_a_comment_is_a_warning(dslaunch: Dslaunch, cluster_file: Path):
    Path("c.yaml").write_text(f"{cluster_file.read_text()}\n# dslaunch: ignore-file[sintax]\n")
    assert dslaunch("validate", "c.yaml").returncode == 0
    assert dslaunch("validate", "c.yaml", "--strict").returncode == 3


# ---------------------------------------------------------------- nodes


def test_equal_nodes_are_one_line_and_spares_have_no_ranks(dslaunch: Dslaunch, cluster_file: Path):
    assert dslaunch("nodes", "c.yaml").stdout.splitlines() == [
        "HOST        SLOTS     RANKS  ADDRESS  LABELS",
        "gpu[01-02]  0-7 each  0-15   -        -",
        "spare01     0-3       -      -        spare",
    ]


def test_a_spare_that_is_named_has_ranks(dslaunch: Dslaunch, cluster_file: Path):
    done = dslaunch("nodes", "c.yaml", "-i", "gpu02:6,7@spare01")
    assert [line.split()[:3] for line in done.stdout.splitlines()[1:]] == [
        ["gpu02", "6,7", "0,1"],
        ["spare01", "0-3", "2-5"],
    ]


def test_json_has_one_entry_per_node(dslaunch: Dslaunch, cluster_file: Path):
    found = json.loads(dslaunch("nodes", "--json", "c.yaml", "--slots", "2").stdout)
    assert [(n["host"], n["slots"], n["ranks"], n["spare"]) for n in found] == [
        ("gpu01", [0, 1], [0, 1], False),
        ("gpu02", [0, 1], [2, 3], False),
        ("spare01", [0, 1, 2, 3], [], True),
    ]


@pytest.mark.parametrize("columns", [80, 200])
def test_the_table_is_as_wide_as_the_terminal_at_most(
    dslaunch: Dslaunch, monkeypatch: pytest.MonkeyPatch, columns: int
):
    labels = ", ".join(f"label{n}: value{n}" for n in range(12))
    Path("c.yaml").write_text(
        f"name: wide\nnodes: [{{host: 'node[001-128]', slots: 8, labels: {{{labels}}}}}]"
    )
    monkeypatch.setenv("COLUMNS", str(columns))
    out = dslaunch("nodes", "c.yaml").stdout
    assert max(map(len, out.splitlines())) <= columns
    assert all(f"label{n}=value{n}" in out for n in range(12))


@pytest.mark.parametrize(
    "words",
    [
        ["-i", "gpu03"],
        ["-i", "gpu01:8"],
        ["-e", "gpu[01-02]"],
        ["-N", "3"],
        ["--slots", "9"],
        ["--label", "rack=r9"],
        ["-i", "gpu01", "-e", "gpu02"],
        ["-i", "gpu[01"],
    ],
    ids=" ".join,
)
def test_a_selection_that_cannot_be_is_code_3(
    dslaunch: Dslaunch, cluster_file: Path, words: list[str]
):
    done = dslaunch("nodes", "c.yaml", *words)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: ")


# ---------------------------------------------------------------- schema


def test_the_schema_is_json_on_standard_output(dslaunch: Dslaunch):
    done = dslaunch("schema")
    assert "nodes" in json.loads(done.stdout)["properties"]
    assert done.stderr == ""


def test_the_record_of_a_run_has_a_schema(dslaunch: Dslaunch):
    done = dslaunch("schema", "run")
    assert json.loads(done.stdout)["properties"]["format"]["const"] == 1
