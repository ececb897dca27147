"""`dslaunch estimate`: what a training needs of memory and network, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import ui
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.deepspeed.estimate import Question, Recommendation, Row
    from dslaunch.deepspeed.memory import Machines, Settings
    from dslaunch.deepspeed.model_size import Sized

PRECISIONS = {"bf16": 2, "fp16": 2, "fp32": 4}
ATTENTION = ("sdpa", "eager")
MOST_FACTOR = 1000


def estimate(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="A Hugging Face config.json, a safetensors file or index, or a directory.",
        ),
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", help="Parameters, such as 7e9 or 7B.")
    ] = None,
    largest_layer: Annotated[
        str | None, typer.Option("--largest-layer", help="Parameters of the largest module: 65e6.")
    ] = None,
    meta: Annotated[
        bool, typer.Option("--meta", help="Count with torch and transformers, without weights.")
    ] = False,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", help="Take nodes and GPUs from this file.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="How many nodes.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="GPUs of each.")] = None,
    at_nodes: Annotated[
        str | None, typer.Option("--by-nodes", help="Tables for these numbers of nodes too: 1,2,4.")
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Of each GPU: 80GB is 80 * 10^9 bytes, 80GiB 80 * 2^30.")
    ] = None,
    cpu_memory: Annotated[
        str | None,
        typer.Option(help="Of each node: 1TB; default: the cluster file's labels `memory`."),
    ] = None,
    nvme: Annotated[str | None, typer.Option(help="Free on each node's own NVMe: 4TB.")] = None,
    headroom: Annotated[
        int, typer.Option(min=0, max=90, help="Percent of the memory to leave free.")
    ] = 10,
    precision: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    micro_batch: Annotated[int, typer.Option(min=1, help="Samples on a GPU at a time.")] = 1,
    sequence: Annotated[int, typer.Option(min=1, help="Tokens of a sample.")] = 2048,
    attention: Annotated[str, typer.Option(help="sdpa or eager.")] = "sdpa",
    accumulation: Annotated[int, typer.Option(min=1, help="Micro-batches of a step.")] = 1,
    bucket: Annotated[
        str, typer.Option("--reduce-bucket-size", help="As in the config, in elements.")
    ] = "5e8",
    factor: Annotated[
        float, typer.Option("--buffer-factor", min=1, help="DeepSpeed's factor for CPU memory.")
    ] = 1.5,
    bandwidth: Annotated[
        str | None, typer.Option(help="Of a node's network: 100Gbit, or 12.5GB/s.")
    ] = None,
    gpu_bandwidth: Annotated[
        str | None, typer.Option(help="Of a GPU to the others of its node: 450GB/s.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON; sizes in bytes.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Write a chart to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write chart and tables as a page.")] = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write the recommended DeepSpeed config.")
    ] = None,
    target: Annotated[
        str, typer.Option("--for", help="Whom --write writes for: hf or native.")
    ] = "hf",
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Estimate memory and traffic of every ZeRO stage and offload; recommend the fastest that fits.

    Example: dslaunch estimate --params 7e9 --largest-layer 131e6 --nodes 2 --gpus-per-node 8
    """
    from dslaunch.deepspeed.activations import Batch
    from dslaunch.deepspeed.communication import Bandwidth
    from dslaunch.deepspeed.estimate import Limits, Question
    from dslaunch.deepspeed.quantities import parse_bytes, parse_nodes, parse_rate

    def size(text: str | None, option: str) -> int | None:
        return None if text is None else parse_bytes(text, option)

    def rate(text: str | None, option: str) -> float | None:
        return None if text is None else parse_rate(text, option)

    if attention not in ATTENTION:
        raise UsageError(f"--attention: `{attention}` is none of {' and '.join(ATTENTION)}")
    counts = parse_nodes(at_nodes, "--by-nodes") if at_nodes else ()
    machines, labelled = _machines(cluster, nodes, gpus_per_node)
    question = Question(
        sized=_sized(model, params, largest_layer, meta=meta),
        machines=machines,
        settings=_settings(precision, bucket, factor),
        limits=Limits(
            size(gpu_memory, "--gpu-memory"),
            size(cpu_memory, "--cpu-memory") or labelled,
            size(nvme, "--nvme"),
            headroom / 100,
        ),
        batch=Batch(micro_batch, sequence, "eager" if attention == "eager" else "sdpa"),
        accumulation=accumulation,
        bandwidth=Bandwidth(rate(bandwidth, "--bandwidth"), rate(gpu_bandwidth, "--gpu-bandwidth")),
    )
    wanted = Wanted(json, svg, html, write, precision, target, force)
    _tell(question, counts, wanted)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the answer is given, and to whom."""

    json: bool
    svg: Path | None
    html: Path | None
    write: Path | None
    precision: str
    target: str
    force: bool


def _sized(path: Path | None, params: str | None, largest: str | None, *, meta: bool) -> Sized:
    from dslaunch.deepspeed.memory import Model
    from dslaunch.deepspeed.model_size import Sized, from_path, on_meta
    from dslaunch.deepspeed.quantities import parse_count

    if path is not None:
        if params or largest:
            raise UsageError("give a model's file, or --params and --largest-layer, not both")
        return on_meta(path) if meta else from_path(path)
    if not params or not largest:
        hint = "or name the model's config.json, safetensors file or index, or its directory"
        raise UsageError("--params and --largest-layer are needed", hint=hint)
    model = Model(parse_count(params, "--params"), parse_count(largest, "--largest-layer"))
    if model.largest_layer > model.params:
        raise UsageError("--largest-layer: one layer cannot have more than all --params")
    return Sized(model, "--params and --largest-layer")


def _machines(
    file: Path | None, nodes: int | None, gpus: int | None
) -> tuple[Machines, int | None]:
    """What it is trained on, and the CPU memory of the node with least, if labels say it."""
    from dslaunch.deepspeed.memory import Machines

    if file is None:
        return Machines(nodes or 1, gpus or 1), None
    from dslaunch.cluster.load import load_cluster
    from dslaunch.cluster.select import Selection, select
    from dslaunch.deepspeed.hardware import hardware_of

    hardware = hardware_of(select(load_cluster(file), Selection("", "", nodes, gpus, ())))
    counts = sorted({node.slots for node in hardware})
    if len(counts) > 1:
        ui.say(f"nodes differ: the estimate takes all to have {counts[0]} GPUs, as the least has")
    memory = [node.memory for node in hardware if node.memory is not None]
    return Machines(len(hardware), counts[0]), min(memory, default=None)


def _settings(precision: str, bucket: str, factor: float) -> Settings:
    from dslaunch.deepspeed.memory import Settings
    from dslaunch.deepspeed.quantities import parse_count

    if precision not in PRECISIONS:
        raise UsageError(f"--precision: `{precision}` is none of {', '.join(PRECISIONS)}")
    if factor > MOST_FACTOR:
        raise UsageError(f"--buffer-factor: {factor:g} is more than {MOST_FACTOR}")
    return Settings(
        width=4 if precision == "fp32" else 2,
        reduce_bucket=parse_count(bucket, "--reduce-bucket-size"),
        factor=factor,
    )


def _tell(question: Question, counts: tuple[int, ...], wanted: Wanted) -> None:
    import json as jsonlib

    from dslaunch.deepspeed.estimate import by_nodes, recommend
    from dslaunch.deepspeed.estimate import estimate as answer
    from dslaunch.report import estimate as report

    rows, grid = answer(question), by_nodes(question, counts)
    advice = recommend(question, rows)
    _write_files(question, rows, advice, wanted)
    if wanted.json:
        ui.result(jsonlib.dumps(report.as_data(question, rows, advice, grid), indent=2))
        return
    if grid:
        ui.result(report.grid_text(grid))
    ui.result(report.text(question, rows, advice, ui.width()))


def _write_files(
    question: Question, rows: tuple[Row, ...], advice: Recommendation, wanted: Wanted
) -> None:
    from dslaunch.report import estimate_svg

    if wanted.svg:
        text = estimate_svg.chart(question, rows, advice)
        _save(wanted.svg, text, "--svg", force=wanted.force)
    if wanted.html:
        text = estimate_svg.page(question, rows, advice)
        _save(wanted.html, text, "--html", force=wanted.force)
    if wanted.write:
        text = _config(advice, wanted.precision, wanted.target)
        _save(wanted.write, text, "--write", force=wanted.force)


def _config(advice: Recommendation, precision: str, target: str) -> str:
    from dslaunch.deepspeed.starter import Wish, text, wish

    if advice.row is None:
        raise UsageError(f"--write: there is no recommendation: {advice.text}")
    asked = wish(advice.row.strategy.stage, "none", precision, target)
    return text(Wish(advice.row.strategy, asked.precision, asked.target, advice.checkpointing))


def _save(path: Path, text: str, option: str, *, force: bool) -> None:
    """Write a file that must not be there yet, unless `force`. Raises UsageError."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{option} {path}: is there already", hint="--force replaces it") from None
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}") from None
    ui.say(f"wrote {path}")
