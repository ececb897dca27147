"""What the lint says and what the real DeepSpeed does: the same, for generated configs and shipped
ones, in each version that is there.

The installed DeepSpeed is always compared, and those that tools/setup.sh put beside it. Where
DSLAUNCH_DEEPSPEEDS names directories (`pip install --no-deps --target DIR deepspeed==0.19.6`),
divided by colons, these are instead.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ports import free_port

from dslaunch.deepspeed import config_text, schema
from dslaunch.deepspeed.batch import MICRO, STEPS, TRAIN, Parallelism, resolve
from dslaunch.deepspeed.lint import lint
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.schema import Key
from dslaunch.errors import ConfigError
from dslaunch.lint import Remark

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]
ROOT = Path(__file__).resolve().parents[2]
JUDGE = Path(__file__).with_name("deepspeed_judge.py")
TOOL = ROOT / "tools/deepspeed_schema.py"
BESIDE = Path(sys.prefix) / "deepspeed"
OTHERS = [d for d in os.environ.get("DSLAUNCH_DEEPSPEEDS", "").split(":") if d] or [
    str(found.parent) for found in sorted(BESIDE.glob("*/deepspeed"))
]
EXPLAINED = {
    "aio.use_gds": "refused on a CPU, taken on a GPU",
    "compression_training": "its parser asks a section for keys of the sections beside it",
    "data_efficiency": "its parser asks for more once a part of it is on",
}
"""Keys that are not compared, since their values alone do not decide."""


class Judge:
    """The real DeepSpeed in a process of its own."""

    def __init__(
        self, directory: str | None, what: str = "config", more: dict[str, str] | None = None
    ) -> None:
        self.directory = directory
        env = {**os.environ, **({"PYTHONPATH": directory} if directory else {}), **(more or {})}
        self._process = subprocess.Popen(
            [sys.executable, str(JUDGE), what], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.version: str = self._answer()
        self.table = schema.table(self.version)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def says(self, config: Any) -> str | None:
        """What DeepSpeed stops with; None: it goes on."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(config) + "\n")
        self._process.stdin.flush()
        answer: str | None = self._answer()
        return answer

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


RELEASES = [
    pytest.param(None, id="installed"),
    *(pytest.param(other, id=Path(other).name, marks=pytest.mark.long) for other in OTHERS),
]
"""Other releases than the installed one are further cases: importing one takes 20 s."""


@pytest.fixture(scope="module", params=RELEASES)
def judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    judge = Judge(request.param)
    yield judge
    judge.end()


STOPS = frozenset({
    "unknown-key", "removed-key", "wrong-type", "wrong-value", "old-and-new", "wrong-batch",
    "batch", "batch-missing", "partial-offload", "sum-reduction", "grad-norm", "both-precisions",
    "loss-scale", "master-weights", "duplicate-key", "missing-key", "no-object", "auto-batch",
})  # fmt: skip
"""The rules at whose remarks DeepSpeed stops when it reads the config; at others it goes on."""


def remarks(config: Any, table: schema.Table) -> tuple[Remark, ...]:
    written = config if isinstance(config, str) else json.dumps(config)
    return lint(LintedConfig(config_text.parse(written, "c"), table, parallelism=Parallelism(1)))


def stops(config: Any, table: schema.Table) -> list[Remark]:
    return [remark for remark in remarks(config, table) if remark.rule in STOPS]


def test_a_second_version_is_compared() -> None:
    if not OTHERS:
        pytest.skip(f"no other DeepSpeed in {BESIDE}, where tools/setup.sh installs one")
    assert all((Path(each) / "deepspeed").is_dir() for each in OTHERS)


def test_the_table_is_what_the_package_says(judge: Judge, tmp_path: Path) -> None:
    if judge.version not in schema.versions():
        pytest.skip(f"no table of {judge.version}: tools/deepspeed_schema.py writes one")
    env = {**os.environ, "PYTHONPATH": judge.directory or ""}
    new = tmp_path / "new.json"
    subprocess.run([sys.executable, TOOL, new], env=env, check=True, capture_output=True)
    stored = json.loads((schema.TABLES / f"{judge.version}.json").read_text("utf-8"))
    assert json.loads(new.read_text("utf-8")) == stored


WRONG = [
    None, True, False, 0, 7, -1, 1.5, "zz", "7", "true", "auto", "", [], [1], ["a"], {}, {"a": 1},
    2**70,
]  # fmt: skip


def right(key: Key) -> list[Any]:
    """Values that are of the key's type."""
    if key.choices and not any(str(choice).startswith("<") for choice in key.choices):
        return [[c] if "list" in key.type else c for c in key.choices]
    least = int(key.min or (key.above or 0) + 1)
    part = 0.5 if (key.max or 2) <= 1 else 1.5
    plain = {
        "bool": [True, False], "int": [least, least + 7], "float": [part], "str": ["abc"],
        "path": ["/x"], "null": [None], "object": [{}], "list": [[]], "any": [None],
        "list[str]": [["a"]], "list[int]": [[1]], "list[float]": [[0.5]],
    }  # fmt: skip
    return [value for kind in key.types for value in plain.get(kind, [None])]


def put(config: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for step in above:
        inner = config.setdefault(step, {})
        if not isinstance(inner, dict):
            return
        config = inner
    config[last] = deepcopy(value)


@st.composite
def configs(draw: st.DrawFn, table: schema.Table) -> dict[str, Any]:
    """A few keys of the table with right values, some with wrong ones, some names misspelt."""
    paths = [
        path for path in table.keys
        if not re.search(r"[<\[]", path) and not path.startswith(tuple(EXPLAINED))
        and path not in (TRAIN, MICRO, STEPS)
    ]  # fmt: skip
    config: dict[str, Any] = {}
    batch = st.sampled_from([8, 8, 8, 8, 1, 0, -1, "8", "auto", None])
    for name, often in ((TRAIN, 9), (MICRO, 2), (STEPS, 2)):
        if draw(st.integers(1, 10)) <= often:
            put(config, name, draw(batch))
    for path in draw(st.lists(st.sampled_from(paths), min_size=1, max_size=6)):
        wrong = draw(st.integers(1, 8)) == 1
        put(config, path, draw(st.sampled_from(WRONG if wrong else right(table.keys[path]))))
    if draw(st.integers(1, 4)) == 1:
        put(config, draw(st.sampled_from(paths)) + draw(st.sampled_from(["x", "_", "2"])), 1)
    return config


@given(st.data())
@settings(
    max_examples=300, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
def test_we_say_that_deepspeed_stops_where_it_does_and_nowhere_else(
    judge: Judge, data: st.DataObject
) -> None:
    config = data.draw(configs(judge.table))
    real, ours = judge.says(config), stops(config, judge.table)
    assert (real is None) == (not ours), f"{json.dumps(config)}\n{real}\n{list(map(str, ours))}"


def is_open(key: Key, table: schema.Table) -> bool:
    """Whether it is a section in which a misspelt key can stand alone."""
    steps = key.path.split(".")
    above = [table.keys.get(".".join(steps[:depth])) for depth in range(1, len(steps) + 1)]
    explained = "<" in key.path or key.path.startswith(tuple(EXPLAINED))
    needs = any(each is not None and each.requires for each in above)
    return bool(key.unknown_keys and table.names(key.path)) and not explained and not needs


@given(st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_misspelt_key_is_refused_or_ignored_as_we_say(judge: Judge, data: st.DataObject) -> None:
    sections = [key.path for key in judge.table.keys.values() if is_open(key, judge.table)]
    section = data.draw(st.sampled_from(["", *sections]))
    name = data.draw(st.sampled_from(judge.table.names(section))).strip("<>") + "_x"
    config: dict[str, Any] = {TRAIN: 8}
    path = f"{section}.{name}" if section else name
    put(config, path, 1)
    if section.startswith("bfloat16"):
        config.pop("bf16", None)
    rules = {r.rule for r in remarks(config, judge.table) if r.path == path}
    if section in ("optimizer.params", "scheduler.params"):
        assert judge.says(config) is None
    else:
        assert rules == ({"ignored-key"} if judge.says(config) is None else {"unknown-key"})


SIZES = st.none() | st.integers(-1, 12)


@given(SIZES, SIZES, SIZES)
@settings(
    max_examples=150, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
def test_batch_sizes_fail_in_deepspeeds_own_words(
    judge: Judge, train: int | None, micro: int | None, steps: int | None
) -> None:
    said = judge.says({TRAIN: train, MICRO: micro, STEPS: steps})
    result = resolve(train, micro, steps, 1)
    ours = getattr(result, "message", None)
    assert (said.partition(": ")[2] if said else None) == ours


FILES = [
    ('{"train_batch_size": 8,} // x', True),
    ("train_batch_size: 8", True),
    ('{"train_batch_size": 8, "train_batch_size": 8}', False),
    ('{"train_batch_size": 8, "fp16": {"enabled": true, "enabled": true}}', False),
    ('{"train_batch_size": }', False),
    ("[]", False),
    ("", False),
    ("{'train_batch_size': 8\n  zero_optimization: {stage: 2}}", True),
]


@pytest.mark.parametrize(("written", "taken"), FILES)
def test_files_are_read_as_deepspeed_reads_them(
    judge: Judge, written: str, taken: bool, tmp_path: Path
) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text(written, "utf-8")
    assert (judge.says(str(file)) is None) == taken
    try:
        ours = not stops(written, judge.table)
    except ConfigError:
        ours = False
    assert ours == taken


SGD = {"type": "SGD", "params": {"lr": 1e-3}}
ADAGRAD = {"type": "Adagrad", "params": {"lr": 1e-3}}
STAGE: list[dict[str, Any]] = [
    {"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}, "optimizer": ADAGRAD}
    for stage in range(4)
]
STARTED: list[dict[str, Any]] = [
    {},
    *STAGE[1:],
    *({**config, "prescale_gradients": True} for config in STAGE),
    *({**config, "gradient_predivide_factor": 2.0} for config in STAGE),
    {**STAGE[1], "zero_optimization": {"stage": 1, "legacy_stage1": True}},
    {**STAGE[0], "data_types": {"param_dtype": "fp16"}},
    {**STAGE[0], "data_types": {"param_dtype": "bf16"}},
    {**STAGE[1], "optimizer": SGD},
    {**STAGE[1], "optimizer": SGD, "zero_allow_untested_optimizer": True},
    {"optimizer": {"type": "sgd", "params": {"lr": 1e-3}}},
    {"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}},
    {"optimizer": {"type": "Adagrad", "params": {"lr": 1e-3, "beta": 1}}},
    {"optimizer": {"type": "Adam", "params": {"torch_adam": True}}},
    {"optimizer": {"type": "Adam", "params": {"torch_adam": True, "max_grad_norm": 1.0}}},
    *(
        {"optimizer": SGD, "scheduler": scheduler}
        for scheduler in (
            {"type": "WarmupLR", "params": {}},
            {"type": "WarmupLR"},
            {"type": "warmuplr", "params": {}},
            {"type": "WarmupLR", "params": {"warmup_num_steps": 0}},
            {"type": "WarmupLR", "params": {"warmup_num_steps": 1}},
            {"type": "WarmupDecayLR", "params": {}},
            {"type": "WarmupDecayLR", "params": {"total_num_steps": 10}},
            {"type": "OneCycle", "params": {}},
            {"type": "LRRangeTest", "params": {"min_lr": 1}},
            {"type": "CosineAnnealingLR", "params": {"T_max": 5}},
            {"type": "CosineAnnealingLR", "params": {}},
            {"type": "CosineAnnealingLR", "params": {"T_max": 5, "tmax": 5}},
            {"type": "StepLR", "params": {"step_size": 5}},
            {"type": "PolynomialLR", "params": {}},
            {"type": "PolynomialLR"},
            {"type": "LambdaLR", "params": {}},
            *(
                {"type": name, "params": {}}
                for name in (
                    "NoSuchSchedule",
                    "CosineLR",
                    "LinearDecayLR",
                    "WarmupStableDecayLR",
                    "cosine",
                    "WarmupLinearLR",
                    "CosineAnnealing",
                    "cosineannealinglr",
                    "PolynomialDecayLR",
                    "NoamScheduler",
                    "OneCycleRestarts",
                )
            ),
        )
    ),
    {"zero_optimization": True, "bf16": {"enabled": True}, "optimizer": ADAGRAD},
    {"zero_optimization": False},
]


def test_the_schedulers_of_torch_are_those_of_the_table() -> None:
    """The names that the engine finds, and what it must hand to them."""
    import inspect

    from torch.optim import lr_scheduler

    found = {}
    for name, kind in vars(lr_scheduler).items():
        if name[0] != "_" and inspect.isclass(kind) and issubclass(kind, lr_scheduler.LRScheduler):
            parameters = inspect.signature(kind).parameters
            given = {n: p for n, p in parameters.items() if n not in ("optimizer", "last_epoch")}
            needed = [n for n, p in given.items() if p.default is p.empty]
            found[name] = {"needs": needed, "takes": [n for n in given if n not in needed]}
    assert found == schema.by_hand("torch")["schedulers"]


def test_the_engine_starts_with_what_has_no_error_and_with_nothing_else() -> None:
    port = free_port()
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    judge = Judge(None, "engine", rank | {"MASTER_PORT": str(port)})
    differ = []
    for settings_ in STARTED:
        config = {TRAIN: 1, **settings_}
        said = judge.says(config)
        ours = [str(r) for r in remarks(config, judge.table) if r.level == "error"]
        if (said is None) != (not ours):
            differ.append((config, said, ours))
    judge.end()
    assert differ == []


def shipped(directory: str | None) -> list[Path]:
    """The configs that come with a DeepSpeed; None: the installed one."""
    spec = find_spec("deepspeed")
    assert spec is not None and spec.origin is not None
    package = Path(directory) / "deepspeed" if directory else Path(spec.origin).parent
    return [file for file in package.rglob("*.json") if "zero_optimization" in file.read_text()]


def test_configs_that_deepspeed_ships_have_no_error(judge: Judge) -> None:
    files = shipped(judge.directory)
    assert files
    for file in files:
        found = remarks(file.read_text("utf-8"), judge.table)
        assert [str(remark) for remark in found if remark.level == "error"] == []
