"""`dslaunch config init` and `dslaunch config examples`: configs to start from."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from dslaunch.cli import ui
from dslaunch.cli.json_option import JsonList
from dslaunch.cli.output_files import STDOUT, output_option
from dslaunch.deepspeed import initial_config


def init(
    stage: Annotated[int, typer.Option(metavar="N", help="ZeRO stage, 0 to 3.")] = 2,
    offload: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="Offload: none, cpu (optimizer), cpu-params (optimizer and parameters) or nvme.",
        ),
    ] = "none",
    precision: Annotated[
        str, typer.Option(metavar="TYPE", help="Precision: bf16, fp16 or fp32.")
    ] = "bf16",
    target: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="READER",
            help="What reads the config: hf (Hugging Face Trainer) or native (plain DeepSpeed).",
        ),
    ] = "hf",
    nvme_path: Annotated[
        str, typer.Option(metavar="DIR", help="Directory on the NVMe of each node.")
    ] = "/local_nvme",
    output: Annotated[
        Path,
        output_option(
            "--output", "-o", text="Write to a file; - is standard output.", or_stdout=True
        ),
    ] = Path("-"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Create a small DeepSpeed config with comments.

    Example: dslaunch config init --stage 2 --offload cpu --precision bf16 --for hf
    """
    text = initial_config.text(initial_config.purpose(stage, offload, precision, target, nvme_path))
    if str(output) == STDOUT:
        ui.document(text)
    else:
        ui.write_new(output, text, "--output", force=force)


def examples(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the example to print.", show_default=False),
    ] = None,
    grep: Annotated[
        str,
        typer.Option(
            "--grep", metavar="TEXT", help="List only examples with this text in name or content."
        ),
    ] = "",
    json: JsonList = False,
) -> None:
    """List complete DeepSpeed configs, or print one.

    Example: dslaunch config examples --grep Lamb
    """
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
        ui.data(data)
    elif name:
        ui.document(found[0].text)
    elif found:
        ui.result(
            ui.table([("NAME", "WHAT"), *((e.name, e.description) for e in found)], ui.width())
        )
    else:
        ui.say(f"no example contains `{grep}`")
