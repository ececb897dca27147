"""The words behind the options, as values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cli.words import (
    FILE_ENDINGS,
    JobOptions,
    MoreOptions,
    copied,
    make_job,
    own_first,
    read_settings,
    split_words,
)
from dslaunch.cluster.model import Cluster, JobDefaults, Node, SecretSource
from dslaunch.errors import UsageError

NODE = Node("a", (0,))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param([], (None, None, ()), id="nothing"),
        pytest.param(["c.yaml"], (Path("c.yaml"), None, ()), id="file-alone"),
        pytest.param(["t.py"], (None, "t.py", ()), id="script-alone"),
        pytest.param(["c.yml", "t.py", "-x"], (Path("c.yml"), "t.py", ("-x",)), id="all-three"),
        pytest.param(["t.py", "c.yaml"], (None, "t.py", ("c.yaml",)), id="yaml-for-the-script"),
        pytest.param(["a.yaml", "b.yaml"], (Path("a.yaml"), "b.yaml", ()), id="two-yaml"),
    ],
)
def test_the_first_word_is_the_cluster_file_if_it_ends_so(words: list[str], expected: object):
    assert split_words(words) == expected


@given(st.sampled_from(FILE_ENDINGS), st.lists(st.text()))
def test_what_follows_the_script_is_never_touched(ending: str, args: list[str]):
    assert split_words([f"c{ending}", "train.py", *args])[2] == tuple(args)


@pytest.mark.parametrize(
    ("words", "formats", "own", "rest"),
    [
        (["c.yaml", "-N", "2", "t.py"], 0, ["c.yaml"], ["-N", "2", "t.py"]),
        (["hostfile", "-N", "2"], 1, ["hostfile"], ["-N", "2"]),
        (["hostfile", "c.yaml", "-N", "2"], 1, ["hostfile", "c.yaml"], ["-N", "2"]),
        (["c.yaml", "--", "t.py"], 0, ["c.yaml"], ["--", "t.py"]),
    ],
    ids=["file", "format", "format-and-file", "end-of-options"],
)
def test_options_behind_own_words_are_to_be_parsed(
    words: list[str], formats: int, own: list[str], rest: list[str]
):
    with pytest.raises(MoreOptions) as more:
        own_first([], words, formats=formats)
    assert (more.value.own, more.value.rest, more.value.unread) == (own, rest, len(words))


@pytest.mark.parametrize(
    "words", [["t.py", "-N", "2"], ["c.yaml", "t.py", "-N"], ["c.yaml"], []], ids=str
)
def test_options_behind_the_script_are_the_scripts(words: list[str]):
    assert own_first([], words) == words


@given(st.lists(st.sampled_from(["c.yaml", "-N", "2", "--", "t.py", "hostfile"])), st.booleans())
def test_no_word_is_parsed_without_end(words: list[str], has_format: bool):
    held: list[str] = []
    unread = words
    for _ in range(3):
        try:
            assert own_first(held, unread, formats=int(has_format)) == words
        except MoreOptions as more:
            held, unread = more.own, more.rest
            assert [*held, *unread] == words
        else:
            return
    pytest.fail("parsed again and again")


def test_the_later_of_two_values_for_a_variable_wins():
    cluster = Cluster(
        "c",
        (NODE,),
        env=(("FILE", "1"), ("FROM", "1"), ("JOB", "1"), ("LINE", "1")),
        env_from=("FROM", "JOB", "LINE"),
        job=JobDefaults(script="t.py", env=(("JOB", "3"), ("LINE", "3"))),
    )
    caller = {"FROM": "2", "JOB": "2", "LINE": "2", "OTHER": "2"}
    job = make_job(cluster, "t.py", (), JobOptions(env=("LINE=4",)), caller)
    assert dict((*job.env, *job.overrides)) == {"FILE": "1", "FROM": "2", "JOB": "3", "LINE": "4"}


def test_a_script_on_the_command_line_takes_no_arguments_from_the_file():
    cluster = Cluster("c", (NODE,), job=JobDefaults(script="a.py", args=("--x",)))
    job = make_job(cluster, "b.py", ("--y",), JobOptions(), {})
    assert (job.program, job.args) == ("b.py", ("--y",))


@pytest.mark.parametrize(
    ("defaults", "program", "kind"),
    [
        (JobDefaults(script="a.py", args=("1",)), "a.py", "script"),
        (JobDefaults(module="pkg.a", args=("1",)), "pkg.a", "module"),
    ],
    ids=["script", "module"],
)
def test_the_file_names_the_job_where_the_command_line_does_not(
    defaults: JobDefaults, program: str, kind: str
):
    job = make_job(Cluster("c", (NODE,), job=defaults), None, (), JobOptions(), {})
    assert (job.program, job.kind, job.args) == (program, kind, ("1",))


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (JobOptions(), "script"),
        (JobOptions(module=True), "module"),
        (JobOptions(no_python=True), "command"),
    ],
    ids=["script", "module", "command"],
)
def test_an_option_says_what_the_program_is(options: JobOptions, kind: str):
    assert make_job(Cluster("c", (NODE,)), "x", (), options, {}).kind == kind


def test_launcher_and_secrets_come_from_the_file_unless_the_launcher_is_named():
    secrets = (SecretSource("TOKEN"),)
    cluster = Cluster("c", (NODE,), launcher="direct", secrets=secrets)
    assert make_job(cluster, "x", (), JobOptions(), {}).launcher == "direct"
    job = make_job(cluster, "x", (), JobOptions(launcher="torchrun"), {"TOKEN": "no"})
    assert (job.launcher, job.secrets, job.env) == ("torchrun", secrets, ())


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        pytest.param(None, JobOptions(), "no script", id="nothing-to-run"),
        pytest.param(None, JobOptions(module=True), "--module says", id="module-without-name"),
        pytest.param(None, JobOptions(no_python=True), "--no-python says", id="no-program"),
        pytest.param("--nodse", JobOptions(), "--nodse stands", id="option-for-script"),
        pytest.param("x", JobOptions(module=True, no_python=True), "exclude", id="two-kinds"),
    ],
)
def test_what_names_no_program_is_an_error_of_usage(
    program: str | None, options: JobOptions, message: str
):
    with pytest.raises(UsageError, match=message):
        make_job(Cluster("c", (NODE,)), program, (), options, {})


@given(st.text(alphabet=st.characters(exclude_characters="\0")))
def test_a_value_arrives_as_it_was_written(value: str):
    assert read_settings([f"A={value}"], {}) == {"A": value}


def test_a_bare_name_copies_the_callers_value():
    assert read_settings(["A", "B=x"], {"A": "1", "B": "2"}) == {"A": "1", "B": "x"}


def test_all_wrong_settings_are_named_at_once():
    with pytest.raises(UsageError) as wrong:
        read_settings(["1A=x", "GONE", "=", "fine=1"], {})
    assert wrong.value.message.splitlines() == [
        "--env: '1A' is no name of a variable",
        "--env: GONE is not set in your environment",
        "--env: '' is no name of a variable",
    ]


def test_patterns_copy_only_what_they_match_and_respect_case():
    caller = {"WANDB_B": "2", "WANDB_A": "1", "wandb_c": "3", "HF_HOME": "4", "HF_HOME2": "5"}
    found = copied(("WANDB_*", "HF_HOME", "ABSENT"), caller)
    assert list(found.items()) == [("HF_HOME", "4"), ("WANDB_A", "1"), ("WANDB_B", "2")]


def test_a_secret_is_in_no_variable_whose_value_is_written_down() -> None:
    cluster = Cluster("c", (NODE,), env_from=("HF_*",), secrets=(SecretSource("HF_TOKEN"),))
    environ = {"HF_TOKEN": "sesame", "HF_HOME": "/x"}
    job = make_job(cluster, "train.py", (), JobOptions(), environ)
    assert job.env == (("HF_HOME", "/x"),)
    for setting in ("HF_TOKEN", "HF_TOKEN=open"):
        with pytest.raises(UsageError, match="HF_TOKEN"):
            make_job(cluster, "train.py", (), JobOptions(env=(setting,)), environ)
