"""What the lint says of sbatch scripts is what real SLURM does with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dslaunch.slurm.grammar import LATER, SBATCH, SRUN
from dslaunch.slurm.lint import fixed
from dslaunch.slurm.rules.counts import SET_BY
from tests.testbed.scheduler import settle, submit
from tests.testbed.vcluster import CONTROL, VirtualCluster

SCRIPTS = Path(__file__).parents[1] / "unit/slurm/lint"
REFUSED = (
    *("no-shebang", "dos", "misspelt-option", "ambiguous-option", "word-in-directive"),
    *("equals-behind-a-short-option", "variable-in-nodes"),
)
LARGE = ("torchrun-c10d", "launcher-in-a-variable")
"""Good scripts for more nodes than there are here."""
ELSEWHERE = ("options-of-plugins", "gpus-with-the-partition")
"""Good scripts for sites with plugins and partitions that are not here."""
FOUR = ("--nodes=4", "--ntasks-per-node=1")
Start = Callable[..., VirtualCluster]


@pytest.fixture
def eight_gpus(can_have_slurm: None, virtual_cluster: Start) -> Iterator[VirtualCluster]:
    """Four nodes with as many GPUs as the scripts ask for."""
    cluster = virtual_cluster(nodes=4, slurm=True, gres="node*=gpu:a100:8")
    yield cluster
    settle(cluster)


UNKNOWN = "unrecognized option"


def test_every_option_is_one_that_slurm_knows(slurm_cluster: VirtualCluster) -> None:
    """22.05 here; later releases' options and those of plugins are from their sources."""
    for program, grammar in (("sbatch", SBATCH), ("srun", SRUN)):
        own = sorted(grammar.names() - LATER - grammar.plugins)
        asked = "; ".join(f"{program} --{name} --usage 2>&1 | head -n 3" for name in own)
        said = slurm_cluster.run(CONTROL, ["bash", "-c", asked]).stdout
        assert [line for line in said.splitlines() if UNKNOWN in line] == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tasks-per", "ntasks-per-node"),
        ("time-m", "time-min"),
        ("nodel", "nodelist"),
        ("gp", "gp"),
        ("ntasks-per", "ntasks-per"),
        ("nodess", "nodess"),
        ("share", "share"),
        ("workdir", "workdir"),
    ],
)
def test_an_abbreviation_is_taken_as_slurm_takes_it(
    slurm_cluster: VirtualCluster, name: str, meant: str
) -> None:
    done = slurm_cluster.run(CONTROL, ["sbatch", f"--{name}=1", "--usage"])
    wrong = UNKNOWN in done.stderr or "ambiguous" in done.stderr
    assert (SBATCH.full(name), wrong) == (meant, meant not in SBATCH.names())


def test_a_list_in_an_option_becomes_the_program(slurm_cluster: VirtualCluster) -> None:
    script = 'a=(node1 node2)\nsrun --nodes=1 --nodelist="${a[@]}" hostname'
    job = submit(slurm_cluster, script, "--nodes=2")
    job.wait("FAILED")
    assert "node2: No such file or directory" in job.output


def test_srun_gives_up_after_its_wait(slurm_cluster: VirtualCluster) -> None:
    rank = "bash -c '[ $SLURM_PROCID != 0 ] || exit 3; sleep 30'"
    command = f"srun --nodes=2 --wait=2 {rank}; echo $SECONDS"
    done = slurm_cluster.run(CONTROL, ["bash", "-c", command])
    assert int(done.stdout.split()[-1]) < 20


def refused(cluster: VirtualCluster, text: str, *options: str) -> str:
    """What `sbatch --test-only` has against a script; empty when it would take it."""
    (cluster.shared / "x.sbatch").write_bytes(text.encode())
    command = ["sbatch", "--test-only", *options, "x.sbatch"]
    done = cluster.run(CONTROL, command, cwd="/shared")
    return done.stderr if done.returncode else ""


def test_good_scripts_are_accepted_and_bad_ones_after_their_fix(
    eight_gpus: VirtualCluster,
) -> None:
    for path in sorted((SCRIPTS / "good").glob("*.sbatch")):
        if "hetjob" not in path.read_text() and path.stem not in ELSEWHERE:
            fewer = ["--nodes=4"] if path.stem in LARGE else []
            assert refused(eight_gpus, path.read_text(), *fewer) == "", path.name
    for name in REFUSED:
        text = (SCRIPTS / f"traps/{name}.sbatch").read_bytes().decode()
        mended = fixed(text)
        assert refused(eight_gpus, text), name
        assert mended == text or not refused(eight_gpus, mended), name


def test_a_rank_in_double_quotes_is_zero_everywhere_before_the_fix(
    slurm_cluster: VirtualCluster,
) -> None:
    script = "srun bash -c \"python3 -c 'import sys; print(sys.argv[1])' $SLURM_PROCID\""
    for text, ranks in ((script, ["0"] * 4), (fixed(f"#!/bin/sh\n{script}"), list("0123"))):
        job = submit(slurm_cluster, text, *FOUR)
        job.wait("COMPLETED")
        assert sorted(job.output.split()) == ranks


def test_a_missing_output_directory_fails_the_job_without_a_log(
    slurm_cluster: VirtualCluster,
) -> None:
    job = submit(slurm_cluster, "echo hello", "--output=nowhere/%j.out")
    job.wait("FAILED")
    assert not (slurm_cluster.shared / "nowhere").exists()


def test_a_hash_cuts_a_directive(slurm_cluster: VirtualCluster) -> None:
    job = submit(slurm_cluster, "#SBATCH --job-name=train#3 --nodes=2\ntrue")
    shown = job.show()
    assert (shown["JobName"], shown["NumNodes"][0]) == ("train", "1")


def test_directives_behind_a_command_are_not_read(slurm_cluster: VirtualCluster) -> None:
    job = submit(slurm_cluster, "true\n#SBATCH --job-name=late")
    assert job.show()["JobName"] == "sbatch"


def test_variables_are_there_only_for_those_who_ask(slurm_cluster: VirtualCluster) -> None:
    names = sorted(SET_BY)
    script = "\n".join(f'echo "{name}=${{{name}-unset}}"' for name in names)
    job = submit(slurm_cluster, script, "--nodes=2", "--gres=gpu:2")
    job.wait("COMPLETED")
    assert job.output.split() == [f"{name}=unset" for name in names]


def test_typed_gpus_and_several_nodes_make_variables_that_are_no_numbers(
    slurm_cluster: VirtualCluster,
) -> None:
    script = "echo $SLURM_GPUS_PER_NODE $SLURM_GPUS_ON_NODE $SLURM_TASKS_PER_NODE"
    job = submit(slurm_cluster, script, "-N2", "--ntasks-per-node=2", "--gpus-per-node=a100:2")
    job.wait("COMPLETED")
    assert job.output.split() == ["a100:2", "2", "2(x2)"]


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("srun false | cat", "COMPLETED"),
        ("set -o pipefail; srun false | cat", "FAILED"),
        ("srun false & wait", "COMPLETED"),
        ("srun false & wait $!", "FAILED"),
        ("srun false; echo end", "COMPLETED"),
    ],
)
def test_exit_codes_are_lost_as_it_says(
    slurm_cluster: VirtualCluster, script: str, state: str
) -> None:
    assert submit(slurm_cluster, script).wait("COMPLETED", "FAILED") == state


def test_a_rank_waits_for_others_that_failed_unless_they_are_to_be_killed(
    slurm_cluster: VirtualCluster,
) -> None:
    rank = "bash -c '[ $SLURM_PROCID != 0 ] || exit 3; sleep 8'"
    done = slurm_cluster.run(CONTROL, ["bash", "-c", f"time srun --nodes=2 -K1 {rank}"])
    patient = slurm_cluster.run(CONTROL, ["bash", "-c", f"time srun --nodes=2 {rank}"])
    seconds = [float(one.stderr.split("real\t0m")[1].split("s")[0]) for one in (done, patient)]
    assert seconds[0] < 7 < seconds[1]
