"""`dslaunch slurm lint` as a user meets it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Dslaunch = Callable[..., subprocess.CompletedProcess[str]]
BAD = """\
#SBATCH --nodes=2
#SBATCH --output=logs/%j.out
srun bash -c "torchrun --nnodes=2 --node_rank=$SLURM_PROCID --master_addr=$HEAD train.py"
"""


@pytest.fixture
def script(directory: Path) -> Path:
    path = directory / "train.sbatch"
    path.write_text(BAD)
    return path


def test_each_remark_has_its_place_reason_fix_and_source(
    script: Path, dslaunch: Dslaunch, golden: Callable[[str, str], None]
) -> None:
    done = dslaunch("slurm", "lint", script.name)
    assert done.returncode == 3
    golden("slurm/lint.txt", done.stdout)


def test_certain_fixes_are_applied_to_the_file(script: Path, dslaunch: Dslaunch) -> None:
    done = dslaunch("slurm", "lint", "--fix", script.name)
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    assert lines[3].startswith('srun --kill-on-bad-exit=1 bash -c "torchrun')
    assert "--node_rank=\\$SLURM_PROCID" in lines[3]
    assert "3 of 4" in done.stderr
    assert (done.returncode, done.stdout[-10:]) == (0, "ed\n1 note\n")


def test_directories_are_looked_for_where_it_would_be_submitted(
    script: Path, directory: Path, dslaunch: Dslaunch
) -> None:
    assert "[missing-output-directory]" in dslaunch("slurm", "lint", script.name).stdout
    (directory / "logs").mkdir()
    assert "[missing-output-directory]" not in dslaunch("slurm", "lint", script.name).stdout


def test_programs_get_the_same_as_json_sarif_or_annotations(
    script: Path, dslaunch: Dslaunch
) -> None:
    rules = [
        one["rule"] for one in json.loads(dslaunch("slurm", "lint", "--json", script.name).stdout)
    ]
    assert rules[:2] == ["no-shebang", "missing-output-directory"]
    sarif = json.loads(dslaunch("slurm", "lint", "--sarif", script.name).stdout)
    assert [one["ruleId"] for one in sarif["runs"][0]["results"]] == rules
    github = dslaunch("slurm", "lint", "--github", script.name)
    assert github.stdout.splitlines()[0].startswith("::error file=train.sbatch,line=1,col=1,")
    assert github.stderr == ""


def test_standard_input_is_read_and_cannot_be_fixed(
    dslaunch: Dslaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, code in ((("-",), 3), (("--fix", "-"), 2)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
        assert dslaunch("slurm", "lint", *words).returncode == code


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("logs/%x.out", True),
        ("/tmp/nowhere-to-be-found/%x.out", True),
        ("/scratch-of-the-cluster/%u/x.out", False),
        ("/scratch-of-the-cluster/logs/x.out", False),
        ("%u/x.out", False),
        ("x-%j.out", False),
    ],
)
def test_directories_of_another_machine_are_not_judged(
    directory: Path, dslaunch: Dslaunch, output: str, said: bool
) -> None:
    (directory / "x.sbatch").write_text(f"#!/bin/bash\n#SBATCH --output={output}\n")
    done = dslaunch("slurm", "lint", "--json", "x.sbatch")
    found = [(one["rule"], one["level"]) for one in json.loads(done.stdout)]
    assert found == [("missing-output-directory", "info")] * said


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("echo 'a\nb\n", 2),
        ("if true; then\necho a\n", 4),
        ("for i in 1 2; do\necho $i\nfi\n", 4),
        ("export TOKEN=<your token> # yours\n", 2),
        ("srun python (x)\n", 2),
    ],
)
def test_a_script_that_bash_refuses_is_an_error_with_its_line(
    directory: Path, dslaunch: Dslaunch, text: str, line: int
) -> None:
    (directory / "x.sbatch").write_text(f"#!/bin/bash\n{text}")
    done = dslaunch("slurm", "lint", "--json", "x.sbatch")
    found = [one for one in json.loads(done.stdout) if one["rule"] == "syntax-error"]
    assert [(one["line"], one["level"]) for one in found] == [(line, "error")]
    assert done.returncode == 3


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/zsh\nfor i (1 2) echo $i\n",
        "#!/usr/bin/env python3\nprint((1,\n2))\n",
        "#!/bin/bash\n{% if debug %}\necho (\n{% endif %}\n",
        "#!/bin/bash\necho a |& cat; case a in a) ;;& b) ;; esac\n",
    ],
)
def test_what_is_no_bash_is_not_asked_of_bash(
    directory: Path, dslaunch: Dslaunch, text: str
) -> None:
    (directory / "x.sbatch").write_text(text)
    assert dslaunch("slurm", "lint", "x.sbatch").stdout == "no findings\n"


def test_without_bash_a_note_says_that_the_syntax_was_not_checked(
    directory: Path, dslaunch: Dslaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "x.sbatch").write_text("#!/bin/bash\nif\n")
    monkeypatch.setenv("PATH", str(directory))
    done = dslaunch("slurm", "lint", "x.sbatch")
    assert (done.returncode, done.stdout) == (0, "no findings\n")
    assert "bash 4" in done.stderr


def test_bash_runs_nothing_of_a_script(
    directory: Path, dslaunch: Dslaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "start").write_text("touch started\n")
    (directory / "x.sbatch").write_text("#!/bin/bash\ntouch ran\na[$(touch index)]=1\n")
    monkeypatch.setenv("BASH_ENV", "start")
    assert dslaunch("slurm", "lint", "x.sbatch").returncode == 0
    assert sorted(path.name for path in directory.iterdir()) == ["start", "x.sbatch"]


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file or directory"), (b"\xff\xfe", "not UTF-8 text")],
)
def test_what_cannot_be_read_is_a_line_of_words(
    directory: Path, dslaunch: Dslaunch, content: bytes | None, said: str
) -> None:
    if content is not None:
        (directory / "x.sbatch").write_bytes(content)
    done = dslaunch("slurm", "lint", "x.sbatch")
    assert (done.returncode, done.stderr) == (3, f"error: x.sbatch: {said}\n")


def test_all_files_that_cannot_be_read_are_named_after_the_findings_in_the_others(
    script: Path, directory: Path, dslaunch: Dslaunch
) -> None:
    (directory / "binary").write_bytes(b"\xff\xfe")
    files = ("gone.sbatch", script.name, "binary")
    done = dslaunch("slurm", "lint", *files)
    assert done.returncode == 3
    assert done.stdout == dslaunch("slurm", "lint", script.name).stdout
    assert done.stderr == (
        "error: binary: not UTF-8 text\nerror: gone.sbatch: No such file or directory\n"
    )
    found = json.loads(dslaunch("slurm", "lint", "--json", *files).stdout)
    assert {each["file"] for each in found} == {script.name}


def test_a_good_script_does_not_hide_one_that_cannot_be_read(
    directory: Path, dslaunch: Dslaunch
) -> None:
    (directory / "good.sbatch").write_text("#!/bin/bash\necho\n")
    assert dslaunch("slurm", "lint", "good.sbatch").returncode == 0
    assert dslaunch("slurm", "lint", "good.sbatch", "gone").returncode == 3


def test_a_text_without_end_is_not_read_to_the_end(dslaunch: Dslaunch) -> None:
    done = dslaunch("slurm", "lint", "/dev/zero")
    assert (done.returncode, "at most 4,194,304 bytes" in done.stderr) == (3, True)


def test_good_practice_of_a_script_is_shown(directory: Path, dslaunch: Dslaunch) -> None:
    (directory / "x.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=1\n"
        "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | sed -n 1p)\n"
    )
    done = dslaunch("slurm", "lint", "x.sbatch")
    assert (done.returncode, done.stdout) == (0, "no findings\n")
    assert done.stderr.startswith("x.sbatch:3:13: good practice: ")
    assert done.stderr.endswith("[first-node]\n")


def test_the_short_word_for_help_is_known_here_too(dslaunch: Dslaunch) -> None:
    done = dslaunch("slurm", "lint", "-h")
    assert (done.returncode, "Usage: dslaunch slurm lint" in done.stdout) == (0, True)


def test_rules_are_ignored_by_call_and_warnings_fail_if_strict(
    script: Path, dslaunch: Dslaunch
) -> None:
    found = json.loads(dslaunch("slurm", "lint", "--json", script.name).stdout)
    errors = {each["rule"] for each in found if each["level"] == "error"}
    words = ("slurm", "lint", script.name, "--ignore", ",".join(sorted(errors)))
    done = dslaunch(*words)
    assert done.returncode == 0
    assert done.stdout.endswith("(2 ignored)\n")
    assert dslaunch(*words, "--strict").returncode == 3


def test_several_scripts_are_read_at_once(script: Path, dslaunch: Dslaunch) -> None:
    other = script.with_name("other.sbatch")
    other.write_text("#!/bin/bash\n")
    done = dslaunch("slurm", "lint", other.name, script.name, "--json")
    assert {each["file"] for each in json.loads(done.stdout)} == {"train.sbatch"}
    assert done.returncode == 3
