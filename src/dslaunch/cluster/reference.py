"""The reference page of the cluster file, made from its schema.

`python -m dslaunch.cluster.reference docs/reference/cluster-file.md` writes it anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dslaunch.cluster.schema import json_schema

_HEAD = """\
# The cluster file

<!-- Made by `python -m dslaunch.cluster.reference`; change the descriptions in schema.py. -->

Every problem of a file is reported at once, with its line and column.
`dslaunch schema` prints the same as a JSON Schema for editors.

- Only `null`, `true`, `false` and numbers as JSON writes them are more than text: `no`, `022`,
  `1_000`, `0x1F`, `12:30:00` and dates are text. Below `env`, `labels`, `args` and `slurm`
  everything is the text that is written.
- Keys that occur twice, merge keys (`<<`), tags and several documents are errors.
  Anchors and aliases are fine.
- Many names are written in short: `node[01-04,07]`, `a1,b[2-3]`. They keep the written order.

```yaml
name: pod-a
nodes:
  - host: node[01-04]
    slots: 8
    address: 10.0.0.[11-14]
    labels: {rack: r1}
  - {host: old01, slots: [0, 1], user: ml, port: 2222}
  - {host: spare01, slots: 8, spare: true}
storage: {workdir: /mnt/proj, checkpoints: /mnt/ckpt}
activate: source /opt/venv/bin/activate
env: {NCCL_DEBUG: WARN}
secrets: [WANDB_API_KEY, {HF_TOKEN: {file: ~/.hf_token}}]
job: {script: train.py, args: [--deepspeed, ds_config.json]}
```
"""


def reference_markdown() -> str:
    """Give the page as Markdown: a table for the file and one for each of its sections."""
    schema = json_schema()
    definitions = schema["$defs"]
    for field in schema["properties"].values():
        field.setdefault("description", definitions.get(_section(field), {}).get("description", ""))
    parts = [_HEAD, *_table("Top level", schema)]
    for key, field in schema["properties"].items():
        name = _section(field)
        if name:
            title = f"`{key}[]`" if field.get("type") == "array" else f"`{key}`"
            if key == "secrets":
                title = "`secrets[].NAME`"
            parts += _table(title, definitions[name])
            for inner_key, inner in definitions[name]["properties"].items():
                inner_name = _section(inner)
                if inner_name:
                    parts += _table(f"`{key}.{inner_key}`", definitions[inner_name])
    return "\n".join(parts) + "\n"


def _table(title: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{schema['description']}\n"
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for key, field in schema["properties"].items():
        required = key in schema.get("required", ())
        default = "required" if required else _default(field)
        cells = (f"`{key}`", _kind(field), default, field.get("description", ""))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _section(field: dict[str, Any]) -> str | None:
    """Give the name of the section that a field holds, itself or in a list or mapping."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    inner = [*field.get("anyOf", ()), *field.get("oneOf", ())]
    inner += [field["items"]] if "items" in field else []
    inner += field.get("patternProperties", {}).values()
    return next(filter(None, map(_section, inner)), None)


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    return "" if default is None or isinstance(default, dict) else f"`{_literal(default)}`"


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(field: dict[str, Any]) -> str:
    """Say in words what values a field takes."""
    choices = [*field.get("anyOf", ()), *field.get("oneOf", ())]
    if choices:
        return " or ".join(_kind(c) for c in choices if c.get("type") != "null")
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kind = field.get("type")
    if kind == "array":
        items = _kind(field["items"])
        return "list" if items == "mapping" else f"list: {items}"
    if kind in ("integer", "number"):
        return f"{kind}{_bounds(field)}"
    words = {"string": "text", "boolean": "`true` or `false`", "object": "mapping"}
    return words.get(str(kind), "text" if isinstance(kind, list) else "mapping")


def _bounds(field: dict[str, Any]) -> str:
    low = field.get("minimum", field.get("exclusiveMinimum"))
    above = "above " if "exclusiveMinimum" in field else ""
    return f", {above}{low:g} to {field['maximum']:g}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference_markdown(), "utf-8")
