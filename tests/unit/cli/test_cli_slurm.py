"""`dslaunch slurm` without a SLURM: scripts rendered, and what is told where there is none."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

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
    return tmp_path


def dslaunch(project: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dslaunch", "slurm", *words], cwd=project, text=True,
        capture_output=True, env={**os.environ, "DSLAUNCH_STATE": str(project / "s")} | env,
    )  # fmt: skip


def test_render_alone_is_enough_where_the_file_names_a_job(project: Path) -> None:
    done = dslaunch(project, "--render")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n# cluster: torchrun, 4 x 2 ranks")
    assert "train.py --lr 1e-4" in done.stdout
    assert "note: without `slurm.time`" in done.stderr
    assert not (project / "s").exists()


def test_selection_and_settings_are_in_the_script(project: Path) -> None:
    words = ["--render", "--exclude", "n3", "--nodes", "2", "--set", "time=90", "other.py", "--x"]
    script = dslaunch(project, "cluster.yaml", *words).stdout
    for line in ("--nodes=2", "--exclude=n3", "--time=90", "--job-name=other"):
        assert f"#SBATCH {line}\n" in script
    assert "other.py --x &\n" in script
    pinned = dslaunch(project, "--render", "--include", "n[1-2]").stdout
    assert "#SBATCH --nodelist=n[1-2]\n" in pinned


def test_a_deepspeed_config_says_that_checkpoints_are_not_shared(project: Path) -> None:
    (project / "cluster.yaml").write_text(f"{FILE}storage: {{shared: false}}\n")
    (project / "ds.json").write_text('{"train_batch_size": 8}')
    script = dslaunch(project, "--render", "train.py", "--deepspeed_config", "ds.json").stdout
    assert "use_node_local_storage" in script
    assert '--deepspeed_config "$DSLAUNCH_NODE_DIR"/ds_config.json' in script


def test_the_script_can_be_written_to_a_file(project: Path) -> None:
    assert dslaunch(project, "-o", "job.sbatch").returncode == 0
    assert (project / "job.sbatch").read_text().startswith("#!/bin/bash")


def test_a_wrong_setting_is_a_wrong_command_line(project: Path) -> None:
    done = dslaunch(project, "--render", "--set", "partiton=x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean `partition`" in done.stderr


def test_where_there_is_no_sbatch_it_is_said(project: Path) -> None:
    done = dslaunch(project, "--detach", PATH="/nowhere")
    assert done.returncode == 6
    assert "sbatch is not here" in done.stderr


def test_a_refusal_names_the_line_and_leaves_no_run(project: Path) -> None:
    (project / "sbatch").write_text(SBATCH)
    (project / "sbatch").chmod(stat.S_IRWXU)
    path = f"{project}:{os.environ['PATH']}"
    done = dslaunch(project, "--detach", PATH=path, SEEN=str(project / "seen"), SLURM_JOB_ID="7")
    assert done.returncode == 1
    assert "cluster.yaml:2:9: slurm.partition: gpu" in done.stderr
    assert (project / "seen").read_text().startswith("#!/bin/bash")
    assert "SLURM_JOB_ID" not in (project / "seen.env").read_text()
    assert not (project / "s").exists()


def test_a_word_leads_to_the_lint(project: Path) -> None:
    (project / "job.sbatch").write_text("#!/bin/bash\nsrun torchrun --nnode 2 train.py\n")
    done = dslaunch(project, "lint", "job.sbatch")
    assert "job.sbatch:" in done.stdout


def test_two_things_to_do_with_a_script_are_refused(project: Path) -> None:
    done = dslaunch(project, "--render", "--check")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--render (or --output), --check and --detach: one of them" in done.stderr


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
    assert "partition gpu: SLURM's controller does not answer" in done.stderr
    assert "hint: try again; `scontrol ping` asks it" in done.stderr


@pytest.mark.parametrize("command", ["run", "preflight", "render hostfile"])
def test_outside_an_allocation_it_is_said(project: Path, command: str) -> None:
    words = [sys.executable, "-m", "dslaunch", *command.split(), "--slurm"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    done = subprocess.run(words, cwd=project, text=True, capture_output=True, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "this is no allocation of SLURM" in done.stderr
