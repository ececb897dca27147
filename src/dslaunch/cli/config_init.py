"""`dslaunch config init` and `dslaunch config examples`: a config to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dslaunch.cli import ui


def init(
    stage: Annotated[int, typer.Option(help="ZeRO stage, 0 to 3.")] = 2,
    offload: Annotated[
        str,
        typer.Option(help="What leaves the GPU: none, cpu (optimizer), cpu-params (both) or nvme."),
    ] = "none",
    precision: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    target: Annotated[
        str, typer.Option("--for", help="hf: Hugging Face's Trainer; native: plain DeepSpeed.")
    ] = "hf",
    nvme_path: Annotated[
        str, typer.Option(help="A directory on each node's NVMe.")
    ] = "/local_nvme",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write; - is standard output.")
    ] = Path("-"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a small DeepSpeed config with a comment for every choice.

    Example: dslaunch config init --stage 2 --offload cpu --precision bf16 --for hf
    """
    from dslaunch.cli.init import write
    from dslaunch.deepspeed import initial_config

    text = initial_config.text(initial_config.purpose(stage, offload, precision, target, nvme_path))
    if str(output) == "-":
        ui.document(text)
    else:
        write(output, text, force=force)
        ui.say(f"wrote {output}")


def examples(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Print this one.", show_default=False)
    ] = None,
    grep: Annotated[
        str, typer.Option("--grep", help="Only those with this in name, description or text.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List complete DeepSpeed configs, or print one.

    Example: dslaunch config examples --grep Lamb
    """
    import json as jsonlib

    from dslaunch.deepspeed import initial_config

    found = (initial_config.example(name),) if name else initial_config.library(grep)
    if json:
        data = [
            {
                "name": each.name,
                "for": each.target,
                "description": each.description,
                "config": jsonlib.loads(each.text),
            }
            for each in found
        ]
        ui.result(jsonlib.dumps(data, indent=2))
    elif name:
        ui.document(found[0].text)
    elif found:
        ui.result(
            ui.table([("NAME", "WHAT"), *((e.name, e.description) for e in found)], ui.width())
        )
    else:
        ui.say(f"no example has `{grep}` in it")
