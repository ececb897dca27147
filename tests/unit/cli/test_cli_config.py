from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dslaunch.cli.config import APP
from dslaunch.errors import ConfigError, UsageError

CLUSTER = """
name: two
nodes:
  - {host: "node[01-02]", slots: 4, labels: {gpu: V100}}
"""


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config(*words: str, **settings: object) -> Result:
    return CliRunner().invoke(APP, list(words), **settings)  # type: ignore[arg-type]


def write(text: str, name: str = "ds.json") -> str:
    Path(name).write_text(text, "utf-8")
    return name


def test_a_config_that_is_right_has_exit_code_0() -> None:
    done = config("lint", write('{"train_batch_size": 8}'), "--world-size", "4")
    assert (done.exit_code, done.stdout) == (0, "no findings\n")


def test_an_error_has_exit_code_3_and_its_place() -> None:
    done = config("lint", write('{"train_batch_size": 8,\n "zero_optimisation": {}}'))
    assert done.exit_code == 3
    assert done.stdout.startswith("ds.json:2:2: error: zero_optimisation: unknown key: ")
    assert done.stdout.endswith("1 error\n")


def test_an_invalid_text_is_one_error() -> None:
    done = config("lint", write('{"a": }'))
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (3, "1 error")


def test_the_cluster_gives_world_size_and_gpus() -> None:
    write(CLUSTER, "cluster.yaml")
    file = write('{"train_batch_size": 12, "bf16": {"enabled": true}}')
    done = config("lint", file, "--cluster", "cluster.yaml", "--json")
    found = {remark["rule"]: remark["message"] for remark in json.loads(done.stdout)}
    assert "12 != 1 * 1 * 8" in found["batch"]
    assert found["no-bf16"].startswith("node[01-02]: V100 has no bf16")
    fewer = config("lint", file, "--cluster", "cluster.yaml", "--include", "node01", "--json")
    assert "batch" not in {remark["rule"] for remark in json.loads(fewer.stdout)}


def test_facts_of_the_nodes_come_from_a_file() -> None:
    facts = [{"host": "a", "slots": 1, "directories": [{"path": "/nvme", "exists": False}]}]
    write(json.dumps(facts), "facts.json")
    file = write(
        '{"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param":'
        ' {"device": "nvme", "nvme_path": "/nvme"}}}'
    )
    assert "a: /nvme does not exist" in config("lint", file, "--facts", "facts.json").stdout


def test_the_scripts_arguments_are_compared_with_the_config() -> None:
    file = write('{"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}}')
    done = config("lint", file, "--script-args", "--per_device_train_batch_size 4")
    assert "8, but --per_device_train_batch_size is 4: the Trainer stops" in done.stdout


def test_fix_changes_the_file_and_reports_the_remaining_findings() -> None:
    file = write('{\n  // mine\n  "train_batch_size": 8,\n  "bfloat16": {"enabled": "true"}\n}\n')
    done = config("lint", file, "--for", "native", "--fix")
    assert done.exit_code == 0
    assert Path(file).read_text("utf-8") == (
        '{\n  // mine\n  "train_batch_size": 8,\n  "bf16": {"enabled": true}\n}\n'
    )
    assert "2 of 3" in done.stderr


def test_several_files_are_checked_at_once() -> None:
    files = [write('{"train_batch_size": 8, "my_own": 1}', name) for name in ("a.json", "b.json")]
    lines = config("lint", *files).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines if "warning: my_own" in line] == files


def test_other_forms_are_for_programs() -> None:
    file = write('{"train_batch_size": 8, "my_own": 1}')
    assert json.loads(config("lint", file, "--sarif").stdout)["version"] == "2.1.0"
    assert config("lint", file, "--github").stdout.startswith("::warning file=ds.json,line=1")


def test_a_config_can_come_from_standard_input() -> None:
    assert config("lint", "-", input='{"train_batch_size": 8}').exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("lint", "ds.json", "--for", "me"),
        ("lint", "ds.json", "--json", "--sarif"),
        ("lint", "ds.json", "--deepspeed", "newest"),
        ("lint", "ds.json", "--script-args", "'"),
        ("lint", "-", "--fix"),
        ("lint", "ds.json", "--include", "node01"),
        ("lint", "ds.json", "--world-size", "2", "--cluster", "cluster.yaml"),
        ("explain", "no_such_key_at_all"),
    ],
)
def test_invalid_options_are_usage_errors(words: tuple[str, ...]) -> None:
    write('{"train_batch_size": 8, "bfloat16": {}}')
    done = config(*words, input='{"train_batch_size": 8, "bfloat16": {}}')
    assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lint", "missing.json"), "missing.json: No such file or directory"),
        (("lint", "/dev/zero"), "/dev/zero: file too large: expected at most 16,777,216 bytes"),
        (("diff", "ds.json", "."), ".: Is a directory"),
        (("lint", "ds.json", "--facts", "ds.json"), "ds.json: not recorded results: "),
        (("lint", "ds.json", "--facts", "facts.json"), "facts.json: [0].slots: Expected `int`"),
    ],
)
def test_a_file_that_is_wrong_has_code_3_and_says_where(words: tuple[str, ...], said: str) -> None:
    write('{"train_batch_size": 8}')
    write('[{"host": "n1", "slots": "many"}]', "facts.json")
    done = config(*words)
    assert isinstance(done.exception, ConfigError)
    assert done.exception.message.startswith(said)


def test_all_files_that_cannot_be_read_are_named_after_the_findings_in_the_others() -> None:
    write('{"bfloat16": {}}')
    done = config("lint", "gone.json", "ds.json", ".")
    assert isinstance(done.exception, ConfigError)
    assert [problem.file for problem in done.exception.problems] == [".", "gone.json"]
    assert done.stdout == config("lint", "ds.json").stdout


def test_both_files_of_a_comparison_are_read_before_it_fails() -> None:
    write("{", "broken.json")
    done = config("diff", "gone.json", "broken.json")
    assert isinstance(done.exception, ConfigError)
    assert [problem.file for problem in done.exception.problems] == ["broken.json", "gone.json"]


def test_explain_prints_text_or_data() -> None:
    assert "type: int" in config("explain", "zero_optimization.stage").stdout
    (facts,) = json.loads(config("explain", "zero_optimization.stage", "--json").stdout)
    assert facts["choices"] == "0, 1, 2, 3"


def test_schema_prints_a_json_schema_of_a_version() -> None:
    assert json.loads(config("schema").stdout)["properties"]["amp"] is False
    older = json.loads(config("schema", "--deepspeed", "0.16.9").stdout)
    assert older["properties"]["amp"]["type"] == "object"


def test_diff_shows_what_differs_and_ends_like_diff() -> None:
    first = write('{"zero_optimization": {"stage": 2}}', "a.json")
    second = write('{"zero_optimization": {"stage": 3}}', "b.json")
    done = config("diff", first, second)
    assert done.exit_code == 1
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["zero_optimization.stage", "2", "3"] in rows
    assert config("diff", first, first).exit_code == 0
    assert json.loads(config("diff", first, second, "--json").stdout)[0]["first"] == 2


def test_a_fix_keeps_line_endings() -> None:
    Path("ds.json").write_bytes(b'{"train_batch_size": 8,\r\n "bfloat16": {"enabled": true}}\r\n')
    config("lint", "ds.json", "--fix")
    mended = b'{"train_batch_size": 8,\r\n "bf16": {"enabled": true}}\r\n'
    assert Path("ds.json").read_bytes() == mended


WARNED = '{"train_batch_size": 8, "cow": 1}'


def test_strict_fails_at_a_warning() -> None:
    assert config("lint", write(WARNED)).exit_code == 0
    assert config("lint", write(WARNED), "--strict").exit_code == 3


def test_a_rule_is_shown_and_can_be_ignored_by_it() -> None:
    assert "[ignored-key]\n" in config("lint", write(WARNED)).stdout
    done = config("lint", write(WARNED), "--strict", "--ignore", "batch,ignored-key")
    assert (done.exit_code, done.stdout) == (0, "no findings (1 ignored)\n")


def test_ignored_findings_are_not_fixed() -> None:
    text = '{"train_batch_size": 8, "zero_optimisation": {"stage": 1}}'
    config("lint", write(text), "--fix", "--ignore", "ignored-key")
    assert Path("ds.json").read_text("utf-8") == text


def test_ignoring_a_rule_that_does_not_exist_is_refused() -> None:
    done = config("lint", write(WARNED), "--ignore", "ignored-keys")
    assert isinstance(done.exception, UsageError)
    assert done.exception.hint == "did you mean `ignored-key`?"
