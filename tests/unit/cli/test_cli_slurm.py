"""`dslaunch slurm` without a SLURM: scripts rendered, and what is told where there is none."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Called

from dslaunch.render.notes import RenderNote
from dslaunch.slurm.refusal import EXPLANATIONS, Refused

Slurm = Callable[..., Called]

FILE = """\
nodes: [{host: 'n[1-4]', slots: 2}]
slurm: {partition: gpu}
job: {script: train.py, args: [--lr, 1e-4]}
"""
SBATCH = """#!/bin/sh
cat >"$SEEN"
env >"$SEEN.env"
echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2
exit 1
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(FILE)
    (tmp_path / "train.py").touch()
    return tmp_path


@pytest.fixture
def slurm(project: Path, dslaunch: Callable[..., Called], monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Call `dslaunch slurm` in the project, with these words and environment."""
    monkeypatch.setenv("DSLAUNCH_STATE", str(project / "s"))

    def call(*words: str, **env: str) -> Called:
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            return dslaunch("slurm", *words)

    return call


def test_render_alone_is_enough_where_the_file_names_a_job(project: Path, slurm: Slurm) -> None:
    done = slurm("--render")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n# cluster: ")
    assert "train.py --lr 1e-4" in done.stdout
    assert f"note: {RenderNote.DEFAULT_TIME_LIMIT.text}\n" in done.stderr
    assert not (project / "s").exists()


@pytest.mark.parametrize("words", [("nope.py",), ("sub/train.py",), ("--no-python", "./nope")])
def test_a_script_that_is_not_there_is_not_submitted(
    project: Path, slurm: Slurm, words: tuple[str, ...]
) -> None:
    (project / "sbatch").write_text("#!/bin/sh\ntouch submitted\n")
    (project / "sbatch").chmod(stat.S_IRWXU)
    done = slurm(*words, PATH=f"{project}:{os.environ['PATH']}")
    assert done.returncode == 3
    assert words[-1].removeprefix("./") in done.stderr
    assert str(project) in done.stderr
    assert not (project / "submitted").exists()


def test_a_deepspeed_config_with_errors_is_not_submitted_unless_forced(
    project: Path, slurm: Slurm
) -> None:
    (project / "ds.json").write_text('{"zero_optimisation": {}}')
    words = ("--render", "cluster.yaml", "train.py", "--deepspeed_config", "ds.json")
    refused = slurm(*words)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "ds.json:1:2: zero_optimisation" in refused.stderr
    forced = slurm("--force", *words)
    assert forced.returncode == 0
    assert "zero_optimisation" in forced.stderr


def test_a_config_that_code_names_is_warned_about_where_storage_is_not_shared(
    project: Path,
    slurm: Slurm,
) -> None:
    (project / "cluster.yaml").write_text(f"{FILE}storage: {{shared: false}}\n")
    (project / "ds.json").write_text("{}")
    (project / "train.py").write_text("a = TrainingArguments(deepspeed='ds.json')\n")
    done = slurm("--render")
    assert done.returncode == 0
    assert "train.py:1" in done.stderr
    assert "use_node_local_storage" in done.stderr


def test_selection_and_settings_are_in_the_script(slurm: Slurm) -> None:
    words = ["--render", "--exclude", "n3", "--nodes", "2", "--set", "time=90", "other.py", "--x"]
    script = slurm("cluster.yaml", *words).stdout
    for line in ("--nodes=2", "--exclude=n3", "--time=90", "--job-name=other"):
        assert f"#SBATCH {line}\n" in script
    assert "other.py --x\nleave\n" in script
    pinned = slurm("--render", "--include", "n[1-2]").stdout
    assert "#SBATCH --nodelist=n[1-2]\n" in pinned


def test_a_deepspeed_config_says_that_checkpoints_are_not_shared(
    project: Path, slurm: Slurm
) -> None:
    (project / "cluster.yaml").write_text(f"{FILE}storage: {{shared: false}}\n")
    (project / "ds.json").write_text('{"train_batch_size": 8}')
    script = slurm("--render", "train.py", "--deepspeed_config", "ds.json").stdout
    assert "use_node_local_storage" in script
    assert '--deepspeed_config "$DSLAUNCH_NODE_DIR"/ds_config.json' in script


def test_the_script_can_be_written_to_a_file(project: Path, slurm: Slurm) -> None:
    assert slurm("-o", "job.sbatch").returncode == 0
    assert (project / "job.sbatch").read_text().startswith("#!/bin/bash")


def test_a_wrong_setting_is_a_wrong_command_line(slurm: Slurm) -> None:
    done = slurm("--render", "--set", "partiton=x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean `partition`" in done.stderr


def test_a_missing_sbatch_is_code_6(slurm: Slurm) -> None:
    done = slurm("--detach", PATH="/nowhere")
    assert done.returncode == 6
    assert "sbatch not found" in done.stderr


def test_a_refusal_names_the_line_and_leaves_no_run(project: Path, slurm: Slurm) -> None:
    (project / "sbatch").write_text(SBATCH)
    (project / "sbatch").chmod(stat.S_IRWXU)
    path = f"{project}:{os.environ['PATH']}"
    done = slurm("--detach", PATH=path, SEEN=str(project / "seen"), SLURM_JOB_ID="7")
    assert done.returncode == 1
    assert "cluster.yaml:2:9: slurm.partition: gpu" in done.stderr
    assert (project / "seen").read_text().startswith("#!/bin/bash")
    assert "SLURM_JOB_ID" not in (project / "seen.env").read_text()
    assert not (project / "s").exists()


def stub(project: Path, text: str) -> str:
    """Put a program in the place of sbatch; return the PATH that leads to it."""
    (project / "sbatch").write_text(f"#!/bin/sh\n{text}\n")
    (project / "sbatch").chmod(stat.S_IRWXU)
    return f"{project}:{os.environ['PATH']}"


SITE_MESSAGE = "Project g7 has no hours left."
SITE_NOTICE = "sbatch: 12 GPU hours are left."
ESTIMATE = "2026-11-21T08:00:00 using 2 processors"


@pytest.mark.parametrize("how", ["--detach", "--check"])
def test_the_cause_of_a_refusal_comes_before_sbatchs_messages(
    project: Path, slurm: Slurm, how: str
) -> None:
    path = stub(
        project,
        f"cat >/dev/null; echo 'sbatch: error: {SITE_MESSAGE}' >&2\n"
        "echo 'sbatch: error: Batch job submission failed: Invalid qos specification' >&2; exit 1",
    )
    done = slurm(how, "--set", "qos=high", PATH=path)
    assert done.returncode == 1
    ours, blame, slurm, site = [line for line in done.stderr.splitlines() if "error:" in line]
    assert site.endswith(SITE_MESSAGE)
    assert slurm.endswith("Invalid qos specification")
    assert ours.endswith(EXPLANATIONS[Refused.QOS].meaning)
    assert blame.endswith("--set qos=high")


def test_what_the_site_says_of_a_job_that_it_takes_is_shown(project: Path, slurm: Slurm) -> None:
    notice = f"echo '{SITE_NOTICE}' >&2"
    path = stub(project, f"cat >/dev/null; {notice}; echo 12")
    assert SITE_NOTICE in slurm("-d", PATH=path).stderr
    estimate = f"echo 'sbatch: Job 9 to start at {ESTIMATE}' >&2"
    path = stub(project, f"cat >/dev/null; {notice}; {estimate}")
    done = slurm("--check", PATH=path)
    assert SITE_NOTICE in done.stderr
    assert done.stdout.endswith(f": would start at {ESTIMATE}\n")


def test_the_command_line_is_blamed_for_what_it_asks_for(project: Path, slurm: Slurm) -> None:
    path = stub(
        project,
        "cat >/dev/null\n"
        "echo 'sbatch: error: Batch job submission failed: Node count specification invalid' >&2\n"
        "exit 1",
    )
    done = slurm("-d", "-N", "3", PATH=path, SBATCH_PARTITION="no", SBATCH_ACCOUNT="a")
    assert "error: --nodes 3\n" in done.stderr
    assert "cluster.yaml:2:9: slurm.partition: gpu" in done.stderr
    assert "SBATCH_" not in done.stderr


def test_secrets_that_would_not_reach_the_job_are_refused(project: Path, slurm: Slurm) -> None:
    (project / "cluster.yaml").write_text(f"{FILE}secrets: [TOKEN]\n")
    path = stub(project, "touch submitted; echo 12")
    words = ("--force", "-d", "--set", "directives=--export=NONE")
    done = slurm(*words, PATH=path, TOKEN="s")
    assert done.returncode == 3
    assert "--export=NONE" in done.stderr
    by_variable = slurm("-d", PATH=path, TOKEN="s", SBATCH_EXPORT="NONE")
    assert by_variable.returncode == 3
    assert not (project / "submitted").exists()
    rendered = slurm("--render", *words[2:])
    assert (rendered.returncode, "warning: --export=NONE" in rendered.stderr) == (0, True)


def test_missing_files_are_all_reported_before_submission_unless_forced(
    project: Path, slurm: Slurm
) -> None:
    text = FILE.replace("slots: 2}", f"slots: 2, python: {project}/env/bin/python}}")
    (project / "cluster.yaml").write_text(text)
    path = stub(project, "cat >/dev/null; echo 12")
    words = ("cluster.yaml", "trian.py", "--deepspeed_config", "ds.json")
    done = slurm("--detach", *words, PATH=path)
    assert done.returncode == 3
    told = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert ["trian.py" in told[0], "env/bin/python" in told[1], "ds.json" in told[2]] == [True] * 3
    assert "did you mean train.py?" in told[0]
    assert slurm("--check", *words, PATH=path).returncode == 3
    assert slurm("--render", *words).returncode == 0
    assert slurm("--force", "--detach", *words, PATH=path).returncode == 0


def test_the_directories_of_both_outputs_are_made(project: Path, slurm: Slurm) -> None:
    path = stub(project, "cat >/dev/null; echo 12")
    words = ("--set", "directives=-o logs/a/%j.out", "--set", "directives=-e logs/b/%j.err")
    assert slurm("--detach", *words, PATH=path).returncode == 0
    assert (project / "logs/a").is_dir()
    assert (project / "logs/b").is_dir()


def test_a_misplaced_word_suggests_the_lint(project: Path, slurm: Slurm) -> None:
    (project / "job.sbatch").write_text("#!/bin/bash\nsrun torchrun --nnode 2 train.py\n")
    done = slurm("lint", "job.sbatch")
    assert "job.sbatch:" in done.stdout


def test_two_things_to_do_with_a_script_are_refused(slurm: Slurm) -> None:
    done = slurm("--render", "--check")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--render" in done.stderr


def test_a_partition_without_a_controller_says_what_to_do(project: Path) -> None:
    for name in ("scontrol", "sinfo"):
        text = f"#!/bin/sh\necho '{name}: error: Unable to contact slurm controller' >&2\nexit 1\n"
        (project / name).write_text(text)
        (project / name).chmod(stat.S_IRWXU)
    done = subprocess.run(
        [sys.executable, "-m", "dslaunch", "init", "--slurm", "gpu"], cwd=project, text=True,
        capture_output=True, env={**os.environ, "PATH": f"{project}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 2
    explanation = EXPLANATIONS[Refused.CONTROLLER]
    assert f"partition gpu: {explanation.meaning}" in done.stderr
    assert f"hint: {explanation.hint}" in done.stderr


@pytest.mark.parametrize("command", ["run", "preflight", "render hostfile"])
def test_the_option_slurm_outside_an_allocation_is_an_error(project: Path, command: str) -> None:
    words = [sys.executable, "-m", "dslaunch", *command.split(), "--slurm"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    done = subprocess.run(words, cwd=project, text=True, capture_output=True, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "SLURM_JOB_NODELIST" in done.stderr


def test_no_argument_leaves_the_comment_that_says_how_to_render_again(slurm: Slurm) -> None:
    done = slurm("--render", "cluster.yaml", "train.py", "a\ntouch stolen")
    again = done.stdout.splitlines()[3]
    assert again.endswith(r"train.py $'a\x0atouch stolen'")
    function = f'dslaunch() {{ {sys.executable} -m dslaunch "$@"; }}; '
    script = function + again.removeprefix("#")
    same = subprocess.run(["bash", "-c", script], text=True, capture_output=True)
    assert same.stdout == done.stdout
