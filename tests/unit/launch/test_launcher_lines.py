"""The commands that launchers make, and how arguments travel in them."""

from __future__ import annotations

import argparse
import ast
import base64
import itertools
import json
import string
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslaunch.cluster.model import Allocation, Node, Placement
from dslaunch.errors import ErrorCode, PlanError, UsageError
from dslaunch.launch import launchers
from dslaunch.launch.command import Command, Var, Word
from dslaunch.launch.job import Job, Kind
from dslaunch.launch.plan import Process, Rendezvous, World
from dslaunch.launch.program import positional, without_macros
from dslaunch.registry import LAUNCHERS

ARGUMENT = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"])
) | st.sampled_from(
    ["--", "-", "$$", "${local_rank}", "$local_rank", "a b", "it's", '"', "`id`", "\n", "", "é☃"]
)
ARGUMENTS = st.lists(ARGUMENT, max_size=6).map(tuple)
SOURCES = Path(launchers.__file__).parents[2]
RENDEZVOUS = Rendezvous("10.0.0.1", 29500)


def world(*slots: tuple[int, ...], rendezvous: Rendezvous = RENDEZVOUS) -> World:
    nodes = [Node(f"gpu{i:02}", tuple(range(8))) for i in range(1, len(slots) + 1)]
    return World(Allocation.of(list(zip(nodes, slots, strict=True))), rendezvous)


def started(
    launcher: str, job: Job, of: World, node: int = 0, logs: Var | None = None
) -> tuple[Process, ...]:
    return LAUNCHERS.get(launcher).processes(of.allocation.placements[node], of, job, logs=logs)


def argv(launcher: str, job: Job, of: World, node: int = 0) -> tuple[Word, ...]:
    return started(launcher, job, of, node)[0].command.argv


TWO_BY_TWO = world((0, 1), (0, 1))


def test_torchrun_says_where_the_node_stands_in_the_world() -> None:
    assert argv("torchrun", Job("train.py", ("--lr", "1e-4")), TWO_BY_TWO, node=1) == (
        *("python3", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"),
        *("--node-rank=1", "--master-addr=10.0.0.1", "--master-port=29500"),
        *("train.py", "--lr", "1e-4"),
    )


def test_each_node_says_its_own_number_of_slots() -> None:
    uneven = world((0, 1, 2, 3), (5,))
    counts = [argv("torchrun", Job("train.py"), uneven, node)[4] for node in range(2)]
    assert counts == ["--nproc-per-node=4", "--nproc-per-node=1"]


@pytest.mark.parametrize(
    ("launcher", "option"),
    [
        ("torchrun", "--master-addr=fd00::1"),
        ("deepspeed", "--master_addr=fd00::1"),
        ("accelerate", "--main_process_ip=fd00::1"),
    ],
)
def test_an_ipv6_address_stands_without_brackets(launcher: str, option: str) -> None:
    meet = Rendezvous("fd00::1", 29500)
    assert option in argv(launcher, Job("train.py"), world((0, 1), (0, 1), rendezvous=meet))


@pytest.mark.parametrize("name", LAUNCHERS.names())
def test_the_nodes_own_interpreter_runs_the_job(name: str) -> None:
    node = Node("gpu01", (0, 1), python="~/venv/bin/python")
    own = World(Allocation.of([(node, (0, 1))]), RENDEZVOUS)
    assert argv(name, Job("train.py"), own)[0] == (Var("HOME"), "/venv/bin/python")


@pytest.mark.parametrize("name", LAUNCHERS.names())
def test_a_script_that_is_called_like_an_option_is_given_as_a_path(name: str) -> None:
    words = argv(name, Job("--train.py"), TWO_BY_TWO)
    assert "./--train.py" in words
    assert "--train.py" not in words


@pytest.mark.parametrize(
    ("launcher", "flag"),
    [("torchrun", "--no-python"), ("deepspeed", "--no_python"), ("accelerate", "--no_python")],
)
def test_a_command_is_started_without_python(launcher: str, flag: str) -> None:
    assert flag in argv(launcher, Job("nsys", ("profile",), kind="command"), TWO_BY_TWO)


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "accelerate"])
def test_a_module_is_started_as_one(launcher: str) -> None:
    words = argv(launcher, Job("my.train", kind="module"), TWO_BY_TWO)
    assert "--module" in words
    assert words[-1] == "my.train"


def test_only_a_command_goes_without_deepspeeds_local_rank() -> None:
    assert "--no_local_rank" in argv("deepspeed", Job("env", kind="command"), TWO_BY_TWO)
    assert "--no_local_rank" not in argv("deepspeed", Job("train.py"), TWO_BY_TWO)


def test_deepspeed_gets_every_slot_of_every_node_in_rank_order() -> None:
    words = argv("deepspeed", Job("train.py"), world((2, 3), (0,)))
    (option,) = (w for w in words if isinstance(w, str) and w.startswith("--world_info="))
    told = json.loads(base64.urlsafe_b64decode(option.partition("=")[2]))
    assert list(told.items()) == [("gpu01", [2, 3]), ("gpu02", [0])]


def test_deepspeed_refuses_a_world_whose_map_is_longer_than_an_argument_may_be() -> None:
    LAUNCHERS.get("deepspeed").check(world(*[tuple(range(8))] * 1000))
    with pytest.raises(PlanError) as caught:
        LAUNCHERS.get("deepspeed").check(world(*[tuple(range(8))] * 4000))
    assert caught.value.error_code is ErrorCode.WORLD_INFO_TOO_LONG
    assert caught.value.values["limit"] == 131071


def test_accelerate_refuses_nodes_that_differ_in_slots() -> None:
    with pytest.raises(PlanError) as caught:
        launchers.check_launcher("accelerate", world((0, 1), (3,)))
    assert caught.value.error_code is ErrorCode.UNEVEN_SLOTS
    values = dict(caught.value.values)
    assert (values["host"], values["other"], values["least"]) == ("gpu01", "gpu02", 1)
    assert "torchrun" in values["launchers"]


def test_accelerate_passes_the_number_of_all_ranks_to_every_node() -> None:
    words = argv("accelerate", Job("train.py"), TWO_BY_TWO, node=1)
    assert {"--num_processes=4", "--num_machines=2", "--machine_rank=1", "--multi_gpu"} < set(words)


def test_accelerate_runs_a_single_rank_as_the_process_itself() -> None:
    (process,) = started("accelerate", Job("train.py"), world((3,)), logs=Var("LOGS"))
    assert process.rank == 0
    assert "--multi_gpu" not in process.command.argv


@pytest.mark.parametrize(
    ("launcher", "variable"),
    [
        ("torchrun", "LOCAL_RANK"),
        ("elastic", "LOCAL_RANK"),
        ("accelerate", "LOCAL_RANK"),
        ("deepspeed", "RANK"),
    ],
)
def test_ranks_write_into_pipes_only_when_asked_to(launcher: str, variable: str) -> None:
    script: Word = (Var("LOGS"), "/rank.py")
    (asked,) = started(launcher, Job("train.py", ("-x",)), TWO_BY_TWO, logs=Var("LOGS"))
    assert asked.command.argv[-5:] == (script, variable, "script", "train.py", "-x")
    assert script not in argv(launcher, Job("train.py"), TWO_BY_TWO)


@pytest.mark.parametrize("launcher", ["torchrun", "elastic", "accelerate", "deepspeed"])
def test_no_launcher_writes_the_output_of_ranks_to_files(launcher: str) -> None:
    (asked,) = started(launcher, Job("train.py"), TWO_BY_TWO, logs=Var("LOGS"))
    words = [word if isinstance(word, str) else word[0] for word in asked.command.argv]
    options = ("--redirects", "--tee", "--enable_each_rank_log")
    assert not [word for word in words if str(word).startswith(options)]


@pytest.mark.parametrize("launcher", ["torchrun", "elastic", "accelerate", "direct"])
def test_several_ranks_on_a_node_get_one_openmp_thread_each(launcher: str) -> None:
    limit = ("OMP_NUM_THREADS", "1")
    assert all(limit in each.env for each in started(launcher, Job("train.py"), TWO_BY_TWO))
    given = Job("train.py", env=(("OMP_NUM_THREADS", "8"),))
    assert all(limit not in each.env for each in started(launcher, given, TWO_BY_TWO))
    alone = world((0,), (0,))
    assert all(limit not in each.env for each in started(launcher, Job("train.py"), alone))


def test_deepspeed_leaves_openmp_threads_to_its_cpu_optimizers() -> None:
    (asked,) = started("deepspeed", Job("train.py"), TWO_BY_TWO)
    assert asked.env == ()


OWN_STORE = (("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),)


def test_each_attempt_of_an_elastic_run_has_a_separate_store() -> None:
    (asked,) = started("elastic", Job("train.py"), TWO_BY_TWO)
    assert set(OWN_STORE) <= set(asked.env)


def test_direct_starts_one_process_per_slot_with_the_ranks_of_the_plan() -> None:
    processes = started("direct", Job("train.py"), world((0,), (4, 6)), node=1)
    assert [p.rank for p in processes] == [1, 2]
    env = [dict(p.env) for p in processes]
    assert [(e["RANK"], e["LOCAL_RANK"], e["GROUP_RANK"]) for e in env] == [
        ("1", "0", "1"),
        ("2", "1", "1"),
    ]
    assert {e["WORLD_SIZE"] for e in env} == {"3"}
    assert processes[0].command.argv == ("python3", "-u", "train.py")


def test_direct_promises_no_store_of_an_agent() -> None:
    (process,) = started("direct", Job("train.py"), world((0,)))
    assert "TORCHELASTIC_USE_AGENT_STORE" not in dict(process.env)


@pytest.mark.parametrize(
    ("slots", "given_env", "expected"),
    [((0,), (), None), ((0, 1), (), "1"), ((0, 1), (("OMP_NUM_THREADS", "6"),), None)],
    ids=["one rank", "two ranks", "set by the user"],
)
def test_direct_limits_threads_as_torchrun_does(
    slots: tuple[int, ...], given_env: tuple[tuple[str, str], ...], expected: str | None
) -> None:
    process = started("direct", Job("train.py", env=given_env), world(slots))[0]
    assert dict(process.env).get("OMP_NUM_THREADS") == expected


def test_no_variable_of_the_user_moves_a_rank() -> None:
    process = started("direct", Job("train.py", env=(("RANK", "7"),)), world((0, 1)))[1]
    assert dict(process.env)["RANK"] == "1"


@settings(max_examples=60, deadline=None)
@given(args=ARGUMENTS, name=st.sampled_from(LAUNCHERS.names()))
def test_a_posix_shell_starts_the_launcher_with_unchanged_words(
    args: tuple[str, ...], name: str
) -> None:
    command: Command = started(name, Job("train.py", args), TWO_BY_TWO)[0].command
    script = f'set -- {command.shell()}\nprintf "%s\\0" "$@"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == command.expand({})


@given(args=ARGUMENTS)
def test_torchs_substitution_gives_back_what_was_meant(args: tuple[str, ...]) -> None:
    sent = without_macros(args)
    arrived = tuple(string.Template(str(word)).safe_substitute(local_rank="3") for word in sent)
    assert arrived == args


def test_a_variable_of_the_node_stays_one_through_torchs_substitution() -> None:
    assert without_macros((("--c=$", Var("D"), "/x"),)) == (("--c=$$", Var("D"), "/x"),)


@pytest.mark.parametrize(
    ("program", "kind"), [("train.py", "script"), ("-c.py", "script"), ("-c", "command")]
)
@given(args=ARGUMENTS)
def test_argparse_hands_all_arguments_on(program: str, kind: Kind, args: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nnodes")
    parser.add_argument("program")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    read = parser.parse_args(list(map(str, positional(Job(program, args, kind=kind)))))
    assert read.program.removeprefix("./") == program
    assert tuple(read.rest) == args


def test_a_misspelt_launcher_gets_the_right_name() -> None:
    with pytest.raises(UsageError) as caught:
        LAUNCHERS.get("torchrn")
    assert caught.value.hint == "did you mean `torchrun`?"


@pytest.mark.parametrize("name", LAUNCHERS.names())
def test_every_launcher_says_in_one_line_when_to_choose_it(name: str) -> None:
    assert 20 < len(LAUNCHERS.get(name).summary) < 100


@pytest.mark.parametrize("name", LAUNCHERS.names())
def test_a_launcher_says_which_module_it_starts_on_a_node(name: str) -> None:
    words = argv(name, Job("train.py"), TWO_BY_TWO)
    named = [word for before, word in itertools.pairwise(words) if before == "-m"]
    assert set(named) <= set(launchers.modules_of(name))
    assert bool(named) == bool(launchers.modules_of(name))


@pytest.mark.parametrize("name", LAUNCHERS.names())
def test_only_a_command_that_no_launcher_starts_needs_no_python(name: str) -> None:
    assert launchers.starts_python(Job("train.py", launcher=name))
    command = Job("./train.sh", kind="command", launcher=name)
    assert launchers.starts_python(command) == (name != "direct")


@pytest.mark.parametrize("name", LAUNCHERS.names())
def test_a_launcher_that_restarts_by_itself_is_the_one_that_says_how_often(name: str) -> None:
    launcher = LAUNCHERS.get(name)
    assert launcher.has_slurm_command
    assert bool(launcher.default_restarts(4, 2)) == launcher.elastic
    assert launcher.default_restarts(4, None) == 0


def test_a_launcher_states_little_and_is_complete() -> None:
    class Least(launchers.Launcher):
        summary = "starts nothing"

        def processes(
            self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
        ) -> tuple[Process, ...]:
            return ()

    least = Least()
    least.check(world((0, 1), (0,)))
    assert least.packages == ("torch",)
    assert (least.has_slurm_command, least.elastic, least.uneven_slots) == (False, False, True)


def test_no_code_compares_the_name_of_a_launcher() -> None:
    """It asks for a capability, which launchers of plugins have too."""
    compared = [
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Compare)
        and getattr(node.left, "attr", getattr(node.left, "id", "")) == "launcher"
        and not isinstance(node.ops[0], ast.Is | ast.IsNot)
    ]
    assert compared == ["cluster/rules.py"], "the one that tells whether the name is known"
