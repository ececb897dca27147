"""How many parameters a model has, without its weights in memory.

From a Hugging Face config.json, by rules per family of architectures or by transformers itself on
torch's meta device; from a safetensors file, whose head says it; or from an index of several.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from dslaunch.deepspeed.architectures import Shape, total
from dslaunch.deepspeed.families import FAMILIES
from dslaunch.deepspeed.memory import Model
from dslaunch.errors import ConfigError, DslaunchError, Problem, ToolMissingError

INDEX_SUFFIX, WEIGHTS_SUFFIX = ".safetensors.index.json", ".safetensors"
MOST_HEADER = 100_000_000
"""Bytes; safetensors' own limit on the head of a file (safetensors 0.8, tensor.rs)."""
WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}


@dataclass(frozen=True, slots=True)
class Sized:
    """A model's size, how it was found, and its shape if that is known."""

    model: Model
    source: str
    shape: Shape | None = None
    family: str = ""
    """Its `model_type`, where the shape is known."""
    partial: bool = False
    """Only the text part of a model with other parts is counted."""


def from_config(text: str, name: str) -> Sized:
    """Count the parameters that a Hugging Face config.json describes.

    Raises ConfigError for broken JSON, an unknown family, and values that are missing.
    """
    config = _object(text, name)
    family = config.get("model_type")
    if family not in list(FAMILIES) and "text_config" in config:
        alone = from_config(json.dumps(config["text_config"]), name)
        return replace(alone, partial=True)  # what else it has, such as a vision tower, is unknown
    if family is None:
        hint = "name a model's config.json; or give --params and --largest-layer"
        raise ConfigError((Problem(name, 0, 0, "model_type", "is missing"),), hint=hint)
    if not isinstance(family, str) or family not in FAMILIES:
        hint = "--meta counts it with transformers; or give --params and --largest-layer"
        message = f"no rule counts the parameters of {json.dumps(family)}"
        raise ConfigError((Problem(name, 0, 0, "model_type", message),), hint=hint)
    try:
        parts, shape = FAMILIES[family](config)
        return Sized(total(parts), f"{name}, counted by the rules for {family}", shape, family)
    except KeyError as error:
        problem = Problem(name, 0, 0, str(error.args[0]), "is missing")
    except (TypeError, ValueError, ZeroDivisionError) as error:
        problem = Problem(name, 0, 0, "", f"has sizes that cannot be right: {error}")
    raise ConfigError((problem,), hint="a config.json as `save_pretrained` writes it has all sizes")


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError((Problem(name, error.lineno, error.colno, "", error.msg),)) from None
    except RecursionError:
        raise ConfigError((Problem(name, 0, 0, "", "nested too deeply"),)) from None
    except ValueError:  # int() reads no more than 4,300 digits
        raise ConfigError((Problem(name, 0, 0, "", "has a number that is too long"),)) from None
    if not isinstance(data, dict):
        raise ConfigError((Problem(name, 0, 0, "", "must be an object"),))
    return data


def from_path(path: Path) -> Sized:
    """Size a model by what is at `path`: a config, weights, an index, or a directory with them.

    Raises ConfigError for what is broken, DslaunchError for what cannot be read.
    """
    if path.is_dir():
        return from_path(_in_directory(path))
    if path.name.endswith(INDEX_SUFFIX):
        return _from_index(path)
    if path.name.endswith(WEIGHTS_SUFFIX):
        sized = Sized(_model([_header(path)]), f"{path}, its head")
        return replace(sized, shape=_shape_beside(path))
    return from_config(_text(path), str(path))


def _in_directory(path: Path) -> Path:
    for pattern in ("config.json", f"*{INDEX_SUFFIX}", f"*{WEIGHTS_SUFFIX}"):
        for found in sorted(path.glob(pattern)):
            return found
    hint = "name the model's directory, its config.json, or a safetensors file or index"
    problem = Problem(str(path), 0, 0, "", "has no config.json and no safetensors")
    raise ConfigError((problem,), hint=hint)


def _text(path: Path) -> str:
    """A file's text; of a device there might be no end. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_HEADER + 1)
    except OSError as error:
        raise ConfigError((Problem(str(path), 0, 0, "", str(error.strerror)),)) from None
    except UnicodeDecodeError:
        raise ConfigError((Problem(str(path), 0, 0, "", "is no UTF-8 text"),)) from None
    if len(text) > MOST_HEADER:
        raise ConfigError((Problem(str(path), 0, 0, "", "is far longer than any such file"),))
    return text


def _from_index(path: Path) -> Sized:
    """From the heads of the files that the index names; without them, from its total."""
    index = _object(_text(path), str(path))
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ConfigError((Problem(str(path), 0, 0, "weight_map", "names no weights"),))
    files = [path.parent / name for name in sorted({str(name) for name in names.values()})]
    shape = _shape_beside(path)
    if all(file.is_file() for file in files):
        model = _model([_header(file) for file in files])
        return Sized(model, f"the heads of {len(files)} files that {path} names", shape)
    return replace(_from_total(path, index), shape=shape)


def _from_total(path: Path, index: dict[str, Any]) -> Sized:
    """From the index alone: it has the bytes of all weights, not the size of each."""
    config = path.parent / "config.json"
    metadata = index.get("metadata") or {}
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(size, int) or not config.is_file():
        problem = Problem(
            str(path), 0, 0, "metadata", "does not tell the parameters without the files it names"
        )
        raise ConfigError((problem,), hint="put the model's config.json or its weights beside it")
    data = _object(_text(config), str(config))
    width = WIDTHS.get(str(data.get("dtype") or data.get("torch_dtype")), 4)
    counted = from_config(_text(config), str(config))
    model = Model(size // width, counted.model.largest_layer)
    return Sized(model, f"{path}: {size} bytes of {width} each, largest layer by {config}")


def _shape_beside(path: Path) -> Shape | None:
    try:
        return from_config(_text(path.parent / "config.json"), "config.json").shape
    except DslaunchError:
        return None


Header = dict[str, Any]


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)


def _header(path: Path) -> Header:
    """The head of a safetensors file: 8 bytes of length, then JSON."""
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
        raise ConfigError((Problem(str(path), 0, 0, "", str(error.strerror)),)) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        problem = Problem(str(path), 0, 0, "", "is no safetensors file")
        raise ConfigError((problem,), hint="is it a pointer of Git LFS?") from None


def _model(headers: list[Header]) -> Model:
    """All tensors' elements, and the most under one module's name."""
    modules: Counter[str] = Counter()
    for header in headers:
        for name, shape in header.items():
            modules[name.rpartition(".")[0]] += prod(shape)
    return Model(modules.total(), max(modules.values()))


def on_meta(path: Path) -> Sized:
    """Count with transformers and torch, on torch's meta device, which holds no data.

    The model is the one with the head that its config names first, else a causal language
    model. Code that comes with a model is not run.

    Raises ToolMissingError where they are not installed, DslaunchError where they fail.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ToolMissingError(
            f"--meta needs torch and transformers: {error}", hint="without --meta, rules count"
        ) from None
    try:
        # False, not left out: transformers asks on a terminal whether to run a model's own code
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
        raise DslaunchError(f"{path}: transformers cannot make it: {error}") from None
    largest = max(sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules())
    size = Model(sum(p.numel() for p in model.parameters()), largest)
    return Sized(size, f"{path}, as {type(model).__name__} on torch's meta device")
