"""The Python API with real processes on this machine, as the pages and the example use it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.local.conftest import left_over

import dslaunch

ROOT = Path(__file__).parents[2]
HELLO = """
import os, sys, time
print("rank", os.environ["RANK"], *sys.argv[1:], flush=True)
time.sleep(float(os.environ.get("SECONDS_TO_SLEEP", "0")))
"""
STRICT = """
transport: local
nodes: [{host: node1, slots: 1}]
preflight: {limits: {fs.free: {fail: 1000000, warn: 1000000}}}
"""
INVALID_ACCOUNT = (
    "Batch job submission failed: Invalid account or account/partition combination specified"
)
NO_CLI = (
    'import sys; assert not {"typer", "click", "rich"} & {n.partition(".")[0] for n in sys.modules}'
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a script and the cluster files."""
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    shutil.copytree(ROOT / "clusters", work / "clusters")
    (work / "hello.py").write_text(HELLO)
    return work


Job = Callable[..., dslaunch.Job]


@pytest.fixture
def cluster(project: Path) -> dslaunch.Cluster:
    return dslaunch.Cluster.load("clusters/local.yaml")


@pytest.fixture
def job(cluster: dslaunch.Cluster) -> Job:
    def make(*args: str, seconds: float = 0) -> dslaunch.Job:
        env = {"SECONDS_TO_SLEEP": str(seconds)}
        return dslaunch.Job.on(cluster, "hello.py", args, launcher="direct", env=env)

    return make


def test_a_run_is_followed_and_ends(cluster: dslaunch.Cluster, job: Job) -> None:
    lines: list[dslaunch.Line] = []
    events: list[dslaunch.Event] = []
    with dslaunch.run(cluster, job("--x"), on_line=lines.append, on_event=events.append) as run:
        followed = [(line.rank, line.text) for line in run.logs(follow=True)]
        outcome = run.wait(timeout=300)
    assert (outcome.status, outcome.exit_code) == ("ok", 0)
    assert sorted(followed) == [(rank, f"rank {rank} --x") for rank in range(4)]
    assert sorted((line.rank, line.text) for line in lines) == sorted(followed)
    assert [line.text for line in run.logs(ranks=[2])] == ["rank 2 --x"]
    assert {"connected", "started", "exit"} <= {event.kind for event in events}
    assert run.status().state == "succeeded"
    assert run.plan.world_size == 4
    assert left_over(run.name) == {}


def test_a_run_is_stopped_from_another_thread(cluster: dslaunch.Cluster, job: Job) -> None:
    run = dslaunch.run(cluster, job(seconds=300))
    next(iter(run.logs(follow=True)))
    assert run.status().state == "running"
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.1)
    stopper = threading.Thread(target=run.stop)
    stopper.start()
    stopper.join()
    outcome = run.wait(timeout=300)
    assert (outcome.status, outcome.reason.code) == ("interrupted", "interrupted")
    assert left_over(run.name) == {}


def test_a_run_does_not_outlive_its_block(cluster: dslaunch.Cluster, job: Job) -> None:
    with pytest.raises(KeyError), dslaunch.run(cluster, job(seconds=300)) as run:
        raise KeyError("of the user's code")
    assert run.done
    assert left_over(run.name) == {}


def test_a_run_that_cannot_start_raises_its_error(cluster: dslaunch.Cluster) -> None:
    with pytest.raises(dslaunch.PlanError) as told:
        dslaunch.run(cluster, dslaunch.Job.on(cluster, "gone.py"))
    assert told.value.exit_code == 3


def test_two_runs_go_on_at_the_same_time_in_an_event_loop(
    cluster: dslaunch.Cluster, job: Job
) -> None:
    async def both() -> list[str]:
        runs = [asyncio.to_thread(dslaunch.run, cluster, job(str(n))) for n in range(2)]
        ends = [asyncio.to_thread(run.wait) for run in await asyncio.gather(*runs)]
        return [outcome.status for outcome in await asyncio.gather(*ends)]

    assert asyncio.run(both()) == ["ok", "ok"]


def test_a_preflight_reports_what_each_node_answered(cluster: dslaunch.Cluster) -> None:
    seen: set[tuple[str, str]] = set()
    report = dslaunch.preflight(
        cluster, only=["fs.free"], on_progress=lambda host, step: seen.add((host, step))
    )
    assert {finding.check for finding in report.findings} == {"ssh.connect", "fs.free"}
    assert {("node1", "answered"), ("node2", "answered")} <= seen


# ---------------------------------------------------------------- runs of earlier


def test_a_detached_run_is_found_followed_and_stopped_in_a_thread(
    cluster: dslaunch.Cluster, job: Job
) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def use() -> tuple[str, ...]:
        started = dslaunch.run_detached(cluster, job(seconds=300))
        found = dslaunch.find_run(started.name)
        assert found.record is not None
        assert found.record.detached
        first = next(found.logs(ranks=[1], follow=True))
        assert (first.rank, first.text) == (1, "rank 1")
        assert found.status().state == "running"
        with pytest.raises(TimeoutError):
            found.wait(timeout=0.1)
        return found.stop(grace=1).ended

    async def within_an_event_loop() -> tuple[str, ...]:
        return await asyncio.to_thread(use)

    assert asyncio.run(within_an_event_loop()) == ("node1", "node2")
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    run = dslaunch.find_run()
    assert run.wait(timeout=300).reason.code == "stopped"
    assert left_over(run.name) == {}


def test_runs_are_listed_with_their_states(cluster: dslaunch.Cluster, job: Job) -> None:
    with dslaunch.run(cluster, job()) as first:
        first.wait(timeout=300)
    with dslaunch.run(cluster, job(seconds=300)) as second:
        known = dslaunch.runs()
        second.stop()
    assert [handle.name for handle in known.handles] == [first.name, second.name]
    assert [status.state for status in known.statuses] == ["succeeded", "running"]
    assert (known.failures, known.errors) == ({}, ())
    assert [line.text for line in dslaunch.find_run(first.name).logs(ranks=[0])] == ["rank 0"]
    assert dslaunch.find_run(first.name).wait().status == "ok"


def test_an_unknown_run_is_an_error_of_usage(cluster: dslaunch.Cluster) -> None:
    with pytest.raises(dslaunch.UsageError):
        dslaunch.find_run("gone")
    with pytest.raises(dslaunch.UsageError):
        dslaunch.find_run("gone", cluster)


# ---------------------------------------------------------------- recordings


def test_answers_are_saved_and_judged_again(cluster: dslaunch.Cluster) -> None:
    report = dslaunch.preflight(cluster, only=["fs.free", "gpu.count"])
    report.facts.save("facts.json")
    again = dslaunch.replay_preflight(dslaunch.Recording.load("facts.json"))
    assert again.findings == report.findings
    stricter = dslaunch.Cluster.parse(STRICT)
    (finding,) = (
        finding
        for finding in dslaunch.replay_preflight(again.facts, stricter, only=["fs.free"]).findings
        if finding.check == "fs.free"
    )
    assert finding.hosts == ("node1",)
    done = subprocess.run(
        [sys.executable, "-m", "dslaunch", "preflight", "--from", "facts.json", "--json"],
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert len(json.loads(done.stdout)["findings"]) == len(report.findings)


def test_a_cluster_made_in_python_cannot_be_saved() -> None:
    made = dslaunch.Cluster("made", dslaunch.Cluster.parse(STRICT).nodes, transport="local")
    with pytest.raises(dslaunch.UsageError):
        dslaunch.preflight(made, only=["fs.free"]).facts.as_json()


# ---------------------------------------------------------------- SLURM


@pytest.fixture
def slurm_site(project: Path) -> dslaunch.Cluster:
    text = (project / "clusters/slurm-site.yaml").read_text("utf-8")
    return dslaunch.Cluster.parse(text.replace("/fsx/team/train", str(project)))


def program(directory: Path, name: str, text: str) -> None:
    """Put a program where SLURM's would be."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    (directory / name).chmod(0o755)


def test_a_slurm_job_is_rendered_and_linted(slurm_site: dslaunch.Cluster) -> None:
    job = dslaunch.Job.on(slurm_site, "hello.py", ["--x"])
    made = dslaunch.slurm_job(slurm_site, job, nodes=2, settings={"time": "1:00:00"})
    assert "#SBATCH --nodes=2\n" in made.script
    assert "#SBATCH --time=1:00:00\n" in made.script
    assert made.problems == ()
    assert [remark.level for remark in made.lint().remarks if remark.level == "error"] == []
    supervised = dslaunch.slurm_job(slurm_site, job, supervised=True)
    assert "dslaunch run --slurm" in supervised.script


def test_a_slurm_job_with_missing_files_is_not_submitted(slurm_site: dslaunch.Cluster) -> None:
    job = dslaunch.Job.on(slurm_site, "gone.py")
    with pytest.raises(dslaunch.PlanError):
        dslaunch.slurm_job(slurm_site, job).submit()
    assert dslaunch.slurm_job(slurm_site, job, force=True).check() != ()


def test_a_slurm_job_is_submitted_and_found_by_its_number(
    slurm_site: dslaunch.Cluster, project: Path
) -> None:
    job = dslaunch.Job.on(slurm_site, "hello.py")
    programs = project / "bin"
    programs.mkdir()
    environ = {**os.environ, "PATH": str(programs)}
    with pytest.raises(dslaunch.ToolMissingError):
        dslaunch.slurm_job(slurm_site, job, environ=environ).submit()
    environ["PATH"] = f"{programs}:/usr/bin:/bin"
    program(programs, "sbatch", f"echo 'sbatch: error: {INVALID_ACCOUNT}' >&2; exit 1")
    with pytest.raises(dslaunch.RefusedError) as refused:
        dslaunch.slurm_job(slurm_site, job, environ=environ).submit()
    assert refused.value.error_code == "slurm-refused"
    assert "account" in refused.value.refusal.options
    notices: list[str] = []
    program(programs, "sbatch", "echo 'sbatch: welcome' >&2; echo 4242")
    program(programs, "squeue", "echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1")
    made = dslaunch.slurm_job(slurm_site, job, environ=environ, on_notice=notices.append)
    run = made.submit()
    assert notices == ["welcome"]
    found = dslaunch.find_run("4242", environ=environ)
    assert found.name == run.name
    assert found.record is not None
    assert found.record.slurm is not None
    assert found.status().state == "unknown"
    with pytest.raises(dslaunch.DslaunchError, match="controller"):
        found.stacks()


def test_nodes_of_an_allocation_take_the_place_of_the_files(slurm_site: dslaunch.Cluster) -> None:
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "a100-[002-003]",
        "SLURM_GPUS_ON_NODE": "2",
        "PATH": "",
    }
    cluster = dslaunch.allocated(slurm_site, environ=environ)
    assert [node.host for node in cluster.nodes] == ["a100-002", "a100-003"]
    chosen = dslaunch.with_transport(cluster, "openssh", environ=environ)
    assert chosen.transport == "openssh"
    assert dslaunch.with_transport(cluster, in_allocation=True, environ=environ) == cluster
    with pytest.raises(dslaunch.UsageError):
        dslaunch.allocated(slurm_site, environ={})
    with pytest.raises(dslaunch.UsageError):
        dslaunch.with_transport(cluster, "pigeon", environ=environ)


def test_a_script_is_linted_from_a_file_or_a_text(project: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=2\ntorchrun train.py\n"
    (project / "job.sbatch").write_text(text, "utf-8")
    from_file = dslaunch.lint_script("job.sbatch")
    assert from_file.remarks
    assert dslaunch.lint_script("job.sbatch", text=text).remarks == from_file.remarks
    rule = from_file.remarks[0].rule
    assert dslaunch.lint_script("job.sbatch", ignore=[rule]).ignored > 0


# ---------------------------------------------------------------- pages and examples


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, timeout=300, check=False
    )


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)


@pytest.mark.usefixtures("project")
def test_the_code_of_the_page_runs_and_loads_nothing_of_the_command_line() -> None:
    code = blocks(ROOT / "docs/howto/use-from-python.md")
    assert len(code) >= 7
    done = python("\n".join([*code, NO_CLI]))
    assert done.returncode == 0, done.stderr
    assert "rank 0 --steps 3" in done.stdout
    assert "PlanError script-missing 3" in done.stdout
    assert "not submitted: " in done.stdout
    assert "zero_optimzation" in done.stdout
    assert done.stderr == ""


HELLO_OR_UNKNOWN_OPTION = """
import os, sys
print("rank", os.environ["RANK"], *sys.argv[1:])
if "--no-such-option" in sys.argv:
    sys.exit("unknown option")
"""


@pytest.mark.usefixtures("project")
def test_the_cells_of_the_page_on_notebooks_run_one_after_the_other() -> None:
    text = (ROOT / "clusters/local.yaml").read_text("utf-8")
    Path("cluster.yaml").write_text(text.replace("torchrun", "direct"), "utf-8")
    Path("hello.py").write_text(HELLO_OR_UNKNOWN_OPTION, "utf-8")
    done = python("\n".join(blocks(ROOT / "docs/howto/jupyter.md")))
    assert done.returncode == 0, done.stderr
    # the cell that does not follow the run may come before its first line
    assert done.stdout.count("rank 0 --steps 3") in (2, 3)
    assert "rank-failed" not in done.stdout
    assert "unknown option" in done.stdout


@pytest.mark.usefixtures("project")
def test_the_code_of_the_reference_and_the_readme_runs() -> None:
    for page in (ROOT / "docs/reference/api.md", ROOT / "README.md"):
        code = [block for block in blocks(page) if "import dslaunch" in block]
        assert code
        done = python("\n".join(code).replace("train.py", "hello.py"))
        assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("project")
def test_the_example_runs() -> None:
    example = ROOT / "examples/from_python.py"
    command = [sys.executable, str(example), "clusters/local.yaml", "hello.py", "--epochs", "1"]
    done = subprocess.run(
        command, text=True, capture_output=True, env=os.environ, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "node1 0 rank 0 --epochs 1" in done.stdout.splitlines()
