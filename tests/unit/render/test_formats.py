"""The texts of the formats, and their notes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from itertools import pairwise

import pytest
from msgspec.structs import replace

from dslaunch.cluster.model import Allocation, Node, SecretSource
from dslaunch.errors import ErrorCode, PlanError, UsageError
from dslaunch.launch.command import LONGEST_ARGUMENT, Word
from dslaunch.launch.decisions import DecisionCode, decision
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided, Rendezvous
from dslaunch.notes import Note, NoteCode, Value, note
from dslaunch.render import formats
from dslaunch.render.launch import Launch
from dslaunch.render.notes import RenderNote

DECIDED = Decided(Rendezvous("10.0.0.1", 29500), "/work")
FOUR = (0, 1, 2, 3)


def launch(*chosen: tuple[Node, tuple[int, ...]], job: Job | None = None) -> Launch:
    return Launch("pod", Allocation.of(list(chosen)), job or Job("train.py"), DECIDED)


PAIR = launch((Node("w0", FOUR), FOUR), (Node("w1", FOUR), FOUR))


def notes(name: str, it: Launch) -> dict[NoteCode, Mapping[str, Value]]:
    """The codes of the notes, with their parameters."""
    found = formats.render(name, it).notes
    return {each.code: each.values for each in found if isinstance(each, Note)}


def test_a_hostfile_has_one_line_per_node() -> None:
    rendered = formats.render("hostfile", PAIR)
    assert rendered.text == "w0 slots=4\nw1 slots=4\n"
    assert rendered.notes == ()


def test_a_hostfile_reaches_to_the_last_slot_and_says_what_it_cannot_say() -> None:
    it = launch((Node("w0", FOUR), (1, 2)), (Node("w1", FOUR), (0, 1)))
    assert formats.render("hostfile", it).text == "w0 slots=3\nw1 slots=2\n"
    assert notes("hostfile", it) == {RenderNote.SLOT_GAPS: {"nodes": "w0", "slots": "1,2"}}


MASTER, INTERFACE = DecisionCode.MASTER_LOCAL, DecisionCode.INTERFACE_GIVEN
WORKDIR = DecisionCode.WORKDIR_GIVEN


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("torchrun", [MASTER, INTERFACE, WORKDIR]),
        ("deepspeed", [MASTER, INTERFACE, WORKDIR]),
        ("mpirun", [MASTER, INTERFACE, WORKDIR]),
        ("plan", [MASTER, INTERFACE, WORKDIR]),
        ("env", [MASTER, INTERFACE]),
        ("accelerate-config", [MASTER]),
        ("hostfile", []),
        ("include", []),
        ("notebook", []),
    ],
)
def test_a_format_names_the_assumptions_that_are_in_its_text(
    name: str, codes: list[DecisionCode]
) -> None:
    # in a text, the word `work` and the address 127.0.0.1 also mean something else
    assumptions = (
        decision(MASTER, assumed=True, address="127.0.0.1", port=29500, port_origin="default"),
        decision(INTERFACE, assumed=True, interface="eth0"),
        decision(WORKDIR, assumed=True, path="work"),
        decision(DecisionCode.STORAGE_SHARED, path="work"),
    )
    decided = Decided(Rendezvous("127.0.0.1", 29500), "work", assumptions)
    rendered = formats.render(name, replace(PAIR, decided=decided))
    assert [each.code for each in rendered.decisions] == codes


def test_an_include_string_names_every_slot() -> None:
    it = launch((Node("w0", FOUR), (0, 1)), (Node("w1", FOUR), (0,)))
    assert formats.render("include", it).text == "w0:0,1@w1:0\n"


@pytest.mark.parametrize("host", ["fd00::1", "ml@w0", "a,b"])
def test_a_host_that_the_include_grammar_would_split_is_refused(host: str) -> None:
    with pytest.raises(PlanError, match="--include"):
        formats.render("include", launch((Node(host, (0,)), (0,))))


@pytest.mark.parametrize(
    ("host", "option"), [("w0", "--force_multi"), ("localhost", "--no_ssh_check")]
)
def test_one_node_is_kept_from_being_taken_for_this_machine_or_another(
    host: str, option: str
) -> None:
    words = formats.render("deepspeed", launch((Node(host, (0,)), (0,)))).text.split()
    assert option in words
    assert not {"--force_multi", "--no_ssh_check"} & set(
        formats.render("deepspeed", PAIR).text.split()
    )


@pytest.mark.parametrize("arg", ["$HOME", "it's", "a;b", "50%", "`id`", "", "a\nb", "--"], ids=repr)
def test_an_argument_that_pdsh_or_a_remote_shell_would_read_is_named(arg: str) -> None:
    it = replace(PAIR, job=Job("train.py", (arg,)))
    assert notes("deepspeed", it)[RenderNote.ARGUMENTS_CHANGED] == {"words": (repr(arg),)}


@pytest.mark.parametrize("arg", ["--lr=1e-4", "a b", "conf/ds.json", "x@y", "--"])
def test_an_argument_that_arrives_is_not_named(arg: str) -> None:
    args: tuple[Word, ...] = ("first", arg)
    found = notes("deepspeed", replace(PAIR, job=Job("train.py", args)))
    assert RenderNote.ARGUMENTS_CHANGED not in found


def test_a_script_or_a_directory_with_a_space_is_named() -> None:
    it = Launch("pod", PAIR.allocation, Job("train it.py"), replace(DECIDED, workdir="/my work"))
    changed = notes("deepspeed", it)[RenderNote.ARGUMENTS_CHANGED]
    assert changed == {"words": ("'/my work'", "'train it.py'")}


def test_an_interpreter_that_is_named_starts_deepspeeds_runner() -> None:
    node = Node("w0", (0,), python="/opt/bin/python3")
    text = formats.render("deepspeed", launch((node, (0,)))).text
    assert " /opt/bin/python3 -m deepspeed.launcher.runner --hostfile=" in text


def test_a_home_that_one_shell_reads_for_all_nodes_is_named() -> None:
    it = replace(PAIR, decided=replace(DECIDED, workdir="project"))
    assert RenderNote.LOCAL_HOME in notes("mpirun", it)
    assert RenderNote.LOCAL_HOME not in notes("mpirun", PAIR)


def test_variables_that_deepspeed_keeps_to_itself_are_named() -> None:
    job = Job("train.py", env=(("NCCL_DEBUG", "INFO"), ("HF_HOME", "/hf")))
    found = notes("deepspeed", replace(PAIR, job=job))
    assert found[RenderNote.NOT_EXPORTED] == {"names": ("HF_HOME",)}
    alone = notes("deepspeed", replace(launch((Node("w0", (0,)), (0,))), job=job))
    assert alone[RenderNote.NOT_EXPORTED] == {"names": ("HF_HOME",)}
    here = notes("deepspeed", replace(launch((Node("localhost", (0,)), (0,))), job=job))
    assert RenderNote.NOT_EXPORTED not in here


def test_values_that_deepspeed_changes_on_their_way_to_the_nodes_are_named() -> None:
    env = {"NCCL_A": "a b, c", "NCCL_B": "$x", "NCCL_C": "a ", "NCCL_D": "%n", "HF_HOME": "$x"}
    found = notes("deepspeed", replace(PAIR, job=Job("train.py", env=tuple(env.items()))))
    assert found[RenderNote.VALUES_CHANGED] == {"names": ("NCCL_B", "NCCL_C", "NCCL_D")}


@pytest.mark.parametrize("name", ["deepspeed", "mpirun"])
def test_what_differs_between_nodes_is_named_where_all_are_treated_alike(name: str) -> None:
    one = Node("w0", (0,), python="/opt/a/bin/python", user="ml")
    two = Node("w1", (0,), env=(("A", "b"),))
    found = notes(name, launch((one, (0,)), (two, (0,))))
    assert found[RenderNote.NODES_DIFFER]["differences"] == ("interpreter", "environment")
    assert found[RenderNote.SSH_SETTINGS] == {"settings": ("user",)}


@pytest.mark.parametrize(
    "name", ["accelerate", "deepspeed", "env", "mpirun", "notebook", "torchrun"]
)
def test_secrets_are_named_and_never_printed(name: str) -> None:
    job = Job("train.py", secrets=(SecretSource("HF_TOKEN"),))
    rendered = formats.render(name, replace(PAIR, job=job))
    assert "HF_TOKEN" not in rendered.text
    assert note(RenderNote.SECRETS_NOT_PRINTED, names=("HF_TOKEN",)) in rendered.notes


def test_a_relative_directory_is_below_the_home_of_the_nodes_user() -> None:
    it = replace(PAIR, decided=replace(DECIDED, workdir="my project"))
    assert "cd \"$HOME\"'/my project' && " in formats.render("torchrun", it).text


def test_the_notebook_cell_makes_this_process_the_world() -> None:
    job = Job("train.py", env=(("NOTE", 'it\'s\n"two" lines'),))
    cell = formats.render("notebook", replace(PAIR, job=job)).text
    environment: dict[str, str] = {}
    exec(
        cell.replace("import os\n", "").replace("os.environ", "environment"),
        {"environment": environment},
    )
    assert environment["NOTE"] == 'it\'s\n"two" lines'
    assert (environment["RANK"], environment["WORLD_SIZE"]) == ("0", "1")


def test_a_misspelt_format_gets_the_right_name() -> None:
    with pytest.raises(UsageError) as caught:
        formats.get("hostfiel")
    assert caught.value.hint == "did you mean `hostfile`?"


@pytest.mark.parametrize("name", formats.names())
def test_every_format_is_a_pure_function_and_says_what_it_is_for(name: str) -> None:
    assert formats.render(name, PAIR) == formats.render(name, PAIR)
    assert 15 < len(formats.get(name).summary) < 100


@pytest.mark.parametrize(
    ("workdir", "words"),
    [("~/my project", "\"$HOME\"'/my project'"), ("~", "\"$HOME\"''"), ("~x", "\"$HOME\"'/~x'")],
)
def test_a_tilde_is_the_home_of_the_nodes_user_as_it_is_in_a_run(workdir: str, words: str) -> None:
    it = replace(PAIR, decided=replace(DECIDED, workdir=workdir))
    assert f"cd {words} && " in formats.render("torchrun", it).text


def test_nodes_with_the_same_gap_share_a_note() -> None:
    nodes = [(Node(f"w{i}", FOUR), (2, 3)) for i in range(1, 9)]
    assert formats.render("hostfile", launch(*nodes)).notes == (
        note(RenderNote.SLOT_GAPS, nodes="w[1-8]", slots="2,3"),
    )


def test_mpirun_gets_each_variable_once_and_the_master_is_fixed() -> None:
    job = Job("train.py", env=(("MASTER_PORT", "1"), ("A", "b")))
    words = formats.render("mpirun", replace(PAIR, job=job)).text.split()
    given = [after for word, after in pairwise(words) if word == "-x"]
    assert given == ["MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500", "A=b"]


def of_many(count: int) -> Launch:
    """Return a launch on nodes with one slot, of names with five digits."""
    return launch(*((Node(f"n{number:05}", slots=(0,)), (0,)) for number in range(count)))


LONGEST_INCLUDE = (LONGEST_ARGUMENT - len("--include=") + 1) // len("n00000:0@")
"""Number of such nodes whose `--include` fits into one argument."""


def test_the_longest_include_string_can_be_executed_and_a_longer_one_is_refused() -> None:
    text = formats.render("include", of_many(LONGEST_INCLUDE)).text.strip()
    subprocess.run(["/bin/true", f"--include={text}"], check=True)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/true", f"--include={text}@n99999:0"], check=True)
    with pytest.raises(PlanError) as caught:
        formats.render("include", of_many(LONGEST_INCLUDE + 1))
    assert caught.value.error_code is ErrorCode.INCLUDE_TOO_LONG
    assert caught.value.values["size"] == len(f"--include={text}@n99999:0")


def test_the_deepspeed_command_is_refused_for_nodes_that_do_not_fit_into_its_call_of_pdsh() -> None:
    assert formats.render("deepspeed", of_many(6_000)).text
    with pytest.raises(PlanError) as caught:
        formats.render("deepspeed", of_many(7_000))
    assert caught.value.error_code is ErrorCode.WORLD_INFO_TOO_LONG
