"""`dslaunch estimate`: what a training needs of memory and network, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.cli import estimate_options as given
from dslaunch.cli import ui
from dslaunch.cli.site import FactsFile, Site, site
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.deepspeed.activations import MicroBatch
    from dslaunch.deepspeed.communication import Bandwidth
    from dslaunch.deepspeed.estimate import EstimateInput, Limits, Recommendation, Row
    from dslaunch.deepspeed.memory import Machines, MemorySettings
    from dslaunch.deepspeed.model_size import Sized

PRECISIONS = {"bf16": 2, "fp16": 2, "fp32": 4}
ATTENTION = ("sdpa", "eager")
MOST_FACTOR = 1000


def estimate(
    model: given.Model = None,
    params: given.Params = None,
    largest_layer: given.LargestLayer = None,
    meta: given.Meta = False,
    cluster: given.ClusterFile = None,
    facts: FactsFile = None,
    nodes: given.Nodes = None,
    gpus_per_node: given.GpusPerNode = None,
    at_nodes: given.ByNodes = None,
    gpu_memory: given.GpuMemory = None,
    cpu_memory: given.CpuMemory = None,
    nvme: given.Nvme = None,
    headroom: given.Headroom = 10,
    precision: given.Precision = "bf16",
    micro_batch: given.MicroBatch = 1,
    sequence: given.Sequence = 2048,
    attention: given.Attention = "sdpa",
    accumulation: given.Accumulation = 1,
    bucket: given.Bucket = "5e8",
    factor: given.Factor = 1.5,
    bandwidth: given.Network = None,
    gpu_bandwidth: given.Inside = None,
    json: given.Json = False,
    svg: given.Svg = None,
    html: given.Html = None,
    write: given.Write = None,
    target: given.Target = "hf",
    force: given.Force = False,
) -> None:
    """Estimate memory and traffic of every ZeRO stage and offload; recommend the fastest that fits.

    Example: dslaunch estimate --params 7e9 --largest-layer 131e6 --nodes 2 --gpus-per-node 8
    """
    from dslaunch.deepspeed.estimate import EstimateInput

    there = _there(cluster, facts, nodes, gpus_per_node)
    question = EstimateInput(
        _sized(model, params, largest_layer, meta=meta),
        _machines(there, nodes, gpus_per_node),
        _settings(precision, bucket, factor),
        _limits(there, gpu_memory, cpu_memory, nvme, headroom),
        _batch(micro_batch, sequence, attention),
        accumulation,
        _bandwidth(there, bandwidth, gpu_bandwidth),
    )
    _tell(question, at_nodes, Wanted(json, svg, html, write, precision, target, force))


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


def _there(cluster: Path | None, facts: Path | None, nodes: int | None, gpus: int | None) -> Site:
    """What is known of the nodes; without a file, nothing."""
    from dslaunch.cluster.select import Selection

    if cluster is None and facts is None:
        return Site()
    return site(cluster, Selection("", "", nodes, gpus, ()), facts)


def _machines(there: Site, nodes: int | None, gpus: int | None) -> Machines:
    from dslaunch.deepspeed.memory import Machines

    if not there.nodes:
        return Machines(nodes or 1, gpus or 1)
    counts = sorted({node.slots for node in there.nodes})
    if len(counts) > 1:
        ui.say(f"nodes differ: the estimate takes all to have {counts[0]} GPUs, as the least has")
    return Machines(len(there.nodes), counts[0])


def _limits(
    there: Site, gpu: str | None, cpu: str | None, nvme: str | None, headroom: int
) -> Limits:
    """What there is: as said, and else as the node with least has it."""
    from dslaunch.deepspeed.estimate import Limits
    from dslaunch.deepspeed.quantities import parse_bytes

    def size(text: str | None, option: str, known: list[int | None]) -> int | None:
        told = [each for each in known if each is not None]
        return parse_bytes(text, option) if text else min(told, default=None)

    return Limits(
        size(gpu, "--gpu-memory", [node.gpu_memory for node in there.nodes]),
        size(cpu, "--cpu-memory", [node.memory for node in there.nodes]),
        size(nvme, "--nvme", [there.nvme]),
        headroom / 100,
    )


def _batch(micro_batch: int, sequence: int, attention: str) -> MicroBatch:
    from dslaunch.deepspeed.activations import MicroBatch

    if attention not in ATTENTION:
        raise UsageError(f"--attention: `{attention}` is none of {' and '.join(ATTENTION)}")
    return MicroBatch(micro_batch, sequence, "eager" if attention == "eager" else "sdpa")


def _bandwidth(there: Site, network: str | None, inside: str | None) -> Bandwidth:
    from dslaunch.deepspeed.communication import Bandwidth
    from dslaunch.deepspeed.quantities import parse_rate

    between = parse_rate(network, "--bandwidth") if network else there.network
    return Bandwidth(between, parse_rate(inside, "--gpu-bandwidth") if inside else None)


def _settings(precision: str, bucket: str, factor: float) -> MemorySettings:
    from dslaunch.deepspeed.memory import MemorySettings
    from dslaunch.deepspeed.quantities import parse_count

    if precision not in PRECISIONS:
        raise UsageError(f"--precision: `{precision}` is none of {', '.join(PRECISIONS)}")
    if factor > MOST_FACTOR:
        raise UsageError(f"--buffer-factor: {factor:g} is more than {MOST_FACTOR}")
    return MemorySettings(
        width=4 if precision == "fp32" else 2,
        reduce_bucket=parse_count(bucket, "--reduce-bucket-size"),
        factor=factor,
    )


def _tell(question: EstimateInput, at_nodes: str | None, wanted: Wanted) -> None:
    import json as jsonlib

    from dslaunch.deepspeed.estimate import by_nodes, recommend
    from dslaunch.deepspeed.estimate import estimate as answer
    from dslaunch.deepspeed.quantities import parse_nodes
    from dslaunch.report import estimate as report

    counts = parse_nodes(at_nodes, "--by-nodes") if at_nodes else ()
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
    question: EstimateInput, rows: tuple[Row, ...], advice: Recommendation, wanted: Wanted
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
    from dslaunch.deepspeed.initial_config import ConfigPurpose, purpose, text

    if advice.row is None:
        raise UsageError(f"--write: there is no recommendation: {advice.text}")
    asked = purpose(advice.row.strategy.stage, "none", precision, target)
    return text(
        ConfigPurpose(advice.row.strategy, asked.precision, asked.target, advice.checkpointing)
    )


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
