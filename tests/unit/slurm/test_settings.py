"""Settings from the command line, and the setting that a refusal is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.cluster.model import ClusterSource, Slurm
from dslaunch.errors import UsageError
from dslaunch.slurm.settings import Sources, blamed, overridden

FILE = Slurm((("partition", "gpu"), ("time", "1:00")), requeue=2, setup=("a",))


def test_a_setting_of_the_command_line_wins_over_the_file() -> None:
    made = overridden(FILE, ["time=2:00:00", "qos=high", "requeue=0", "job_name=x"])
    assert made.options == (("partition", "gpu"), ("time", "2:00:00"), ("qos", "high"))
    assert (made.requeue, made.job_name) == (0, "x")


def test_a_list_gets_one_more_item() -> None:
    assert overridden(FILE, ["setup=module load x=1"]).setup == ("a", "module load x=1")


def test_no_settings_change_nothing() -> None:
    assert overridden(FILE, []) == FILE


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("partiton=x", "slurm.partiton: unknown key `partiton`, did you mean `partition`"),
        ("time=soon", "slurm.time: expected minutes"),
        ("signal=WINCH", "slurm.signal: expected a signal such as `USR1@600`"),
        ("time", "expected NAME=VALUE"),
        ("container=x", "slurm.container: expected a mapping"),
    ],
)
def test_a_wrong_setting_is_explained_like_in_the_file(setting: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        overridden(FILE, [setting])
    assert words in caught.value.message


TEXT = """\
nodes: [{host: a, slots: 1}]
slurm:
  qos: x
  partition: nope
  mem: 4G
  directives:
    - --hold
    - -p other
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A cluster file whose directives name another partition than its key."""
    path = tmp_path / "c.yaml"
    path.write_text(TEXT)
    return path


def blame(option: str, file: Path | None, *settings: str, **more: dict[str, str]) -> list[str]:
    return list(blamed((option,), Sources(source(file), settings, **more)))


def source(file: Path | None) -> ClusterSource | None:
    return None if file is None else ClusterSource(str(file), file.read_text("utf-8"))


def test_a_refusal_is_about_a_line_of_the_file(file: Path) -> None:
    assert blame("qos", file) == [f"{file}:3:3: slurm.qos: x"]
    assert blame("partition", file) == [f"{file}:8:7: slurm.directives: -p other"]
    assert blame("account", file) == []
    assert blame("nodes", file) == [f"{file}:1:1: nodes"]
    assert blame("gres", file) == [f"{file}:1:1: slots of nodes"]


def test_gpus_that_are_not_requested_are_not_blamed(file: Path) -> None:
    file.write_text(TEXT.replace("  qos: x", "  gpus: none"))
    assert blame("gres", file) == []


def test_a_setting_of_the_command_line_is_blamed_and_not_the_line_that_it_overrides(
    file: Path,
) -> None:
    assert blame("qos", file, "qos=y", "time=1", "qos=z") == ["--set qos=z"]
    assert blame("partition", file, "directives=--part=third") == ["--set directives=--part=third"]
    assert blame("nodes", file, words={"nodes": "--nodes 9"}) == ["--nodes 9"]


def test_a_directive_is_blamed_for_the_options_whose_place_it_takes(file: Path) -> None:
    given = "directives=--mem-per-cpu=9T"
    for option in ("mem", "mem-per-cpu"):
        assert blame(option, file, given) == [f"--set {given}"]
    assert blame("gres", file, "directives=-G 99") == ["--set directives=-G 99"]


def test_a_variable_is_blamed_for_an_option_that_nothing_else_gives(file: Path) -> None:
    variables = {"account": "SBATCH_ACCOUNT", "partition": "SBATCH_PARTITION"}
    assert "SBATCH_ACCOUNT" in blame("account", file, variables=variables)[0]
    assert "-p other" in blame("partition", file, variables=variables)[0]


def test_one_place_is_blamed_once(file: Path) -> None:
    sources = Sources(source(file), ("directives=-G 99",))
    assert len(list(blamed(("gres", "gpus-per-node", "gpus"), sources))) == 1


def test_without_a_file_nothing_is_blamed_on_it(tmp_path: Path) -> None:
    assert blame("partition", None) == []
    path = tmp_path / "bare.yaml"
    path.write_text("nodes: [{host: a, slots: 1}]\n")
    assert blame("partition", path) == []
