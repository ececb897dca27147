"""Settings from the command line, and the line of the file that a refusal is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.cluster.model import Slurm
from dslaunch.errors import UsageError
from dslaunch.slurm.settings import blamed, overridden
from dslaunch.slurm.states import Refusal

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
        ("signal=USR1", "slurm.signal: expected such as `USR1@600`"),
        ("time", "expected NAME=VALUE"),
        ("container=x", "slurm.container: expected a mapping"),
    ],
)
def test_a_wrong_setting_is_explained_like_in_the_file(setting: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        overridden(FILE, [setting])
    assert words in caught.value.message


def test_a_refusal_is_about_lines_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("nodes: [{host: a, slots: 1}]\nslurm:\n  qos: x\n  partition: nope\n")
    refusal = Refusal("no", ("account", "partition"))
    assert list(blamed(refusal, path)) == [f"{path}:4:3: slurm.partition: nope"]
    assert list(blamed(refusal, None)) == []
    path.write_text("nodes: [{host: a, slots: 1}]\n")
    assert list(blamed(refusal, path)) == []
