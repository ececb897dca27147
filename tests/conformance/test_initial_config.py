"""First configs and the library's examples are what the real DeepSpeed takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

from dslaunch.deepspeed import initial_config
from dslaunch.deepspeed.storage import parse

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
]
HERE = Path(__file__).parent
AUTO = {
    "train_batch_size": 1,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "enabled": True,
    "betas": [0.9, 0.999],
    "reduce_bucket_size": 10**6,
    "stage3_prefetch_bucket_size": 10**6,
    "stage3_param_persistence_threshold": 10**4,
    "warmup_num_steps": 10,
    "total_num_steps": 100,
}
"""What Hugging Face's Trainer would put in the place of `auto`."""
STARTERS = [
    (stage, offload, precision, target)
    for stage, offload in [(0, "none"), (1, "none"), (2, "cpu"), (3, "cpu-params"), (3, "nvme")]
    for precision in ("bf16", "fp32")
    for target in ("hf", "native")
]
ON_CPU = [
    "native-fp32",
    "native-zero1-bf16",
    "native-zero2-bf16",
    "native-zero2-offload",
    "native-zero3-bf16",
    "native-monitor",
    "hf-zero2-bf16",
    "hf-zero3-offload-bf16",
    "hf-node-local-checkpoints",
]
"""Without NVMe, without kernels for GPUs, and without fp16, which CPUs are slow at."""


def resolved(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: resolved(below, name) for name, below in value.items()}
    return AUTO.get(key, 0.001) if value == "auto" else value


@pytest.fixture(scope="module")
def accept() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("deepspeed")
        from deepspeed.runtime.config import DeepSpeedConfig
    return DeepSpeedConfig


@pytest.mark.parametrize("name", [each.name for each in initial_config.library()])
def test_deepspeed_takes_every_example(accept: Any, name: str) -> None:
    settings = resolved(json.loads(initial_config.example(name).text))
    assert accept(settings).zero_optimization_stage == settings.get("zero_optimization", {}).get(
        "stage", 0
    )


@pytest.mark.parametrize("words", STARTERS, ids=str)
def test_deepspeed_takes_what_init_writes_comments_and_all(
    accept: Any, words: tuple[int, str, str, str], tmp_path: Path
) -> None:
    text = initial_config.text(initial_config.purpose(*words))
    path = tmp_path / "ds_config.json"
    path.write_text(text if words[3] == "native" else json.dumps(resolved(json.loads(text))))
    assert accept(str(path)).zero_optimization_stage == words[0]


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_transformers_loads_models_in_the_precision_that_was_asked_for(
    precision: str, dtype: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("deepspeed")
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    path = tmp_path / "ds_config.json"
    path.write_text(initial_config.text(initial_config.purpose(2, "none", precision, "hf")))
    read: Any = HfDeepSpeedConfig(str(path))
    off = read.is_false("fp16.enabled")
    assert (
        "bfloat16" if read.is_true("bf16.enabled") else "float32" if off else "float16"
    ) == dtype


def test_the_examples_that_a_cpu_can_run_train(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    for name in ON_CPU:
        settings = resolved(parse(initial_config.example(name).text, name))
        settings.setdefault("optimizer", {"type": "AdamW", "params": {"lr": 0.001}})
        (tmp_path / f"{name}.json").write_text(json.dumps(settings))
    port = free_port()
    done = subprocess.run(
        [sys.executable, str(HERE / "try_config.py"), str(tmp_path), str(port)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    trained = re.findall(r"^TRAINED (.*)$", done.stdout, re.M)
    assert trained == sorted(ON_CPU), done.stderr[-3000:]
