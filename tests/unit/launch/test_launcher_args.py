"""Options that are passed through to the launcher, and those that the plan decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch import Cluster, plan, select
from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import ErrorCode, UsageError
from dslaunch.launch.assume import assume
from dslaunch.launch.job import Job
from dslaunch.launch.launcher_args import ArgumentFault, fault
from dslaunch.launch.plan import World
from dslaunch.registry import LAUNCHERS
from dslaunch.render.batch import Batch
from dslaunch.render.formats import render
from dslaunch.render.launch import Launch
from dslaunch.render.sbatch import sbatch

TAKING = tuple(name for name in LAUNCHERS.names() if LAUNCHERS.get(name).takes_args)
PASSED = {
    "torchrun": ("--numa-binding=node", "--monitor-interval=1"),
    "elastic": ("--numa_binding=node", "--role=trainer"),
    "deepspeed": ("--bind_cores_to_rank", "--bind_core_list=0-15", "--save_pid=1"),
    "accelerate": ("--config_file=my config.yaml", "--mixed_precision=bf16", "--dynamo_backend=no"),
}
RESERVED = tuple(
    (name, reserved, option)
    for name in TAKING
    for reserved, options in LAUNCHERS.get(name).reserved.items()
    for option in options
)


def two_nodes(more: str = "") -> Cluster:
    return parse_cluster(f"name: p\nnodes: [{{host: 'n[1-2]', slots: 2}}]\n{more}", "c.yaml")


def test_every_launcher_but_direct_takes_options() -> None:
    assert set(TAKING) == set(PASSED) == set(LAUNCHERS.names()) - {"direct"}


@pytest.mark.parametrize("name", TAKING)
def test_options_stand_on_every_nodes_line_before_the_program(name: str) -> None:
    cluster = two_nodes()
    job = Job.on(cluster, "train.py", ["--lr", "1"], launcher=name, launcher_args=PASSED[name])
    world = World(select(cluster), assume(cluster, select(cluster), "/w").rendezvous)
    for placement in world.allocation.placements:
        (process,) = LAUNCHERS.get(name).processes(placement, world, job)
        words = list(process.command.argv)
        first = words.index(PASSED[name][0])
        assert tuple(words[first : first + len(PASSED[name])]) == PASSED[name]
        assert first + len(PASSED[name]) <= words.index("train.py")


@pytest.mark.parametrize("name", TAKING)
def test_what_is_rendered_has_the_options_that_run_uses(name: str, tmp_path: Path) -> None:
    cluster = two_nodes()
    job = Job.on(cluster, "train.py", launcher=name, launcher_args=PASSED[name])
    allocation = select(cluster)
    launch = Launch(cluster.name, allocation, job, assume(cluster, allocation, "/w"))
    planned = [p.command.argv for node in plan(cluster, job).nodes for p in node.processes]
    assert all(set(PASSED[name]) <= set(words) for words in planned)
    text = render(name, launch).text
    script = sbatch(Batch(launch, cluster.slurm))
    for shown in (text, script):
        assert all(option.partition(" ")[0] in shown for option in PASSED[name])


def test_every_option_that_the_plan_decides_is_refused_with_the_reason() -> None:
    cluster = two_nodes()
    for name, reserved, option in RESERVED:
        spellings = {f"--{option}", f"--{option}=1", f"--{option.replace('_', '-')}=1"}
        assert {fault(name, word) for word in spellings} == {reserved}, (name, option)
        with pytest.raises(UsageError) as refused:
            Job.on(cluster, "train.py", launcher=name, launcher_args=[f"--{option}=1"])
        assert refused.value.error_code is ErrorCode.LAUNCHER_ARGUMENT, (name, option)
        assert option in refused.value.message, name
        assert refused.value.hint, (name, option)


def test_the_beginning_of_such_an_option_is_refused_too() -> None:
    begun = [(name, f"--{option[:-1]}=1") for name, _, option in RESERVED]
    assert [(name, word) for name, word in begun if fault(name, word) is None] == []


@pytest.mark.parametrize("word", ["", "-m", "-r3", "node", "--", "--=x", "-", "train.py"])
@pytest.mark.parametrize("name", TAKING)
def test_a_word_that_could_become_the_script_is_refused(name: str, word: str) -> None:
    assert fault(name, word) is ArgumentFault.NOT_LONG


def test_direct_takes_none() -> None:
    assert fault("direct", "--numa-binding=node") is ArgumentFault.NO_ARGUMENTS


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        Job.on(two_nodes(), "t.py", launcher_args=["--nnodes=3", "x", "--role=a", "--tee=3"])
    assert [line.split(":")[0].split()[-1] for line in refused.value.message.splitlines()] == [
        "--nnodes=3",
        "'x'",
        "--tee=3",
    ]


def test_those_of_the_cluster_file_come_first_and_count_for_its_launcher_only() -> None:
    cluster = two_nodes("launcher: deepspeed\nlauncher_args: [--bind_cores_to_rank]\n")
    own = Job.on(cluster, "t.py", launcher_args=["--quiet"])
    assert own.launcher_args == ("--bind_cores_to_rank", "--quiet")
    assert Job.on(cluster, "t.py", launcher="torchrun").launcher_args == ()


@pytest.mark.torch
def test_every_reserved_option_of_torchrun_is_one_of_torch() -> None:
    from torch.distributed.run import get_args_parser

    known = {name for action in get_args_parser()._actions for name in action.option_strings}
    options = [o for options in LAUNCHERS.get("torchrun").reserved.values() for o in options]
    assert {f"--{option}" for option in options} - known <= {
        *("--local_rank", "--virtual_local_rank", "--duplicate_stdout_filters"),
        "--duplicate_stderr_filters",
    }


@pytest.mark.torch
def test_every_reserved_option_of_accelerate_is_one_of_its() -> None:
    from accelerate.commands.launch import launch_command_parser

    known = {name for action in launch_command_parser()._actions for name in action.option_strings}
    options = [o for options in LAUNCHERS.get("accelerate").reserved.values() for o in options]
    assert {f"--{option}" for option in options} <= known


@pytest.mark.parametrize("name", TAKING)
def test_an_option_without_its_value_cannot_take_the_script_for_it(name: str) -> None:
    assert fault(name, "--some_option") is ArgumentFault.NO_VALUE
    assert fault(name, "--some_option=1") is None
    assert {fault(name, f"--{flag}") for flag in LAUNCHERS.get(name).flags} <= {None}


@pytest.mark.parametrize("word", ["--role=a\nb", "--role=\x1b[31m"])
def test_an_option_with_control_characters_is_refused(word: str) -> None:
    assert fault("torchrun", word) is ArgumentFault.NOT_LONG
