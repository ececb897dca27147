"""What the lint says of the Hugging Face arguments, and what the real Trainer says: the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslaunch.deepspeed import arguments, config_text, schema
from dslaunch.deepspeed.batch import Parallelism
from dslaunch.deepspeed.lint import lint, read
from dslaunch.deepspeed.linted_config import ACCELERATES_STAGE, LintedConfig

MISSING = [name for name in ("deepspeed", "transformers", "accelerate") if not find_spec(name)]
pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
JUDGE = Path(__file__).with_name("hf_judge.py")
WORLD = 4
Ask = Callable[[dict[str, Any] | str, dict[str, Any]], dict[str, Any]]
ARGUMENTS = {
    "per_device_train_batch_size": [1, 8],
    "gradient_accumulation_steps": [1, 2],
    "learning_rate": [5e-5, 1e-3],
    "adam_beta1": [0.9, 0.8],
    "adam_epsilon": [1e-8, 1e-6],
    "weight_decay": [0.0, 0.1],
    "max_grad_norm": [1.0, 0.5],
    "warmup_steps": [1, 10],
    "max_steps": [100, 200],
    "fp16": [False, True],
    "bf16": [False, True],
    "save_on_each_node": [False, True],
}
VALUES: dict[str, list[Any]] = {
    "train_batch_size": [4, 8, 32, 64],
    "train_micro_batch_size_per_gpu": [1, 8],
    "gradient_accumulation_steps": [1, 2],
    "gradient_clipping": [1.0, 0.5],
    "optimizer.params.lr": [5e-5, 1e-3],
    "optimizer.params.betas": [[0.9, 0.999], [0.8, 0.999]],
    "optimizer.params.eps": [1e-8, 1e-6],
    "optimizer.params.weight_decay": [0.0, 0.1],
    "scheduler.params.warmup_min_lr": [0, 1e-6],
    "scheduler.params.warmup_max_lr": [5e-5, 1e-3],
    "scheduler.params.warmup_num_steps": [1, 10],
    "scheduler.params.total_num_steps": [100, 200],
    "fp16.enabled": [False, True],
    "bf16.enabled": [False, True],
    "zero_optimization.stage": [2, 3],
    "zero_optimization.reduce_bucket_size": [100],
    "zero_optimization.stage3_prefetch_bucket_size": [100],
    "zero_optimization.offload_param.device": ["none", "cpu"],
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": [True],
}
NOBODYS = ("dump_state", "zero_optimization.stage3_max_live_parameters", "pipeline.stages")
"""Keys whose `auto` nobody fills in."""


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    process = subprocess.Popen(
        [sys.executable, str(JUDGE)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()

    def ask(config: dict[str, Any] | str, given: dict[str, Any]) -> dict[str, Any]:
        """A text is started with; of data it is asked which keys are wrong."""
        assert process.stdin is not None
        assert process.stdout is not None
        what = "start" if isinstance(config, str) else "config"
        process.stdin.write(json.dumps({what: config, "arguments": given}) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    yield ask
    process.communicate()


def put(config: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for step in above:
        config = config.setdefault(step, {})
    config[last] = value


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    config: dict[str, Any] = {"zero_optimization": {"stage": 2}}
    for path in draw(st.lists(st.sampled_from(list(VALUES)), max_size=8, unique=True)):
        put(config, path, draw(st.sampled_from([*VALUES[path], "auto"])))
    if draw(st.booleans()):
        put(config, draw(st.sampled_from(NOBODYS)), "auto")
    return config


@given(configs(), st.fixed_dictionaries({k: st.sampled_from(v) for k, v in ARGUMENTS.items()}))
@settings(max_examples=120, deadline=None, derandomize=True)
def test_the_trainer_stops_at_the_keys_that_we_name(
    ask: Ask, config: dict[str, Any], given: dict[str, Any]
) -> None:
    real = ask(config, {**given, "world_size": WORLD, "adam_beta2": 0.999})
    written = config_text.parse(json.dumps(config), "c")
    known = arguments.Arguments(given)
    subject = LintedConfig(written, schema.table(), "hf", known, Parallelism(WORLD))
    found = lint(subject)
    assert {r.path for r in found if r.rule == "hf-mismatch"} == set(real["mismatched"])
    unfilled = [r.path for r in found if r.rule in ("auto-unresolved", "auto-batch")]
    if real["unfilled"] is None:
        assert unfilled == []
    else:
        assert real["unfilled"] in unfilled


DEFAULTS = {name: choices[0] for name, choices in ARGUMENTS.items()} | {
    "warmup_steps": 1, "bf16": True, "world_size": WORLD, "adam_beta2": 0.999, "adam_beta1": 0.9,
    "per_device_train_batch_size": 8,
}  # fmt: skip
ZERO2 = '"zero_optimization": {"stage": 2}'
FILES = [
    f"{{{ZERO2}}}",
    '{"bf16": {"enabled": "auto"}}',
    '{"zero_optimization": true}',
    '{"zero_optimization": false}',
    '{"zero_optimization": []}',
    '{"zero_optimization": {"stage": "auto"}}',
    f'{{{ZERO2}, "bf16": true}}',
    f'{{{ZERO2}, "bf16": {{"enabled": "true"}}}}',
    f'{{{ZERO2}, "bf16": {{"enabled": "Auto"}}}}',
    f'{{{ZERO2}, "fp16": {{"enabled": "false"}}}}',
    f'{{{ZERO2}, "fp16": {{"enabled": false}}, "bf16": {{"enabled": "auto"}}}}',
    f'{{{ZERO2}, "optimizer": {{"type": "AdamW", "params": {{"lr": "5e-5"}}}}}}',
    f'{{{ZERO2}, "optimizer": {{"type": "AdamW", "params": {{"lr": "auto"}}}}}}',
    f'{{{ZERO2}, "optimizer": "AdamW"}}',
    f'{{{ZERO2}, "gradient_clipping": "1.0"}}',
    f'{{{ZERO2}, "gradient_accumulation_steps": "1"}}',
    f'{{{ZERO2}, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}}',
    f'{{{ZERO2}, "steps_per_print": Infinity}}',
    f'{{{ZERO2}, "steps_per_print": 10,}}',
    f"{{{ZERO2}}} // comment",
    f'{{{ZERO2}, "zero_optimization": {{"stage": 1}}, "_dslaunch_ignore": ["duplicate-key"]}}',
    f'{{{ZERO2}, "_dslaunch_ignore": ["bf16-reduction"]}}',
]


@pytest.mark.parametrize("written", FILES)
def test_the_trainer_starts_with_what_has_no_error_and_with_nothing_else(
    ask: Ask, written: str
) -> None:
    real = ask(written, DEFAULTS)
    known = arguments.Arguments(
        {name: DEFAULTS[name] for name in arguments.DEFAULTS if name in DEFAULTS}
    )
    document, reader = read(written, "ds.json", "hf")
    found = lint(LintedConfig(document, schema.table(), reader, known, Parallelism(WORLD)))
    errors = [str(remark) for remark in found if remark.level == "error"]
    assert (real["error"] is None) == (not errors), (real, errors)


def test_a_stage_of_auto_is_2_and_no_stage_3_for_transformers(ask: Ask) -> None:
    real = ask('{"zero_optimization": {"stage": "auto"}}', DEFAULTS)
    assert (real["stage"], real["zero3"]) == (ACCELERATES_STAGE, False)


def test_a_stage_in_quotes_is_no_stage_3_for_transformers(ask: Ask) -> None:
    real = ask('{"zero_optimization": {"stage": "3"}}', DEFAULTS)
    assert (real["stage"], real["zero3"]) == ("3", False)
