"""`dslaunch estimate`, and the functions of `config init` and `config examples`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dslaunch.cli import config_init
from dslaunch.deepspeed import initial_config
from dslaunch.deepspeed.storage import parse

Call = Callable[..., CompletedProcess[str]]
POD = ("--nodes", "2", "--gpus-per-node", "8")
SEVEN = ("estimate", "--params", "7e9", "--largest-layer", "65e6", *POD)
ROOM = ("--gpu-memory", "80GB", "--cpu-memory", "1TB")


def test_the_recommendation_is_the_last_line(dslaunch: Call) -> None:
    done = dslaunch(*SEVEN, *ROOM)
    assert done.returncode == 0
    assert "-> ZeRO-1: the fastest strategy that fits, with 31.9 GiB per GPU" in done.stdout
    assert done.stderr == ""


def test_json_has_the_same_in_bytes(dslaunch: Call) -> None:
    data = json.loads(dslaunch(*SEVEN, *ROOM, "--bandwidth", "100Gbit", "--json").stdout)
    assert data["recommendation"]["strategy"]["stage"] == 1
    assert data["limits"]["gpu"] == 80_000_000_000
    assert data["strategies"][1]["seconds"] == pytest.approx(3.15)


def test_other_numbers_of_nodes_are_shown_beside_each_other(dslaunch: Call) -> None:
    assert "4 NODES" in dslaunch(*SEVEN, *ROOM, "--by-nodes", "1,4").stdout
    data = json.loads(dslaunch(*SEVEN, *ROOM, "--by-nodes", "1,4", "--json").stdout)
    assert list(data["by_nodes"]) == ["1", "4"]
    assert data["by_nodes"]["4"][1]["fits"] == "yes"


def test_a_config_json_gives_activations_too(dslaunch: Call, directory: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12}
    (directory / "config.json").write_text(
        json.dumps({**config, "n_positions": 1024, "vocab_size": 50257})
    )
    data = json.loads(dslaunch("estimate", str(directory), "--json").stdout)
    assert data["model"]["params"] == 124_439_808
    assert data["strategies"][0]["activations"]["full"] > 0


def test_nodes_and_gpus_come_from_a_cluster_file(dslaunch: Call, cluster_file: Path) -> None:
    words = ("estimate", "--params", "7e9", "--largest-layer", "65e6", "--json")
    data = json.loads(dslaunch(*words, "--cluster", str(cluster_file)).stdout)
    assert data["machines"] == {"nodes": 2, "gpus_per_node": 8}
    fewer = json.loads(dslaunch(*words, "--cluster", str(cluster_file), "--nodes", "1").stdout)
    assert fewer["machines"]["nodes"] == 1


def test_the_label_of_the_node_with_least_memory_counts(dslaunch: Call, directory: Path) -> None:
    (directory / "c.yaml").write_text(
        "name: pod\nnodes:\n"
        "  - {host: a, slots: 8, labels: {memory: 512G}}\n"
        "  - {host: b, slots: 4, labels: {memory: 256G}}\n"
    )
    words = ("estimate", "--params", "7e9", "--largest-layer", "65e6", "--cluster", "c.yaml")
    done = dslaunch(*words, "--json")
    assert json.loads(done.stdout)["limits"]["cpu"] == 256 * 2**30
    assert "minimum, 4" in done.stderr
    said = json.loads(dslaunch(*words, "--json", "--cpu-memory", "1TB").stdout)
    assert said["limits"]["cpu"] == 10**12


@pytest.mark.parametrize("target", ["hf", "native"])
def test_the_recommended_config_is_written(dslaunch: Call, directory: Path, target: str) -> None:
    tight = ("--gpu-memory", "10GB", "--cpu-memory", "200GB")
    done = dslaunch(*SEVEN, *tight, "--write", "ds.json", "--for", target)
    assert done.stderr == "wrote ds.json\n"
    zero = parse((directory / "ds.json").read_text(), "ds.json")["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["offload_optimizer"]["device"] == "cpu"


def test_chart_and_page_are_written_and_not_over_others(dslaunch: Call, directory: Path) -> None:
    words = (*SEVEN, "--svg", "a.svg", "--html", "a.html")
    assert dslaunch(*words).returncode == 0
    assert (directory / "a.svg").read_text().startswith("<svg")
    assert (directory / "a.html").read_text().startswith("<!doctype html>")
    again = dslaunch(*words)
    assert again.returncode == 2
    assert "--svg a.svg: " in again.stderr
    assert dslaunch(*words, "--force").returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--params", "7e9"), "missing --largest-layer"),
        (("--params", "7e9", "--largest-layer", "8e9"), "cannot have more than all"),
        (("x.json", "--params", "7e9"), "not both"),
        (("--params", "7e9", "--largest-layer", "6e7", "--buffer-factor", "inf"), "inf is more"),
        (("--params", "7e9", "--largest-layer", "6e7", "--precision", "int8"), "--precision: "),
        (("--params", "7e9", "--largest-layer", "6e7", "--attention", "x"), "--attention: "),
        (("--params", "7e9", "--largest-layer", "6e7", "--gpu-memory", "80"), "--gpu-memory: "),
        (("--params", "7e9", "--largest-layer", "6e7", "--write", "a"), "no recommendation"),
        (("--params", "7e9", "--largest-layer", "6e7", "--svg", "no/a.svg"), "--svg no/a.svg"),
    ],
)
def test_an_invalid_option_is_one_line_without_a_traceback(
    dslaunch: Call, words: tuple[str, ...], message: str
) -> None:
    done = dslaunch("estimate", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("nowhere", "No such file or directory"),
        ("/dev/zero", "file too large: expected at most 100,000,000 bytes"),
    ],
)
def test_a_model_that_cannot_be_read_has_code_3(dslaunch: Call, model: str, why: str) -> None:
    done = dslaunch("estimate", model)
    assert (done.returncode, done.stderr.splitlines()[0]) == (3, f"error: {model}: {why}")


def test_one_gpu_is_singular(dslaunch: Call) -> None:
    done = dslaunch("estimate", "--params", "7e9", "--largest-layer", "6e7")
    assert "1 node x 1 GPU; GiB" in done.stdout


def called(*words: str) -> Any:
    app = typer.Typer(rich_markup_mode=None)
    app.command("init")(config_init.init)
    app.command("examples")(config_init.examples)
    return CliRunner().invoke(app, words)


def test_init_prints_a_config_with_comments() -> None:
    done = called("init", "--stage", "2", "--offload", "cpu", "--precision", "bf16", "--for", "hf")
    assert done.exit_code == 0
    read = json.loads(done.stdout)
    assert read["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert "zero_optimization.stage" in read["_comment"]


@pytest.mark.parametrize("name", [each.name for each in initial_config.library()])
def test_no_example_has_an_error_for_lint(dslaunch: Call, directory: Path, name: str) -> None:
    example = initial_config.example(name)
    (directory / "ds.json").write_text(example.text)
    done = dslaunch("config", "lint", "ds.json", "--for", example.target)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", ["hf", "native"])
@pytest.mark.parametrize(("stage", "offload"), [(0, "none"), (2, "cpu"), (3, "nvme")])
def test_what_init_writes_has_no_error_for_lint(
    dslaunch: Call, directory: Path, stage: int, offload: str, target: str
) -> None:
    purpose = initial_config.purpose(stage, offload, "bf16", target)
    (directory / "ds.json").write_text(initial_config.text(purpose))
    done = dslaunch("config", "lint", "ds.json", "--for", target)
    assert done.returncode == 0, done.stdout


def test_init_writes_a_file_where_none_is(directory: Path) -> None:
    assert called("init", "--for", "native", "-o", "ds.json").exit_code == 0
    assert parse((directory / "ds.json").read_text(), "ds.json")["bf16"] == {"enabled": True}
    assert "file exists" in str(called("init", "-o", "ds.json").exception)


def test_examples_lists_greps_and_prints() -> None:
    assert "native-lamb-fp16" in called("examples", "--grep", "Lamb").stdout
    assert json.loads(called("examples", "hf-zero3-bf16").stdout)["bf16"]["enabled"] == "auto"
    assert len(json.loads(called("examples", "--json").stdout)) > 10
    assert "`qwerty`" in called("examples", "--grep", "qwerty").stderr
