"""What Accelerate is told on nodes without accelerators; tests/conformance trains with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.cluster.model import Allocation, Node
from dslaunch.launch.decisions import DecisionCode
from dslaunch.launch.facts import Accelerators, Facts, NodeFacts, PortFact
from dslaunch.launch.job import Job
from dslaunch.run.cpu_training import for_accelerate

VARIABLE = "ACCELERATE_USE_CPU"

PLAIN = NodeFacts(host="n1", machine="m", home="/")
PLACES = Allocation.of([(Node("n1", (0, 1)), (0, 1))])
DEEPSPEED = ("--output_dir", "out", "--deepspeed", "ds.json")


def told(
    job: Job, cwd: Path, *, node: NodeFacts = PLAIN, places: Allocation = PLACES
) -> tuple[str | None, list[DecisionCode]]:
    """The variable's value in the job's environment, and what was decided."""
    changed, decisions = for_accelerate(places, job, Facts((node,), PortFact(1)), cwd)
    return dict(changed.env).get(VARIABLE), [d.code for d in decisions]


def accelerate(*args: str, **more: object) -> Job:
    return Job("train.py", args, launcher="accelerate", **more)  # type: ignore[arg-type]


def test_plain_training_on_cpu_needs_the_variable(tmp_path: Path) -> None:
    assert told(accelerate(), tmp_path) == ("true", [DecisionCode.ACCELERATE_ON_CPU])


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel", "ascend", "gaudi", "neuron", "mlu"])
@pytest.mark.parametrize("devices", [0, 8])
def test_cpu_is_never_forced_where_an_accelerator_is_present(
    vendor: str, devices: int, tmp_path: Path
) -> None:
    node = NodeFacts("n1", "m", "/", accelerators=(Accelerators(vendor, devices, 8),))
    assert told(accelerate(), tmp_path, node=node) == (None, [])


def test_a_driver_that_fails_is_no_cpu_node(tmp_path: Path) -> None:
    node = NodeFacts("n1", "m", "/", gpu_error="driver not loaded")
    assert told(accelerate(), tmp_path, node=node) == (None, [])


def test_a_trainer_with_deepspeed_keeps_its_deepspeed(tmp_path: Path) -> None:
    assert told(accelerate(*DEEPSPEED, "--use_cpu"), tmp_path) == (
        None,
        [DecisionCode.ACCELERATE_NOT_SET],
    )


def test_a_trainer_with_deepspeed_without_use_cpu_is_reported(tmp_path: Path) -> None:
    assert told(accelerate(*DEEPSPEED), tmp_path) == (None, [DecisionCode.TRAINER_WITHOUT_CPU])


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("TrainingArguments('out', deepspeed='ds.json', use_cpu=True)", None),
        ("transformers.Seq2SeqTrainingArguments('out', deepspeed=config)", None),
        ("TrainingArguments('out', deepspeed=None)", "true"),
        ("Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))", "true"),
        ("print('deepspeed=1')", "true"),
        ("this is no Python", "true"),
    ],
)
def test_what_the_script_says_counts_too(source: str, value: str | None, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    assert told(accelerate(), tmp_path)[0] == value


def test_a_plugin_that_has_no_effect_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("plugin = DeepSpeedPlugin()")
    assert DecisionCode.ACCELERATE_PLUGIN in told(accelerate(), tmp_path)[1]


@pytest.mark.parametrize("where", ["job", "run", "node"])
def test_what_the_user_said_stays(where: str, tmp_path: Path) -> None:
    own = ((VARIABLE, "false"),)
    job = accelerate(env=own if where == "job" else (), overrides=own if where == "run" else ())
    node = Node("n1", (0, 1), env=own if where == "node" else ())
    places = Allocation.of([(node, (0, 1))])
    changed, said = for_accelerate(places, job, Facts((PLAIN,), PortFact(1)), tmp_path)
    assert (changed, said) == (job, ())


def test_other_launchers_need_nothing_for_other_scripts(tmp_path: Path) -> None:
    assert told(Job("train.py", launcher="torchrun"), tmp_path) == (None, [])


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("Accelerator()", "true"),
        ("transformers.TrainingArguments('out')", "true"),
        ("Accelerator(deepspeed_plugin=DeepSpeedPlugin())", None),
        ("TrainingArguments('out', deepspeed='ds.json')", None),
        ("DistributedDataParallel(model)", None),
    ],
)
def test_a_script_with_accelerate_needs_the_variable_below_any_launcher(
    source: str, value: str | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(source)
    codes = [DecisionCode.ACCELERATE_ON_CPU] if value else []
    assert told(Job("train.py", launcher="torchrun"), tmp_path) == (value, codes)
