"""Count the parameters of a model without loading its weights.

From a Hugging Face config.json, by rules per family of architectures or by transformers on torch's
meta device; from the header of a safetensors file; or from an index of several files.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.deepspeed.architectures import Shape, total
from dslaunch.deepspeed.families import FAMILIES
from dslaunch.deepspeed.memory import Model
from dslaunch.deepspeed.quantities import MOST
from dslaunch.errors import ConfigError, DslaunchError, ErrorCode, Problem, ToolMissingError
from dslaunch.json_text import json_literal
from dslaunch.lint.user_text import read_file

INDEX_SUFFIX, WEIGHTS_SUFFIX = ".safetensors.index.json", ".safetensors"
MOST_HEADER = 100_000_000
"""Maximum size of the header in bytes (safetensors 0.8, tensor.rs)."""
WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}


class Sized(Struct, frozen=True):
    """The size of a model, its source, and its shape if known."""

    model: Model
    source: str
    shape: Shape | None = None
    family: str = ""
    """Its `model_type`, if the shape is known."""
    partial: bool = False
    """Only the text part of a multimodal model is counted."""


def from_config(text: str, name: str) -> Sized:
    """Count the parameters of a model from its Hugging Face config.json.

    Raises ConfigError for invalid JSON, an unknown family, and missing values.
    """
    config = _object(text, name)
    family = config.get("model_type")
    if family not in list(FAMILIES) and "text_config" in config:
        alone = from_config(json_literal(config["text_config"]), name)
        return replace(alone, partial=True)  # other parts, such as a vision tower, are unknown
    if family is None:
        hint = "use the config.json of a model, or --params and --largest-layer"
        problem = _problem(name, "missing-key", "required, but not set", path="model_type")
        raise ConfigError((problem,), hint=hint)
    if not isinstance(family, str) or family not in FAMILIES:
        hint = "add --meta to count it with transformers, or use --params and --largest-layer"
        message = f"unknown model type {json_literal(family)}"
        problem = _problem(name, "unknown-model-type", message, path="model_type")
        raise ConfigError((problem,), hint=hint)
    try:
        parts, shape = FAMILIES[family](config)
        return Sized(total(parts), f"{name}, model type {family}", shape, family)
    except KeyError as error:
        path = str(error.args[0])
        problem = _problem(name, "missing-key", "required, but not set", path=path)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        problem = _problem(name, "invalid-sizes", f"invalid sizes: {error}")
    raise ConfigError((problem,), hint="use a config.json written by `save_pretrained`")


def _problem(file: str, rule: str, message: str, path: str = "") -> Problem:
    return Problem(file=file, line=0, column=0, path=path, message=message, rule=rule)


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        why = f"not valid JSON: {error.msg}"
        raise ConfigError((Problem(name, error.lineno, error.colno, "", why),)) from None
    except RecursionError:
        raise ConfigError((_problem(name, "too-deep", "nested too deeply"),)) from None
    except ValueError:  # int() accepts at most 4,300 digits
        raise ConfigError((_problem(name, "too-large", "a number is too large"),)) from None
    if not isinstance(data, dict):
        raise ConfigError((_problem(name, "wrong-type", "expected a JSON object"),))
    return data


def from_path(path: Path) -> Sized:
    """Count the parameters of the model at `path`: a config, weights, an index, or their directory.

    Raises ConfigError for invalid files, DslaunchError for unreadable ones.
    """
    if path.is_dir():
        return from_path(_in_directory(path))
    if not path.exists():
        problem = _problem(str(path), "unreadable", "No such file or directory")
        raise ConfigError((problem,), hint=_meant(str(path)))
    sized = _of_file(path)
    if not sized.model.params <= MOST:
        problem = _problem(str(path), "too-large", f"more than {MOST:.0e} parameters")
        raise ConfigError((problem,))
    return sized


def _meant(name: str) -> str:
    """Return the hint for a model that is not a file: a number of parameters, or a model's name."""
    if re.fullmatch(r"[0-9.]+(e[0-9]+|[KMBT])?", name, re.IGNORECASE):
        return f"give a number of parameters as `--params {name} --largest-layer N`"
    return "name the model's config.json; `hf download MODEL config.json` prints its path"


def _of_file(path: Path) -> Sized:
    if path.name.endswith(INDEX_SUFFIX):
        return _from_index(path)
    if path.name.endswith(WEIGHTS_SUFFIX):
        sized = Sized(_model([_header(path)]), f"the header of {path}")
        return replace(sized, shape=_shape_beside(path))
    return from_config(read_file(path, MOST_HEADER), str(path))


def _in_directory(path: Path) -> Path:
    for pattern in ("config.json", f"*{INDEX_SUFFIX}", f"*{WEIGHTS_SUFFIX}"):
        for found in sorted(path.glob(pattern)):
            return found
    hint = "use the directory of a model, its config.json, or a safetensors file or index"
    problem = _problem(str(path), "missing-file", "no config.json and no safetensors file found")
    raise ConfigError((problem,), hint=hint)


def _from_index(path: Path) -> Sized:
    """Count from the headers of the files in the index; without them, from its total size."""
    index = _object(read_file(path, MOST_HEADER), str(path))
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ConfigError(
            (_problem(str(path), "empty-value", "no weights listed", path="weight_map"),)
        )
    files = [path.parent / name for name in sorted({str(name) for name in names.values()})]
    shape = _shape_beside(path)
    if all(file.is_file() for file in files):
        model = _model([_header(file) for file in files])
        return Sized(model, f"the headers of {len(files)} files in {path}", shape)
    return replace(_from_total(path, index), shape=shape)


def _from_total(path: Path, index: dict[str, Any]) -> Sized:
    """Count from the index alone, which has the total bytes, not the size of each weight."""
    config = path.parent / "config.json"
    metadata = index.get("metadata") or {}
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(size, int) or not config.is_file():
        message = "cannot count the parameters without the weights"
        problem = _problem(str(path), "missing-weights", message, path="metadata")
        raise ConfigError((problem,), hint="add the config.json or the weights to its directory")
    text = read_file(config, MOST_HEADER)
    data = _object(text, str(config))
    width = WIDTHS.get(str(data.get("dtype") or data.get("torch_dtype")), 4)
    counted = from_config(text, str(config))
    model = Model(size // width, counted.model.largest_layer)
    return Sized(model, f"{path}: {size} bytes of {width} each, largest layer by {config}")


def _shape_beside(path: Path) -> Shape | None:
    try:
        return from_config(read_file(path.parent / "config.json", MOST_HEADER), "config.json").shape
    except DslaunchError:
        return None


Header = dict[str, Any]


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)


def _header(path: Path) -> Header:
    """Return the header of a safetensors file: 8 bytes of length, then JSON."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            data = file.read(length) if length <= MOST_HEADER else b""
        head = json.loads(data)
        tensors = {name: entry["shape"] for name, entry in head.items() if name != "__metadata__"}
        if not tensors or not all(map(_is_shape, tensors.values())):
            raise ValueError
        return tensors
    except OSError as error:
        raise ConfigError((_problem(str(path), "unreadable", str(error.strerror)),)) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        problem = _problem(str(path), "not-safetensors", "not a safetensors file")
        hint = "if it is a Git LFS pointer, run: git lfs pull"
        raise ConfigError((problem,), hint=hint) from None


def _model(headers: list[Header]) -> Model:
    """Return the elements of all tensors, and the largest sum for one module."""
    modules: Counter[str] = Counter()
    for header in headers:
        for name, shape in header.items():
            modules[name.rpartition(".")[0]] += prod(shape)
    return Model(modules.total(), max(modules.values()))


def on_meta(path: Path) -> Sized:
    """Count with transformers and torch, on torch's meta device, which has no data.

    The model has the first head in its config, otherwise that of a causal language model. Code of
    the model itself is not run.

    Raises ToolMissingError if they are not installed, DslaunchError if they fail.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ToolMissingError.coded(ErrorCode.NO_TRANSFORMERS, error=str(error)) from None
    try:
        # explicit: without it transformers asks on a terminal whether to run the code of a model
        config = transformers.AutoConfig.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False
        )
        name = (config.architectures or [""])[0]
        kind = getattr(transformers, str(name), None)
        with torch.device("meta"):
            model: Any
            if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
                model = kind(config)
            else:
                auto: Any = transformers.AutoModelForCausalLM
                model = auto.from_config(config, trust_remote_code=False)
        model.tie_weights()
    except (ValueError, OSError, KeyError, ImportError, AttributeError, TypeError) as error:
        raise DslaunchError.coded(
            ErrorCode.MODEL_NOT_BUILT, path=str(path), error=str(error)
        ) from None
    largest = max(sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules())
    size = Model(sum(p.numel() for p in model.parameters()), largest)
    return Sized(size, f"{path}, as {type(model).__name__} on torch's meta device")
