"""Directives of the user's stand in the place of our own options, and what follows from them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given as given_by
from hypothesis import strategies as st

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Slurm
from dslaunch.cluster.select import Selection, select
from dslaunch.launch.assume import assume
from dslaunch.launch.job import Job
from dslaunch.render.batch import Batch, grouped
from dslaunch.render.directives import directives
from dslaunch.render.launch import Launch
from dslaunch.render.sbatch import sbatch
from dslaunch.slurm.directive_settings import EXCLUSIVE, apply_directives, options_in, unusable

NODES = "{host: 'n[1-2]', slots: 2}"
KINDS = "{host: n1, slots: 2}, {host: n2, slots: 1}"


def batch(slurm: Slurm, nodes: str = NODES, launcher: str = "torchrun") -> Batch:
    cluster = parse_cluster(f"nodes: [{nodes}]\n", "c.yaml")
    allocation = select(cluster, Selection())
    job = Job(program="train.py", launcher=launcher)
    decided = assume(cluster, allocation, "/tmp")
    return Batch(Launch("c", allocation, job, decided), apply_directives(slurm))


def rendered(*given: str, nodes: str = NODES, **settings: str) -> list[str]:
    """The lines of a script with these directives, and plain settings beside them."""
    made = batch(Slurm(options=tuple(settings.items()), directives=given), nodes)
    return list(directives(made, grouped(made)))


def step(*given: str, **settings: str) -> str:
    """The srun command of such a script."""
    made = batch(Slurm(options=tuple(settings.items()), directives=given))
    found = re.search(r"^start srun (?:.*\\\n)*.*$", sbatch(made), re.M)
    assert found is not None
    return found[0]


@pytest.mark.parametrize(
    ("directive", "line"),
    [
        ("-J mine", "--job-name=mine"),
        ("--job-name=mine", "--job-name=mine"),
        ("-o out/%j.txt", "--output=out/%j.txt"),
        ("-N 3", "--nodes=3"),
        ("-N3", "--nodes=3"),
        ("--nodes 3", "--nodes=3"),
        ("-t 2:00:00", "--time=2:00:00"),
        ("-p short", "--partition=short"),
        ("--part=short", "--partition=short"),
        ("-c 4", "--cpus-per-task=4"),
        ("--mem=4G", "--mem=4G"),
        ("-d singleton", "--dependency=singleton"),
        ("-D /elsewhere", "--chdir=/elsewhere"),
        ("--error 'a b.err'", '--error="a b.err"'),
        ("-e x.err", "--error=x.err"),
        ("--gpus-per-node=a100:2", "--gpus-per-node=a100:2"),
        ("--hint=nomultithread", "--hint=nomultithread"),
        ("--site-plugin=7", "--site-plugin=7"),
    ],
)
def test_a_directive_takes_the_place_of_our_option(directive: str, line: str) -> None:
    lines = rendered(directive, partition="gpu", time="1:00", mem="0", cpus_per_task="8")
    names = [text.partition("=")[0] for text in lines]
    assert line in lines
    assert len(names) == len(set(names)), lines


@pytest.mark.parametrize(
    ("given", "settings", "theirs", "ours"),
    [
        (["--oversubscribe"], {}, "--oversubscribe", "--exclusive"),
        (["-s"], {}, "-s", "--exclusive"),
        (["--mem-per-cpu=4G"], {"mem": "0"}, "--mem-per-cpu=4G", "--mem="),
        (["--mem-per-gpu=40G"], {"mem": "0"}, "--mem-per-gpu=40G", "--mem="),
        (["--cpus-per-gpu=8"], {"cpus_per_task": "4"}, "--cpus-per-gpu=8", "--cpus-per-task"),
        (["--gpus-per-node=2"], {}, "--gpus-per-node=2", "--gres"),
        (["-G 4"], {}, "-G 4", "--gres"),
        (["--gres=gpu:a100:2"], {}, "--gres=gpu:a100:2", "--gres=gpu:2"),
        (["--gres=gpu:2", "--gpus-per-node=2"], {}, "--gpus-per-node=2", "--gres=gpu:2,"),
        (["--ntasks=8"], {}, "--ntasks=8", "--ntasks-per-node"),
        (["--ntasks-per-gpu=1"], {}, "--ntasks-per-gpu=1", "--ntasks-per-node"),
        (["--requeue"], {}, "--requeue", "--no-requeue"),
        (["--nodefile=/f"], {"nodelist": "n1"}, "--nodefile=/f", "--nodelist"),
        (["--nodes=2-4"], {}, "--nodes=2-4", "--nodes=2\0"),
    ],
)
def test_options_that_exclude_each_other_do_not_arise(
    given: list[str], settings: dict[str, str], theirs: str, ours: str
) -> None:
    lines = rendered(*given, **settings)
    assert theirs in lines
    assert not any(f"{line}\0".startswith(ours) for line in lines), lines


def test_of_two_directives_the_last_one_wins() -> None:
    lines = rendered("--oversubscribe", "--exclusive=user", "-t 1", "--time=2", "--mem-per-cpu=1G",
                     "--mem=2G")  # fmt: skip
    assert {"--exclusive=user", "--time=2", "--mem=2G"} <= set(lines)
    assert not {"--oversubscribe", "--time=1", "--mem-per-cpu=1G"} & set(lines)


def test_local_disks_are_requested_beside_the_gpus() -> None:
    assert "--gres=gpu:2,lscratch:100" in rendered("--gres=lscratch:100")


def test_several_options_of_one_directive_are_taken_apart() -> None:
    lines = rendered("-N 3 -t 5 --hold # soon", time="1:00")
    assert {"--nodes=3", "--time=5", "--hold"} <= set(lines)
    assert "--time=1:00" not in lines


def test_a_directive_with_stray_words_is_left_as_it_is() -> None:
    assert "hetjob --mem=1G" in rendered("hetjob --mem=1G")


def test_every_component_gets_the_directives() -> None:
    lines = rendered("--hint=nomultithread", "-p short", "--mem-per-cpu=1G", nodes=KINDS, mem="0")
    at = lines.index("hetjob")
    for part in (lines[:at], lines[at:]):
        assert {"--hint=nomultithread", "--partition=short", "--mem-per-cpu=1G"} <= set(part)
        assert "--mem=0" not in part


def test_cpus_of_a_directive_reach_srun() -> None:
    assert "--cpus-per-task=4" in step("-c 4", cpus_per_task="16")
    assert "--cpus-per-task" not in step("--cpus-per-gpu=4", cpus_per_task="16")


def test_srun_starts_our_tasks_whatever_the_job_has() -> None:
    words = step("--ntasks-per-node=8").split()
    assert {"--ntasks=2", "--ntasks-per-node=1"} <= set(words)
    assert "--ntasks" not in step()


def test_what_follows_from_directives_is_in_the_settings() -> None:
    made = apply_directives(
        Slurm(
            directives=("-J mine", "-o a/b.out", "-N 3", "--no-requeue", "--signal=B:USR2@60"),
            requeue=2,
        )
    )
    assert (made.job_name, made.output, made.nodes) == ("mine", "a/b.out", "3")
    assert (made.requeue, made.signal, made.directives) == (0, "B:USR2@60", ())


def test_a_signal_for_the_ranks_themselves_is_slurms_to_send() -> None:
    made = apply_directives(Slurm(directives=("--signal=USR1@60",), signal="USR2@60"))
    assert made.signal is None
    assert made.directives == ("--signal=USR1@60",)


def test_part_of_a_node_is_not_asked_for_exclusively() -> None:
    assert apply_directives(Slurm(directives=("--mem-per-gpu=4G",))).exclusive == "false"
    kept = Slurm(directives=("--mem-per-gpu=4G",), exclusive="true")
    assert apply_directives(kept).exclusive == "true"


def test_options_that_prevent_a_submission_are_removed_and_reported() -> None:
    given = ("--wait", "--hold")
    assert apply_directives(Slurm(directives=given)).directives == ("--hold",)
    assert len(list(unusable(given))) == 1


def test_settings_without_directives_stay_as_they_are() -> None:
    slurm = Slurm((("time", "1"),), signal="USR1@60", requeue=1, setup=("a",))
    assert apply_directives(slurm) == slurm


LETTERS = st.text("-=:,@ #\"'\\abcegmnopst0129", max_size=30)


@given_by(st.lists(st.sampled_from(("-N 2", "--mem=1G", "--gres=gpu:1", "-s")) | LETTERS))
def test_any_directives_give_settings_that_are_settled(directives: list[str]) -> None:
    once = apply_directives(Slurm((("mem", "0"),), directives=tuple(directives)))
    again = apply_directives(once)
    assert again.options == once.options
    given = [one.name for text in once.directives for one in options_in(text)]
    keys = [key.replace("_", "-") for key, _ in once.options]
    ours = {*keys} - {*once.displaced}
    for group in EXCLUSIVE:
        assert not (ours & group and {*given} & group)
