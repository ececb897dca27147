"""The help of all commands and options: every property is checked for each of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import pytest
import typer

from dslaunch.cli.command_help import every_help, help_text
from dslaunch.cli.commands import ENTRIES, CommandKind, leaves, load
from dslaunch.cli.main import app

Dslaunch = Callable[..., CompletedProcess[str]]
PROGRAM: Any = typer.main.get_command(app)
EVERY = tuple(every_help(PROGRAM))
METAVARS = frozenset(
    (
        *(
            "ADDRESS",
            "AGE",
            "ARGS",
            "CHECK",
            "DIR",
            "FACTOR",
            "FILE",
            "GLOB",
            "HOST",
            "HOSTS",
            "STATE",
            "TIME",
        ),
        *("KEY=VALUE", "KIND", "N", "N,N", "NAME", "NAME=VALUE", "OPTION", "PARTITION"),
        *("PERCENT", "PORT", "PROGRAM", "PURPOSE", "RANKS", "RATE", "READER", "REGEX", "RULE"),
        *("RUN", "SCRIPT", "SECONDS", "SIGNAL", "SIZE", "TAG", "TEXT", "TIER", "TYPE", "VERSION"),
        "[HOST:]DIR",
        "ADDRESS:PORT|FILE",
        "COMMAND|URL",
    )
)
LONGEST_SUMMARY = 60


LEAVES = tuple(leaves())
OPTIONS = tuple((command.words, option) for command in EVERY for option in command.options)
"""Every option of every command, with the words of the command."""


def test_a_placeholder_names_what_is_expected_and_no_python_type():
    for words, option in OPTIONS:
        assert option.metavar in METAVARS | {""}, (words, option.names)


def test_every_option_with_a_value_has_a_placeholder():
    for words, parameter in ((words, each) for words, leaf in LEAVES for each in leaf.params):
        if parameter.param_type_name == "option" and not (parameter.is_flag or parameter.count):
            assert parameter.metavar in METAVARS, f"{words} {parameter.opts}"
        elif parameter.param_type_name == "argument":
            assert parameter.metavar and parameter.help, words


def test_an_option_is_explained_by_sentences_that_start_in_upper_case():
    for words, option in OPTIONS:
        assert re.match(r"[A-Z`]", option.text), (words, option.text)
        assert option.text.endswith("."), (words, option.text)


def test_a_summary_is_shorter_than_sixty_characters():
    for command in EVERY:
        length = len(command.summary)
        assert 0 < length < LONGEST_SUMMARY or command.words == "dslaunch", command.words
        assert not command.summary.endswith("."), command.words


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_list_of_commands_has_the_summary_of_the_command(entry: Any):
    (found,) = [each for each in EVERY if each.words == f"dslaunch {entry.name}"]
    assert found.summary == entry.summary


def test_the_help_of_a_command_ends_with_an_example_of_it():
    for command in EVERY:
        assert command.example.startswith(command.words)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_text_of_the_help_is_cut(width: int):
    for command in EVERY:
        shown = " ".join(help_text(command, width).split())
        for option in (*command.options, *command.arguments):
            assert " ".join(option.description.split()) in shown, command.words
        for _, listed in command.groups:
            assert all(f"{name} {summary}" in shown for name, summary in listed), command.words


def test_the_help_fits_into_eighty_columns():
    for command in EVERY:
        assert max(map(len, help_text(command, 80).splitlines())) <= 80, command.words


def test_the_program_lists_its_commands_in_groups(dslaunch: Dslaunch):
    lines = dslaunch("--help").stdout.splitlines()
    titles = [line.removesuffix(":") for line in lines if re.fullmatch(r"[A-Z]\w+:", line)]
    assert titles == [*CommandKind, "Options"]


@pytest.mark.parametrize("words", [each.words.split()[1:] for each in EVERY], ids=" ".join)
def test_help_shows_what_the_option_help_shows(dslaunch: Dslaunch, words: list[str]):
    shown = dslaunch("help", *words)
    assert shown.returncode == 0
    assert shown.stdout == dslaunch(*words, "--help").stdout


@pytest.mark.parametrize("words", [["rnu"], ["config", "lnit"], ["slurm", "lnt"]], ids=" ".join)
def test_help_of_an_unknown_command_names_the_nearest(dslaunch: Dslaunch, words: list[str]):
    done = dslaunch("help", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hint: did you mean" in done.stderr


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_has_a_short_option(dslaunch: Dslaunch, flag: str):
    assert dslaunch(flag).stdout.startswith("dslaunch ")


USAGE_ERRORS = (
    *([*words.split(), "--nosuch"] for words, _ in LEAVES),
    *([*words.split(), "--log-file"] for words, _ in LEAVES),
    ["rnu"],
    ["config", "lnit"],
    ["config", "diff"],
    ["config", "diff", "a"],
    ["nodes", "--nodes", "two"],
    ["nodes", "--nodes", "0"],
    ["nodes", "a.yaml", "b.yaml"],
    ["run", "--notice", "TERM"],
    ["run", "--grace", "x"],
    ["render", "hostfile", "--master-port", "70000"],
    ["schema", "nosuch"],
    ["--nosuch"],
    ["-v"],
)


@pytest.mark.parametrize("words", USAGE_ERRORS, ids=" ".join)
def test_every_usage_error_is_an_error_line_then_a_hint(dslaunch: Dslaunch, words: list[str]):
    done = dslaunch(*words)
    kinds = [line.partition(": ")[0] for line in done.stderr.splitlines()]
    assert (done.returncode, done.stdout) == (2, "")
    assert (kinds[0], set(kinds[1:])) == ("error", {"hint"})


def cluster_commands() -> list[str]:
    """Every command that takes a cluster file as an argument."""
    with_file = []
    for words, command in LEAVES:
        metavars = [p.metavar for p in command.params if p.param_type_name == "argument"]
        if any("CLUSTER.yaml" in metavar for metavar in metavars) or words == "topo":
            with_file.append(words)
    return with_file


@pytest.mark.parametrize("words", cluster_commands())
def test_the_cluster_file_may_be_an_option_of_every_command_that_has_it(words: str):
    command = load(words) if " " not in words else dict(LEAVES)[words]
    assert any({"--cluster", "-c"} <= set(each.opts) for each in command.params)


@pytest.mark.parametrize("words", cluster_commands())
def test_two_cluster_files_are_an_error_that_names_both(dslaunch: Dslaunch, words: str):
    more = {"render": ["hostfile"], "checkpoint gather": ["--to", "x"], "topo": []}
    more |= {
        "signal": ["latest", "USR1"],
        "checkpoint consolidate": ["--to", "x"],
        "checkpoint prune": ["--keep", "1"],
    }
    done = dslaunch(*words.split(), "-c", "one.yaml", *more.get(words, []), "two.yaml")
    assert done.returncode == 2
    assert "one.yaml" in done.stderr
    assert "two.yaml" in done.stderr
