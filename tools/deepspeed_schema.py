"""Write the table of a DeepSpeed version's config keys, from the installed package.

    python tools/deepspeed_schema.py src/dslaunch/deepspeed/tables/0.19.8.json

Another version: `pip install --no-deps --target DIR deepspeed==X`, then PYTHONPATH=DIR. What the
package can tell is taken from it: the fields of its pydantic models, the keys that its other
sections read, what it does with a key that it does not know, and which kinds of values it refuses.
What it cannot tell (types that it does not check, choices, who fills in `auto`) is in
tables/keys.json, kept by hand.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
TABLES = Path(__file__).resolve().parents[1] / "src/dslaunch/deepspeed/tables"
BASE = {"train_batch_size": 1}
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
SAMPLES: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "zero": 0,
    "whole": 7,
    "negative": -1,
    "fraction": 1.5,
    "text": "zz",
    "list": [1],
    "empty list": [],
    "object": {"zz": 1},
    "empty": {},
    "auto": "auto",
}
MODELS = {
    "zero_optimization": "deepspeed.runtime.zero.config:DeepSpeedZeroConfig",
    "fp16": "deepspeed.runtime.precision_config:DeepSpeedFP16Config",
    "bf16": "deepspeed.runtime.precision_config:DeepSpeedBF16Config",
    "bfloat16": "deepspeed.runtime.precision_config:DeepSpeedBF16Config",
    "comms_logger": "deepspeed.comm.config:CommsLoggerConfig",
    "tensorboard": "deepspeed.monitor.config:TensorBoardConfig",
    "wandb": "deepspeed.monitor.config:WandbConfig",
    "csv_monitor": "deepspeed.monitor.config:CSVConfig",
    "comet": "deepspeed.monitor.config:CometConfig",
    "hybrid_engine": "deepspeed.runtime.config:HybridEngineConfig",
    "compile": "deepspeed.compile.config:CompileConfig",
    "tensor_parallel": "deepspeed.runtime.tensor_parallel.config:TPTrainingConfig",
    "timers.throughput": "deepspeed.utils.config:DeepSpeedThroughputTimerConfig",
    "weight_quantization": "deepspeed.inference.config:WeightQuantConfig",
}
"""The sections that pydantic reads, in every version that has them."""
NO_SECTIONS = "compression_training."
"""Its code asks every one of its sections for the keys of another."""
BY_MACHINE = ("aio.use_gds",)
"""What is refused depends on the accelerator."""
REMOVED = (
    ("", "_REMOVED_TOP_LEVEL_CONFIG_KEYS"),
    ("zero_optimization.", "_REMOVED_ZERO_CONFIG_KEYS"),
)


class Recorder(dict[str, Any]):
    """A section that remembers which keys were asked for, and the default of each."""

    def __init__(self, path: str, reads: dict[str, Any], data: dict[str, Any]) -> None:
        super().__init__(data)
        self.path, self.reads = path, reads

    def _read(self, key: str, default: Any = None) -> None:
        path = f"{self.path}.{key}" if self.path else key
        if self.reads.get(path) is None:
            self.reads[path] = default

    def get(self, key: str, default: Any = None) -> Any:
        """Remember the key and its default."""
        self._read(key, default)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self._read(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._read(str(key))
        return super().__contains__(key)

    def keys(self) -> Any:
        """The keys; asking whether one is in them counts as asking for it."""
        return self

    def __iter__(self) -> Any:
        return iter(list(super().keys()))


def accepts(config: dict[str, Any]) -> bool:
    """Whether the real DeepSpeedConfig takes it."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            DeepSpeedConfig(config)
    except Exception:  # noqa: BLE001 - any way to fail is a refusal
        return False
    return True


def placed(path: str, value: Any, base: dict[str, Any]) -> dict[str, Any]:
    """The base with a value at a path."""
    config = json.loads(json.dumps(base))
    here = config
    *above, last = path.split(".")
    for step in above:
        here = here.setdefault(step, {})
    here[last] = value
    return config


def fields(path: str, model: Any) -> dict[str, dict[str, Any]]:
    """The keys of a pydantic model and of those in it."""
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel

    found: dict[str, dict[str, Any]] = {}
    for name, info in model.model_fields.items():
        row = field(info)
        inner = inner_models(info.annotation, DeepSpeedConfigModel)
        if inner:
            row["type"] = "object|null" if row["default"] is None else "object"
            row["unknown_keys"] = "forbid"
        key = info.alias or name
        for spelling in dict.fromkeys((key, name)):
            alias = {"alias_of": f"{path}.{key}"} if spelling != key else {}
            found[f"{path}.{spelling}"] = row | alias
            for each in inner:
                found |= fields(f"{path}.{spelling}", each)
    return found


def inner_models(annotation: Any, base: type) -> list[Any]:
    """The models that a type is, or is a union of."""
    parts = [annotation, *getattr(annotation, "__args__", ())]
    return [part for part in parts if isinstance(part, type) and issubclass(part, base)]


def field(info: Any) -> dict[str, Any]:
    """One key: type, default, bounds, what replaces it."""
    extra = info.json_schema_extra or {}
    row: dict[str, Any] = {"type": type_text(info.annotation), "default": plain(info.get_default())}
    if info.default_factory is not None:
        row["default"] = plain(info.default_factory())
    for bound in info.metadata:
        for name, key in (("ge", "min"), ("gt", "above"), ("le", "max"), ("lt", "below")):
            if getattr(bound, name, None) is not None:
                row[key] = getattr(bound, name)
    choices = enumeration(info.annotation)
    if choices:
        row["choices"] = choices
        if "list" not in row["type"]:
            row["type"] = type_of_choices(choices, row["type"])
    if extra.get("deprecated"):
        row["deprecated"] = True
        row["replaced_by"] = extra.get("new_param") or None
    return row | {"checked": True}


def type_text(annotation: Any) -> str:
    """A type as `int|null`."""
    import types
    import typing

    names = {bool: "bool", int: "int", float: "float", str: "str", dict: "object", list: "list"}
    names |= {Path: "path", type(None): "null", Any: "any", object: "any", tuple: "list"}
    if annotation in names:
        return names[annotation]
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return "|".join(dict.fromkeys(type_text(part) for part in parts))
    if origin is list:
        return f"list[{type_text(parts[0])}]"
    if origin is typing.Literal:
        return "str"
    return {dict: "object", tuple: "list"}.get(origin, "python")


def enumeration(annotation: Any) -> list[Any]:
    """The values of an enumeration or of Literal."""
    import typing

    for part in (annotation, *typing.get_args(annotation)):
        if isinstance(part, type) and issubclass(part, Enum):
            values = [member.value for member in part]
            return values if all(isinstance(v, str | int) for v in values) else []
        if typing.get_origin(part) is typing.Literal:
            return list(typing.get_args(part))
        if part is not annotation and (inside := enumeration(part)):
            return inside
    return []


def type_of_choices(choices: list[Any], before: str) -> str:
    """The type of enumerated values, with null where it was allowed."""
    kind = "int" if all(isinstance(value, int) for value in choices) else "str"
    return f"{kind}|null" if "null" in before else kind


def plain(value: Any) -> Any:
    """A default as JSON has it."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | str) or value == {}:
        return value
    if isinstance(value, int | float):
        return int(value) if float(value).is_integer() and isinstance(value, int) else float(value)
    return {} if hasattr(type(value), "model_fields") else None


def pydantic_rows() -> dict[str, dict[str, Any]]:
    """All keys that pydantic checks."""
    found: dict[str, dict[str, Any]] = {}
    for path, place in MODELS.items():
        module, name = place.split(":")
        try:
            model = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            model = _older(name)
        if model is not None:
            found[path] = {"type": "object", "default": {}, "unknown_keys": "forbid"}
            found |= fields(path, model)
    return found


def _older(name: str) -> Any:
    """Where the model was before 0.17: in runtime/config.py, under an older name."""
    import deepspeed.runtime.config as module

    return getattr(module, name, None)


def reads(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys that are asked for, with their defaults; one run for each section that is on."""
    found: dict[str, Any] = {}
    sections = [path for path, row in keys.items() if "unknown_keys" in row and "<" not in path]
    runs = [{}, *({path: {"enabled": True}} for path in sections)]
    for enabled in runs:
        config: dict[str, Any] = Recorder("", found, BASE)
        wanted = [path for path in sections if any(o.startswith(path) for o in enabled)]
        for path in wanted or [p for p in sections if "." not in p]:
            here = config
            for depth, step in enumerate(path.split(".")):
                above = ".".join(path.split(".")[: depth + 1])
                if not dict.__contains__(here, step):
                    dict.__setitem__(here, step, Recorder(above, found, enabled.get(above, {})))
                here = dict.__getitem__(here, step)
        accepts(config)
    return found


def removed() -> dict[str, dict[str, Any]]:
    """The keys at which DeepSpeed stops since what they were for is gone."""
    import deepspeed.runtime.config as module

    return {
        prefix + key: {"type": "removed", "default": None}
        for prefix, name in REMOVED
        for key in getattr(module, name, {})
    }


def known(keys: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """All keys of this version, in the order of keys.json, then those that are new."""
    checked, asked, gone = pydantic_rows(), reads(keys), removed()
    found: dict[str, dict[str, Any]] = {}
    for path, row in keys.items():
        here = section(path)
        is_open = not checked.get(here, {}).get("unknown_keys") and (not here or here in found)
        late = row.get("late") or path in asked
        if path in checked:
            left_out = () if "zenflow" in path else ("choices", "min", "max")
            ours = {k: v for k, v in _by_hand(row).items() if k not in left_out}
            found[path] = {**ours, **checked[path]}
        elif late and is_open and path not in gone:
            found[path] = _by_hand(row)
    found |= {path: row for path, row in checked.items() if path not in found | gone}
    for path in asked:
        here = path.rpartition(".")[0]
        new = path not in found | gone and here not in checked and not path.endswith(".enabled")
        if new and (not here or (here in found and not path.startswith(NO_SECTIONS))):
            found[path] = {"type": "any", "default": plain(asked[path])}
    return found | gone


def section(path: str) -> str:
    """The path of the section that a key is in; names that users choose are no section."""
    steps = path.replace("[]", "").split(".")[:-1]
    while steps and steps[-1].startswith("<"):
        steps.pop()
    return ".".join(steps)


def _by_hand(row: dict[str, Any]) -> dict[str, Any]:
    left_out = ("late", "note", "meaning", "change", "source")
    return {key: value for key, value in row.items() if key not in left_out}


def names() -> dict[str, Any]:
    """The optimizers that are DeepSpeed's own, and the schedulers with their parameters."""
    import inspect

    from deepspeed.runtime import config, lr_schedules

    schedulers = {}
    for name in lr_schedules.VALID_LR_SCHEDULES:
        signature = inspect.signature(getattr(lr_schedules, name)).parameters
        schedulers[name] = {
            key: "required" if parameter.default is parameter.empty else plain(parameter.default)
            for key, parameter in signature.items()
            if key not in ("optimizer", "self")
        }
    return {"optimizers": config.DEEPSPEED_OPTIMIZERS, "schedulers": schedulers}


def measure(rows: dict[str, dict[str, Any]]) -> None:
    """Add what DeepSpeed refuses, and what it does with keys that it does not know."""
    for path, row in rows.items():
        if row["type"] == "removed" or any(c in path for c in "<[") or path in BATCH:
            continue
        if "unknown_keys" in row:
            measure_section(path, row)
        elif not row.get("checked"):
            above = path.rpartition(".")[0]
            needs = rows.get(above, {}).get("requires")
            base = placed(above, {"enabled": False}, BASE) if needs else BASE
            refused = [k for k, v in samples(row) if not accepts(placed(path, v, base))]
            others = refused_texts(path, row, refused, base)
            row["rejects"] = [] if path in BY_MACHINE or alone(row, refused) else refused + others


def alone(row: dict[str, Any], refused: list[str]) -> bool:
    """Whether the key is refused with any value, so that other keys are missing beside it."""
    return set(refused) >= set(SAMPLES) - {"auto", "object", "empty", "empty list"}


def samples(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """A value of each kind; a list has items of the right type."""
    texts = "list[str]" in row["type"]
    return iter((SAMPLES | ({"list": ["zz"]} if texts else {})).items())


def measure_section(path: str, row: dict[str, Any]) -> None:
    """What else than an object it may be, whether it may be empty, and which keys it may have."""
    others = {k: v for k, v in SAMPLES.items() if k != "object"}
    refused = [k for k, v in others.items() if not accepts(placed(path, v, BASE))]
    switched = {"enabled": False}
    if "empty" in refused and accepts(placed(path, switched, BASE)):
        row["requires"] = ["enabled"]
    if not row.get("checked"):
        whole = "empty" in refused and "requires" not in row
        row["rejects"] = [] if whole and path.count(".") else refused
    unknown = placed(f"{path}.zz_unknown", 1, placed(path, switched, BASE))
    if "requires" not in row:
        unknown = placed(f"{path}.zz_unknown", 1, BASE)
    if "empty" not in refused or "requires" in row:
        row["unknown_keys"] = "ignore" if accepts(unknown) else "forbid"


def refused_texts(
    path: str, row: dict[str, Any], refused: list[str], base: dict[str, Any]
) -> list[str]:
    """Whether some texts are taken: only the choices, and those in which case."""
    choices = [c for c in row.get("choices", []) if isinstance(c, str) and not c.startswith("<")]
    if not choices or "text" not in refused or not accepts(placed(path, choices[0], base)):
        return []
    refused.remove("text")
    swapped = accepts(placed(path, choices[0].swapcase(), base))
    return ["other text"] if swapped else ["other text", "other case"]


def main() -> None:
    """Write the table to the file that is named."""
    logging.disable(logging.CRITICAL)
    import deepspeed

    keys = json.loads((TABLES / "keys.json").read_text("utf-8"))
    rows = known(keys)
    measure(rows)
    table = {"deepspeed": deepspeed.__version__, **names(), "keys": rows}
    Path(sys.argv[1]).write_text(compact(table), "utf-8")


def compact(table: dict[str, Any]) -> str:
    """JSON with one line for each key."""
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in table["keys"].items()]
    heads = [f" {json.dumps(k)}: {json.dumps(v)},\n" for k, v in table.items() if k != "keys"]
    return "{\n" + "".join(heads) + ' "keys": {\n' + ",\n".join(lines) + "\n }\n}\n"


if __name__ == "__main__":
    main()
